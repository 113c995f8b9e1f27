"""The table of docs/results.md, from the lines that `default.py` prints."""

import math
from collections.abc import Iterable
from statistics import fmean, median
from typing import Any

GOOD, ORACLE, FEWEST = 1.5, 5.0, 3_000  # times the best, times the oracle, and from how many users on
FALLS, FALLEN = 3.0, 1.5  # from ε = 1 to 8: so many times less, or so many times the oracle
LEAST_FALL, ERRORS = 0.005, 2.0  # of AUC as users are added, in AUC and in standard errors
MANY = 10_000  # users of a mean
TAKEN = "whitened-tracking"  # what `auto` takes of tables, and so no rival of it
Line = dict[str, Any]
Cell = tuple[str, int, int, float]


def summary(lines: Iterable[Line]) -> str:
    """Markdown."""
    by_part: dict[str, list[Line]] = {}
    for line in lines:
        by_part.setdefault(line["part"], []).append(line)
    rows: list[str] = ["| what | asked for | found |", "|---|---|---|"]
    for part in ("grid", "large"):
        if part in by_part:
            rows += beside(part, by_part[part])
    grid = by_part.get("grid", [])
    if "epsilon" in by_part:
        rows += epsilons(grid, by_part["epsilon"])
    if "growth" in by_part:
        rows += growth(by_part["growth"])
    if "classes" in by_part:
        rows += classes(by_part["classes"])
    if "mean" in by_part:
        rows += means([line for line in by_part["mean"] if line["method"] == "learnt"])
    if grid:
        rows += forecasts([line for line in grid if line["asked"] == "auto"])
    return "\n".join([*rows, "", *by_shape(grid)] if grid else rows)


