"""What `quoron train` says in brief: before it trains, and afterwards.

Rounded, and without what only a reader of proofs asks for: that stands in plan.json, in the report, and behind
`quoron show RUN --details`.
"""

from typing import TYPE_CHECKING

from quoron.engine.network import duration
from quoron.planning.choosing import risk_sentence
from quoron.planning.plans import Plan
from quoron.reports import sections
from quoron.reports.page import Section
from quoron.results import size
from quoron_server.algorithms.info import start_risk
from quoron_server.plan import Guarantee, RunPlan
from quoron_server.wording import sentence

if TYPE_CHECKING:
    from quoron.model import Model
    from quoron.training.result import TrainingSummary

COEFFICIENTS = 4  # that are shown
RELEASED = "by what the run released"  # label of a row of summaries
DRY = "Dry run: nothing is charged, and of the table only its users are counted."
NEXT = "Next: the same without --dry-run. --json has every number, the theorem, and what other methods would do."


def planned(plan: Plan, doubted: Section) -> list[Section]:
    """The plan of a run: its promise, what is estimated and forecast, and remarks."""
    said = [DRY, f"Guarantee: {sentence(plan.plan.guarantee)}"]
    return [doubted, Section(note=said, rows=rows(plan), warnings=plan.remarks, below=[NEXT], dense=True)]


def trained(summary: "TrainingSummary", model: "Model") -> list[Section]:
    """A complete run: its promise, its public figures, the first coefficients, and warnings."""
    known = sections.coefficients(model, COEFFICIENTS)
    unseen = [] if summary.health is not None else [summary.unseen]
    return [
        Section(
            note=[f"Guarantee: {summary.statement}"],
            rows=figures(summary),
            tables=known.tables[:1],
            below=known.note,
            dense=True,
        ),
        Section(warnings=[f"Warning: {each}" for each in summary.warnings], below=unseen),
    ]


def rows(planned: Plan) -> list[tuple[str, str]]:
    """What is estimated, forecast and asked for."""
    plan = planned.plan
    problem, cost, promised = plan.problem, plan.cost, plan.guarantee
    plural = "s" * (problem.items_per_user != 1)
    found = [
        ("users", f"{problem.users:,}, planned with {problem.items_per_user:,} row{plural} each"),
        (f"ε = {promised.epsilon:g} pays for", ", ".join(paid_for(promised))),
    ]
    if promised.health is not None:
        few = promised.health.visible > 1
        share = f"{100 * promised.health.visible:.2g} % of the users or more without a row that can be used"
        found.append(("the check can see", "nothing: the users are too few" if few else share))
    reasons = [] if planned.choice is None else planned.choice.partition(": ")[2].removesuffix(".").split("; ")
    rounds = "1 round" if cost.rounds == 1 else f"{cost.rounds:,} rounds"
    found.append(("method", ": ".join([f"{plan.algorithm}, {rounds}", *reasons[:1]])))
    found += [("the budget", each) for each in reasons[1:] if each.startswith("with budget.")]
    if risk := risk_sentence(plan.predicted_excess_risk, plan.guessed_excess_risk):
        read = planned.forecast
        beside = f"without training at most {start_risk(problem):.2g}" if read is None else read.beside()
        found.append(("predicted excess risk", f"{risk}; {beside}"))
        if read is not None and read.words():
            found.append(("that is", read.words()))
    else:
        found.append(("predicted excess risk", f"not measured; without training at most {start_risk(problem):.2g}"))
    held = problem.users * problem.items_per_user
    found.append(("memory of the rows", f"{size(held * (4 * problem.dimension // problem.outputs + 8))} as planned"))
    found.append(("computing", f"{cost.gradient_evaluations:,} gradients: {about(seconds(plan))}"))
    return found


def seconds(plan: RunPlan) -> float:
    """About what the rounds compute on two processors, as measured in docs/results.md: by users and by numbers."""
    rows, answer = plan.problem.users * plan.problem.items_per_user, plan.schedule.answer_length
    return 250e-9 * plan.cost.messages + 0.5e-9 * (
        plan.cost.gradient_evaluations * plan.problem.dimension + rows * answer
    )


def about(time: float) -> str:
    """A duration without digits that nobody measured."""
    return "under a second" if time < 1 else f"about {duration(float(f'{time:.1g}'))}"


def paid_for(promised: Guarantee) -> list[str]:
    """What the promise is spent on, each with its share of μ²."""
    bought = 0.0 if promised.bought is None else promised.bought.share
    looked = 0.0 if promised.health is None else promised.health.share * (1 - bought)  # of what is left
    parts = [
        ("training", 1 - bought - looked),
        ("bounds that are not declared", bought),
        ("a data quality check", looked),
    ]
    return [f"{what} {100 * share:.3g} %" for what, share in parts if share > 0]


def figures(summary: "TrainingSummary") -> list[tuple[str, str]]:
    """Of a complete run: its method, and what is not in its promise."""
    told, left = summary.rows(), {"algorithm", "privacy of one user"}
    if any(label == RELEASED for label, _ in told):  # the plan's own bound stands behind `show --details`
        left |= {"excess risk, predicted", "that is"}
    return [("method", summary.algorithm), *(row for row in told if row[0] not in left)]
