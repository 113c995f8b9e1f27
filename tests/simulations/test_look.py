"""The look at a table that `quoron train` buys: what it says, when nobody looks, and that it is released once."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quoron
from committed import charges
from patients import COLUMNS, patients
from quoron import config as configs
from quoron.results import restored
from quoron.training import data_quality as words
from quoron.training import lifetime
from quoron.training.table import load_rows
from quoron_client.data.encoding import Encoding, Range, Signs
from quoron_client.data.features import Categorical, Numeric
from quoron_client.data.fused import RowCounts, declared_columns, declared_labels
from quoron_privacy.accounts import gdp
from quoron_privacy.histograms import data_quality
from quoron_privacy.histograms.data_quality import DataQuality, Shares
from quoron_privacy.noise.streams import SecureNoise
from quoron_server.plan import PREFACE
from quoron_server.storage.ledger import Ledger

USERS = 1000
QUICK: dict[str, Any] = {"epsilon": 1.0, "algorithm": "one-pass-dp-sgd", "settings": ["algorithm.options.rounds=3"]}


@pytest.fixture
def people() -> pd.DataFrame:
    return patients(USERS)


def train(people: Any, out: Path, **more: Any) -> Any:
    return quoron.train(people, out=out, **COLUMNS | QUICK | more)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"data_quality": 0}, "train.data_quality = 0 says so"),
        (
            {"algorithm": "dp-sgd-wor", "settings": ["algorithm.options.rounds=3", "algorithm.options.rate=0.1"]},
            "dp-sgd-wor is not Gaussian",
        ),
        ({"epsilon": 0.2}, "1,000 users are too few"),
        ({"epsilon": 0.01, "data_quality": 0.1}, "leaves nothing for it"),
    ],
)
def test_where_nobody_looks_the_report_says_so_and_why(more, why, people, ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(RowCounts, "add", lambda *_: pytest.fail("somebody looked"))
    trained = train(people, tmp_path / "run", **more)
    assert trained.data_quality is None
    assert "nobody has looked" in trained.summary.unseen
    assert why in trained.summary.unseen
    assert "data-quality" not in trained.summary.statement


def test_nothing_is_looked_at_before_the_charge_and_nothing_told_before_the_commit(
    people, ledger, tmp_path, monkeypatch
):
    real, order = RowCounts.add, []

    def looking(*given: Any) -> None:
        with lifetime.opened(ledger) as kept:
            order.append(f"look after {len(kept.charges('everyone'))} charges")
        real(*given)

    spend = Ledger.spend

    def spending(self: Ledger, question: Any, *given: Any) -> None:
        order.append(f"question {question.round} after a preface: {self.released(PREFACE) is not None}")
        spend(self, question, *given)

    monkeypatch.setattr(RowCounts, "add", looking)
    monkeypatch.setattr(Ledger, "spend", spending)
    train(people, tmp_path / "run")
    assert order[:2] == ["look after 1 charges", "question 0 after a preface: True"]


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_run_that_dies_around_its_look_releases_it_once(at, people, ledger, tmp_path, monkeypatch):
    """Before the commit nobody has seen a draw, and the next one is another; after it, it is what was committed."""
    drawn, commit, release = [], Ledger.commit, DataQuality.release

    def noting(self: DataQuality, *given: Any) -> Any:
        drawn.append(release(self, *given))
        return drawn[-1]

    def dying(self: Ledger, *given: Any) -> None:
        if at == "after":
            commit(self, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(DataQuality, "release", noting)
    with monkeypatch.context() as once:
        once.setattr(Ledger, "commit", dying)
        with pytest.raises(KeyboardInterrupt):
            train(people, tmp_path / "run")
    train(people, tmp_path / "run")
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as own:
        kept = own.released(PREFACE)
        assert [entry.mechanism for number, entry in own.releases() if number == -2] == ["data-quality"]
    assert len(drawn) == (2 if at == "before" else 1)
    assert kept == {"table_health": drawn[-1].tolist()}
    if at == "before":
        assert not np.array_equal(drawn[0], drawn[1])
    assert len(charges(ledger)) == 1


def fitting(config: configs.Config, folder: Path, frame: Any = None) -> list[np.ndarray]:
    held = load_rows(config, folder, frame)
    parts = zip(*held.fitting(np.arange(held.declared.users)), strict=True)
    return [np.concatenate(part) for part in parts]


def described(path: str, slots: int | None = None, **more: Any) -> configs.Config:
    table = {"kind": "table", "path": path, "user": "who", "label": "ill", "users": slots}
    table |= {"columns": {"numeric": {"age": [0, 100], "dose": [0, 5]}}}
    return configs.from_tree({"population": table, "privacy": {"epsilon": 1.0}, **more})


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("laid", ["table", "sorted", "one file"])
def test_of_one_user_the_first_rows_alone_are_looked_at(laid, adjacency, people, tmp_path, monkeypatch):
    """As many as training reads; a user with more rows would decide how long the check takes. Empty slots have none,
    and a folder gives the bits of the table in memory."""
    most, seen = 3, []
    if laid != "table":  # which is then read in many pieces
        monkeypatch.setattr("quoron.training.table.NUMBERS", 100)
    monkeypatch.setattr("quoron.training.table.max_rows", lambda *_, **__: most)
    monkeypatch.setattr("quoron_client.data.files.ROWS", 100)
    more = {"privacy": {"adjacency": adjacency}} | ({"slots": 1100} if adjacency == "zero-out" else {})
    rows = people.take(np.concatenate([np.arange(len(people)), np.full(500, int((people.who == 7).argmax()))]))
    ages = (np.arange(len(rows)) / 10).astype(str)  # of the later rows most are out of range
    rows = rows.assign(age=[age.replace(".", ",") if place % 3 == 0 else age for place, age in enumerate(ages)])
    rows = rows.sort_values("who", kind="stable") if laid == "sorted" else rows
    counted = rows[rows.groupby("who").cumcount() < most]
    table = pa.Table.from_pandas(rows, preserve_index=False)
    (tmp_path / "people").mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(rows)), 3) if laid == "sorted" else [range(len(rows))]):
        pq.write_table(table.take(pa.array(part)), tmp_path / "people" / f"{number}.parquet", row_group_size=300)
    add = RowCounts.add
    monkeypatch.setattr(RowCounts, "add", lambda tally, *given: seen.append(len(given[0])) or add(tally, *given))
    found = fitting(described("people", **more), tmp_path, table if laid == "table" else None)
    assert sum(seen) == len(counted)
    wanted = fitting(described("none", **more), tmp_path, pa.Table.from_pandas(counted, preserve_index=False))
    order = [np.lexsort(np.round(np.column_stack([*part]), 9).T) for part in (found, wanted)]
    for one, other in zip(found, wanted, strict=True):
        assert len(one) == USERS
        np.testing.assert_array_equal(one[order[0]], other[order[1]])


@pytest.mark.parametrize("kind", ["table", "folder"])
def test_of_many_users_some_are_drawn_in_secret_and_nobody_else_is_looked_at(
    kind, people, ledger, tmp_path, monkeypatch
):
    monkeypatch.setattr(data_quality, "ENOUGH", 400)
    real, seen = RowCounts.add, []

    def looking(tally: RowCounts, owners: Any, marks: Any, place: Any) -> None:
        seen.append(owners[place[owners] >= 0].tolist())
        real(tally, owners, marks, place)

    monkeypatch.setattr(RowCounts, "add", looking)
    source: Any = people
    if kind == "folder":
        (tmp_path / "people").mkdir()
        pq.write_table(pa.Table.from_pandas(people, preserve_index=False), tmp_path / "people" / "0.parquet")
        source = described(str(tmp_path / "people"), algorithm={"name": "one-pass-dp-sgd", "options": {"rounds": 3}})
    given = COLUMNS | QUICK if kind == "table" else {"epsilon": 1.0}
    drawn = []
    for name in "ab":
        seen.clear()
        trained = quoron.train(source, out=tmp_path / name, data_quality=0.2, **given)
        assert trained.data_quality.users == 400
        drawn.append(sorted({user for part in seen for user in part}))
        assert sum(map(len, seen)) == 800
    assert [len(users) for users in drawn] == [400, 400]
    assert drawn[0] != drawn[1]
    assert trained.data_quality.lines[0].error > 0.5 / 20  # drawing four hundred adds as much


def test_a_look_has_noise_of_its_start_and_the_runs_key_says_nothing_of_it(people, ledger, tmp_path, monkeypatch):
    """A store that is restored releases another copy: noise of the key's would be the same in both."""
    fresh, keys = SecureNoise.fresh, []

    def noting(cls: Any = None) -> SecureNoise:
        made = fresh()
        keys.append(made.export_key())
        return made

    monkeypatch.setattr(SecureNoise, "fresh", noting)
    train(people, tmp_path / "run")
    assert len(keys) == len(set(keys)) == 2  # of the run, and of the look


