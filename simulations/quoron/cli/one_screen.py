"""What `quoron train` says on one screen, at most 24 lines of 80: before it trains, and afterwards.

Rounded, and without what only a reader of proofs asks for: that stands behind `--details`, in plan.json and in the
report. The whole promise, with its theorem, is there too; what is said here of it is true and shorter.
"""

from collections.abc import Iterable

from rich.box import Box
from rich.markup import escape
from rich.table import Table

from quoron.network import duration
from quoron.planning.choosing import risk_sentence
from quoron.planning.plans import Planned
from quoron.reports.summary import size
from quoron_server.algorithms.forecast import trivial_risk
from quoron_server.plan import Guarantee, Plan

COEFFICIENTS = 4  # that are shown
WARNINGS = 3
DRY = "Dry run: nothing is charged, and of the table only its users are counted."
NEXT = "Next: the same without --dry-run. --details shows every number, the theorem, and what other methods would do."


def promise(epsilon: float, delta: float, adjacency: str) -> str:
    """The promise of a run on the machine that holds the table, in a sentence."""
    return (
        f"Promise: ({epsilon:g}, {delta:g})-differential privacy for all rows of any one user at once, {adjacency}: "
        "it protects them against whoever sees the model and all else that is shown or kept."
    )


def rows(planned: Planned) -> list[tuple[str, str]]:
    """What is bought, forecast and asked for."""
    plan = planned.plan
    problem, cost, promised = plan.problem, plan.cost, plan.guarantee
    found = [
        ("users", f"{problem.users:,}, planned with {problem.items_per_user:,} rows each"),
        (f"ε = {promised.epsilon:g} pays for", ", ".join(paid_for(promised))),
    ]
    if promised.health is not None:
        few = promised.health.visible > 1
        share = f"{100 * promised.health.visible:.2g} % of the users or more without a row that can be used"
        found.append(("the look can see", "nothing: the users are too few" if few else share))
    because = "" if planned.choice is None else f": {planned.choice.partition(': ')[2].partition(';')[0]}"
    found.append(("method", f"{plan.algorithm}, {cost.rounds:,} rounds{because}"))
    if risk := risk_sentence(plan.predicted_excess_risk, plan.guessed_excess_risk):
        found.append(("predicted excess risk", f"{risk}; without training {trivial_risk(problem):.2g}"))
    held = problem.users * problem.items_per_user
    found.append(("memory of the rows", f"{size(held * (4 * problem.dimension // problem.outputs + 8))} as planned"))
    found.append(("computing", f"{cost.gradient_evaluations:,} gradients: {about(seconds(plan))}"))
    return found


def seconds(plan: Plan) -> float:
    """About what the rounds compute on two processors, as measured in docs/speed.md: by users and by numbers."""
    rows, answer = plan.problem.users * plan.problem.items_per_user, plan.parameters.answer_length(plan.problem)
    return 250e-9 * plan.cost.messages + 0.5e-9 * (
        plan.cost.gradient_evaluations * plan.problem.dimension + rows * answer
    )


def about(time: float) -> str:
    """A duration without digits that nobody measured."""
    return "under a second" if time < 1 else f"about {duration(float(f'{time:.1g}'))}"


def paid_for(promised: Guarantee) -> list[str]:
    """What the promise is spent on, each with its share of μ²."""
    looked = 0.0 if promised.health is None else promised.health.share
    parts = [("training", 1 - looked), ("a look at the table", looked)]
    return [f"{what} {100 * share:.3g} %" for what, share in parts if share > 0]


def pairs(told: Iterable[tuple[str, str]], *, around: Box | None = None) -> Table:
    """Labels and texts, side by side."""
    made = Table(box=around, show_header=False, pad_edge=around is not None)
    for label, text in told:
        made.add_row(escape(label), escape(text))
    return made
