"""Write CITATION.cff, and the table of algorithms in docs/papers/README.md, from what algorithms say of their papers.

With `--check`, only say whether both are up to date.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import written

from quoron import __version__
from quoron.citing import AUTHOR, TITLE, papers
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.references import THE_FOUR, Reference
from quoron_server.algorithms.refused import REFUSED

ROOT = Path(__file__).parent.parent
CITATION, PAGE = ROOT / "CITATION.cff", ROOT / "docs" / "papers" / "README.md"
BEGIN, END = "<!-- algorithms: begin, by scripts/gen_citations.py -->", "<!-- algorithms: end -->"
MESSAGE = "If you use this software, cite it and the papers of the algorithm that you used: quoron cite NAME."


def citation() -> str:
    """The Citation File Format of quoron, with every paper that an algorithm comes from."""
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
        *(line for reference in references() for line in _reference(reference)),
    ]
    return "\n".join(lines) + "\n"


def references() -> list[Reference]:
    """The papers, each once: first the four that docs/papers reads."""
    named = (paper for name in (*ALGORITHMS, *REFUSED) for paper in papers(name)[1])
    return list(dict.fromkeys((*THE_FOUR, *named)))


def _reference(paper: Reference) -> Iterator[str]:
    kind = "conference-paper" if paper.booktitle else "article" if paper.journal else "generic"
    yield f"  - type: {kind}"
    yield f"    title: {json.dumps(paper.title, ensure_ascii=False)}"
    yield "    authors:"
    for author in paper.authors:
        family, _, given = author.partition(", ")
        yield from (f"      - family-names: {json.dumps(family)}", f"        given-names: {json.dumps(given)}")
    yield f"    year: {paper.year}"
    if paper.booktitle:
        yield from (f"    collection-title: {json.dumps(paper.booktitle)}", "    collection-type: proceedings")
    start, end = paper.pages or (None, None)
    numbers = {"journal": paper.journal, "volume": paper.volume, "issue": paper.number, "start": start, "end": end}
    for key, value in (numbers | {"url": paper.url}).items():
        if value is not None:
            yield f"    {key}: {json.dumps(value)}"
    if paper.eprint:
        yield from ("    identifiers:", "      - type: other", f'        value: "arXiv:{paper.eprint}"')


def page() -> str:
    """The page of the papers, its table of algorithms as the registry has it."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{rest.partition(END)[2]}"


def table() -> str:
    """A row an algorithm."""
    rows = ["| name | whose | from | what is changed, or was not at hand |", "| --- | --- | --- | --- |"]
    for name, info in ALGORITHMS.items():
        after = "after " if info.origin.relation == "ours" else ""
        proof = f"../privacy/{info.promises.theorem.removeprefix('docs/privacy/')}"
        rows.append(
            f"| [`{name}`]({proof}) | {info.origin.relation} | {after}{info.origin.papers} | {info.origin.note} |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    raise SystemExit(max(written.page(CITATION, citation()), written.page(PAGE, page())))