def test_a_look_under_zero_out_counts_users_who_are_there_among_declared_slots(people, ledger, tmp_path):
    """Missed by six standard errors with probability 2e-9."""
    more = ["privacy.adjacency=zero-out", "population.users=2000", "algorithm.options.rounds=3"]
    zero = {"algorithm": "winsorised-erm", "epsilon": 8.0, "settings": more}
    lost = people.assign(age=people.age.where(people.who >= 500))
    trained = train(lost, tmp_path / "run", **zero)
    assert trained.data_quality.users == 2000
    (line, *_) = trained.data_quality.lines
    assert abs(line.share - 0.25) < 6 * line.error < 0.25
    assert trained.plan["guarantee"]["data_quality"]["adjacency"] == "zero-out"


def a_report(shares: dict[str, Any], rules: Encoding, users: int = USERS, mu: float = 0.053) -> words.DataQualityReport:
    columns, labels = declared_columns(rules), declared_labels(rules)
    quality = replace(DataQuality.for_mu(users=users, columns=len(columns), labels=len(labels), mu=mu), share=0.05)
    even = np.full(len(labels), 1 / max(1, len(labels)))
    given = {"unusable": 0.0, "labels": even, "values": 0.0, "columns": np.zeros(len(columns))}
    return words.read(quality, Shares(**given | shares), rules)


