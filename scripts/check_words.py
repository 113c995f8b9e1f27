"""Sentences and terms: how long sentences are, and how often a term of our own stands for one of the field.

    scripts/check_words.py            # what is above its bound, with where; exit status 1 if anything is
    scripts/check_words.py --list     # all of it

Guides, proof pages, docstrings of public names, messages of errors and `--help` are read; code, tables, headings and
formulas on lines of their own are not. Bounds are what there is now: lower them with the pages, never raise one.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from check_formulas import DISPLAYED, INLINE

ROOT = Path(__file__).parent.parent
LONG = 40  # words of a sentence
TERMS = re.compile(
    r"\b(anew|bought|curator|doorkeeper|farewell|foretold|hellos|hostile|keeper|misfits|newcomer|patience|quorum"
    r"|rehears\w+|storey|tally|told|warden|whoever|whomever)\b",
    re.IGNORECASE,
)
# Kind of text: (sentences above LONG words, mean words of a sentence, terms of our own).
BOUNDS: dict[str, tuple[int, float, int]] = {
    "guides": (0, 13.2, 1),
    "proofs": (0, 14.1, 0),
    "docstrings": (0, 14.0, 0),
    "errors": (0, 8.6, 0),
    "help": (0, 15.1, 0),
}
SKIPPED = {"architecture.md", "claims.md"}  # generated
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


def main() -> int:
    """Print what is above its bound."""
    every, wrong = "--list" in sys.argv, 0
    for kind, found in measured().items():
        now = len(found.long), round(found.mean, 1), len(found.terms)
        bound = BOUNDS.get(kind, (0, 0.0, 0))
        over = [value > most for value, most in zip(now, bound, strict=True)]
        wrong += any(over)
        print(f"{kind}: {now[0]} sentences above {LONG} words, mean {now[1]}, {now[2]} old terms; at most {bound}")
        for where, text in [*(found.long if every or over[0] else []), *(found.terms if every or over[2] else [])]:
            print(f"  {where}: {text[:160]}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
