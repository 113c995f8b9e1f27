"""Nothing of `quoron train` depends on the table's values but through what is answered: no file, line, log or status.

Every table here is a neighbour of the first: one user's rows are others, or there are none of them that can be used.
Answers, and what a look at the table sums, are replaced by the same ones, so that all that a run leaves behind must be
the same to the byte, and of the same size. Randomness and the date are fixed. Four broken twins must be caught: m read
from the table, n counted after rows were dropped, a fingerprint of the table that is kept, a look without noise.
"""

import hashlib
import json
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.scenes import SMALL
from cover import by_default
from quoron import run_folder
from quoron.cli.app import invoke
from quoron.training import lifetime, run, table
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.histograms.data_quality import DataQuality
from quoron_privacy.noise.streams import SecureNoise
from quoron_privacy.release import Sums
from quoron_server.algorithms import ALGORITHMS

USERS, ITEMS = 60, 4
RULES = """
[population]
kind = "table"
path = "people.csv"
user = "who"
label = "ill"
columns.numeric = { age = [0, 100], dose = [0, 5] }
columns.categorical = { ward = ["north", "south"] }
[privacy]
epsilon = 4.0
delta = 1e-5
[algorithm]
name = "dp-sgd-wor"
[algorithm.options]
rounds = 3
"""
Rows = list[tuple[str, str, str, str, str]]


def honest(users: int = USERS) -> Rows:
    draw = np.random.Generator(np.random.Philox(5))
    return [
        (
            f"user{u:02}",
            f"{draw.uniform(0, 100):.3f}",
            f"{draw.uniform(0, 5):.3f}",
            str(draw.choice(["north", "south"])),
            str(draw.integers(2)),
        )
        for u in range(users)
        for _ in range(ITEMS)
    ]


def others(rows: Rows, *theirs: tuple[str, str, str, str], name: str = "user07") -> Rows:
    """The same table, with these rows for one user."""
    kept = [row for row in rows if row[0] != "user07"]
    return [*kept, *((name, *row) for row in theirs)]


NEIGHBOURS: dict[str, Callable[[Rows], Rows]] = {
    "other values": lambda rows: others(rows, ("1", "2", "south", "1")),
    "ten times the rows": lambda rows: others(rows, *[("50", "1", "north", "0")] * 400),
    "text where numbers are due": lambda rows: others(rows, ("old", "2", "south", "1")),
    "no label": lambda rows: others(rows, ("30", "2", "south", "")),
    "a third class": lambda rows: others(rows, ("30", "2", "south", "7")),
    "nothing at all": lambda rows: others(rows, ("", "", "", "")),
    "infinite": lambda rows: others(rows, ("inf", "-inf", "north", "nan")),
    "beyond floating point": lambda rows: others(
        rows, ("1e308", "-1e308", "north", "1"), ("9" * 400, "2", "north", "1")
    ),
    "out of range": lambda rows: others(rows, *[("1e6", "99", "north", "1")] * 4),
    "an unknown category": lambda rows: others(rows, ("30", "2", "attic", "1")),
    "quotes and commas": lambda rows: others(rows, ('"3,0"', "2", '"nor""th"', "1")),
    "bytes that are no text": lambda rows: others(rows, ("3\udcff", "2", "\udcfe", "1")),
    "sorted first": lambda rows: list(reversed(rows)),
    "another name": lambda rows: others(rows, ("30", "2", "south", "1"), name="aaron"),
}


# For whole runs of every algorithm: other numbers, words and lengths of cells as well.
MORE: dict[str, Callable[[Rows], Rows]] = NEIGHBOURS | {
    "true and false": lambda rows: others(rows, ("true", "false", "north", "true")),
    "signs, spaces and exponents": lambda rows: others(rows, (" +7e1 ", "-.5", " north", "+1")),
    "words in every script": lambda rows: others(rows, ("٣٠", "½", "Süd 🙂", "да")),
    "long cells": lambda rows: others(rows, ("3" * 5000, "2", "n" * 5000, "1")),
    "a label of the other sign": lambda rows: others(rows, *[("30", "2", "south", "-1")] * 4),
    "rows of which one can be used": lambda rows: others(rows, ("", "2", "south", "1"), ("30", "2", "south", "1")),
}


