"""`quoron train`: charged before it looks, secret noise, one release a round after any kill, nothing private left."""

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import quoron
from committed import charges, limit
from patients import COLUMNS, patients
from quoron.cli.app import invoke
from quoron.data.users import Declared
from quoron.engine.choice import KeyedRandomness
from quoron.releases.bounds import find_bounds
from quoron.training import lifetime
from quoron.training.table import CuratorEngine, TableRows
from quoron_client import L2Ball, make_loss
from quoron_client.data.items import ItemBatch
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.errors import BudgetExceeded, ConfigError, DataError, LedgerError
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import SecureNoise, StartedNoise
from quoron_server.rounds import Observer
from quoron_server.storage import lifetime_ledger
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from row_files import Stop, Stopping

QUICK = {"epsilon": 8.0, "delta": 1e-5, "algorithm": "dp-sgd-wor", "settings": ["algorithm.options.rounds=3"]}


@pytest.fixture
def people() -> pd.DataFrame:
    return patients(300, rows=4)


def train(people: pd.DataFrame, out: Path, **more: Any) -> Any:
    return quoron.train(people, out=out, **COLUMNS | QUICK | more)


def reading_items(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Have something happen as soon as anything of the items of a table that is held is read."""

    class Guarded:
        """Items that may be handed on."""

        def __getattribute__(self, name: str) -> Any:
            return ItemBatch if name == "__class__" else happens()

    def read(held: TableRows, name: str) -> Any:
        return Guarded() if name == "items" else object.__getattribute__(held, name)

    monkeypatch.setattr(TableRows, "__getattribute__", read, raising=False)


def test_a_run_beyond_the_limit_is_refused_before_items_are_read(people, ledger, tmp_path, monkeypatch):
    limit(ledger, epsilon=7.0, delta=1e-4)
    reading_items(monkeypatch, lambda: pytest.fail("items were read"))
    with pytest.raises(BudgetExceeded, match="limit of population 'everyone'"):
        train(people, tmp_path / "run")
    assert charges(ledger) == []
    assert not (tmp_path / "run").exists()


def test_a_run_is_charged_before_anything_is_made_of_items(people, ledger, tmp_path, monkeypatch):
    def looking() -> None:
        assert [each.epsilon for each in charges(ledger, "clinic 7")] == [8.0]
        raise InterruptedError

    reading_items(monkeypatch, looking)
    with pytest.raises(InterruptedError):
        train(people, tmp_path / "run", population="clinic 7")


def test_what_is_private_has_mode_0600_while_open_and_is_erased_at_the_end(people, ledger, tmp_path, monkeypatch):
    key = bytes(range(100, 132))
    monkeypatch.setattr(SecureNoise, "fresh", classmethod(lambda cls: cls(key)))
    folder, open_ = tmp_path / "run", []
    commit = Ledger.commit

    def looking(self: Ledger, *given: Any) -> None:
        commit(self, *given)
        holding = [path for path in folder.rglob("*") if path.is_file() and key in path.read_bytes()]
        open_.extend(holding)
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in holding)

    monkeypatch.setattr(Ledger, "commit", looking)
    train(people, folder)
    assert {path.name.split("-")[0] for path in open_} == {"ledger.sqlite"}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and key in path.read_bytes()]


def test_an_interrupted_run_goes_on_with_the_same_call_for_one_charge(people, ledger, tmp_path):
    whole = train(people, tmp_path / "whole")
    with pytest.raises(Stop):
        train(people, tmp_path / "run", observers=[Stopping()])
    with pytest.raises(ConfigError, match=r"same call of quoron\.train"):
        quoron.resume(tmp_path / "run")
    with pytest.raises(LedgerError, match="same table"):
        train(people.assign(age=people.age + 1), tmp_path / "run")
    again = train(people, tmp_path / "run")
    seeds = [json.loads((tmp_path / name / "run.json").read_text())["seed"] for name in ("whole", "run")]
    assert seeds[0] != seeds[1]  # public randomness is drawn anew
    assert len(charges(ledger)) == 2
    with pytest.raises(ConfigError, match="of a complete one"):
        train(people, tmp_path / "run")
    assert quoron.resume(tmp_path / "run").model.weights.tolist() == again.model.weights.tolist()
    assert whole.model.weights.shape == again.model.weights.shape


def rows(out: Path, **more: Any) -> Any:
    given = {"users": 6, "dimension": 2, "epsilon": 4.0, "delta": 1e-3, "clip_norm": 1.0, "radius": 2.0}
    given |= {"algorithm": "one-pass-dp-sgd", "smoothness": 1.0, "options": {"rounds": 3}}
    return quoron.train_rows(lambda users, point: np.zeros((len(users), 2)), out=out, **given | more)


@pytest.mark.parametrize("kind", ["table", "rows"])
def test_a_run_whose_ledger_was_restored_from_a_copy_ends_and_its_charge_stays(kind, people, ledger, tmp_path, capsys):
    def work(name: str, *observers: Observer) -> Any:
        more = {"observers": observers}
        return rows(tmp_path / name, **more) if kind == "rows" else train(people, tmp_path / name, **more)

    with pytest.raises(Stop):
        work("run", Stopping())
    (tmp_path / "run" / "ledger.sqlite-acknowledged").unlink()
    with pytest.raises(LedgerError, match="found none: the file was copied"):
        work("run")
    assert invoke(["admin", "restore", str(tmp_path / "run" / "ledger.sqlite")]) == 0
    assert "run: ended" in capsys.readouterr().out
    for _ in "ab":
        with pytest.raises(LedgerError, match="has ended and its noise key is erased"):
            work("run")
    (first,) = charges(ledger)
    work("new")
    assert [each.promise for each in charges(ledger)] == [first.promise] * 2


def test_runs_that_fit_at_once_all_finish_and_are_all_charged(people, ledger, tmp_path):
    with ThreadPoolExecutor(4) as threads:
        done = [*threads.map(lambda name: train(people, tmp_path / str(name)), range(4))]
    assert len(charges(ledger)) == 4
    assert len({trained.summary.run for trained in done}) == 4


def test_zero_out_needs_a_declared_number_of_users(people, ledger, tmp_path):
    zero = {"algorithm": "dp-sgd-poisson", "settings": ["privacy.adjacency=zero-out", "algorithm.options.rounds=3"]}
    with pytest.raises(ConfigError, match=r"population\.users with adjacency zero-out"):
        train(people, tmp_path / "a", **zero)
    with pytest.raises(DataError, match=r"at most population\.users=299"):
        train(people, tmp_path / "b", **zero | {"settings": [*zero["settings"], "population.users=299"]})
    some = train(people, tmp_path / "c", **zero | {"settings": [*zero["settings"], "population.users=350"]})
    assert some.summary.users == 350


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("population.outliers.share=0.1", "nobody's answers are made up"),
        ("privacy.min_cohort=0.5", "everybody answers"),
        ("algorithm.name=sgd", "a proved guarantee"),
    ],
)
def test_what_only_a_simulation_can_have_is_refused_by_name(setting, said, people, ledger, tmp_path):
    name = {} if "algorithm" not in setting else {"algorithm": "sgd", "settings": []}
    with pytest.raises(ConfigError, match=said):
        train(people, tmp_path / "run", **{"settings": [setting]} | name)
    assert charges(ledger) == []


def test_categories_that_are_not_declared_are_bought_with_a_share_of_mu_or_refused(people, ledger, tmp_path):
    with pytest.raises(ConfigError, match="Gaussian as a whole where bounds are estimated privately"):
        train(
            people,
            tmp_path / "run",
            columns={"categorical": ["dose"], "numeric": {"age": (0, 100)}},
        )


USERS = 50
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def gradients(key: bytes) -> np.ndarray:
    """Answers of all slots, where user u's only item has the feature u."""
    batch = ItemBatch(np.arange(USERS, dtype=np.float32)[:, None], np.zeros(USERS), np.arange(USERS + 1))
    declared = Declared(USERS, 1, 1, make_loss("linear", feature_norm=float(USERS)), L2Ball(3.0))
    engine = CuratorEngine(declared, batch, SecureNoise(key))
    return engine.ask(Question(0, np.arange(USERS), AverageGradient(np.zeros((1, 1)), (1.0,)))).values[:, 0]


def test_every_user_has_one_slot_in_an_order_that_follows_from_the_key_alone():
    here = gradients(KEY)
    np.testing.assert_array_equal(np.sort(-here), np.arange(USERS))
    np.testing.assert_array_equal(here, gradients(KEY))
    assert not np.array_equal(here, gradients(OTHER))
    assert not np.array_equal(-here, np.arange(USERS))


def test_a_sum_over_everybody_is_the_same_in_every_order_of_slots_and_that_of_their_rows():
    rng = np.random.default_rng(3)
    features, labels = rng.standard_normal((USERS, 4)).astype(np.float32), rng.choice([-1.0, 1.0], USERS)
    declared = Declared(USERS, 1, 4, make_loss("logistic", feature_norm=10.0), L2Ball(3.0))
    engine = CuratorEngine(declared, ItemBatch(features, labels, np.arange(USERS + 1)), SecureNoise(KEY))
    task, reduction = AverageGradient(np.ones((1, 4)), (1.0,)), ClippedSum(0.5, USERS)
    rows = engine.ask(Question(0, np.arange(USERS), task)).values
    expected = reduction.of(rows, np.ones(USERS, np.bool_))
    for cohort in (np.arange(USERS), rng.permutation(USERS)):
        found = engine.ask(Question(0, cohort, task, reduction=reduction))
        np.testing.assert_array_equal(found.total, expected.total)
        assert (found.clipped, found.answered) == (expected.clipped, USERS)


def test_the_order_is_the_runs_at_every_start_and_words_of_local_reports_are_the_starts_own():
    """So nobody is asked twice by a run that goes on, and no report's noise meets other data."""
    batch = ItemBatch(np.arange(USERS, dtype=np.float32)[:, None], np.zeros(USERS), np.arange(USERS + 1))
    declared = Declared(USERS, 1, 1, make_loss("linear", feature_norm=float(USERS)), L2Ball(3.0))
    starts = [StartedNoise.fresh(SecureNoise(KEY)) for _ in range(2)]
    question = Question(0, np.arange(USERS), AverageGradient(np.zeros((1, 1)), (1.0,)))
    one, other = (CuratorEngine(declared, batch, start).ask(question).values for start in starts)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one[:, 0], gradients(KEY))
    words = [KeyedRandomness(start).words(round=2, users=np.array([8]), first=0, size=6) for start in starts]
    assert not np.any(words[0] == words[1])  # false alarm: 6 · 2⁻⁶⁴


