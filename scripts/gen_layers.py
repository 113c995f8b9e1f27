"""Write the bounds and layers of the code into docs/architecture.md; `--check` only says if the page is up to date."""

import sys
from pathlib import Path

import written

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- bounds and layers: scripts/gen_layers.py -->", "<!-- end of bounds and layers -->"


def table() -> str:
    """The bounds of `tests/test_layout.py`, and the layers as they stand."""
    sys.path.insert(0, str(ROOT / "tests"))
    from measures import FOLDERS, source
    from test_layout import BOUNDS

    bounds = [f"| {name} | {bound:,} |" for name, bound in BOUNDS.items()]
    layers = [_layers(package, source().layers(package)) for package in FOLDERS if package != "quoron_protos"]
    return "\n".join(
        [
            *("| upper bound | |", "| --- | --- |", *bounds, ""),
            *("Layers of each package, the lowest first; imports go down only:", "", *layers),
        ]
    )


def _layers(package: str, layers: list[list[str]]) -> str:
    named = (", ".join(f"`{name.removeprefix(f'{package}.')}`" for name in layer) for layer in layers)
    return f"* `{package}`: {' < '.join(named)}"


def page() -> str:
    """The whole page, with today's table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(written.page(PAGE, page()))
