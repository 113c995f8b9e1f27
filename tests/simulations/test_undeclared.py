"""A table of which nobody declared anything: every door trains on it, and says what it buys and leaves out."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import quoron
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.training import lifetime, run, votes
from quoron.training.wanted import wanted
from quoron_client.data import tables
from quoron_privacy.errors import ConfigError, DataError, NothingReleased
from said import said
from undeclared import QUICK, USERS, charges, crowd, train


@pytest.fixture
def people() -> pd.DataFrame:
    return crowd()


def test_a_label_is_bought_beside_declared_features_where_it_is_named(people, ledger, tmp_path):
    known = {"numeric": {"age": (0, 100), "dose": (0, 8)}, "items_per_user": 1, "buy": {"ill": "any"}}
    trained = train(people, tmp_path / "run", **known)
    assert [(line.column, line.value) for line in trained.bought] == [("ill", "classes = no, yes")]
    assert trained.model.feature_names_in_ == ("age", "dose")
    with pytest.raises(ConfigError, match="label 'ill' to be declared or bought, got both"):
        train(people, tmp_path / "both", **known, classes=["no", "yes"])
    assert len(charges(ledger)) == 1


def test_a_plan_says_beforehand_what_is_bought_and_what_is_left_and_looks_at_no_value(
    people, ledger, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(votes, "release", lambda *_: pytest.fail("somebody looked"))
    planned = quoron.plan_training(people, **said(user="who", label="ill", **QUICK))
    assert any("are bought with" in each and "epsilon=" in each for each in planned.remarks)
    assert any("two classes and 4 numbers, the fewest; the most, 97, leave 0." in each for each in planned.remarks)
    assert planned.plan.guarantee.epsilon == 4.0
    assert planned.plan.guarantee.bought.share > 0
    assert not ledger.exists() or not charges(ledger)
    people.to_csv(tmp_path / "people.csv", index=False)
    told = ["train", str(tmp_path / "people.csv"), "--user", "who", "--label", "ill", "--epsilon", "4", "--dry-run"]
    assert invoke([*told, "--set", "algorithm.name=one-pass-dp-sgd"]) == 0
    assert "are bought with" in " ".join(capsys.readouterr().out.split())


def test_a_rehearsal_buys_the_same_for_the_same_seed_and_another_for_another(people):
    tree = {"population": {"kind": "table", "path": "-", "user": "who", "label": "ill"}, "privacy": {"epsilon": 4.0}}
    tree |= {"algorithm": {"name": "one-pass-dp-sgd", "options": {"rounds": 3}}}
    config = configs.from_tree(tree)
    one, again, other = (run.rehearse(config, simulation_seed=seed, frame=people)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.weights, again.weights)
    assert one.as_text() == again.as_text()
    assert not np.array_equal(one.weights, other.weights)


@pytest.mark.parametrize(
    ("ill", "words"),
    [
        (lambda people: [f"case {place}" for place in range(len(people))], "no value with"),
        (lambda people: None, "have a label 'ill'"),
    ],
)
def test_a_label_that_teaches_nothing_ends_the_run_with_a_statement_every_time(ill, words, people, ledger, tmp_path):
    hopeless = people.assign(ill=ill(people))
    for _ in range(2):
        with pytest.raises(NothingReleased, match=f"Nothing was trained, and the whole of epsilon is spent.*{words}"):
            train(hopeless, tmp_path / "run")
    assert len(charges(ledger)) == 1
    with lifetime.opened(ledger) as kept:
        assert [row["payload"]["state"] for row in kept.rows() if row["kind"] == "end"] == ["failed"]


def test_a_label_of_one_value_as_far_as_noise_tells_is_trained_on_and_named(people, ledger, tmp_path):
    """The whole of epsilon is spent by then: whoever is the other one may still teach something."""
    trained = train(people.assign(ill="no"), tmp_path / "run")
    assert any("label 'ill' is 'no' for all users but" in each for each in trained.summary.warnings)
    assert len(charges(ledger)) == 1


def test_classes_of_a_label_are_found_whatever_many_columns_of_words_are_named_beside_it(ledger, tmp_path):
    """The noise of one of two columns (bought-declarations#bd1): with that of one of eleven it has three of twelve."""
    draw, users = np.random.default_rng(1), 1500
    people = pd.DataFrame({"who": np.arange(users)} | {f"w{k}": draw.choice([*"abcdef"], users) for k in range(10)})
    people["ill"] = [f"{each}{twice}" for each, twice in zip(people.w0, draw.integers(0, 2, users), strict=True)]
    trained = quoron.train(people, **said(user="who", label="ill", epsilon=8.0, items_per_user=1, out=tmp_path / "run"))
    assert len(trained.model.classes_) == 12
    errors = {line.column: line.error for line in trained.bought}
    assert errors["w0"] / errors["ill"] == pytest.approx(20**0.5 / 2**0.5)


def test_a_table_without_a_column_that_can_be_told_ends_with_a_statement(ledger, tmp_path):
    people = crowd().drop(columns=["age", "dose", "ward"])
    people["name"] = [f"person {place}" for place in range(len(people))]
    with pytest.raises(NothingReleased, match=r"No feature is left. Column 'name' is left out: no word"):
        train(people, tmp_path / "run")


def test_under_zero_out_slots_that_hold_nobody_are_bought_nothing_of(people, ledger, tmp_path):
    more = {"adjacency": "zero-out", "algorithm": "tracking-srgd", "settings": [f"train.users={USERS + 200}"]}
    trained = train(people, tmp_path / "run", **more)
    assert trained.summary.adjacency == "zero-out"
    assert trained.plan["guarantee"]["bought"]["users"] == USERS + 200


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("s", "Mars/Phobos"), pa.list_(pa.int64())])
@pytest.mark.parametrize("column", ["ill", "age"])
def test_a_type_that_nothing_can_be_read_of_is_refused_before_the_charge(column, kind, people, ledger, tmp_path):
    """It was told by the reading, once all of it had been charged; a feature of it is left out where it may be."""
    table = pa.Table.from_pandas(people, preserve_index=False)
    some = pa.array([[1]] * USERS, kind) if pa.types.is_list(kind) else pa.array(range(USERS), kind)
    table = table.set_column(table.column_names.index(column), column, some)
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "ill"}})
    if column == "age":
        found = wanted(config, Path(), tables.opened(table))
        readable = kind == pa.timestamp("s")
        assert [each.startswith("Column 'age' is left out") for each in found.left_out] == [True] * (not readable)
        return
    with pytest.raises(DataError, match="'ill'"):
        train(table, tmp_path / "run")
    assert not ledger.exists() or not charges(ledger)