def test_words_of_local_reports_are_the_same_again_whoever_else_is_asked():
    words = KeyedRandomness(SecureNoise(KEY)).words(round=2, users=np.array([3, 8]), first=0, size=6)
    alone = KeyedRandomness(SecureNoise(KEY)).words(round=2, users=np.array([8]), first=2, size=4)
    np.testing.assert_array_equal(words[1, 2:], alone[0])
    others = [
        KeyedRandomness(SecureNoise(key)).words(round=round_, users=np.array([user]), first=0, size=6)[0]
        for key, round_, user in ((KEY, 3, 8), (KEY, 2, 9), (OTHER, 2, 8))
    ]
    assert not any((words[1] == other).any() for other in others)  # false alarm: 18 · 2⁻⁶⁴


PROMISE = {"epsilon": 0.5, "delta": 1e-6}


@pytest.fixture
def counted(monkeypatch):
    """Rows that were read, opening by opening."""
    read, stored = [], lifetime_ledger._stored

    def counting(connection, *, since):
        rows = stored(connection, since=since)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(lifetime_ledger, "_stored", counting)
    return read


def charge(path, run):
    with lifetime.opened(path) as ledger:
        ledger.charge(run, "everyone", **PROMISE)


def test_what_was_verified_is_not_read_again_by_the_same_process(tmp_path, counted):
    path = tmp_path / "l.sqlite"
    for number in range(5):
        charge(path, f"run {number}")
    assert counted == [0, 1, 1, 1, 1]
    with lifetime.opened(tmp_path / "." / "l.sqlite") as ledger:
        assert ledger.spent("everyone").epsilon == 2.5


