"""Every algorithm names its papers, and they are told completely and in formats that other programs read."""

import json
import re
from pathlib import Path

import gen_citations as generator
import pytest

from quoron.citing import bibtex
from quoron.cli.app import invoke
from quoron.cli.common import citable
from quoron_server.algorithms import ALGORITHMS, references
from quoron_server.algorithms.references import Reference
from quoron_server.algorithms.refused import REFUSED
from small_run import TOML

ROOT = Path(__file__).parent.parent.parent
NAMES = (*ALGORITHMS, *REFUSED)
REQUIRED = {  # of BibTeX's own styles
    "inproceedings": {"author", "title", "booktitle", "year"},
    "article": {"author", "title", "journal", "year"},
    "misc": {"author", "title"},
}
ALL = [value for value in vars(references).values() if isinstance(value, Reference)]


def parsed(text: str) -> dict[str, dict[str, str]]:
    """Entries by key, with their fields and kind; AssertionError for what BibTeX would not read."""
    found: dict[str, dict[str, str]] = {}
    for part in text.split("\n\n"):
        if part.startswith("%"):
            assert "@" not in part  # which would begin an entry
            continue
        head, *lines, tail = part.rstrip("\n").split("\n")
        kind, key = re.fullmatch(r"@(\w+)\{([\w:]+),", head).groups()  # type: ignore[union-attr]
        assert tail == "}"
        fields = [re.fullmatch(r"  (\w+) = \{(.*)\},", line) for line in lines]
        assert all(fields), part
        entry = {field[1]: field[2] for field in fields if field}
        assert len(entry) == len(lines), f"{key} has a field twice"
        assert entry.keys() >= REQUIRED[kind], key
        for value in entry.values():
            depth = 0
            for sign in re.sub(r"\\.", "", value):
                depth += {"{": 1, "}": -1}.get(sign, 0)
                assert depth >= 0, value
            assert depth == 0, value
            assert not re.search(r"(?<!\\)[&%$#_]", re.sub(r"^https://\S+$", "", value)), value
        assert key not in found, f"{key} is there twice"
        found[key] = entry | {"kind": kind}
    return found


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert invoke(["cite", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_is_cited_by_its_papers_beside_quoron(capsys: pytest.CaptureFixture[str], name: str) -> None:
    entries = parsed(printed(capsys, name))
    meant = ALGORITHMS[name].origin.references if name in ALGORITHMS else (REFUSED[name].source.reference,)
    assert meant
    assert list(entries) == ["quoron", *(paper.key for paper in meant)]


def test_an_unknown_name_is_refused_with_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["cite", "filterd-sgd"]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "got 'filterd-sgd'. Did you mean 'filtered-sgd'?" in told.err


def test_runs_are_cited_by_what_they_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(TOML, encoding="utf-8")
    assert invoke(["simulate", "small.toml", "--out", "runs/one", "--simulation-seed", "1", "--quiet"]) == 0
    asked = ("--algorithms", "one-pass-dp-sgd,sgd", "--seeds", "1", "--out", "runs/two", "--quiet")
    assert invoke(["compare", "small.toml", *asked]) == 0
    capsys.readouterr()
    assert printed(capsys, "runs/one") == bibtex(["one-pass-dp-sgd"])
    assert printed(capsys, "runs/two") == bibtex(["one-pass-dp-sgd", "sgd"])
    assert ("runs/one", "") in citable("ru")
    assert ("filtered-sgd", ALGORITHMS["filtered-sgd"].summary) in citable("filt")


def test_a_list_of_algorithms_says_whose_each_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["algorithms", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {row["relation"] for row in listed.values()} == {"theirs", "repaired", "ours", None}
    for name, info in ALGORITHMS.items():
        assert listed[name]["from"] == str(info.origin)
        assert listed[name]["paper"] == info.paper
    assert invoke(["algorithms"]) == 0
    assert "repaired: " in capsys.readouterr().out


# The Citation File Format 1.2.0: the keys that it knows, of those that a paper may have, and what they hold.


def number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def people(value: object) -> bool:
    return isinstance(value, list) and all(
        set(person) <= {"family-names", "given-names"} and all(map(text, person.values())) for person in value
    )


def test_citation_cff_and_the_page_of_the_papers_are_what_algorithms_say() -> None:
    assert generator.CITATION.read_text(encoding="utf-8") == generator.citation()
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page()