def write(folder: Path, rows: Rows, kind: str = "file", rules: str = RULES) -> Path:
    folder.mkdir()
    if kind == "file":
        lines = ["who,age,dose,ward,ill", *(",".join(row) for row in rows)]
        (folder / "people.csv").write_bytes(("\n".join(lines) + "\n").encode(errors="surrogateescape"))
        (folder / "people.toml").write_text(rules, encoding="utf-8")
        return folder
    (folder / "people").mkdir()
    for number in range(2):  # buckets
        own = [row for row in rows if sum(row[0].encode()) % 2 == number]
        held = zip(["who", "age", "dose", "ward", "ill"], zip(*own, strict=True), strict=True)
        texts = {name: [each.encode(errors="surrogateescape") for each in column] for name, column in held}
        table = pa.table({name: pa.array(column, pa.binary()).view(pa.string()) for name, column in texts.items()})
        pq.write_table(table, folder / "people" / f"{number}.parquet", row_group_size=50)
    numbers = RULES.replace("people.csv", "people").replace('"ill"', '"ill > 0"')  # a schema's text needs a meaning
    (folder / "people.toml").write_text(numbers, encoding="utf-8")
    return folder


def hold_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same secret noise, name and day in every run."""
    key = bytes(range(32))
    monkeypatch.setattr(SecureNoise, "fresh", classmethod(lambda cls: cls(key)))
    monkeypatch.setattr(run_folder.secrets, "token_hex", lambda size: "ab" * size)
    monkeypatch.setattr(run_folder.secrets, "randbits", lambda bits: 12345)
    always = partial(lifetime.PopulationLedger, clock=lambda: "2026-01-01T00:00:00Z")
    monkeypatch.setattr(lifetime, "PopulationLedger", always)


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same secret noise, name and day in every run, and answers that do not depend on the table."""
    hold_chance(monkeypatch)

    def same(self: Any, question: Question) -> Answers:
        computed = ask(self, replace(question, reduction=None))  # whatever computing may say or raise
        return replace(computed, values=np.zeros_like(computed.values), status=np.zeros_like(computed.status))

    def looked(self: DataQuality, sums: Sums, stream: Any) -> Any:
        return release(self, replace(sums, total=np.zeros_like(sums.total)), stream)

    release = DataQuality.release
    monkeypatch.setattr(DataQuality, "release", looked)
    ask = table.CuratorEngine.ask
    monkeypatch.setattr(table.CuratorEngine, "ask", same)


def left_behind(
    folder: Path,
    rows: Rows,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str = "file",
    rules: str = RULES,
) -> dict[str, Any]:
    """All that a run shows and keeps, but for the table itself and the moment of a line of the lifetime ledger."""
    where = write(folder, rows, kind, rules)
    monkeypatch.chdir(where)
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        status = invoke(["train", "people.toml", "--out", "run", "--set", "train.ledger=lifetime.sqlite"])
    shown = capsys.readouterr()
    files = [
        path
        for path in sorted(where.rglob("*"))
        if path.is_file() and path.name not in ("people.csv", "people.toml") and where / "people" not in path.parents
    ]
    kept = {str(path.relative_to(where)): _content(path) for path in files}
    logged = [(each.name, each.getMessage()) for each in caplog.records if each.name.startswith("quoron")]
    sizes = {
        f"size of {path.relative_to(where)}": path.stat().st_size
        for path in files
        if str(where).encode() not in path.read_bytes()  # the place is told, and this one's name is as long as another
    }
    placeless = {name: str(held).replace(str(where), "") for name, held in kept.items()}
    return {"status": status, "out": shown.out, "err": shown.err, "logged": logged, **placeless, **sizes}


def _content(path: Path) -> str:
    if path.suffix != ".sqlite":
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".parquet" else path.read_text()
    with sqlite3.connect(path) as connection:
        dumped = "\n".join(connection.iterdump())
    return "\n".join(line for line in dumped.splitlines() if 'INTO "meta"' not in line)  # a random word of the owner's


@pytest.fixture(scope="module")
def on_the_first_table() -> dict[str, dict[str, Any]]:
    """What a run on the first table leaves behind, by kind: once for all neighbours."""
    return {}


@pytest.fixture
def differing(
    on_the_first_table: dict[str, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], list[str]]:
    """Names of what differs between a run on the first table and one on its neighbour."""

    def compare(
        neighbour: str, which: str = "file", *, twin: bool = False, rules: str = RULES, users: int = USERS
    ) -> list[str]:
        rows, kind = honest(users), which.partition(" ")[0]
        known = {} if twin else on_the_first_table
        if which not in known:
            known[which] = left_behind(tmp_path / "a", rows, capsys, caplog, monkeypatch, kind, rules)
        first = known[which]
        second = left_behind(tmp_path / "b", MORE[neighbour](rows), capsys, caplog, monkeypatch, kind, rules)
        assert first["status"] == 0, first["err"]
        return [name for name in {**first, **second} if first.get(name) != second.get(name)]

    return compare


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_nothing_but_answers_depends_on_a_users_rows(neighbour: str, differing: Callable[[str], list[str]]) -> None:
    assert differing(neighbour) == []