PRICE = Encoding((Numeric("age", 0, 100),), label=Range("price", 0, 10))


def test_labels_beyond_their_range_are_told_to_need_a_wider_one():
    (said,) = a_report({"labels": np.array([0.0, 0.7])}, PRICE).warnings
    assert said.endswith("Declare a wider range.")


def test_with_many_unfit_columns_some_are_named_together_and_all_are_in_the_table():
    rules = Encoding(tuple(Numeric(f"x{place}", 0, 1) for place in range(30)), label=Signs("y"))
    found = a_report({"values": 0.9, "columns": np.append(np.linspace(0.5, 0.9, 30), 0.0)}, rules)
    (said,) = found.warnings
    assert "about 90 % (± 6 %) of all values" in said
    assert [name for name in said.split("'") if name.startswith("x")] == [f"x{place}" for place in range(29, 21, -1)]
    assert "and 22 more columns" in said
    assert len(found.table()) == 2 + 31 + 2
    assert restored(words.DataQualityReport, asdict(found)) == found
    (said,) = a_report({"values": 0.1, "columns": np.append(np.full(5, 0.4), np.zeros(26))}, rules).warnings
    assert said.startswith("many values do not fit their declarations, most in 'x0', 'x1', 'x2', 'x3', 'x4': declare")


def test_a_look_is_charged_within_the_promise_and_its_mu_composed(people, ledger, tmp_path):
    trained = train(people, tmp_path / "run")
    (charge,) = charges(ledger)
    assert (charge.epsilon, charge.delta) == (1.0, 1e-6)
    assert charge.mu == pytest.approx(gdp.mu_for(1.0, 1e-6), rel=1e-6)
    assert "data-quality.md#h1" in trained.summary.statement
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as own:
        number, entry = own.releases()[0]
    assert (number, entry.mechanism) == (-2, "data-quality")
    assert trained.plan["guarantee"]["data_quality"]["share"] == 0.05


