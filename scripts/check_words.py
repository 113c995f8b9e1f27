"""Words of pages, docstrings, errors and `--help`: how long sentences are, which terms they have, how many there are.

    scripts/check_words.py            # what is not as it should be, with where; exit status 1 if anything is not

No sentence is longer than LONG words, the mean is at most MEAN, and no term of our own stands for one of the field.
Code, tables, headings and formulas are not read. Guides have at most GUIDE words, all of them GUIDES, all pages PAGES;
what is generated is not counted.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from check_formulas import DISPLAYED, INLINE

ROOT = Path(__file__).parent.parent
LONG, MEAN = 40, 20.0  # words of a sentence
GUIDE, GUIDES, PAGES = 1_500, 35_000, 110_000  # words of pages
TERMS = re.compile(
    r"\b(anew|bought|curator|desk|diary|doorkeeper|farewell|foretold|hellos|homes|hostile|house|keeper|misfits|newcomer"
    r"|nursery|preface|purchased|quorum|ratchet|rehears\w+|scene|storey|tally|told|valley|warden|whoever|whomever)\b",
    re.IGNORECASE,
)
SKIPPED = {"architecture.md", "claims.md"}  # with generated parts
NO_GUIDES = {"results.md", "notation.md", "api.md", "architecture.md"}
FIRST = re.compile(r"(?<=[.!?])\s+(?=[A-Z*`\"“\[(])")


@dataclass
class Found:
    """What one kind of text says."""

    sentences: list[tuple[str, str]] = field(default_factory=list)  # where, and the sentence

    @property
    def long(self) -> list[tuple[str, str]]:
        """Sentences above LONG words."""
        return [each for each in self.sentences if words(each[1]) > LONG]

    @property
    def mean(self) -> float:
        """Words of a sentence."""
        return sum(words(text) for _, text in self.sentences) / max(len(self.sentences), 1)

    @property
    def terms(self) -> list[tuple[str, str]]:
        """Where a term of our own stands, and which."""
        return [(where, term) for where, text in self.sentences for term in TERMS.findall(text)]


def words(sentence: str) -> int:
    """Return how many words a sentence has; a formula or a name in code is one."""
    return len(re.findall(r"[^\W_][\w'’.-]*", sentence))


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and items of lists of a page, without code, tables, headings and formulas on lines of their own."""
    text = re.sub(r"^```.*?^```", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = INLINE.sub("x", DISPLAYED.sub("\n", text))
    text = re.sub(r"^(#|\||<).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^(    |\t).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([*-]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n", text):
        block = re.sub(r"`[^`]*`|[\w/.-]+\.(md|py)[#\w-]*|[a-z]+(-[a-z]+)+#\w+", "x", " ".join(block.split()))
        block = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block)
        if block:
            yield block


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a module's public names, without their examples."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if getattr(node, "name", "x").startswith("_"):
                continue
            text = ast.get_docstring(node) or ""
            yield re.sub(r"^\s*>>> .*?(\n\s*\n|\Z)", "\n\n", text, flags=re.DOTALL | re.MULTILINE)


def messages(path: Path) -> Iterator[str]:
    """Texts with which a module raises its errors."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
                texts = [part.value if isinstance(part, ast.Constant) else "x" for part in parts]
                yield "".join(str(text) for text in texts)


def measured() -> dict[str, Found]:
    """Return what each kind of text says."""
    kinds = {name: Found() for name in ("guides", "proofs", "docstrings", "errors", "help")}

    def add(kind: str, where: Path, text: str) -> None:
        name = str(where.relative_to(ROOT))
        for block in paragraphs(text):
            kinds[kind].sentences += [(name, sentence) for sentence in FIRST.split(block) if words(sentence)]

    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if page.name not in SKIPPED:
            kind = "proofs" if page.parent.name == "privacy" else "guides"
            add("help" if page.name == "command-reference.md" else kind, page, page.read_text("utf-8"))
    for package in ("client", "privacy", "server", "simulations"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for text in docstrings(path):
                add("docstrings", path, text)
            for text in messages(path):
                add("errors", path, text)
    return kinds


def too_many() -> list[str]:
    """Return what pages have more words than they should."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    counts = {page: len(page.read_text("utf-8").split()) for page in pages if not page.stem.endswith("-reference")}
    guides = {page: words for page, words in counts.items() if page.parent.name in ("docs", "tutorials")}
    guides = {page: words for page, words in guides.items() if page.name not in NO_GUIDES}
    found = [f"{page.relative_to(ROOT)}: {words:,} words" for page, words in guides.items() if words > GUIDE]
    total = {"guides": (sum(guides.values()), GUIDES), "pages": (sum(counts.values()), PAGES)}
    print(", ".join(f"{name}: {number:,} words" for name, (number, _) in total.items()))
    return found + [
        f"{name}: {number:,} words, at most {most:,}" for name, (number, most) in total.items() if number > most
    ]


def main() -> int:
    """Print what is not as it should be."""
    wrong = too_many()
    for kind, found in measured().items():
        print(f"{kind}: {len(found.sentences):,} sentences of {found.mean:.1f} words in the mean")
        wrong += [f"{where}: more than {LONG} words: {text}" for where, text in found.long]
        wrong += [f"{where}: the term {term}" for where, term in found.terms]
        wrong += [f"{kind}: more than {MEAN:g} words a sentence in the mean"] if found.mean > MEAN else []
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
