"""Check the claims of the four papers as experiments, and write docs/papers/claims.md and docs/images/papers-*.svg.

    python benchmarks/paper_claims.py                      # everything, two processor-hours
    python benchmarks/paper_claims.py --paper ghazi        # or lowy, bassily-sun, choquette-choo; several at once
    python benchmarks/paper_claims.py --quick --out DIR    # a miniature, under a minute
    python benchmarks/paper_claims.py --render             # the page of the runs that there are

claims.jsonl has one line a run: an interrupted call goes on where it stopped, and more seeds are added to those that
there are. --again forgets the runs of the chosen papers, which is needed where plans have changed.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import claims
from claims import Experiment, Finding, Lines, Row, Settings, Sizes

from quoron_privacy.accounts.gdp import mu_for

ROOT = Path(__file__).resolve().parent.parent
PAGE, IMAGES = Path("docs/papers"), Path("docs/images")
SEEDS, FEW_SEEDS = 8, 4
SLOW = {"accelerated-erm": 6_000}  # as printed a run of 60,000 users takes minutes
PAPERS = {
    "ghazi": "Ghazi, Kumar, Liu and Manurangsi",
    "lowy": "Lowy, Liu and Asi",
    "bassily-sun": "Bassily and Sun",
    "choquette-choo": "Choquette-Choo, Ganesh and Thakurta",
}
LINEAR: Settings = ("population.family=linear", "domain.radius=1.0")
LINEAR_TEXT = (
    "Linear losses f(x; z) = -⟨z, x⟩ on the ball of radius 1. The norm of the mean is, at every point and for every "
    "algorithm, the power of two times the formula that leaves the largest risk."
)
QUADRATIC_TEXT = (
    "f(x; z) = ½⟨x, Hx⟩ - ⟨z, x⟩ with H = diag(1, h, …, h) on the ball of radius 2, an optimum of norm 1 in a flat "
    "direction, h = 4/√(nm); plans know β = 1 and nothing of H."
)
LOGISTIC_TEXT = "Logistic regression with isotropic features"


def centred(epsilon: float, delta: float, dimension: int) -> str:
    """Which n finds a centre in the local model."""
    enough = dimension * (2 / mu_for(epsilon, delta)) ** 2
    return (
        f"About d(2/μ)² = {enough:,.0f} users or fewer, with μ of one report, do not find a centre; then items help "
        "little."
    )


def named(label: str, name: str, options: str = "", *more: str, **given: Callable[[Sizes], float]) -> Row:
    """A row of an algorithm with such options, as TOML."""
    return Row(label, (f"algorithm.name={name}", f"algorithm.options={{{options}}}", *more), **given)


def printed(row: Row) -> Row:
    """The same algorithm with the constants of its paper; `SLOW` has those whose runs grow long."""
    name, _, *more = row.settings
    label = f"{name.removeprefix('algorithm.name=')}, as printed"
    settings = (name, "algorithm.options={}", "algorithm.constants=paper", *more)
    return replace(row, label=label, settings=settings, largest=SLOW.get(row.label, row.largest))


def flat(sizes: Sizes) -> Settings:
    """The quadratic instance, as flat as the statistical error is small."""
    return (f"population.curvature=[1.0, {4 / math.sqrt(sizes.users * sizes.items):.4g}]",)


# --- formulas, with all constants and logarithms one


def optimal(s: Sizes) -> float:
    """1/√(nm) + √d/(n√m ε)."""
    return 1 / math.sqrt(s.users * s.items) + math.sqrt(s.dimension) / (s.users * math.sqrt(s.items) * s.epsilon)


def linear_time(s: Sizes) -> float:
    """1/√(nmε) + √d/(√(nm) ε): Lowy et al., Theorem 2.1."""
    return 1 / math.sqrt(s.users * s.items * s.epsilon) + local(s)


def local(s: Sizes) -> float:
    """√(d/(nm))/ε: Bassily and Sun, Theorem 3.2."""
    return math.sqrt(s.dimension / (s.users * s.items)) / s.epsilon


# --- conditions that the theorems ask for


def ghazi_unmet(s: Sizes) -> tuple[str, ...]:
    """Section 3, before Theorem 8."""
    least = 300 * math.log(s.items * s.users / s.delta) ** 3 / s.epsilon**1.5
    return (
        *(("ε < 1",) if s.epsilon >= 1 else ()),
        *(("n ≥ 300 log³(mn/δ)/ε^1.5",) if s.users < least else ()),
    )


def lowy_unmet(s: Sizes) -> tuple[str, ...]:
    """Theorem 3.1: some q in (0, 1) has n^(1-q) above a hundred logarithms."""
    log = math.log(20 * s.users * s.items * s.dimension / s.delta) + s.epsilon
    grid = [k / 100 for k in range(1, 100)]
    found = any(s.users ** (1 - q) > 100 * log / (s.epsilon * (1 - 0.5**q)) for q in grid)
    return () if found else ("n^(1-q) > 100 log(20nmde^ε/δ)/(ε(1 - 2^-q)) for some q",)


def central_unmet(s: Sizes) -> tuple[str, ...]:
    """Theorem 3.1 of Bassily and Sun; linear losses are smooth enough."""
    n, m, d, epsilon = s.users, s.items, s.dimension, s.epsilon
    return (
        *(("ε < 1",) if epsilon >= 1 else ()),
        *(("δ < d/(4n^2.5 √m ε²)",) if s.delta >= d / (4 * n**2.5 * math.sqrt(m) * epsilon**2) else ()),
        *(("n > √d/ε",) if n <= math.sqrt(d) / epsilon else ()),
        *(("m < max(√d, nε²/√d)",) if m >= max(math.sqrt(d), n * epsilon**2 / math.sqrt(d)) else ()),
    )


def local_unmet(s: Sizes) -> tuple[str, ...]:
    """Theorem 3.2 of Bassily and Sun."""
    return (
        *(("m < d/ε²",) if s.items >= s.dimension / s.epsilon**2 else ()),
        *(("n ≥ d/ε²",) if s.users < s.dimension / s.epsilon**2 else ()),
    )


# --- grids


def over_users(
    users: Sequence[int], items: int, dimension: int, epsilon: float, delta: float = 1e-6
) -> tuple[Sizes, ...]:
    """A grid of n."""
    return tuple(Sizes(n, items, dimension, epsilon, delta) for n in users)


def over_items(
    items: Sequence[int], users: int, dimension: int, epsilon: float, delta: float = 1e-6
) -> tuple[Sizes, ...]:
    """A grid of m."""
    return tuple(Sizes(users, m, dimension, epsilon, delta) for m in items)


def over_shares(shares: Sequence[float], users: int, items: int, epsilon: float) -> tuple[Sizes, ...]:
    """A grid of shares of outliers, of 10 features."""
    return tuple(Sizes(users, items, 10, epsilon, 1e-6, share) for share in shares)


def risk(
    name: str, paper: str, place: str, claim: str, points: tuple[Sizes, ...], rows: tuple[Row, ...], **more: object
) -> Experiment:
    """Excess risk over n or m on the linear family, with the first row as printed beside it."""
    across = "users" if len({s.users for s in points}) > 1 else "items"
    given = {"claimed": optimal, "falsified": ""}
    given |= {"settings": LINEAR, "preset": "flat-direction", "signals": True, "instance": LINEAR_TEXT} | more
    rows = (*rows, printed(rows[0])) if rows[0].against is None else rows
    return Experiment(name, paper, claim, place, "excess", across, points, rows=rows, **given)  # type: ignore[arg-type]


RATE = "1/√(nm) + √d/(n√m ε)"
LINEAR_RATE = "1/√(nmε) + √d/(√(nm) ε)"
ITEMS = (4, 16, 64, 256)
GHAZI_N = over_users((20_000, 60_000, 200_000, 600_000), 16, 5, 8.0)
LOWY_N = over_users((2_000, 6_000, 20_000, 60_000), 16, 10, 4.0)
CENTRAL_N = over_users((5_000, 15_000, 45_000, 115_000), 16, 64, 0.9, 1e-12)
LOCAL_N = over_users((15_000, 45_000, 115_000, 400_000), 16, 64, 0.9, 1e-12)
ROUNDS = tuple(round(8 * 2 ** (k / 2)) for k in range(19))  # 8 to 4,096

FILTERED = named("filtered-sgd", "filtered-sgd")
ITERATES = named("outlier-iterates", "outlier-iterates")
TESTED = named("accelerated-erm", "accelerated-erm")
RANGE = named("mean-sgd", "mean-sgd", unit=optimal)
OURS = named("recentred-sgd, ours", "recentred-sgd", unit=optimal)
LOCAL = named("local-model", "local-model", "", "privacy.trust_model=local", unit=local)
ACCELERATED = named("accelerated-srgd", "accelerated-srgd")

EXPERIMENTS = (
    risk("G1", "ghazi", "Theorem 8", f"risk over n is {RATE}", GHAZI_N, (FILTERED,), unmet=ghazi_unmet),
    risk("G2", "ghazi", "Theorem 8", f"risk over m is {RATE}", over_items(ITEMS, 60_000, 5, 8.0), (FILTERED,),
         unmet=ghazi_unmet),
    replace(
        risk("G3", "ghazi", "Theorem 8, Table 1", "at most nm gradients", GHAZI_N,
             (replace(FILTERED, claimed=lambda s: float(s.users * s.items)),), unmet=ghazi_unmet,
             falsified="an item's gradient is evaluated more than once", ceiling=True),
        measure="gradients",
    ),
    Experiment(
        "G4", "ghazi", "the filter removes outliers and nobody else", "Algorithm 2, lines 4 to 8", "removed", "share",
        over_shares((1e-4, 3e-4, 1e-3, 3e-3, 1e-2), 300_000, 50, 1.0), lambda s: s.share, (FILTERED,),
        "removals an outlier are not one",
        f"{LOGISTIC_TEXT}; outliers send 10³⁰⁰.", "outliers", exact=True,
    ),
    risk("L1", "lowy", "Theorem 2.1", f"risk over n is {LINEAR_RATE}", LOWY_N, (ITERATES,), claimed=linear_time),
    risk("L2", "lowy", "Theorem 2.1", f"risk over m is {LINEAR_RATE}", over_items(ITEMS, 20_000, 10, 4.0), (ITERATES,),
         claimed=linear_time),
    risk("L3", "lowy", "Theorem 3.2", f"risk over n is {RATE}", LOWY_N, (TESTED,), unmet=lowy_unmet),
    risk("L4", "lowy", "Theorem 3.2", f"risk over m is {RATE}", over_items(ITEMS, 6_000, 10, 4.0), (TESTED,),
         unmet=lowy_unmet),
    Experiment(
        "L5", "lowy", "gradients over n: (nm)^(9/8), of Asi and Liu (nm)^(3/2)", "Theorem 3.2, Figure 1", "gradients",
        "users", over_users((2_000, 6_000, 20_000), 16, 20, 8.0), lambda s: (s.users * s.items) ** (9 / 8),
        (
            named("accelerated-erm, K = n^⅞", "accelerated-erm", "phases=1, stages=1, cohort={k}"),
            named("accelerated-erm, K = n", "accelerated-erm", "phases=1, stages=1, cohort={n}",
                  claimed=lambda s: s.users**1.25),
            named("outlier-gd", "outlier-gd", claimed=lambda s: (s.users * s.items) ** 1.5),
        ),
        "T·h of descent or T·√h of acceleration grows with n, or acceleration needs more rounds than descent",
        f"{QUADRATIC_TEXT} K users a step; gradients of the fewest steps that leave 0.4 of the start's excess.",
        "flat-direction", scaled=flat, unmet=lowy_unmet, rounds=ROUNDS[:15], target=0.4, seeds=FEW_SEEDS,
    ),
    Experiment(
        "L6", "lowy", "the test removes nobody but outliers", "Algorithm 1, lines 8 to 12; Algorithm 2", "removed",
        "share",
        over_shares((0.005, 0.01, 0.02, 0.05), 20_000, 200, 1.0), lambda s: s.share,
        (named("accelerated-erm", "accelerated-erm", "rounds=16"), ITERATES),
        "there are more removals than outliers",
        f"{LOGISTIC_TEXT}; outliers have flipped labels.", "accelerated-erm", ceiling=True, seeds=FEW_SEEDS,
    ),
    risk("B1", "bassily-sun", "Theorem 3.1", f"central: risk over n is {RATE}", CENTRAL_N, (RANGE, OURS),
         unmet=central_unmet),
    risk("B2", "bassily-sun", "Theorem 3.1", f"central: risk over m is {RATE}",
         over_items((1, 4, 16, 64), 45_000, 64, 0.9, 1e-12), (RANGE, OURS),
         unmet=central_unmet),
    risk("B3", "bassily-sun", "Theorem 3.2", "local: risk over n is √(d/(nm))/ε", LOCAL_N, (LOCAL,), claimed=local,
         unmet=local_unmet),
    risk("B4", "bassily-sun", "Theorem 3.2", "local: risk over m is √(d/(nm))/ε",
         over_items((1, 4, 16, 64), 115_000, 64, 0.9, 1e-12), (LOCAL,), claimed=local, unmet=local_unmet,
         instance=f"{LINEAR_TEXT} {centred(0.9, 1e-12, 64)}"),
    risk("B5", "bassily-sun", "Table 1", "local over central risk, over n", CENTRAL_N[1:],
         (replace(LOCAL, label="local-model over mean-sgd", against=RANGE),),
         claimed=lambda s: local(s) / optimal(s), unmet=lambda s: (*central_unmet(s), *local_unmet(s)), exact=True,
         falsified="the ratio's slope is more than .1 from that of the two formulas"),
    risk("B6", "bassily-sun", "Theorem 3.2", "local: risk over m is √(d/(nm))/ε, more users",
         over_items(ITEMS, 400_000, 64, 0.9), (LOCAL,), claimed=local, unmet=local_unmet,
         instance=f"{LINEAR_TEXT} {centred(0.9, 1e-6, 64)}"),
    risk("C1", "choquette-choo", "Theorems 2, 10 and 14", "risk over n is 1/√n + √p/(εn)",
         over_users((3_000, 10_000, 30_000, 100_000), 1, 10, 1.0),
         (ACCELERATED,)),
    Experiment(
        "C2", "choquette-choo", "rounds over n, optimum inside: n^¼", "Theorem 2, Table 1", "rounds", "users",
        over_users((20_000, 60_000, 200_000, 600_000), 16, 20, 4.0), lambda s: s.users**0.25,
        (ACCELERATED, named("online-to-batch", "online-to-batch", claimed=lambda s: float(s.users)),
         named("phased-sgd", "phased-sgd", claimed=lambda s: float(s.users))),
        "acceleration needs more rounds than the others, or its T·√h grows with n",
        f"{QUADRATIC_TEXT} Fewest rounds that leave a quarter of the start's excess.", "flat-direction",
        scaled=flat, rounds=ROUNDS, target=0.25,
    ),
    Experiment(
        "C3", "choquette-choo", "rounds over n, no assumption: √n", "Theorem 14, Table 1", "rounds", "users",
        over_users((10_000, 30_000, 100_000), 10, 20, 1.0), lambda s: math.sqrt(s.users),
        (ACCELERATED, named("online-to-batch", "online-to-batch", claimed=lambda s: float(s.users))),
        "online-to-batch needs no more rounds than acceleration at the largest n",
        f"{LOGISTIC_TEXT}, optimum on the boundary of the ball. Fewest rounds within 10 % of the best risk.",
        "few-rounds-boundary", rounds=(4, 6, *ROUNDS[:11]), seeds=FEW_SEEDS,
    ),
)  # fmt: skip


# --- a miniature: the same code on grids that take seconds


MINIATURE = {"G3": (20_000, 40_000, 80_000), "L1": (500, 1_000, 2_000)}
MINIATURE |= dict.fromkeys(("B1", "C2"), (2_000, 4_000, 8_000))


def small(experiment: Experiment) -> Experiment | None:
    """The same experiment with its first row on three small points; None where even those take long."""
    if experiment.name == "G4":
        points = tuple(s._replace(users=60_000, items=10) for s in experiment.points[1:4])
    elif experiment.name in MINIATURE:
        items, first = min(experiment.points[0].items, 4), experiment.points[0]
        points = tuple(first._replace(users=n, items=items, dimension=4) for n in MINIATURE[experiment.name])
    else:
        return None
    return replace(experiment, points=points, rows=experiment.rows[:1], rounds=experiment.rounds[:9:2])


# --- the page

HEAD = """# What the papers claim, measured

