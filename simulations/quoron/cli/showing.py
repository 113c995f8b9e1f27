"""What commands print: a plan, a result, the tables of algorithms and presets."""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape

from quoron.api.listing import algorithms
from quoron.cli import one_screen
from quoron.comparing import page as compared
from quoron.comparing.comparison import Comparison
from quoron.evaluating.evaluation import Evaluation
from quoron.planning.choosing import Candidate, refusals, risk_sentence, risk_words
from quoron.planning.plans import SURE, Plan
from quoron.planning.questions import EPSILONS, MOST_USERS, Advice, Enough
from quoron.presets import presets
from quoron.reports import costs, sections, simulated
from quoron.reports import curve as curve_plot
from quoron.reports.summary import Summary, size, time_rows
from quoron.reports.terminal import Terminal, pairs, say
from quoron.reports.terminal import show as render
from quoron.reports.terminal import table as table
from quoron.run_folder import RunFolder, write
from quoron.simulation.run import SimulatedRun
from quoron_privacy.errors import Infeasible, UsageError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.forecast import start_risk
from quoron_server.parameters import PrintedParameters
from quoron_server.serial import dumps
from quoron_server.wording import assumption_text, domain_words, sentence

if TYPE_CHECKING:
    from quoron.model import Model
    from quoron.training import report
    from quoron.training.result import TrainedTable, TrainingSummary
    from quoron.tuning.tables import TableSearch
else:  # of a table that was trained on
    report = OnFirstUse("quoron.training.report")


def show(
    result: "SimulatedRun | TrainedTable | Comparison | Evaluation", *, as_json: bool, details: bool = False
) -> None:
    """Print what has been carried out; of a trained table one screen, unless `details` are asked for."""
    out = console()
    if as_json:
        print(dumps(result.as_json()))
    elif isinstance(result, SimulatedRun):
        _show_simulated(out, result)
    elif isinstance(result, Comparison):
        render(out, compared.sections(result.cells, result.request))
        say(out, SURE, style="dim")
        _say_files(out, "Tables in", result.directory)
    elif isinstance(result, Evaluation):
        render(out, sections.evaluation(result))
    else:
        _show_trained(out, result, details=details)


def _show_simulated(out: Console, result: SimulatedRun) -> None:
    """A complete run: its promise, its figures, why it was chosen, and where it is."""
    say_doubts(out, result.planned.doubts)
    _show_summary(out, result.summary, result.directory)
    for remark in result.planned.remarks if result.config.population.kind == "table" else ():
        say(out, remark, style="yellow")
    if result.config.algorithm.name == "auto":
        for line in why_not(result.planned.candidates):
            say(out, f"Infeasible here: {line}", style="dim")
    _say_files(out, "Run folder", result.directory)


def _show_summary(out: Console, summary: Summary, directory: Path, *, details: bool = False) -> None:
    render(out, simulated.shown(RunFolder(directory), summary, None), details=details)


def _show_trained(out: Console, trained: "TrainedTable", *, details: bool) -> None:
    """A curator's complete run: its promise, its public figures, the coefficients, and where the model is."""
    choice = getattr(trained, "choice", None)  # of a search
    if choice is not None and not details:
        out.print(pairs(choice.rows()))
    if details:
        folder = RunFolder(trained.directory)
        render(out, report.shown(folder, trained.summary, trained.model, most=None), details=True)
    else:
        _show_screen(out, trained.summary, trained.model)
    model = trained.directory / "model.json"
    out.print(f"Model {escape(str(model))}; predict with: quoron predict {escape(str(model))} NEW.csv", soft_wrap=True)


def _show_screen(out: Console, summary: "TrainingSummary", model: "Model") -> None:
    say(out, one_screen.promise(summary.epsilon, summary.delta, summary.adjacency))
    out.print(pairs(one_screen.figures(summary)))
    listed, coefficients = (
        table("feature", f"{one_screen.coefficient(model)}, in the column's units", dense=True),
        model.table(),
    )
    for name, value in coefficients[: one_screen.COEFFICIENTS]:
        listed.add_row(escape(one_screen.feature(name)), escape(value))
    out.print(listed)
    if (more := len(coefficients) - one_screen.COEFFICIENTS) > 0:
        say(out, f"and {more:,} more in the model's file.", style="dim")
    for warning in one_screen.warnings(summary, out.width):
        say(out, warning, style="yellow")
    if summary.health is None:
        say(out, summary.unseen, style="dim")