def test_whatever_somebody_wrote_is_verified_from_the_first_row(tmp_path, counted):
    path = tmp_path / "l.sqlite"
    for number in range(3):
        charge(path, f"run {number}")
    with Database(f"sqlite:///{path}") as database, database.writing() as connection:
        connection.execute("UPDATE population SET payload = replace(payload, '0.5', '0.1') WHERE sequence = 0")
    for _ in range(2):
        with pytest.raises(LedgerError, match="row 0 "):
            charge(path, "another")
    assert counted[3:] == [3, 3]


def test_a_file_that_was_put_back_is_verified_from_the_first_row(tmp_path, counted):
    path = tmp_path / "l.sqlite"
    charge(path, "first")
    tally = tmp_path / "l.sqlite-acknowledged"
    kept, counted_before = path.read_bytes(), tally.read_bytes()
    charge(path, "second")
    replaced = tmp_path / "copy"
    replaced.write_bytes(kept)
    os.replace(replaced, path)
    tally.write_bytes(counted_before)
    del counted[:]
    charge(path, "third")
    assert counted == [1]
    assert [each.run for each in charges(path)] == ["first", "third"]


PATIENTS = 1000


@pytest.fixture
def patients_of() -> pd.DataFrame:
    return patients(PATIENTS)


AGE: dict[str, Any] = {"numeric": {"age": (0, 100)}}
PLAIN = {"user": "who", "label": "ill", "columns": AGE}