`{command}` made this page from the runs in `claims.jsonl`.
Each claim of the four papers that a simulation can check is one experiment. Points have {seeds} seeds
unless the section says otherwise.{missing}

**Exponents.** A claim is an upper bound up to constants and logarithms. Its exponent is the
least-squares slope of its formula over the grid, with all constants one. The measured exponent is
the same slope of log means over seeds, ± a standard error by bootstrap over seeds.

**Verdicts**

* *Confirmed*: the slope is at most {tolerance} above the claim; for an equality, within {tolerance} of it.
  Claims without hidden constants (G3, L6): figures at most two standard errors above the formula.
* *Not confirmed*: otherwise, where the theorem's conditions hold at three points or more.
* *Outside its regime*: otherwise.
* *Not measured*: figures at fewer than three points, or a standard error above {error} or unknown.

**Regime**, at the first and the last point. One *floor* is ${floor}/\\sqrt{{nm}}$, the worst risk of one
step along the exact average of all nm gradients. From {dominates:g} floors on, *privacy* dominates: noise,
thresholds, clipping, cautious steps. One *formula* is the claim's formula. *Not met* names
conditions of the theorem that some point breaks.

## All claims
"""
NOT_CHECKED = """## What is not checked

* Ghazi et al., Algorithms 5 to 8 and Theorem 23 (ℓ∞): `benchmarks/linf.py` compares them with the
  lower bound.
