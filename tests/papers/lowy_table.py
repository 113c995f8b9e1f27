"""The tables of docs/papers/lowy.md: what the printed constants give, beside the calibrated ones.

`python tests/papers/lowy_table.py` writes them.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Constants, Privacy, RunPlan
from quoron_server.problem import Beliefs, Problem

Size = tuple[int, int, int, float]  # n, m, d, ε
PAGE = Path(__file__).parents[2] / "docs" / "papers" / "lowy.md"
DELTA = 1e-9
SMOOTH: Sequence[Size] = ((10**5, 1000, 10, 8.0), (10**6, 100, 10, 1.0), (10**6, 100, 1000, 1.0), (10**7, 10, 10, 1.0))
ROUGH: Sequence[Size] = ((10**4, 10, 10, 4.0), (10**5, 10, 10, 1.0), (10**5, 100, 10, 1.0), (10**6, 100, 10, 1.0))
Cells = Callable[[RunPlan], tuple[str, ...]]


def problem(size: Size, smoothness: float | None) -> Problem:
    """L = 1, β = 1/4, a ball of radius 1, so R = 2; for the calibrated plans a curvature of 0.1 that is known."""
    n, m, d, _ = size
    beliefs = Beliefs(curvature="isotropic", typical_curvature=0.1)
    return Problem(n, m, d, L2Ball(1.0), lipschitz=1.0, smoothness=smoothness, beliefs=beliefs)


def figure(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def found(plan: RunPlan) -> str:
    """ε of our accountant."""
    return "none" if math.isinf(plan.guarantee.epsilon) else figure(plan.guarantee.epsilon)


def iterates(plan: RunPlan) -> tuple[str, ...]:
    """Of Algorithm 1."""
    p = plan.parameters
    first, last = p.phases[0], p.phases[-1]
    return (
        str(len(p.phases)),
        f"{p.cohort_size:,}",
        f"{first.users} … {last.users}" if len(p.phases) > 1 else str(first.users),
        figure(first.step_size),
        figure(first.radius),
        figure(first.release_scale),
        figure(last.release_scale),
        f"{plan.cost.rounds:,}",
        f"{plan.cost.gradient_evaluations:.2g}",
        found(plan),
    )


def erm(plan: RunPlan) -> tuple[str, ...]:
    """Of Algorithm 3."""
    p, items = plan.parameters, plan.problem.items_per_user
    draws = [getattr(phase, "draws", None) or phase.cohort_size for phase in p.phases]
    first, last = p.phases[0], p.phases[-1]
    return (
        str(len(p.phases)),
        f"{first.users:,}",
        f"{draws[0]:,}",
        f"{first.rounds:,} … {last.rounds:,}" if len(p.phases) > 1 else f"{first.rounds:,}",
        figure(getattr(p, "radius", None) or first.radius),
        figure(first.noise.scale),
        figure(last.noise.scale),
        f"{plan.cost.rounds:,}",
        f"{sum(phase.rounds * k for phase, k in zip(p.phases, draws, strict=True)) * items:.2g}",
        found(plan),
    )


def rough(plan: RunPlan) -> tuple[str, ...]:
    """Of Algorithm 3 on smoothed losses."""
    return figure(plan.parameters.smoothing), *erm(plan)


ITERATES = "phases", "C", "N_i", "η_1", "τ_1", "σ_1", "σ_l", "rounds", "gradients", "ε found"
ERM = "phases", "n_1", "K_1", "T_i", "τ", "σ_1", "σ_l", "rounds", "gradients", "ε found"
TABLES: dict[str, tuple[str, Sequence[Size], float | None, Sequence[str], Cells]] = {
    "Algorithm 1": ("outlier-iterates", SMOOTH, 0.25, ITERATES, iterates),
    "Algorithms 2 and 3": ("accelerated-erm", SMOOTH, 0.25, ERM, erm),
    "Theorem D.3": ("accelerated-erm", ROUGH, None, ("r", *ERM), rough),
}


def table(which: str) -> str:
    """One of them, in Markdown."""
    return "\n".join(_lines(*TABLES[which]))


def _lines(name: str, sizes: Sequence[Size], smoothness: float | None, head: Sequence[str], of: Cells) -> Iterator[str]:
    yield f"| n, m, d, ε | constants | {' | '.join(head)} |"
    yield "|---" * (2 + len(head)) + "|"
    kinds: tuple[Constants, ...] = "paper", "calibrated"
    for size in sizes:
        n, m, d, epsilon = size
        for constants in kinds:
            try:
                asked = problem(size, smoothness), Privacy(epsilon, DELTA)
                cells = of(ALGORITHMS[name].plan(*asked, constants=constants))
            except Infeasible as error:
                cells = (error.condition, *[""] * (len(head) - 1))
            where = f"{n:.0e}, {m}, {d}, {epsilon:g}".replace("e+0", "e") if constants == "paper" else ""
            said = "printed" if constants == "paper" else "calibrated"
            yield f"| {where} | {said} | {' | '.join(cells)} |"


def written(page: str) -> str:
    """The page with every table as it should be, each under its heading."""
    for which in TABLES:
        there = re.search(rf"\n### {which}[^\n]*\n\n((?:\|[^\n]*\n)+)", page)
        assert there is not None, which
        page = f"{page[: there.start(1)]}{table(which)}\n{page[there.end(1) :]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
