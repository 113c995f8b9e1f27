"""Notebooks of the tutorials: docs/tutorials/NAME.md, with what its blocks of code print and draw, as NAME.ipynb.

    scripts/make_notebooks.py [NAME ...]             # carry them out and write them
    scripts/make_notebooks.py --check [NAME ...]     # carry them out; exit status 1 if one fails or is not as its page

Without names it is all but those that need torch. Numbers of runs with secret noise differ from time to time.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PAGES = Path(__file__).parent.parent / "docs" / "tutorials"
MODELS = ("network", "peers")  # need torch: `scripts/test-models` carries them out
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def notebook(page: Path) -> nbformat.NotebookNode:
    """Return the page as a notebook that nobody has carried out."""
    cells, at, text = [], 0, page.read_text("utf-8")
    for block in BLOCK.finditer(text):
        cells.append(new_markdown_cell(text[at : block.start()].strip()))
        magic = "%%sh\n" if block[1] == "sh" else ""
        cells.append(new_code_cell(magic + block[2].strip()))
        at = block.end()
    cells.append(new_markdown_cell(text[at:].strip()))
    cells = [cell for cell in cells if cell.source]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    return new_notebook(cells=cells, metadata=KERNEL)


def carried_out(made: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook with its outputs, carried out in a folder and with a home of its own.

    Raises:
        CellExecutionError: with the cell and its error.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        os.environ |= {"PATH": path, "HOME": folder, "XDG_DATA_HOME": folder, "COLUMNS": "96"}
        NotebookClient(made, timeout=600, coalesce_streams=True, resources={"metadata": {"path": folder}}).execute()
        return _without(made, folder)


def _without(made: nbformat.NotebookNode, folder: str) -> nbformat.NotebookNode:
    """Return a notebook without times, names of its folder, colours and progress on standard error."""

    def plain(text: str) -> str:
        text = re.sub(r"\x1b\[[\d;]*m", "", text).replace(folder, "~")
        return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))

    for cell in made.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output.text = plain(output.text)
                for kind, data in output.get("data", {}).items():
                    if kind.startswith("text/"):
                        output.data[kind] = plain(data)
    made.metadata.pop("language_info", None)
    return made


def main() -> int:
    """Write the notebooks, or say which are not as their page."""
    check = "--check" in sys.argv
    names = [name for name in sys.argv[1:] if name != "--check"]
    wrong = []
    for name in names or sorted(page.stem for page in PAGES.glob("*.md") if page.stem not in MODELS):
        page, written = PAGES / f"{name}.md", PAGES / f"{name}.ipynb"
        made = notebook(page)
        try:
            carried_out(made)
        except CellExecutionError as error:
            wrong.append(f"{page} fails: {error}")
            continue
        if not check:
            nbformat.write(made, written)
        elif not written.exists() or sources(nbformat.read(written, 4)) != sources(made):
            wrong.append(f"{written} is not of its page: run scripts/make_notebooks.py {name}")
    print("\n".join(wrong) or "Notebooks are up to date.")
    return int(bool(wrong))


def sources(made: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """Return kind and source of each cell."""
    return [(cell.cell_type, cell.source) for cell in made.cells]


if __name__ == "__main__":
    sys.exit(main())