* Lowy et al., Theorem 4.1 (losses that are not smooth): one run of its size takes hours.
* Exponents in d and ε, logarithms and lower bounds: a finite grid cannot tell a logarithm from a
  small power.
* Privacy: [proofs](../privacy/README.md) and audits cover it.
"""
# Formulas of claims, instances and conditions, as the page sets them; pictures have them as they stand.
LATEX = {
    "1/√(nm) + √d/(n√m ε)": r"1/\sqrt{nm}+\sqrt{d}/(n\sqrt{m}\varepsilon)",
    "1/√(nmε) + √d/(√(nm) ε)": r"1/\sqrt{nm\varepsilon}+\sqrt{d}/(\sqrt{nm}\varepsilon)",
    "1/√n + √p/(εn)": r"1/\sqrt{n}+\sqrt{p}/(\varepsilon n)",
    "√(d/(nm))/ε": r"\sqrt{d/(nm)}/\varepsilon",
    "n^(1-q) > 100 log(20nmde^ε/δ)/(ε(1 - 2^-q))": (
        r"n^{1-q}>100\log(20nmde^{\varepsilon}/\delta)/(\varepsilon(1-2^{-q}))"
    ),
    "n ≥ 300 log³(mn/δ)/ε^1.5": r"n\ge 300\log^3(mn/\delta)/\varepsilon^{1.5}",
    "δ < d/(4n^2.5 √m ε²)": r"\delta<d/(4n^{2.5}\sqrt{m}\varepsilon^2)",
    "m < max(√d, nε²/√d)": r"m<\max(\sqrt{d},n\varepsilon^2/\sqrt{d})",
    "f(x; z) = ½⟨x, Hx⟩ - ⟨z, x⟩": r"f(x;z)=\tfrac{1}{2}\langle x,Hx\rangle-\langle z,x\rangle",
    "f(x; z) = -⟨z, x⟩": r"f(x;z)=-\langle z,x\rangle",
    "H = diag(1, h, …, h)": r"H=\operatorname{diag}(1,h,\dots,h)",
    "h = 4/√(nm)": r"h=4/\sqrt{nm}",
    "d(2/μ)²": r"d(2/\mu)^2",
    "(nm)^(9/8)": r"(nm)^{9/8}",
    "(nm)^(3/2)": r"(nm)^{3/2}",
    "m < d/ε²": r"m<d/\varepsilon^2",
    "n ≥ d/ε²": r"n\ge d/\varepsilon^2",
    "n > √d/ε": r"n>\sqrt{d}/\varepsilon",
    "n^¼": "n^{1/4}",
    "√n": r"\sqrt{n}",
    "T·√h": r"T\sqrt{h}",
    "T·h": "Th",
    "10³⁰⁰": "10^{300}",
    "β = 1": r"\beta=1",
    "ε < 1": r"\varepsilon<1",
}
FORMULA = re.compile("|".join(map(re.escape, sorted(LATEX, key=len, reverse=True))))


def typeset(text: str) -> str:
    """The text with its formulas as LaTeX."""
    return FORMULA.sub(lambda found: f"${LATEX[found[0]]}$", text)


def page(findings: Sequence[tuple[Experiment, Sequence[Finding]]], command: str, seeds: int, missing: int) -> str:
    """The whole of claims.md."""
    every = [finding for _, found in findings for finding in found]
    text = f" {missing} points have fewer than {seeds}: the same command adds them." if missing else ""
    head = HEAD.format(
        command=command,
        seeds=seeds,
        missing=text,
        tolerance=claims.TOLERANCE,
        floor=claims.FLOOR,
        dominates=claims.DOMINATES,
        error=claims.LARGEST_ERROR,
    )
    lines = [head, *claims.opening(every, typeset)]
    described: dict[str, str] = {}  # an instance, and the experiment that describes it
    for paper, title in PAPERS.items():
        own = [(experiment, found) for experiment, found in findings if experiment.paper == paper]
        if own:
            lines += ["", f"## {title}", "", f"![Measured and claimed, {title}](../images/papers-{paper}.svg)", ""]
            for experiment, found in own:
                lines += claims.details(experiment, found, described.get(experiment.instance, ""), typeset, seeds)
                described.setdefault(experiment.instance, experiment.name)
    return "\n".join([*lines, NOT_CHECKED]).replace("\n\n\n", "\n\n")


def render(experiments: Sequence[Experiment], lines: Lines, seeds: int, out: Path, command: str) -> Path:
    """Write the page and the pictures under `out`."""
    findings = [(each, claims.analyse(each, lines, min(seeds, each.seeds))) for each in experiments]
    missing = sum(
        sizes not in finding.refused
        and not any(p.sizes == sizes and p.complete(min(seeds, finding.experiment.seeds)) for p in finding.points)
        for _, found in findings
        for finding in found
        for sizes in finding.experiment.points
    )
    for folder in (out / PAGE, out / IMAGES):
        folder.mkdir(parents=True, exist_ok=True)
    for paper in PAPERS:
        own = {experiment: found for experiment, found in findings if experiment.paper == paper}
        if own:
            (out / IMAGES / f"papers-{paper}.svg").write_bytes(claims.picture(own))
    path = out / PAGE / "claims.md"
    path.write_text(page(findings, command, seeds, missing), encoding="utf-8")
    return path


def main(arguments: Sequence[str]) -> int:
    """Run what is missing and render everything that has been run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paper", action="append", choices=list(PAPERS), help="run this paper's claims alone")
    parser.add_argument("--quick", action="store_true", help="a miniature")
    parser.add_argument("--out", type=Path, default=ROOT, help="the folder under which docs/ is written")
    parser.add_argument("--seeds", type=int, help=f"{SEEDS} unless told")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--render", action="store_true", help="run nothing")
    parser.add_argument("--again", action="store_true", help="forget the runs of the chosen papers first")
    given = parser.parse_args(arguments)
    seeds = given.seeds or (2 if given.quick else SEEDS)
    experiments = [e for each in EXPERIMENTS if (e := small(each) if given.quick else each) is not None]
    chosen = [each for each in experiments if not given.paper or each.paper in given.paper]
    path = given.out / PAGE / "claims.jsonl"
    if not given.render:
        claims.run(chosen, path, seeds, given.processes, again=given.again)
    command = "python benchmarks/paper_claims.py" + (" --quick" if given.quick else "")
    print(render(experiments, Lines(path), seeds, given.out, command))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