def _say_files(out: Console, what: str, folder: Path) -> None:
    page = escape(str(folder / "report.html"))
    out.print(f"{what} {escape(str(folder))}; open {page}", soft_wrap=True, highlight=False)


def show_stored(done: "Summary | TrainedTable | Comparison", page: Path, *, as_json: bool, details: bool) -> None:
    """What a folder holds: ten lines, or with `details` all of them, and the path of its page."""
    if as_json:
        print(dumps(done.as_json() | {"directory": str(page.parent), "report": str(page)}))
        return
    if not details:
        print(done)
    elif isinstance(done, Summary):
        _show_summary(console(), done, page.parent, details=True)
    else:
        show(done, as_json=False, details=True)
    print(page)


def show_search(search: "TableSearch", *, as_json: bool) -> None:
    """What a search would try and cost."""
    if as_json:
        print(dumps(search.as_json()))
        return
    out = console()
    say_doubts(out, search.doubts)
    for line in (one_screen.DRY, search.statement):
        say(out, line)
    out.print(pairs(search.rows()))
    for style, lines in (("dim", [each.name for each in search.candidates]), ("yellow", search.remarks)):
        for line in lines:
            say(out, line, style=style)


def show_dry_run(planned: Plan, *, as_json: bool) -> None:
    """The plan of a curator's run on one screen; as JSON all of it, beside what other methods would do."""
    if as_json:
        show_plan(planned, as_json=True)
        return
    out, promised = console(), planned.plan.guarantee
    say_doubts(out, planned.doubts)
    said = [one_screen.DRY, one_screen.promise(promised.epsilon, promised.delta, promised.adjacency)]
    said += [f"Assumed: {assumption_text(assumed)}." for assumed in promised.assumptions]
    for text in said:
        say(out, text)
    out.print(rows := pairs(one_screen.rows(planned)))
    used = len(out.render_lines(rows)) + sum(
        len(textwrap.wrap(each, out.width)) for each in (*planned.doubts, *said, one_screen.NEXT)
    )
    for remark in one_screen.remarks(planned, used, out.width):
        say(out, remark, style="yellow")
    say(out, one_screen.NEXT, style="dim")


def show_plan(planned: Plan, *, as_json: bool) -> None:
    """A plan: its promise, its numbers, what others would do or why they cannot, rounds curve, answers to questions."""
    answers = planned.advice or Advice()
    if as_json:
        print(dumps(planned.as_json() | answers.as_json()))
        return
    out, chosen = console(), planned.plan
    say_doubts(out, planned.doubts)
    say(out, sentence(chosen.guarantee))
    _show_choice(out, planned)
    out.print(pairs(plan_rows(planned), around=box.SIMPLE))
    for remark in planned.remarks:
        say(out, remark, style="yellow")
    feasible = [each for each in planned.candidates if each.plan is not None]
    render(out, [costs.section(planned.costs)])
    others = table("algorithm", "predicted excess risk", "trust_model", "rounds")
    for each in sorted(feasible, key=lambda each: (each.predicted is None, each.predicted or each.guess or 0.0)):
        others.add_row(*map(escape, _candidate_row(each, chosen.algorithm)))
    out.print(others)
    say(out, SURE, style="dim")
    for line in why_not(planned.candidates):
        say(out, f"Infeasible here: {line}", style="dim")
    if planned.curve is not None:
        out.print(f"How many rounds {escape(chosen.algorithm)} needs:")
        out.print(curve_plot.table(planned.curve, chosen.cost.rounds))
    show_answers(answers)


def show_answers(answers: Advice, *, as_json: Mapping[str, Any] | None = None) -> None:
    """What would do for a risk, and what each ε buys; as JSON beside what is given."""
    if as_json is not None:
        print(dumps(dict(as_json) | answers.as_json()))
        return
    out = console()
    if answers.enough is not None:
        for line in enough_lines(answers.enough):
            say(out, line)
    if answers.curve is not None:
        out.print("What ε buys:")
        out.print(curve_plot.epsilon_table(answers.curve))
        for point in answers.curve:
            if point.infeasible is not None:
                say(out, f"Infeasible at ε = {point.epsilon:.3g}: {point.infeasible}", style="dim")


