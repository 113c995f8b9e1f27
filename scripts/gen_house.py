"""Write the house's measures into docs/architecture.md; with `--check`, only say if the page is up to date."""

import sys
from pathlib import Path

import written

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- the ratchet: scripts/gen_house.py -->", "<!-- end of the ratchet -->"


def table() -> str:
    """The marks of `tests/test_layout.py`, and the storeys of rooms as they stand."""
    sys.path.insert(0, str(ROOT / "tests"))
    from measures import FOLDERS, house
    from test_layout import COUNTS, READ, WAYS

    ways = [f"| `{module}` | {lines:,} | {modules} |" for module, (lines, modules) in WAYS.items()]
    read = [f"| `{start}` | {lines:,} | {definitions:,} |" for start, (lines, definitions) in READ.items()]
    counts = [f"| {name} | {mark:,} |" for name, mark in COUNTS.items()]
    storeys = [_storeys(package, house().storeys(package)) for package in FOLDERS if package != "quoron_protos"]
    return "\n".join(
        [
            *("| what must be read first, at most | lines | modules |", "| --- | --- | --- |", *ways, ""),
            *("| definition by definition, at most | lines | definitions |", "| --- | --- | --- |", *read, ""),
            *("| and | at most |", "| --- | --- |", *counts, ""),
            *("Rooms of each package, the lowest first; every arrow runs down:", "", *storeys),
        ]
    )


def _storeys(package: str, storeys: list[list[str]]) -> str:
    named = (", ".join(f"`{room.removeprefix(f'{package}.')}`" for room in storey) for storey in storeys)
    return f"* `{package}`: {' < '.join(named)}"


def page() -> str:
    """The whole page, with today's table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(written.page(PAGE, page()))
