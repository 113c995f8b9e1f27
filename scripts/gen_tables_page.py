"""Write the tables of docs/tables-row-by-row.md: every row of the papers', and what calibrated constants make of it.

The page's prose is its own; what stands between its two marks is written here.

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
from quoron_server.algorithms.references import REFUSED, deletions, subsets
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

PAGE = Path(__file__).parent.parent / "docs" / "tables-row-by-row.md"
USERS = (10_000, 100_000, 1_000_000)
EPSILON, DELTA = 1.0, 1e-6


@dataclass(frozen=True)
class Row:
    """One row of a table, and the algorithm that runs it."""

    cited: str
    claimed: str  # as printed, with printing errors
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    items_as_users: bool = False  # an item-level row: every item is a user of its own

    @property
    def label(self) -> str:
        """As people write it."""
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
        "*Nearly linear-time user-level DP-SCO with optimal rates*. Error and gradient evaluations, n users with m "
        "items.",
        "excess; gradients",
        (
            Row("Group privacy", "1/(nm) + √d/(nε); nm", "group-phased-sgd"),
            Row("the same, with releases of every iterate", "", "group-dp-sgd"),
            Row("Levy et al. (2021)", "1/√(nm) + d/(n√(mε)); n³m/d", "winsorised-erm"),
            Row("Bassily and Sun (2023)", "1/√(nm) + √d/(n√(mε)); n²m/√d", "mean-sgd", {}),
            Row("Ghazi et al. (2023)", "1/√(nm) + √d/(n√(mε^2.5)); super-polynomial", "ghazi-2023"),
            Row("Asi and Liu (2024)", "1/√(nm) + √d/(n√(mε)); β(nm)^(3/2), or (nm)³", "outlier-gd"),
            Row(
                "Lowy et al. (2024), polynomial",
                "the same; max(β^¼ (nm)^(9/8), β^½ n^¼ m^(5/4)), or n^(11/8) m^(5/4)",
                "accelerated-erm",
            ),
            Row("Lowy et al. (2024), linear", "√d/√(nmε); nm", "outlier-iterates"),
            Row("This work", "1/√(nm) + √d/(n√(mε)); nm", "filtered-sgd"),
            Row("its soft filter, ours", "", "soft-filtered-sgd"),
        ),
    ),
    Table(
        "Choquette-Choo, Ganesh and Thakurta, Table 1",
        "*Near-optimal rates for O(1)-smooth DP-SCO with a single epoch and large batches*. Gradients and batch "
        "gradient steps for the optimal rate, n users with one item; here every user's items are one of theirs.",
        "gradients; steps; one epoch; convexity for privacy",
        (
            Row("Ours, optimum inside", "2n; n^¼; yes; no", "accelerated-srgd"),
            Row("Ours, no assumption", "2n; √n; yes; no", "accelerated-srgd"),
            Row("Feldman et al. (2020)", "n; n/polylog n; yes; yes", "phased-sgd"),
            Row("Zhang et al. (2022b)", "2n; n; yes; no", "online-to-batch"),
            Row("Zhang et al. (2022a)", "n; √n; no; yes", "phased-erm"),
            Row("Gao et al. (2024)", "n^(9/8); n^¼; no; no", "accelerated-erm", {"test": "clip"}),
        ),
    ),
    Table(
        "Lowy, Liu and Asi, Figure 1",
        "*Faster algorithms for user-level private stochastic convex optimization*. Gradients for the optimal rate; "
        "ε = 1, n = d. Rows for losses that are not smooth show the same method on this smooth problem.",
        "loss; gradients",
        (
            Row("BS23", "smooth; mn^(3/2)", "mean-sgd", {}),
            Row("AL24", "smooth; β(mn)^(3/2)", "outlier-gd"),
            Row("Algorithm 3", "smooth; β^¼ (mn)^(9/8) + β^½ n^¼ m^(5/4)", "accelerated-erm"),
            Row("AL24", "not smooth; (mn)³", "outlier-gd"),
            Row("Algorithm 3, smoothed", "not smooth; n^(11/8) m^(5/4)", "accelerated-erm"),
        ),
    ),
    Table(
        "Bassily and Sun, Table 1",
        "*User-level private stochastic convex optimization with optimal rates*. Excess; item-level rows take every "
        "item for a user.",
        "excess",
        (
            Row("Item-level, central", "1/√(mn) + √(d ln(1/δ))/(nmε)", "dp-sgd-wor", {}, True),
            Row("Item-level, local", "√(d/(nmε²))", "local-model", {"estimator": "clip"}, True),
            Row("User-level, central", "1/√(mn) + √(d ln(1/δ))/(n√mε)", "mean-sgd", {}),
            Row("User-level, local", "√(d/(nmε²))", "local-model", {"estimator": "tracking"}),
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
    """One cell: a predicted risk, or what it would take."""
    if row.name in REFUSED:
        digits = subsets(users, deletions(EPSILON, DELTA))
        return f"refused: 10^{digits:.1f} subsets"
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
    return f"in {plan.cost.rounds:,} rounds" if risk is None else f"{risk:.1e} in {plan.cost.rounds:,} rounds"


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
            pattern = rf"^{told}[^|]*\|[^|]*\|(.*)\|$"  # behind whose it is, and its trust model
            if (line := re.search(pattern, text, re.MULTILINE)) is not None:
                found[key(row)] = tuple(cell.strip() for cell in line.group(1).split("|"))
    return found


def page(figures: Mapping[str, tuple[str, ...]]) -> str:
    """The page with these figures, its prose as it stands."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    every, parts = {**ALGORITHMS, **REFUSED}, []
    for table in TABLES:
        heads = ["row", table.columns, "here", "whose", "trust_model", *(f"n = {users:,}" for users in USERS)]
        lines = [f"\n## {table.title}\n\n{table.source}\n", _line(heads), _line(["---"] * len(heads))]
        for row in table.rows:
            trust_model = every[row.name].trust_model if row.name in every else "—"
            cells = figures.get(key(row), ("—",) * len(USERS))
            whose = ALGORITHMS[row.name].origin.relation if row.name in ALGORITHMS else "—"
            lines.append(_line([row.cited, row.claimed, row.label, whose, trust_model, *cells]))
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