@pytest.mark.parametrize("declared", [[], ["problem.label_rate=[0.01, 0.04]"]])
def test_a_released_share_below_one_in_ten_sets_a_forecast_aside_that_knew_of_no_rate(declared, tmp_path):
    """Both by public numbers: of 4,000 users 80 have the label, and noise in the share is of 0.5 %."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.uniform(0, 1, (4000, 2)), columns=["a", "b"]).assign(
        who=range(4000), ill=np.arange(4000) < 80
    )
    columns = {"numeric": {"a": (0, 1), "b": (0, 1)}}
    result = quoron.train(
        rows, out=tmp_path / "run", user="who", label="ill", columns=columns, epsilon=4.0, delta=1e-5, settings=declared
    )
    said = any("the plan's forecast is for 10 % or more" in each for each in result.summary.doubts)
    assert said == result.summary.overtaken == (not declared)


@pytest.mark.parametrize(("missing", "centred"), [(0.0, True), (0.4, False)])
def test_a_row_without_any_of_a_columns_values_is_predicted_like_the_mean_of_them_where_nobody_told_more(
    missing, centred, ledger, tmp_path, monkeypatch
):
    """Noise alone decides what such rows are, unless there are some: a model could be sure of them."""
    monkeypatch.setattr(words, "FEW_ERRORS", 6.0)  # by noise alone more is released with chance 1e-9
    rng, many = np.random.default_rng(0), 4000
    ward = rng.choice(["A", "B", "C"], many).astype(object)
    ward[rng.random(many) < missing] = None
    rows = pd.DataFrame({"who": np.arange(many), "ward": ward, "age": rng.uniform(0, 1, many)})
    rows["ill"] = rng.random(many) < np.where(ward == "A", 0.8, 0.3)
    columns = {"numeric": {"age": (0, 1)}, "categorical": {"ward": ["A", "B", "C"]}}
    out = tmp_path / "run"
    model = quoron.train(rows, out=out, user="who", label="ill", columns=columns, epsilon=1.0, delta=1e-6).model
    listed = model.weights[1:4]
    assert (abs(listed.sum()) < 1e-9 * abs(listed).max()) == centred
    with Ledger.open(out / "ledger.sqlite") as own:
        assert np.array_equal(own.model, model.weights)  # what is committed, and so goes on after a crash


def test_a_model_with_a_ridge_is_not_centred_nor_one_of_whose_table_nothing_was_released(ledger, tmp_path):
    """The ridge says what a row without a value is."""
    rows = patients(2000).assign(ward=lambda rows: np.where(rows.who % 2, "A", "B"))
    columns = COLUMNS["columns"] | {"categorical": {"ward": ["A", "B"]}}
    for name, more in (("ridge", ["loss.ridge=0.01"]), ("unseen", ["train.data_quality=0"])):
        told = COLUMNS | {"columns": columns, "epsilon": 4.0, "delta": 1e-6, "out": tmp_path / name}
        listed = quoron.train(rows, **told, settings=more).model.weights[2:4]
        assert abs(listed.sum()) > 1e-6 * abs(listed).max()


@given(
    seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 3), chosen=st.lists(st.booleans(), min_size=3, max_size=3)
)
def test_a_centred_model_predicts_rows_with_a_listed_value_as_before(seed, outputs, chosen):
    rules = Encoding((Numeric("age", 0, 1), Categorical("ward", ("A", "B", "C")), Categorical("sex", ("f", "m"))))
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(outputs, rules.dimension))
    found = rules.centred(weights.ravel(), chosen).reshape(weights.shape)
    rows = np.hstack([rng.uniform(-1, 1, (9, 1)), np.eye(3)[rng.integers(0, 3, 9)], np.eye(2)[rng.integers(0, 2, 9)]])
    rows = np.hstack([rows, np.ones((9, 1))])
    assert np.allclose(rows @ found.T, rows @ weights.T)
    assert np.allclose(found[:, 1:4].sum(axis=1), 0.0) or not chosen[1]
    assert np.allclose(found[:, 4:6].sum(axis=1), 0.0) or not chosen[2]
    assert np.array_equal(found[:, 0], weights[:, 0])


@pytest.mark.parametrize("other", [{"intercept": False}, {"curves": 2}])
def test_a_model_without_a_constant_or_of_curves_is_not_centred(other):
    rules = Encoding((Numeric("age", 0, 1), Categorical("ward", ("A", "B"))), **other)
    weights = np.arange(1.0, rules.dimension + 1)
    assert rules.centred(weights, [True, True]) is weights
