"""Write the papers' tables into docs/results.md: every row, and what calibrated constants make of it.

The page's prose is its own; the text between two marks is written here.

python scripts/gen_tables_page.py             # all plans again, some minutes
python scripts/gen_tables_page.py --text      # the text alone, with the figures that the page has
python scripts/gen_tables_page.py --check     # whether the text is up to date
python scripts/gen_tables_page.py --check --figures
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import written

from quoron.simulation import sources
from quoron.simulation.problem import setup
from quoron_privacy.errors import Infeasible, QuoronError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

PAGE = Path(__file__).parent.parent / "docs" / "results.md"
USERS = (10_000, 100_000, 1_000_000)
EPSILON, DELTA = 1.0, 1e-6


@dataclass(frozen=True)
class Row:
    """One row of a table, and the algorithm that runs it."""

    cited: str
    claimed: str  # as printed, with printing errors, as LaTeX, as LaTeX, as LaTeX
    name: str  # empty for one that is not here
    options: Mapping[str, Any] = field(default_factory=dict)
    items_as_users: bool = False  # an item-level row: every item is a user of its own

    @property
    def label(self) -> str:
        """As people write it."""
        if not self.name:
            return "—"
        told = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"`{self.name}`" + (f" ({told})" if told else "")

    @property
    def there(self) -> bool:
        """Whether the registry has it, with options of that value."""
        if self.name not in ALGORITHMS:
            return False
        known = {each.name: str(each.type) for each in fields(ALGORITHMS[self.name].options)}
        return all(
            key in known and ("Literal" not in known[key] or f"'{value}'" in known[key] or f'"{value}"' in known[key])
            for key, value in self.options.items()
        )


@dataclass(frozen=True)
class Table:
    """One table of one paper."""

    title: str
    source: str
    columns: str
    rows: tuple[Row, ...]


TABLES = (
    Table(
        "Ghazi, Kumar, Liu and Manurangsi, Table 1",
        "Excess risk and gradients, n users of m items.",
        "excess; gradients",
        (
            Row("Group privacy", r"$1/(nm)+\sqrt{d}/(n\varepsilon)$; $nm$", "group-phased-sgd"),
            Row("Levy et al. (2021)", r"$1/\sqrt{nm}+d/(n\sqrt{m\varepsilon})$; $n^3m/d$", "winsorised-erm"),
            Row(
                "Bassily and Sun (2023)",
                r"$1/\sqrt{nm}+\sqrt{d}/(n\sqrt{m\varepsilon})$; $n^2m/\sqrt{d}$",
                "mean-sgd",
                {},
            ),
            Row(
                "Ghazi et al. (2023)",
                r"$1/\sqrt{nm}+\sqrt{d}/(n\sqrt{m\varepsilon^{2.5}})$; super-polynomial",
                "",
            ),
            Row(
                "Asi and Liu (2024)",
                r"$1/\sqrt{nm}+\sqrt{d}/(n\sqrt{m\varepsilon})$; $\beta(nm)^{3/2}$, or $(nm)^3$",
                "outlier-gd",
            ),
            Row(
                "Lowy et al. (2024), polynomial",
                r"the same; $\max(\beta^{1/4}(nm)^{9/8},\beta^{1/2}n^{1/4}m^{5/4})$, or $n^{11/8}m^{5/4}$",
                "accelerated-erm",
            ),
            Row("Lowy et al. (2024), linear", r"$\sqrt{d}/\sqrt{nm\varepsilon}$; $nm$", "outlier-iterates"),
            Row("This work", r"$1/\sqrt{nm}+\sqrt{d}/(n\sqrt{m\varepsilon})$; $nm$", "filtered-sgd"),
        ),
    ),
    Table(
        "Choquette-Choo, Ganesh and Thakurta, Table 1",
        "Gradients and steps for the optimal rate, n users of one item; one item there is one user here.",
        "gradients; steps; one epoch; convexity for privacy",
        (
            Row("Ours, optimum inside", r"$2n$; $n^{1/4}$; yes; no", "accelerated-srgd"),
            Row("Ours, no assumption", r"$2n$; $\sqrt{n}$; yes; no", "accelerated-srgd"),
            Row("Feldman et al. (2020)", r"$n$; $n/\operatorname{polylog}n$; yes; yes", "phased-sgd"),
            Row("Zhang et al. (2022b)", r"$2n$; $n$; yes; no", "online-to-batch"),
            Row("Zhang et al. (2022a)", r"$n$; $\sqrt{n}$; no; yes", ""),
            Row("Gao et al. (2024)", r"$n^{9/8}$; $n^{1/4}$; no; no", "accelerated-erm"),
        ),
    ),
    Table(
        "Lowy, Liu and Asi, Figure 1",
        "Gradients for the optimal rate, ε = 1, n = d. Losses that are not smooth: figures of a smooth one.",
        "loss; gradients",
        (
            Row("BS23", r"smooth; $mn^{3/2}$", "mean-sgd", {}),
            Row("AL24", r"smooth; $\beta(mn)^{3/2}$", "outlier-gd"),
            Row("Algorithm 3", r"smooth; $\beta^{1/4}(mn)^{9/8}+\beta^{1/2}n^{1/4}m^{5/4}$", "accelerated-erm"),
            Row("AL24", r"not smooth; $(mn)^3$", "outlier-gd"),
            Row("Algorithm 3, smoothed", r"not smooth; $n^{11/8}m^{5/4}$", "accelerated-erm"),
        ),
    ),
    Table(
        "Bassily and Sun, Table 1",
        "Excess risk. In item-level rows each item is a user.",
        "excess",
        (
            Row("Item-level, central", r"$1/\sqrt{mn}+\sqrt{d\ln(1/\delta)}/(nm\varepsilon)$", "dp-sgd-wor", {}, True),
            Row("Item-level, local", r"$\sqrt{d/(nm\varepsilon^2)}$", "local-model", {}, True),
            Row("User-level, central", r"$1/\sqrt{mn}+\sqrt{d\ln(1/\delta)}/(n\sqrt{m}\varepsilon)$", "mean-sgd", {}),
            Row("User-level, local", r"$\sqrt{d/(nm\varepsilon^2)}$", "local-model", {}),
        ),
    ),
)

BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"


def public_problem(users: int, row: Row) -> Problem:
    """The quickstart with that many users; of an item-level row, with as many users as items."""
    settings = [f"population.users={users}"]
    if row.items_as_users:
        settings = [f"population.users={50 * users}", "population.items_per_user=1"]
    config, folder = sources.resolve("quickstart", settings)
    return setup(config, folder).problem


def figure(row: Row, users: int) -> str:
    """One cell: a predicted risk and the rounds, or what it would take."""
    if not row.there:
        return "—"
    info = ALGORITHMS[row.name]
    try:
        plan = info.plan(public_problem(users, row), Privacy(EPSILON, DELTA), info.options(**row.options))
        info.verify(plan)
    except Infeasible as error:
        return f"infeasible: needs {error.needs}".replace("|", "/")
    except QuoronError as error:
        return f"refused: {error}".replace("|", "/")
    risk = plan.guessed_excess_risk  # the page tells guesses, measured or not
    return f"({plan.cost.rounds:,})" if risk is None else f"{risk:.1e} ({plan.cost.rounds:,})"


def key(row: Row) -> str:
    """What a row's figures are found by."""
    return f"{row.label}{' items' if row.items_as_users else ''}"


