"""Write CITATION.cff, docs/papers/references.bib and the table of algorithms in docs/papers/README.md.

All follow from what algorithms say of their papers. With `--check`, only say whether they are up to date.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import written

from quoron import __version__
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.references import REFUSED, THE_FOUR, Reference

ROOT = Path(__file__).parent.parent
CITATION, PAGE = ROOT / "CITATION.cff", ROOT / "docs" / "papers" / "README.md"
BIBLIOGRAPHY = ROOT / "docs" / "papers" / "references.bib"
TITLE, AUTHOR = "quoron: user-level private federated optimisation", "quoron maintainers"
BEGIN, END = "<!-- algorithms: begin, by scripts/gen_citations.py -->", "<!-- algorithms: end -->"
MESSAGE = "If you use this software, cite it and the papers of the algorithm that you used: docs/papers."


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


def bibliography() -> str:
    """quoron and every paper as BibTeX, and which of them an algorithm comes from."""
    named = [f"% {name}: {', '.join(paper.key for paper in papers(name))}\n" for name in (*ALGORITHMS, *REFUSED)]
    own = _entry("misc", "quoron", (f"{{{AUTHOR}}}",), TITLE, note=f"Version {__version__}")
    return "\n".join(
        ["% Written by scripts/gen_citations.py; do not edit by hand.\n", own, *map(_bibtex, references()), *named]
    )


def papers(name: str) -> tuple[Reference, ...]:
    """The papers that an algorithm comes from."""
    return (REFUSED[name].source.reference,) if name in REFUSED else ALGORITHMS[name].origin.references


def _bibtex(paper: Reference) -> str:
    kind = "inproceedings" if paper.booktitle else "article" if paper.journal else "misc"
    pages = None if paper.pages is None else f"{paper.pages[0]}--{paper.pages[1]}"
    values = {"booktitle": paper.booktitle, "journal": paper.journal, "series": paper.series, "volume": paper.volume}
    values |= {"number": paper.number, "pages": pages, "year": paper.year, "url": paper.url}
    values |= {"eprint": paper.eprint, "archiveprefix": paper.eprint and "arXiv"}
    return _entry(kind, paper.key, paper.authors, paper.title, **values)


def _entry(kind: str, key: str, authors: tuple[str, ...], title: str, **values: str | int | None) -> str:
    said = {"author": " and ".join(authors), "title": f"{{{title}}}"} | values
    lines = [f"  {name} = {{{_escaped(name, str(value))}}},\n" for name, value in said.items() if value is not None]
    return f"@{kind}{{{key},\n{''.join(lines)}}}\n"


def _escaped(name: str, value: str) -> str:
    return value if name in ("url", "eprint") else re.sub(r"[&%$#_]", r"\\\g<0>", value)


def references() -> list[Reference]:
    """The papers, each once: first the four that docs/papers reads."""
    named = (paper for name in (*ALGORITHMS, *REFUSED) for paper in papers(name))
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
    rows = ["| name | whose | from |", "| --- | --- | --- |"]
    for name, info in ALGORITHMS.items():
        after = "after " if info.origin.relation == "ours" else ""
        cited = re.sub(r"([A-Z][\w-]+)(?:, [A-Z][\w-]+)+ & [A-Z][\w-]+ \(", r"\1 et al. (", info.origin.papers)
        proof = f"../privacy/{info.promises.theorem.removeprefix('docs/privacy/')}"
        rows.append(f"| [`{name}`]({proof}) | {info.origin.relation} | {after}{cited} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    pages = ((CITATION, citation()), (BIBLIOGRAPHY, bibliography()), (PAGE, page()))
    raise SystemExit(max([written.page(path, text) for path, text in pages]))
