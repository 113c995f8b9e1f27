"""Formulas of pages: LaTeX in the source, MathML in the site, which needs no script.

    scripts/check_formulas.py [PAGE ...]    # every formula that is not valid, with where; exit status 1 if there is one

A displayed formula is a block between two lines of `$$` alone; in a text it stands between two `$`.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from math_core import LatexError, LatexToMathML

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"^```.*?^```|^(?:    |\t)[^\n]*$|(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL | re.MULTILINE)
DISPLAYED = re.compile(r"^ {0,3}\$\$\n(?P<latex>.*?)\n *\$\$$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<![\\$\w])\$(?![\s$])(?P<latex>(?:[^$\n]|\n(?!\s*\n))+?)(?<![\s\\])\$(?![\w$])")
_CONVERTER = LatexToMathML(fancy_error=False)


def mathml(latex: str, *, displayed: bool) -> str:
    """Return a formula as MathML.

    Raises:
        LatexError: For what is not LaTeX.
    """
    return _CONVERTER.convert_with_local_state(latex, displaystyle=displayed)


def without_code(text: str) -> str:
    """Return a page with blanks in the place of its code, line by line."""
    return CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)


def replaced(text: str, value: Callable[[str, bool], str]) -> str:
    """Return a page with `value(latex, displayed)` in the place of its formulas, code as it is."""
    blank, done, at = without_code(text), [], 0
    for displayed, pattern in ((True, DISPLAYED), (False, INLINE)):
        done, at = [], 0
        for found in pattern.finditer(blank):
            done += [text[at : found.start()], value(text[slice(*found.span("latex"))], displayed)]
            at = found.end()
        text = "".join([*done, text[at:]])
        blank = without_code(text)
    return text


def errors(page: Path) -> list[str]:
    """Return what is wrong with the formulas of a page, with the line of each."""
    text, wrong = page.read_text("utf-8"), []
    blank = without_code(text)
    for displayed, pattern in ((True, DISPLAYED), (False, INLINE)):
        for found in pattern.finditer(blank):
            latex = text[slice(*found.span("latex"))]
            try:
                mathml(latex, displayed=displayed)
            except LatexError as error:
                wrong.append(f"{page}:{text.count(chr(10), 0, found.start()) + 1}: {error}: {' '.join(latex.split())}")
        blank = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), blank)
    lone = [number for number, line in enumerate(blank.splitlines(), 1) if "$" in line.replace("\\$", "")]
    return [*wrong, *(f"{page}:{number}: a $ that begins or ends no formula" for number in lone)]


def main() -> int:
    """Print every formula that is not valid."""
    pages = [Path(name) for name in sys.argv[1:]] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    wrong = [line for page in pages for line in errors(page)]
    print("\n".join(wrong) or f"Formulas of {len(pages)} pages are valid.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