def by_shape(lines: Iterable[Line]) -> list[str]:
    """Geometric means of what is left over all ε and columns: `auto`, the best rival of each cell, and the oracle."""
    cells = by_cell(lines)
    sizes = sorted({name[1] for name in cells})
    rows = ["| shape | " + " | ".join(f"{users:,} users" for users in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for shape in dict.fromkeys(name[0] for name in cells):
        texts = []
        for users in sizes:
            found = [each for name, each in cells.items() if name[:2] == (shape, users) and "auto" in each]
            others = [
                [share_left(line) for asked, line in each.items() if asked not in ("auto", TAKEN)] for each in found
            ]
            columns = [[share_left(each["auto"]) for each in found], [each["auto"]["oracle"] for each in found]]
            columns[1:1] = [[min(each) for each in others]] if others and all(others) else [[]]
            texts.append("; ".join(f"{middle(each):.2g}" if each else "–" for each in columns) if found else "")
        rows.append(f"| {shape} | " + " | ".join(texts) + " |")
    return rows


def by_cell(lines: Iterable[Line]) -> dict[Cell, dict[str, Line]]:
    """What was asked of each cell."""
    cells: dict[Cell, dict[str, Line]] = {}
    for line in lines:
        if "left out" in line:
            continue
        cells.setdefault((line["shape"], line["users"], line["columns"], line["epsilon"]), {})[line["asked"]] = line
    return cells


def share_left(line: Line) -> float:
    """Per cent, mean over seeds: who refuses leaves all."""
    return fmean(line["left"]) if line.get("left") else 100.0


def beside(part: str, lines: list[Line]) -> list[str]:
    """`auto` over the best of each cell, over the oracle, and held-out AUC beside the optimum's."""
    cells, ratios, above, behind, wins = by_cell(lines), {}, {}, [], dict[str, int]()
    for name, found in cells.items():
        auto = found["auto"]
        others = {each: share_left(line) for each, line in found.items() if each != "auto" and line.get("left")}
        taken = auto.get("algorithm", "auto").split(": ")[-1]
        others.setdefault(taken, share_left(auto))
        best = min(others, key=lambda each: others[each])
        if len(found) > 1:
            wins[best] = wins.get(best, 0) + 1
            ratios[name] = share_left(auto) / max(others[best], 1e-12)
        if name[1] >= FEWEST:
            above[name] = share_left(auto) / max(auto["oracle"], 1e-12)
        if auto.get("auc") and not math.isnan(auto["best auc"]) and auto["best auc"] > 0:
            behind.append(auto["best auc"] - fmean(auto["auc"]))
    worst = max(ratios, key=lambda each: ratios[each], default=None)
    rows = (
        []
        if worst is None
        else [
            row(
                f"{part}: cells of `auto` within 1.5 times the best", "95 %", share(r <= GOOD for r in ratios.values())
            ),
            row(f"{part}: the worst of them", "", f"{ratios[worst]:.2g} times: {told(worst)}"),
            row(f"{part}: which is the best", "", ", ".join(f"{name} {many}" for name, many in sorted(wins.items()))),
        ]
    )
    if above:
        worst = max(above, key=lambda each: above[each])
        rows += [
            row(f"{part}: over the oracle, geometric mean, n ≥ {FEWEST:,}", "5", f"{middle(above.values()):.2g}"),
            row(f"{part}: cells within 5 times the oracle", "", share(r <= ORACLE for r in above.values())),
            row(f"{part}: the worst of them", "", f"{above[worst]:.2g} times: {told(worst)}"),
        ]
    if behind:
        found_auc = f"{median(behind):.4f}; {max(behind):.3f}"
        rows.append(row(f"{part}: AUC behind the optimum's on held-out users, median; worst", "", found_auc))
    return rows


def epsilons(grid: Iterable[Line], high: Iterable[Line]) -> list[str]:
    """Risk at ε = 1 over risk at 8; at 1 that of the grid, where it was not measured besides."""
    own = by_cell(high)
    low = {name[:3]: found["auto"] for name, found in (by_cell(grid) | own).items() if name[3] == 1.0}
    falls, good = {}, []
    for name, found in own.items():
        if name[3] == 1.0:
            continue
        before, after = low.get(name[:3]), found["auto"]
        if before is None:
            continue
        falls[name] = share_left(before) / max(share_left(after), 1e-12)
        good.append(falls[name] >= FALLS or share_left(after) <= FALLEN * after["oracle"])
    if not falls:
        return []
    worst = min(falls, key=lambda each: falls[each])
    return [
        row("ε = 1 to 8: tables whose risk falls 3 times, or to 1.5 times the oracle's", "all", share(good)),
        row("ε = 1 to 8: the least", "", f"{falls[worst]:.2g} times: {told(worst)}"),
    ]


def growth(lines: Iterable[Line]) -> list[str]:
    """The largest fall of AUC from any number of users to any larger one."""
    tables: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        tables.setdefault((line["shape"], line["columns"]), []).append(line)
    falls, bad = {}, 0
    for name, found in tables.items():
        found.sort(key=lambda line: line["users"])
        for few in found:
            for many in found:
                if many["users"] > few["users"]:
                    apart = [a - b for a, b in zip(few["auc"], many["auc"], strict=True)]
                    mean = fmean(apart)
                    error = math.sqrt(sum((a - mean) ** 2 for a in apart) / (len(apart) - 1) / len(apart))
                    bad += mean > max(LEAST_FALL, ERRORS * error)
                    falls[*name, few["users"], many["users"]] = mean
    worst = max(falls, key=lambda each: falls[each])
    text = f"{bad} of {len(falls)} steps; at most {falls[worst]:.4f}: {worst[0]}, {worst[1]} columns, "
    return [row("AUC falls as users are added by more than .005 and two errors", "none", text + f"{worst[2]:,}")]


def classes(lines: Iterable[Line]) -> list[str]:
    """Accuracy on held-out users beside the minimum without privacy at ε = 4, and beside one against the rest at 1."""
    found = {(line["task"], line["epsilon"], line["asked"]): line for line in lines if "accuracy" in line}
    tasks = list(dict.fromkeys(name for name, *_ in found))
    pairs = (
        ("of the minimum without privacy, ε = 4", "within .02", 4.0, "auto", "non-private"),
        ("of one against the rest, ε = 1", "at least", 1.0, "one-vs-rest", "accuracy"),
    )
    rows = []
    for what, wanted, epsilon, other, figure in pairs:
        both = {
            name: found[name, epsilon, "auto"]["accuracy"] - found[name, epsilon, other][figure]
            for name in tasks
            if (name, epsilon, "auto") in found and (name, epsilon, other) in found
        }
        text = ", ".join(f"{name} {apart:+.3f}" for name, apart in both.items())
        rows.append(row(f"several classes: accuracy less that {what}", wanted, text))
    return rows


def means(lines: list[Line]) -> list[str]:
    """Errors of means that learn their radius over those of the radius that is best in hindsight."""
    rows = []
    for figure, what in (
        ("times_oracle", "the oracle radius's error"),
        ("times_hearing", "that of one that hears users"),
    ):
        many = {each["shape"]: 0.0 for each in lines}
        for each in lines:
            if each["users"] >= MANY:
                many[each["shape"]] = max(many[each["shape"]], each[figure])
        if any(many.values()):
            text = ", ".join(f"{shape} {times:.2g}" for shape, times in many.items())
            rows.append(row(f"`mean` over {what}, worst of n ≥ {MANY:,}", "1.3", text))
    few = [each["times_oracle"] for each in lines if (each["users"], each["columns"]) == (1_000, 10)]
    return rows + ([row("`mean` at 1,000 × 10, worst shape", "2.5", f"{max(few):.2g}")] if few else [])


def forecasts(lines: list[Line]) -> list[str]:
    """Of those below 100 %, by plans and by what runs released: how often they held, and how loose they are."""
    planned = [[(line.get("forecast"), left) for left in line["left"]] for line in lines]
    released = [list(zip(line["told"], line["left"], strict=True)) for line in lines if "told" in line]
    rows = []
    for whose, kept in (("`auto`'s plans", planned), ("what runs released", released)):
        found = [[(told, left) for told, left in runs if told and told < 100] for runs in kept]
        spoken = [each for runs in found for each in runs]
        if not spoken:
            continue
        loose = median(told / max(left, 1e-12) for told, left in spoken)
        below = fmean(len(some) / len(runs) for some, runs in zip(found, kept, strict=True))
        rows += [
            row(f"forecasts below 100 % by {whose}, ν > 20", "80 %", f"{100 * below:.0f} %"),
            row("runs that held them", "90 %", share(left <= told for told, left in spoken)),
            row("forecast over what was left, median", "8", f"{loose:.2g}"),
        ]
    return rows


def share(good: Iterable[bool]) -> str:
    """'95 % of 20'."""
    values = list(good)
    return f"{100 * sum(values) / len(values):.0f} % of {len(values)}"


def middle(values: Iterable[float]) -> float:
    """Geometric mean."""
    return math.exp(fmean(math.log(max(each, 1e-12)) for each in values))


def told(name: Cell) -> str:
    """A cell in words."""
    return f"{name[0]}, {name[1]:,} users, {name[2]} columns, ε = {name[3]:g}"


def row(what: str, wanted: str, found: str) -> str:
    """Of the table."""
    return f"| {what} | {wanted} | {found} |"
