"""A comparison as a page for people: rankings and sweeps, made of the parts that all reports have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quoron.comparing.cells import algorithm, costs_of, told_of
from quoron.comparing.request import Request, shown
from quoron.planning.choosing import Candidate, refusals, risk_words
from quoron.planning.plans import SURE
from quoron.reports import costs
from quoron.reports import page as parts
from quoron.reports.curve import bar
from quoron.reports.page import Bar, Raw, Section, Table
from quoron.reports.pictures import Axis, Line, Reach, chart, number, ranking
from quoron.reports.summary import NOTICED, size, told_words

Row = Mapping[str, Any]

FOOTER = "Made by quoron. All of it depends on simulated data that nobody protects; no deployment may show it."
RANKINGS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("excess_risk", "Excess risk", lambda value: f"{value:.2g}"),
    ("rounds", "Rounds", lambda value: f"{value:,.0f}"),
    ("gradient_evaluations", "Item gradients", number),
    ("bytes_up", "Bytes from clients", size),
)


def page(cells: Sequence[Row], request: Request, *, name: str) -> str:
    """The page as HTML text; `cells` are the rows of `quoron.comparing.cells`, and `name` is the folder's."""
    inner = [Section(title="What changes with what", picture=_sweeps(cells, request), private=True)]
    inner += sections(cells, request)
    return parts.document(name, lead=_lead(request), parts=inner, simulated=True, footer=FOOTER)


def sections(cells: Sequence[Row], request: Request) -> list[Section]:
    """For each setting its cells by excess risk, pictures of them, what rounds cost, and why others have no result."""
    keys = [key for key, _ in request.vary]
    made = []
    for setting in dict.fromkeys(_setting(row, keys) for row in cells):
        rows = [row for row in cells if _setting(row, keys) == setting]
        done = [row for row in rows if row.get("excess_risk") is not None]
        made.append(
            Section(
                title=setting or "All cells",
                note=[words for words in (best_words(rows), held_words(rows)) if words],
                tables=[_table(done)],
                picture=parts.side_by_side(*(_ranking(done, *each) for each in RANKINGS)),
                warnings=why_not(rows),
                private=True,
            )
        )
        made.append(costs.section(costs_of(rows)))
    return made


def best_words(rows: Sequence[Row]) -> str:
    """Which cell of a setting leaves least, where the intervals of the differences say so; else that they do not.

    >>> rows = [{"algorithm": "a", "excess_risk": 1.0, "runs": 5, "behind_low": None},
    ...         {"algorithm": "b", "excess_risk": 1.1, "runs": 5, "behind_low": -0.1},
    ...         {"algorithm": "c", "excess_risk": 3.0, "runs": 5, "behind_low": 1.5}]
    >>> best_words(rows)
    'No difference shown after 5 seeds between a (mean excess risk 1) and b. a leaves less than c.'
    """
    ranked = [row for row in rows if row.get("excess_risk") is not None]
    if not ranked:
        return "Nothing has a result here."
    first, others = ranked[0], ranked[1:]
    risk = f"{first['excess_risk']:.2g}"
    if first["runs"] < 2:
        return f"Least here: {first['algorithm']}, {risk}. One seed says nothing about chance: give --seeds auto."
    if not others:
        return f"Excess risk of {first['algorithm']}: {risk}."
    near = [row["algorithm"] for row in others if (row["behind_low"] or 0.0) <= 0]
    apart = [row["algorithm"] for row in others if row["algorithm"] not in near]
    if not near:
        return f"Least excess risk: {first['algorithm']}, {risk}, less than all others after {first['runs']} seeds."
    said = f"No difference shown after {first['runs']} seeds between {first['algorithm']} (mean excess risk {risk})"
    less = f" {first['algorithm']} leaves less than {', '.join(apart)}." if apart else ""
    return f"{said} and {', '.join(near)}.{less}"


def held_words(rows: Sequence[Row]) -> str:
    """Which cells' models a domain holds back, and what of their excess risk that is; nothing where none is.

    >>> held_words([{"algorithm": "a", "taken": "a", "excess_risk": 1.0, "held_back": 0.5}])
    'Held back by the bound of their domain: a (0.5 of its 1). A larger domain.radius costs these methods noise.'
    """
    held = [
        f"{algorithm(row)} ({row['held_back']:.2g} of its {row['excess_risk']:.2g})"
        for row in rows
        if row.get("excess_risk") is not None and (row.get("held_back") or 0.0) > NOTICED * row["excess_risk"]
    ]
    if not held:
        return ""
    return (
        f"Held back by the bound of their domain: {', '.join(held)}. A larger domain.radius costs these methods noise."
    )


def why_not(rows: Sequence[Row]) -> list[str]:
    """One line for each reason why cells have no result, with the algorithms that it rules out."""
    refused = [Candidate(row["algorithm"], None, row["infeasible"]) for row in rows if row.get("infeasible")]
    lines = [f"Infeasible: {', '.join(names)}: {reason}" for reason, names in refusals(refused)]
    return lines + [f"Failed: {row['algorithm']}: {row['failed']}" for row in rows if row.get("failed")]