def compute() -> dict[str, tuple[str, ...]]:
    """The figures of every row, each computed once."""
    found: dict[str, tuple[str, ...]] = {}
    for table in TABLES:
        for row in table.rows:
            if key(row) not in found:
                found[key(row)] = tuple(figure(row, users) for users in USERS)
                print(key(row), *found[key(row)], sep=" | ", file=sys.stderr)
    return found


def known() -> dict[str, tuple[str, ...]]:
    """The figures that the page has."""
    text, found = PAGE.read_text(encoding="utf-8"), {}
    for table in TABLES:
        for row in table.rows:
            told = re.escape(f"| {row.cited} | {row.claimed} | {row.label} |")
            pattern = rf"^{told}(.*)\|$"
            if (line := re.search(pattern, text, re.MULTILINE)) is not None:
                found.setdefault(key(row), tuple(cell.strip() for cell in line.group(1).split("|")))
    return found


def page(figures: Mapping[str, tuple[str, ...]]) -> str:
    """The page with these figures, its prose as it stands."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    parts: list[str] = []
    above: set[str] = set()
    for table in TABLES:
        heads = ["row", table.columns, "here", *(f"n = {users:,}" for users in USERS)]
        lines = [f"\n### {table.title}\n\n{table.source}\n", _line(heads), _line(["---"] * len(heads))]
        for row in table.rows:
            again = ("as above", *[""] * (len(USERS) - 1))
            cells = again if row.name and key(row) in above else figures.get(key(row), ("—",) * len(USERS))
            above.add(key(row))
            lines.append(_line([row.cited, row.claimed, row.label, *cells]))
        parts.append("\n".join(lines) + "\n")
    return "".join((head, BEGIN, "\n", *parts, "\n", END, tail))


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Write or check the page."""
    told = set(sys.argv[1:])
    afresh = "--figures" in told or not told & {"--check", "--text"}
    return written.page(PAGE, page(compute() if afresh else known()))


if __name__ == "__main__":
    sys.exit(main())