# A folder is read by the same rules; these are more rows, other types, other places.
READ = ("other values", "ten times the rows", "nothing at all", "infinite", "an unknown category", "sorted first")


@pytest.mark.parametrize("neighbour", by_default(NEIGHBOURS, READ))
def test_nothing_but_answers_depends_on_a_users_rows_in_a_folder(
    neighbour: str, differing: Callable[..., list[str]]
) -> None:
    """The folder and its index, which are the curator's own, are left out as the table is."""
    assert differing(neighbour, "folder") == []


def counted_items(held: table.TableRows) -> table.TableRows:
    most = int(np.bincount(held._marks[0][0]).max())
    return replace(held, declared=replace(held.declared, items_per_user=most))


def counted_users(held: table.TableRows) -> table.TableRows:
    owners, marks = held._marks[0]
    users = np.unique(owners[marks[:, 0] & 1 == 0])
    return replace(held, declared=replace(held.declared, users=len(users)), items=held.items.of(users))


@pytest.mark.parametrize(
    ("broken", "neighbour"), [(counted_items, "ten times the rows"), (counted_users, "nothing at all")]
)
def test_a_plan_with_items_or_users_counted_in_the_table_is_caught(
    broken: Callable[..., table.TableRows],
    neighbour: str,
    differing: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The most rows of a user; or users once rows were dropped."""
    monkeypatch.setattr(run, "load_rows", lambda *given, **named: broken(table.load_rows(*given, **named)))
    assert "run/plan.json" in differing(neighbour, twin=True)


def test_a_fingerprint_of_the_table_that_is_kept_is_caught(
    differing: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files = run.result.write

    def keeping(prepared: Any, folder: Any, *given: Any) -> Any:
        folder.write_text("inputs", run.digest_of(prepared.setup.rows.items).hex())
        return write_files(prepared, folder, *given)

    monkeypatch.setattr(run.result, "write", keeping)
    assert differing("other values", twin=True) == ["run/inputs"]


def test_a_look_without_noise_is_caught(differing: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataQuality, "release", lambda self, sums, stream: self.reduction.mean(sums))
    one_pass = RULES.replace("dp-sgd-wor", "one-pass-dp-sgd") + "[train]\ndata_quality = 0.3\n"
    assert "run/summary.json" in differing("nothing at all", twin=True, rules=one_pass)


# What each algorithm needs of a table of 2,400 users with three numbers to be feasible, and short.
MANY = 2400
LARGE = """
[population]
kind = "table"
items_per_user = 4
path = "people.csv"
user = "who"
label = "ill"
columns.numeric = { age = [0, 100], dose = [0, 5] }
[domain]
radius = 2.0
[privacy]
epsilon = 8.0
delta = 1e-3
allow_large_delta = true
"""
OPTIONS: dict[str, dict[str, Any]] = {name: SMALL.get(name, {}) for name in ALGORITHMS if name != "sgd"}


def rules_for(name: str) -> str:
    rules = LARGE
    if name == "one-round-least-squares":
        rules = rules.replace('label = "ill"', 'label = { column = "ill", range = [-1, 1] }')
    if name == "median-sgd":
        rules = rules.replace("radius = 2.0", 'kind = "box"\nradius = 1.0\n[loss]\nactive_features = 1')
    if ALGORITHMS[name].guarantees.adjacency == ("zero-out",):
        rules = rules.replace("delta = 1e-3", 'delta = 1e-3\nadjacency = "zero-out"') + f"[train]\nusers = {MANY + 2}\n"
    options = "".join(f"{key} = {json.dumps(value)}\n" for key, value in OPTIONS[name].items())
    return f'{rules}[algorithm]\nname = "{name}"\n[algorithm.options]\n{options}'


FEW = ("tracking-srgd", "outlier-iterates", "local-model")  # all else they have in common with the others


@pytest.mark.parametrize("name", by_default(OPTIONS, FEW))
@pytest.mark.parametrize("neighbour", by_default(MORE, ("nothing at all", "ten times the rows")))
def test_whole_runs_of_every_algorithm_differ_in_nothing_but_releases(
    name: str, neighbour: str, differing: Callable[..., list[str]]
) -> None:
    """Output, files, sizes and status are equal but for releases: with `-m slow` each algorithm by each neighbour."""
    assert differing(neighbour, f"file of {name}", rules=rules_for(name), users=MANY) == []