def test_a_simulation_buys_as_the_real_run_would_the_same_for_the_same_seed(people, tmp_path, capsys):
    people.to_csv(tmp_path / "people.csv", index=False)
    given = said(user="who", label="ill", **QUICK)
    runs = [quoron.simulate(tmp_path / "people.csv", **given, keep=quoron.Keep(tmp_path / each)) for each in "ab"]
    np.testing.assert_array_equal(runs[0].model, runs[1].model)
    (remark,) = [each for each in runs[0].planned.remarks if each.startswith("SIMULATED purchases")]
    assert "ill: classes = no, yes" in remark
    written = (tmp_path / "a" / "config.toml").read_text()
    assert written.startswith("# SIMULATED purchases")  # or they would be declared to a real run as if they were public
    assert configs.parse(written).population.classes == ("no", "yes")
    assert runs[0].config.privacy.epsilon < 4.0
    assert set(runs[0].table_model.classes_) == {"no", "yes"}
    told = ["simulate", str(tmp_path / "people.csv"), "--user", "who", "--label", "ill", "--out", str(tmp_path / "c")]
    assert invoke([*told, "--epsilon", "4", "--set", "algorithm.name=one-pass-dp-sgd", "-q"]) == 0
    assert "SIMULATED purchases" in " ".join(capsys.readouterr().out.split())
    assert quoron.plan(tmp_path / "people.csv", **given).plan.guarantee.bought is not None


def test_dates_of_a_pandas_frame_are_bought_as_those_of_its_file_are(people, ledger, tmp_path):
    """A frame's type of dates may be made of values: the plan is that of the same column as text."""
    born = pd.Series(pd.date_range("1930-01-01", periods=len(people), freq="16D"))
    plans = [
        quoron.plan_training(people.assign(born=some), **said(user="who", label="ill", **QUICK)).plan.guarantee.bought
        for some in (born, born.dt.tz_localize("UTC"), born.astype(str))
    ]
    assert len({(plan.columns, plan.names, plan.scales) for plan in plans}) == 1
    found = {line.column: line.value for line in train(people.assign(born=born), tmp_path / "run").bought}
    assert found["born"].startswith("dates, years ")


def test_a_column_that_is_declared_is_not_paid_for_as_well(people):
    with pytest.raises(ConfigError, match="'age' to be declared or bought, got both"):
        quoron.plan_training(
            people, **said(user="who", label="ill", numeric={"age": (0, 9)}, buy={"age": "any"}, **QUICK)
        )