def arrow(patients_of: pd.DataFrame, **columns: pa.Array) -> pa.Table:
    table = pa.Table.from_pandas(patients_of, preserve_index=False)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table


@pytest.mark.parametrize(
    ("change", "columns", "error", "why"),
    [
        ({}, {"columns": AGE | {"categorical": {"age": [1, 2]}}}, ConfigError, "every feature once"),
        ({}, {"columns": {"numeric": {"age": (0, 100), "who": (0, 1000)}}}, ConfigError, "user column 'who'"),
        ({}, {"label": "who > 3"}, ConfigError, "user column 'who'"),
        ({}, {"delta": 1e-2}, ConfigError, r"delta <= 1/n = 0\.001\d* for n="),
        ({}, {"settings": ["loss.name=least_squares"]}, ConfigError, "public range of label"),
        ({"ill": pa.array(["no", "yes"] * PATIENTS)}, {}, DataError, "what the texts of label 'ill'"),
        (
            {"ill": pa.array([1, 2] * PATIENTS)},
            {"label": {"column": "ill", "classes": ["no", "yes"]}},
            DataError,
            "can hold",
        ),
        (
            {"age": pa.array([0, 1] * PATIENTS, pa.uint8())},
            {"columns": {"numeric": {"age": (300, 400)}}},
            DataError,
            "one end",
        ),
    ],
)
@pytest.mark.parametrize("door", ["train", "simulate", "plan"])
def test_what_declarations_and_types_show_is_refused_at_every_door_before_the_charge(
    door, change, columns, error, why, patients_of, ledger, tmp_path
):
    table = arrow(patients_of, **change)
    given = PLAIN | {"algorithm": "one-pass-dp-sgd", "epsilon": 1.0} | columns
    with pytest.raises(error, match=why):
        getattr(quoron, door)(table, **given, **({"out": tmp_path / "run"} if door != "plan" else {}))
    assert not ledger.exists()
    assert not (tmp_path / "run").exists()


def test_a_large_delta_is_taken_where_somebody_says_so(patients_of, ledger, tmp_path):
    taken = PLAIN | {"algorithm": "one-pass-dp-sgd", "epsilon": 1.0, "delta": 1e-2, "allow_large_delta": True}
    trained = quoron.train(patients_of, **taken, out=tmp_path / "a")
    assert trained.summary.delta == 1e-2
    with pytest.raises(ConfigError, match="allow_large_delta"):
        find_bounds(patients_of, user="who", epsilon=1.0, delta=1e-2, categorical=["ill"])
    declared = find_bounds(
        patients_of, user="who", epsilon=1.0, delta=1e-2, allow_large_delta=True, categorical=["ill"]
    )
    assert declared.delta == 1e-2
    given = {"users": 20, "dimension": 2, "epsilon": 1.0, "delta": 0.1, "clip_norm": 1.0, "radius": 1.0}
    with pytest.raises(ConfigError, match="allow_large_delta"):
        quoron.train_rows(lambda users, point: np.zeros((len(users), 2)), **given)


def test_the_user_column_is_no_fact_to_release(patients_of, ledger):
    with pytest.raises(ConfigError, match="other than the user's own"):
        find_bounds(patients_of, user="who", epsilon=1.0, categorical=["who"])
