"""What commands print: a plan, a result, the tables of algorithms and presets."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quoron.api.listing import algorithms
from quoron.cli import one_screen
from quoron.comparing import page as compared
from quoron.comparing.comparison import Comparison
from quoron.planning.choosing import Candidate, refusals, risk_sentence, risk_words
from quoron.planning.plans import SURE, Plan
from quoron.planning.projection import Costs
from quoron.planning.questions import EPSILONS, MOST_USERS, Advice, Enough
from quoron.presets import presets
from quoron.reports import costs
from quoron.reports import curve as curve_plot
from quoron.reports.pictures import number
from quoron.reports.summary import Summary, size, time_rows, told_words
from quoron.reports.terminal import Terminal
from quoron.run_folder import write
from quoron.simulation.run import SimulatedRun
from quoron_privacy.errors import Infeasible, UsageError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.forecast import start_risk
from quoron_server.parameters import PrintedParameters
from quoron_server.serial import dumps
from quoron_server.wording import assumption_text, domain_words, sentence

if TYPE_CHECKING:
    from quoron.evaluating.evaluation import Evaluation
    from quoron.training.result import TrainedTable


def show(result: "SimulatedRun | TrainedTable | Comparison", *, as_json: bool, details: bool = False) -> None:
    """Whatever has been carried out."""
    if isinstance(result, SimulatedRun):
        show_result(result, as_json=as_json)
    elif isinstance(result, Comparison):
        show_comparison(result, as_json=as_json)
    else:
        show_trained(result, as_json=as_json, details=details)


def show_result(result: SimulatedRun, *, as_json: bool) -> None:
    """A complete run: its promise, its figures, why it was chosen, and where it is."""
    if as_json:
        print(dumps(result.summary.as_json() | {"directory": str(result.directory)}))
        return
    out = console()
    say_doubts(out, result.planned.doubts)
    _show_choice(out, result.planned)
    show_summary(result.summary)
    for remark in result.planned.remarks if result.config.population.kind == "table" else ():
        _say(out, remark, style="yellow")
    if result.config.algorithm.name == "auto":
        for line in why_not(result.planned.candidates):
            _say(out, f"Infeasible here: {line}", style="dim")
    out.print(
        f"Run folder {escape(str(result.directory))}; open {escape(str(result.directory / 'report.html'))}",
        soft_wrap=True,
        highlight=False,
    )


def show_summary(summary: Summary) -> None:
    """The promise of a simulation, and all of its figures."""
    out = console()
    _say(out, summary.statement)
    out.print(_rows(summary.rows()))
    for remark in summary.remarks_simulation_only:
        _say(out, f"Simulation only: {remark}", style="yellow")


def show_trained(trained: "TrainedTable", *, as_json: bool, details: bool = False) -> None:
    """A curator's complete run: its promise, its public figures, the coefficients, and where the model is.

    On one screen, which says what it leaves out, unless `details` are asked for.
    """
    if as_json:
        print(dumps(trained.summary.as_json() | {"directory": str(trained.directory)}))
        return
    out, summary, coefficients = console(), trained.summary, trained.model.table()
    if details:
        _say(out, summary.statement)
        if summary.choice is not None:
            _say(out, f"Chosen {summary.choice}")
        out.print(_rows(summary.rows()))
    else:
        _say(out, one_screen.promise(summary.epsilon, summary.delta, summary.adjacency))
        out.print(one_screen.pairs(one_screen.figures(summary)))
    shown = len(coefficients) if details else one_screen.COEFFICIENTS
    heads, intervals = [f"{one_screen.coefficient(trained.model)}, in the column's units"], trained.model.uncertainty
    if details and intervals is not None:
        heads.append("95 %: noise and sampling")
    listed = table("feature", *heads, dense=not details)
    for place, (name, value) in enumerate(coefficients[:shown]):
        listed.add_row(
            escape(one_screen.feature(name)),
            escape(value),
            *([_ends(intervals[place])] if intervals and len(heads) > 1 else []),
        )
    out.print(listed)
    if details and trained.model.no_interval is not None:
        _say(out, f"Coefficients have {trained.model.no_interval}.", style="dim")
    if len(coefficients) > shown:
        _say(out, f"and {len(coefficients) - shown:,} more in the model's file.", style="dim")
    whole = [f"Warning: {each}" for each in summary.warnings]
    for warning in whole if details else one_screen.warnings(summary, out.width):
        _say(out, warning, style="yellow")
    if details or summary.health is None:
        _say(out, summary.unseen, style="dim")
    model = trained.directory / "model.json"
    out.print(f"Model {escape(str(model))}; predict with: quoron predict {escape(str(model))} NEW.csv", soft_wrap=True)


def show_evaluation(evaluation: "Evaluation", *, as_json: bool) -> None:
    """Figures of a model with their intervals, and what the model says beside what was so."""
    if as_json:
        print(dumps(evaluation.as_json()))
        return
    out = console()
    _say(out, evaluation.statement)
    out.print(one_screen.pairs(evaluation.rows()))
    if evaluation.calibration:
        listed = table("where the model says", "it was so for (95 %)", dense=True)
        for each in evaluation.calibration:
            listed.add_row(f"{100 * each.predicted:.0f} %", each.text())
        out.print(listed)
    for remark in evaluation.remarks:
        _say(out, remark[:1].upper() + remark[1:], style="yellow")


def _ends(interval: tuple[float, float] | None) -> str:
    return "not determined" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"


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
        _say(out, text)
    out.print(rows := one_screen.pairs(one_screen.rows(planned)))
    used = len(out.render_lines(rows)) + sum(
        len(textwrap.wrap(each, out.width)) for each in (*planned.doubts, *said, one_screen.NEXT)
    )
    for remark in one_screen.remarks(planned, used, out.width):
        _say(out, remark, style="yellow")
    _say(out, one_screen.NEXT, style="dim")


def show_comparison(comparison: Comparison, *, as_json: bool) -> None:
    """A comparison: for each setting every cell by its mean excess risk, with its costs, and why others have none."""
    if as_json:
        print(dumps(comparison.as_json()))
        return
    out, keys = console(), [key for key, _ in comparison.request.vary]
    done = [row["excess_risk"] for row in comparison.cells if row["excess_risk"] is not None and row["excess_risk"] > 0]
    for setting in dict.fromkeys(tuple((key, str(row[key])) for key in keys) for row in comparison.cells):
        rows = [row for row in comparison.cells if tuple((key, str(row[key])) for key in keys) == setting]
        if setting:
            _say(out, ", ".join(f"{key} = {value}" for key, value in setting), style="bold")
        told = next((list(compared.told_of(row)) for row in rows if compared.told_of(row)), [])[:2]  # as many as fit
        listed = table(
            "algorithm",
            *told,
            "excess risk",
            "95 % interval",
            "on a log scale",
            "predicted at most",
            "rounds",
            "gradients",
            "up",
        )
        for row in rows:
            if row["excess_risk"] is None:
                continue
            interval = "" if row["low"] is None else f"{row['low']:.2g} to {row['high']:.2g}"
            predicted = risk_words(row["predicted_excess_risk"], row["guessed_excess_risk"])
            bar = curve_plot.bar(row["excess_risk"], min(done), max(done), width=24) if row["excess_risk"] > 0 else ""
            cost = [f"{row['rounds']:,.4g}", number(row["gradient_evaluations"]), size(row["bytes_up"])]
            named = [compared.algorithm(row), *(told_words(*compared.told_of(row)[name]) for name in told)]
            listed.add_row(*map(escape, [*named, f"{row['excess_risk']:.2g}", interval, bar, predicted, *cost]))
        _say(out, compared.best_words(rows))
        out.print(listed)
        _say(out, SURE, style="dim")
        if held := compared.held_words(rows):
            _say(out, held)
        if priced := compared.costs_of(rows):
            show_costs(out, priced)
        for line in compared.why_not(rows):
            _say(out, line, style="dim")
    page = comparison.directory / "report.html"
    out.print(
        f"Tables in {escape(str(comparison.directory))}; open {escape(str(page))}", soft_wrap=True, highlight=False
    )


def show_plan(planned: Plan, *, as_json: bool) -> None:
    """A plan: its promise, its numbers, what others would do or why they cannot, rounds curve, answers to questions."""
    answers = planned.advice or Advice()
    if as_json:
        print(dumps(planned.as_json() | answers.as_json()))
        return
    out, chosen = console(), planned.plan
    say_doubts(out, planned.doubts)
    _say(out, sentence(chosen.guarantee))
    _show_choice(out, planned)
    out.print(_rows(plan_rows(planned)))
    for remark in planned.remarks:
        _say(out, remark, style="yellow")
    feasible = [each for each in planned.candidates if each.plan is not None]
    if planned.costs:
        show_costs(out, planned.costs)
    others = table("algorithm", "predicted excess risk", "trust_model", "rounds")
    for each in sorted(feasible, key=lambda each: (each.predicted is None, each.predicted or each.guess or 0.0)):
        others.add_row(*map(escape, _candidate_row(each, chosen.algorithm)))
    out.print(others)
    _say(out, SURE, style="dim")
    for line in why_not(planned.candidates):
        _say(out, f"Infeasible here: {line}", style="dim")
    if planned.curve is not None:
        out.print(f"How many rounds {escape(chosen.algorithm)} needs:")
        out.print(curve_plot.table(planned.curve, chosen.cost.rounds))
    show_answers(answers)


def show_costs(out: Console, rows: Sequence[Costs]) -> None:
    """What rounds cost over each network, with the fronts marked."""
    listed = table(*costs.heads(rows))
    for row in rows:
        listed.add_row(*map(escape, costs.cells(row)))
    out.print("What the rounds cost:")
    out.print(listed)
    for note in costs.notes(rows):
        _say(out, note, style="dim")


def show_answers(answers: Advice, *, as_json: Mapping[str, Any] | None = None) -> None:
    """What would do for a risk, and what each ε buys; as JSON beside what is given."""
    if as_json is not None:
        print(dumps(dict(as_json) | answers.as_json()))
        return
    out = console()
    if answers.enough is not None:
        for line in enough_lines(answers.enough):
            _say(out, line)
    if answers.curve is not None:
        out.print("What ε buys:")
        out.print(curve_plot.epsilon_table(answers.curve))
        for point in answers.curve:
            if point.infeasible is not None:
                _say(out, f"Infeasible at ε = {point.epsilon:.3g}: {point.infeasible}", style="dim")


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
        _say(out, f"Warning: {doubt}", style="yellow")


def _show_choice(out: Console, planned: Plan) -> None:
    if planned.choice is not None:
        _say(out, f"Chosen {planned.choice}")


def _say(out: Console, text: str, *, style: str | None = None) -> None:
    out.print(escape(text), soft_wrap=not out.is_terminal, highlight=False, style=style)


def _rows(rows: Iterable[tuple[str, str]]) -> Table:
    return one_screen.pairs(rows, around=box.SIMPLE)


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


def table(*columns: str, dense: bool = False) -> Table:
    """An empty table with these columns, whose cells fold rather than lose text; `dense` without lines around them."""
    made = Table(box=None if dense else box.SIMPLE_HEAD)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table."""
    made = Terminal()
    return made if made.is_terminal else Terminal(width=160)