def enough_lines(found: Enough) -> list[str]:
    """What would do for a risk, in sentences."""
    asked = f"a predicted excess risk of {found.risk:.2g} ({100 * found.share:.2g} % of the bound on the start's)"
    if found.accuracy is not None:
        asked = f"an accuracy of {100 * found.accuracy:.3g} % (simulation only), that is {asked}"
    lines = [f"For {asked}:"]
    if found.users is None:
        lines.append(f"  with this ε, no number of users up to {MOST_USERS:,} would do;")
    else:
        by = _by(found.users_algorithm, found.users_guessed)
        lines.append(f"  with this ε, {found.users:,} users would do ({by});")
    if found.epsilon is None:
        lines.append(f"  with these users, no ε up to {EPSILONS[1]:,g} would do.")
    else:
        by = _by(found.epsilon_algorithm, found.epsilon_guessed)
        lines.append(f"  with these users, ε = {found.epsilon:g} would do ({by}).")
    return lines


def _by(algorithm: str | None, guessed: bool) -> str:
    return f"{algorithm}, by a guess that nobody has measured" if guessed else f"{algorithm}"


def show_algorithms(*, as_json: bool) -> None:
    """The registry, and what is refused with its reason: that offers nothing."""
    rows = algorithms()
    if as_json:
        print(dumps(rows))
        return
    listed = table("name", "what it does", "from", "trust_model", "theorem")
    for row in rows:
        cells = row["name"], row["summary"], row["from"], ", ".join(row["trust_models"]), row["theorem"]
        listed.add_row(*map(escape, cells))
    console().print(listed)


def show_presets(*, as_json: bool) -> None:
    """The ready configurations."""
    if as_json:
        print(dumps([{"name": one.name, "summary": one.summary} for one in presets()]))
        return
    listed = table("name", "what it shows")
    for each in presets():
        listed.add_row(escape(each.name), escape(each.summary))
    console().print(listed)


def draw_epsilons(picture: Path, answers: Advice) -> None:
    """Write what ε buys as a picture."""
    write(picture, curve_plot.epsilon_svg(answers.curve or ()), advice="Choose another place for --plot.")


def draw(picture: Path, planned: Plan) -> None:
    """Write the rounds curve as a picture; Infeasible where nothing is predicted."""
    name = planned.plan.algorithm
    if planned.curve is None:
        raise Infeasible(f"a plot of {name}", "nothing is predicted for it", "calibrated constants")
    drawing = curve_plot.rounds_svg({name: planned.curve}, chosen={name: planned.plan.cost.rounds})
    write(picture, drawing, advice="Choose another place for --plot.")


def write_losses(path: Path, planned: Plan) -> None:
    """Write what a run's privacy loss is, of each pair that a user may be in, certified from above and from below.

    UsageError for a plan without a promise.
    """
    from quoron_privacy.accounts import exports  # brings SciPy's transforms

    chosen, promise = planned.plan, planned.plan.guarantee
    if not (pairs := ALGORITHMS[chosen.algorithm].pairs(chosen)):
        raise UsageError(f"Expected a plan that promises privacy with --losses, got one of {chosen.algorithm}.")
    made = [exports.both(pair, near=promise.delta) for pair in pairs]
    of = {"algorithm": chosen.algorithm, "adjacency": promise.adjacency, "epsilon": promise.epsilon}
    text = dumps({"format": exports.FORMAT, **of, "delta": promise.delta, "pairs": made})
    write(path, text.encode(), advice="Choose another place for --losses.")


def why_not(candidates: Iterable[Candidate]) -> list[str]:
    """One line for each reason, with the algorithms that it rules out."""
    return [f"{', '.join(names)}: {reason}" for reason, names in refusals(candidates)]


