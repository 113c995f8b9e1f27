"""Write CITATION.cff, the end of docs/papers/references.bib and the table of algorithms in docs/papers/README.md.

They follow from the entries of references.bib, which are edited by hand, and from what algorithms say of their papers.
With `--check`, only say whether they are up to date.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import written

from quoron import __version__
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.references import Source

ROOT = Path(__file__).parent.parent
CITATION, PAGE = ROOT / "CITATION.cff", ROOT / "docs" / "papers" / "README.md"
BIBLIOGRAPHY = ROOT / "docs" / "papers" / "references.bib"
TITLE, AUTHOR = "quoron: user-level private federated optimisation", "quoron maintainers"
BEGIN, END = "<!-- algorithms: begin, by scripts/gen_citations.py -->", "<!-- algorithms: end -->"
MESSAGE = "If you use this software, cite it and the papers of the algorithm that you used: docs/papers."


ALGORITHMS_OF = (
    "% algorithms: by scripts/gen_citations.py\n"  # begins the part of the bibliography that is written here
)

Entry = Mapping[str, str]  # fields of a paper in the bibliography, by name


def citation() -> str:
    """The Citation File Format of quoron, with every paper of the bibliography."""
    lines = [
        "# Written by scripts/gen_citations.py; do not edit by hand.",
        "cff-version: 1.2.0",
        f"title: {json.dumps(TITLE)}",
        f"message: {json.dumps(MESSAGE)}",
        "type: software",
        "authors:",
        f"  - name: {json.dumps(AUTHOR)}",
        f"version: {__version__}",
        "license: Apache-2.0",
        "references:",
        *(line for entry in entries().values() for line in _reference(entry)),
    ]
    return "\n".join(lines) + "\n"


def bibliography() -> str:
    """The bibliography with this version of quoron, and which of its papers an algorithm comes from."""
    by_hand, _, _ = BIBLIOGRAPHY.read_text(encoding="utf-8").partition(ALGORITHMS_OF)
    by_hand = re.sub(r"\{Version [^}]*\}", f"{{Version {__version__}}}", by_hand, count=1)
    named = [f"% {name}: {', '.join(source.key for source in sources(name))}\n" for name in ALGORITHMS]
    return "\n".join([f"{by_hand}{ALGORITHMS_OF}", *named])


def sources(name: str) -> tuple[Source, ...]:
    """The papers that an algorithm comes from."""
    return ALGORITHMS[name].origin.sources


def entries() -> dict[str, Entry]:
    """The papers of the bibliography, by key."""
    found = re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return {key: _fields(body) for key, body in found if key != "quoron"}


def _fields(body: str) -> Entry:
    named = re.findall(r"^  (\w+) = \{(.*)\},$", body, re.MULTILINE)
    return {name: re.sub(r"\\([&%$#_])", r"\1", value.strip("{}")) for name, value in named}


def short(entry: Entry) -> str:
    """The authors' family names and the year of a paper, as texts cite it."""
    names = [author.partition(",")[0] for author in entry["author"].split(" and ")]
    if len(names) > 4:
        return f"{names[0]} et al. ({entry['year']})"
    return f"{' & '.join(filter(None, (', '.join(names[:-1]), names[-1])))} ({entry['year']})"


def _reference(entry: Entry) -> Iterator[str]:
    kind = "conference-paper" if "booktitle" in entry else "article" if "journal" in entry else "generic"
    yield f"  - type: {kind}"
    yield f"    title: {json.dumps(entry['title'], ensure_ascii=False)}"
    yield "    authors:"
    for author in entry["author"].split(" and "):
        family, _, given = author.partition(", ")
        yield from (f"      - family-names: {json.dumps(family)}", f"        given-names: {json.dumps(given)}")
    yield f"    year: {entry['year']}"
    if "booktitle" in entry:
        yield from (f"    collection-title: {json.dumps(entry['booktitle'])}", "    collection-type: proceedings")
    start, _, end = entry.get("pages", "").partition("--")
    numbers = {"volume": entry.get("volume"), "issue": entry.get("number"), "start": start, "end": end}
    texts = {name: json.dumps(entry[name]) for name in ("journal", "url") if name in entry}
    for key in ("journal", *numbers, "url"):
        if value := texts.get(key) or numbers.get(key):
            yield f"    {key}: {value}"
    if "eprint" in entry:
        yield from ("    identifiers:", "      - type: other", f'        value: "arXiv:{entry["eprint"]}"')


def page() -> str:
    """The page of the papers, its table of algorithms as the registry has it."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{rest.partition(END)[2]}"


def table() -> str:
    """A row an algorithm."""
    rows = ["| name | whose | from |", "| --- | --- | --- |"]
    for name, info in ALGORITHMS.items():
        after = "after " if info.origin.relation == "ours" else ""
        cited = re.sub(r"([A-Z][\w-]+)(?:, [A-Z][\w-]+)+ & [A-Z][\w-]+ \(", r"\1 et al. (", info.origin.papers)
        proof = f"../privacy/{info.guarantees.theorem.removeprefix('docs/privacy/')}"
        rows.append(f"| [`{name}`]({proof}) | {info.origin.relation} | {after}{cited} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    pages = ((CITATION, citation()), (BIBLIOGRAPHY, bibliography()), (PAGE, page()))
    raise SystemExit(max([written.page(path, text) for path, text in pages]))