def _lead(request: Request) -> str:
    seeds = "one seed" if request.seeds == 1 else f"{request.seeds} seeds"
    if request.seeds == "auto":
        seeds = f"{', '.join(map(str, request.looks[:-1]))} or {request.looks[-1]} seeds (until the best two part)"
    sentence = f"{len(request.cells())} cells of {seeds} each, simulated: noise comes from seeds, and protects nobody."
    interval = "" if request.seeds == 1 else " Excess risk is a mean over seeds with its 95 % interval (Student's t)."
    return sentence + interval + f" It is over the least risk of any model, without privacy and without a bound. {SURE}"


def _setting(row: Row, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} = {shown(row[key])}" for key in keys)


def _table(rows: Sequence[Row]) -> Table:
    """Every cell; a terminal shows what it is ranked by and what it costs."""
    tests = [key for key in rows[0] if key.startswith("test_")] if rows else []
    told = list(told_of(rows[0])) if rows else []
    heads = ["algorithm", *(f"{name}, with 95 %" for name in told[:2]), "excess risk", "95 % interval"]
    heads += ["on a log scale", "predicted at most", "rounds", "item gradients", "up"]
    brief = len(heads)
    heads += ["rank", "left of the start", "down", "trust_model"]
    heads += [f"held-out {key.removeprefix('test_').replace('_', ' ')}" for key in tests]
    heads += [f"{name}, with 95 %" for name in told[2:]]
    risks = [row["excess_risk"] for row in rows if row["excess_risk"] > 0]
    lines = []
    for rank, row in enumerate(rows, start=1):
        risk, known = row["excess_risk"], told_of(row)
        figures = [told_words(*known[name]) if name in known else "" for name in told]
        cells = [algorithm(row), *figures[:2], f"{risk:.2g}"]
        cells += ["" if row["low"] is None else f"{row['low']:.2g} to {row['high']:.2g}"]
        cells += [Bar(bar(risk, min(risks), max(risks), width=24) if risk > 0 else "")]
        cells += [risk_words(row.get("predicted_excess_risk"), row.get("guessed_excess_risk")), f"{row['rounds']:,.4g}"]
        cells += [number(row["gradient_evaluations"]), size(row["bytes_up"]), str(rank)]
        cells += ["" if row["of_start"] is None else f"{100 * row['of_start']:.2g} %"]
        cells += [size(row["bytes_down"]), row["trust_model"]]
        cells += ["" if row.get(key) is None else f"{row[key]:.4g}" for key in tests]
        lines.append([*cells, *figures[2:]])
    return Table("Every cell, by its excess risk", heads, lines, brief)


def _ranking(rows: Sequence[Row], key: str, title: str, words: Callable[[float], str]) -> Raw:
    """A picture of one figure of every cell, least first; nothing where all are alike."""
    ranked = sorted((row for row in rows if row.get(key) is not None and row[key] > 0), key=lambda row: row[key])
    if not ranked or (key != "excess_risk" and ranked[0][key] == ranked[-1][key]):
        return Raw("")
    reach: list[Reach] = [(row["low"], row["high"]) if key == "excess_risk" else (None, None) for row in ranked]
    lines = [(algorithm(row), row[key], each, words(row[key])) for row, each in zip(ranked, reach, strict=True)]
    return parts.figure(title, ranking(title, lines, log=True))


def _sweeps(cells: Sequence[Row], request: Request) -> Raw:
    """For each varied key of numbers, excess risk against it, one picture for each choice of the other keys."""
    pictures = []
    for key, values in request.vary:
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(values) < 2 or len(numbers) < len(values):
            continue
        log = min(numbers) > 0 and max(numbers) >= 4 * min(numbers)
        others = [other for other, _ in request.vary if other != key]
        for setting in dict.fromkeys(_setting(row, others) for row in cells):
            rows = [row for row in cells if _setting(row, others) == setting and row.get("excess_risk")]
            names = dict.fromkeys(row["algorithm"] for row in rows)
            lines = [
                _swept(name, sorted((r for r in rows if r["algorithm"] == name), key=lambda r: r[key]), key)
                for name in names
            ]
            if lines:
                title = f"Excess risk against {key}" + (f" ({setting})" if setting else "")
                pictures.append(
                    parts.figure(title, chart(title, lines, Axis(key, log=log), Axis("excess risk", log=True)))
                )
    return parts.side_by_side(*pictures)


def _swept(name: str, rows: Sequence[Row], key: str) -> Line:
    """One algorithm's cells along a key."""
    reach: list[Reach] = [(row["low"] if row["low"] and row["low"] > 0 else None, row["high"]) for row in rows]
    return Line(name, [(float(row[key]), row["excess_risk"]) for row in rows], "line", reach)