def plan_rows(planned: Plan) -> list[tuple[str, str]]:
    """Label and text of each number of a plan, the algorithm's own parameters included."""
    chosen, baseline = planned.plan, planned.baseline
    cost = chosen.cost
    rows = [
        ("algorithm", chosen.algorithm),
        (
            "users, items, dimension",
            f"{chosen.problem.users:,}, {chosen.problem.items_per_user:,}, {chosen.problem.dimension:,}",
        ),
        ("models", domain_words(chosen.problem)),
        ("rounds", f"{cost.rounds:,}"),
        ("messages", f"{cost.messages:,}"),
        ("gradient evaluations", f"{cost.gradient_evaluations:,}"),
    ]
    paid = chosen.guarantee.bought
    for each in () if paid is None else paid.costs():
        shown = "" if each.least is None else f", shown from {each.least:,.0f} users on"
        rows.append((f"bought: {each.what}", f"{each.share:.2g} of μ²: ± {each.error:,.0f} users{shown}"))
    if chosen.guarantee.health is not None:
        health, left = chosen.guarantee.health, 1 - (0.0 if paid is None else paid.share)
        sees = f"sees {100 * min(health.visible, 1):.2g} % of the users or more without a usable row"
        rows.append(
            (
                "a look at the table first",
                f"{health.share * left:.2g} of μ²: {sees if health.visible <= 1 else 'too few users to see anything'}",
            )
        )
    numbers = asdict(chosen.parameters)
    if isinstance(chosen.parameters, PrintedParameters):  # its claim and conditions are remarks
        remarked = {field.name for field in fields(PrintedParameters)}
        numbers = {name: value for name, value in numbers.items() if name not in remarked}
    rows += [row for row in _parameter_rows(numbers) if row not in rows]
    if bound := risk_sentence(chosen.predicted_excess_risk, chosen.guessed_excess_risk):
        other = "" if baseline is None else _risk(baseline)
        beside = f" ({baseline.algorithm}: {other})" if baseline is not None and other else ""
        rows.append(("predicted excess risk", f"{bound}{beside}"))
    if (read := planned.forecast) is not None:
        rows += read.rows()
    if planned.network is not None:
        rows.append(("on the wire up, down", f"{size(planned.network.bytes_up)}, {size(planned.network.bytes_down)}"))
        rows += time_rows(planned.network.as_json())
    return rows


def say_doubts(out: Console, doubts: Iterable[str]) -> None:
    """In the first line: that a plan is no better than not training."""
    for doubt in doubts:
        say(out, f"Warning: {doubt}", style="yellow")


def _show_choice(out: Console, planned: Plan) -> None:
    if planned.choice is not None:
        say(out, f"Chosen {planned.choice}")


def _parameter_rows(parameters: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested parameters as flat rows; entries of a list are numbered from 1."""
    if isinstance(parameters, dict):
        return [row for key, value in parameters.items() for row in _parameter_rows(value, _joined(prefix, key))]
    if isinstance(parameters, list | tuple) and any(isinstance(each, dict) for each in parameters):
        numbered = enumerate(parameters, start=1)
        return [row for number, value in numbered for row in _parameter_rows(value, f"{prefix} {number}")]
    return [] if parameters is None else [(prefix, _rounded(parameters))]


def _rounded(value: Any) -> str:
    """A public number as people read it; every digit stands in the plan's JSON."""
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_rounded, value))})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _joined(prefix: str, key: str) -> str:
    words = key.replace("_", " ")
    return f"{prefix}: {words}" if prefix else words


def _candidate_row(each: Candidate, chosen: str) -> tuple[str, str, str, str]:
    name = f"{each.algorithm} (chosen)" if each.algorithm == chosen else each.algorithm
    assert each.plan is not None
    return name, _risk(each) or "not predicted", each.plan.guarantee.trust_model, f"{each.plan.cost.rounds:,}"


def _risk(each: Candidate) -> str:
    """What a candidate predicts; what is above the start's says that."""
    risk = each.guess if each.predicted is None else each.predicted
    if each.plan is not None and risk is not None and risk > start_risk(each.plan.problem):
        return "more than the start's"
    return risk_words(each.predicted, each.guess)


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table."""
    made = Terminal()
    return made if made.is_terminal else Terminal(width=160)
