"""A table of which nobody declared anything: what is bought of it, read off noisy answers, said and left out."""

from dataclasses import replace
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
from patients import patients
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.config import Config, estimates_bounds, from_tree
from quoron.data import TablePopulation, from_table
from quoron.engine.choice import Inline
from quoron.simulation.problem import problem
from quoron.training import column_bounds, estimated, lifetime
from quoron.training.column_bounds import Fact, row_kinds
from quoron.training.estimated import Declarations, Estimates, Facts, facts_of
from quoron_client.data import tables
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.losses import Linear, Logistic
from quoron_client.protocol.domains import L2Ball, is_free
from quoron_privacy.errors import ConfigError, DataError, NothingReleased
from quoron_privacy.histograms.private_bounds import KINDS, EstimatedBounds
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.wording import domain_words
from undeclared import QUICK, USERS, crowd, train

SEEDS = ((1, "a"), (1, "b"), (2, "c"))


@pytest.fixture
def people() -> pd.DataFrame:
    return crowd()


def test_a_label_is_bought_beside_declared_features_where_it_is_named(people, ledger, tmp_path):
    known: dict[str, Any] = {"numeric": {"age": (0, 100), "dose": (0, 8)}, "estimate": {"ill": "any"}}
    trained = train(people, tmp_path / "run", columns=known, items_per_user=1)
    assert [(line.column, line.value) for line in trained.estimated] == [("ill", "classes = no, yes")]
    assert trained.model.feature_names_in_ == ("age", "dose")
    with pytest.raises(ConfigError, match="label 'ill' to be declared or estimated, got both"):
        train(
            people,
            tmp_path / "both",
            columns=known,
            label={"column": "ill", "classes": ["no", "yes"]},
            items_per_user=1,
        )
    assert len(charges(ledger)) == 1


def test_a_plan_says_beforehand_what_is_bought_and_what_is_left_and_looks_at_no_value(
    people, ledger, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(column_bounds, "release", lambda *_: pytest.fail("somebody looked"))
    planned = quoron.train(people, user="who", label="ill", **QUICK, dry_run=True)
    assert any("estimating them takes" in each and "epsilon=" in each for each in planned.remarks)
    assert any("two classes and 4 numbers, the fewest; the most, 97, leave 0." in each for each in planned.remarks)
    assert planned.plan.guarantee.epsilon == 4.0
    assert planned.plan.guarantee.estimates.share > 0
    assert not ledger.exists() or not charges(ledger)
    people.to_csv(tmp_path / "people.csv", index=False)
    told = ["train", str(tmp_path / "people.csv"), "--user", "who", "--label", "ill", "--epsilon", "4", "--dry-run"]
    assert invoke([*told, "--set", "algorithm.name=one-pass-dp-sgd"]) == 0
    assert "estimating them takes" in " ".join(capsys.readouterr().out.split())


def test_a_comparison_of_a_table_with_nothing_declared_runs_on_what_a_simulation_estimates(
    workers_here, people, tmp_path
):
    given = {"algorithms": ["one-pass-dp-sgd"], "seeds": 1, "engine": Inline(workers=1)}
    run = quoron.compare(people, user="who", label="ill", epsilon=8.0, out=tmp_path / "c", **given)
    (cell,) = run.to_pandas().to_dict("records")
    assert cell["runs"] == 1


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
    """The noise of one of two columns (private-bounds#bd1): with that of one of eleven it has three of twelve."""
    draw, users = np.random.default_rng(1), 1500
    people = pd.DataFrame({"who": np.arange(users)} | {f"w{k}": draw.choice([*"abcdef"], users) for k in range(10)})
    people["ill"] = [f"{each}{twice}" for each, twice in zip(people.w0, draw.integers(0, 2, users), strict=True)]
    trained = train(people, tmp_path / "run", epsilon=8.0, items_per_user=1)
    assert len(trained.model.classes_) == 12
    errors = {line.column: line.error for line in trained.estimated}
    assert errors["w0"] / errors["ill"] == pytest.approx(20**0.5 / 2**0.5)


def test_a_table_without_a_column_that_can_be_told_ends_with_a_statement(ledger, tmp_path):
    people = crowd().drop(columns=["age", "dose", "ward"])
    people["name"] = [f"person {place}" for place in range(len(people))]
    with pytest.raises(NothingReleased, match=r"No feature is left. Column 'name' is left out: no word"):
        train(people, tmp_path / "run")


def test_under_zero_out_slots_that_hold_nobody_are_bought_nothing_of(people, ledger, tmp_path):
    more = {"adjacency": "zero-out", "algorithm": "tracking-srgd", "settings": [f"population.users={USERS + 200}"]}
    trained = train(people, tmp_path / "run", **more)
    assert trained.summary.adjacency == "zero-out"
    assert trained.plan["guarantee"]["estimates"]["users"] == USERS + 200


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("s", "Mars/Phobos"), pa.list_(pa.int64())])
@pytest.mark.parametrize("column", ["ill", "age"])
def test_a_type_that_nothing_can_be_read_of_is_refused_before_the_charge(column, kind, people, ledger, tmp_path):
    """It was told by the reading, once all of it had been charged; a feature of it is left out where it may be."""
    table = pa.Table.from_pandas(people, preserve_index=False)
    some = pa.array([[1]] * USERS, kind) if pa.types.is_list(kind) else pa.array(range(USERS), kind)
    table = table.set_column(table.column_names.index(column), column, some)
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "ill"}})
    if column == "age":
        found = facts_of(config, Path(), tables.opened(table))
        readable = kind == pa.timestamp("s")
        assert [each.startswith("Column 'age' is left out") for each in found.left_out] == [True] * (not readable)
        return
    with pytest.raises(DataError, match="'ill'"):
        train(table, tmp_path / "run")
    assert not ledger.exists() or not charges(ledger)


def test_a_simulation_buys_as_the_real_run_would_the_same_for_the_same_seed_and_other_for_another(people, tmp_path):
    people.to_csv(tmp_path / "people.csv", index=False)
    given = dict(user="who", label="ill", **QUICK)
    runs = [quoron.simulate(tmp_path / "people.csv", **given, seed=seed, out=tmp_path / out) for seed, out in SEEDS]
    np.testing.assert_array_equal(runs[0].weights, runs[1].weights)
    assert runs[0].config.population == runs[1].config.population != runs[2].config.population
    (remark,) = [each for each in runs[0].planned.remarks if each.startswith("SIMULATED estimates")]
    assert "ill: classes = no, yes" in remark
    written = (tmp_path / "a" / "config.toml").read_text()
    assert written.startswith("# SIMULATED estimates")  # or they would be declared to a real run as if they were public
    assert configs.parse(written).population.label.classes == ("no", "yes")
    assert runs[0].config.privacy.epsilon < 4.0
    assert set(runs[0].model.classes_) == {"no", "yes"}
    assert quoron.plan(tmp_path / "people.csv", **given).plan.guarantee.estimates is not None


def test_dates_of_a_pandas_frame_are_bought_as_those_of_its_file_are(people, ledger, tmp_path):
    """A frame's type of dates may be made of values: the plan is that of the same column as text."""
    born = pd.Series(pd.date_range("1930-01-01", periods=len(people), freq="16D"))
    plans = [
        quoron.train(people.assign(born=some), user="who", label="ill", **QUICK, dry_run=True).plan.guarantee.estimates
        for some in (born, born.dt.tz_localize("UTC"), born.astype(str))
    ]
    assert len({(plan.columns, plan.names, plan.scales) for plan in plans}) == 1
    table = pa.Table.from_pandas(people.assign(born=born, text=born.astype(str)), preserve_index=False)
    found = {line.column: line.value for line in train(table, tmp_path / "run").estimated}
    for name in ("born", "text"):
        first, last = map(int, found[name].removeprefix("dates, years ").split(" to "))
        assert 1890 <= first <= 1940
        assert 1980 <= last <= 2110


def test_a_column_that_is_declared_is_not_paid_for_as_well(people):
    with pytest.raises(ConfigError, match="'age' to be declared or estimated, got both"):
        quoron.train(
            people,
            user="who",
            label="ill",
            columns={"numeric": {"age": (0, 9)}, "estimate": {"age": "any"}},
            **QUICK,
            dry_run=True,
        )


def test_types_that_a_schema_declares_are_bought_nothing_for(people):
    table = pa.Table.from_pandas(people.assign(smokes=people.age > 50), preserve_index=False)
    table = table.append_column("visits", pa.array([[1]] * len(people)))
    table = table.append_column("bytes", pa.array([b"north", b"south", b"7"] * (len(people) // 3)))
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "smokes"}})
    found = facts_of(config, Path(), tables.opened(table))
    assert [(each.column, each.what) for each in found.features] == [
        ("age", "number"),
        ("dose", "number"),
        ("ward", "any"),
        ("ill", "any"),
        ("bytes", "any"),
    ]
    assert found.label is None
    assert found.left_out[0].startswith("Column 'visits' is left out: Expected column 'visits' to hold numbers or text")
    asked: dict[str, Any] = {"kind": "table", "path": "-", "user": "who", "label": "smokes"}
    asked["columns"] = {"estimate": {"visits": "number"}}
    with pytest.raises(DataError, match="visits"):
        facts_of(configs.from_tree({"population": asked}), Path(), tables.opened(table))


def test_a_feature_that_is_there_twice_is_refused_before_the_charge(people):
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "ill"}})
    frame = pd.concat([people, people[["dose"]]], axis=1)
    with pytest.raises(DataError, match=r"Expected one column 'dose' in the table, got 2. Rename them."):
        facts_of(config, Path(), tables.opened(frame))


def test_columns_whose_names_read_as_patterns_are_left_out_before_the_charge(people):
    odd = {"*": people.age, "x*": people.age, "y[0:3]": people.dose}
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "ill"}})
    found = facts_of(config, Path(), tables.opened(people.assign(**odd)))
    assert [each.column for each in found.features] == ["age", "dose", "ward"]
    assert len(found.left_out) == 3
    assert all("its name reads as a pattern of columns. Rename it." in each for each in found.left_out)


@pytest.mark.parametrize("held", [{"who": ["a"], "x": [1.0], "w": ["b"]}, {"who": [], "x": [], "w": []}])
def test_whether_anybody_who_is_drawn_is_there_is_told_by_noise_alone(held):
    """Under zero-out a slot may hold nobody, and so may all that are drawn: that was an error, which told of it."""
    kinds = {"who": pa.string(), "x": pa.float64(), "w": pa.string()}
    table = pa.table({name: pa.array(values, kinds[name]) for name, values in held.items()})
    paid = EstimatedBounds.calibrate(
        users=100, columns=3, names=1, epsilon=1.0, delta=1e-6, share=0.5, adjacency="zero-out"
    )
    wants = [Fact("x", "number"), Fact("w", "label"), Fact("items per user", "items")]
    owners = np.arange(table.num_rows)
    for seed in range(8):  # of whom some draw the one that is there, and some do not
        found, entries = column_bounds.release(paid, wants, tables.opened(table), owners, 300, SeededNoise(seed))
        assert set(found) == {"x", "w", "items per user"}
        assert len(entries) >= 3


def test_what_one_user_holds_changes_what_is_counted_by_one_users_marks(people):
    """The counts that are released, of tables that differ in one user: by what the theorem says, whatever it holds."""
    table = pa.Table.from_pandas(people.astype(str), preserve_index=False)
    hostile = people.astype(str)
    hostile.loc[7, ["age", "dose", "ward", "ill"]] = ["1e308", "north", "\x00", "nan"]
    other = pa.Table.from_pandas(hostile, preserve_index=False)
    for name in ("age", "dose", "ward", "ill"):
        apart = row_kinds(table, name)[1] != row_kinds(other, name)[1]
        assert set(np.flatnonzero(apart)) <= {7}


WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6) | st.sampled_from(
    ["0", "1", "-1", "true", "no", "07"]
)
ENDS = st.floats(-(4.0**32), 4.0**32)
SAID = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS[:-1]),
        "votes": st.lists(st.floats(-2000, 3000), min_size=len(KINDS), max_size=len(KINDS)),
    },
    optional={
        "range": st.lists(ENDS, min_size=2, max_size=2),
        "names": st.lists(st.tuples(WORDS, st.floats(20, 3000)).map(list), max_size=25, unique_by=lambda each: each[0]),
    },
)


@given(SAID, SAID, SAID, SAID)
def test_whatever_noise_says_is_a_configuration_or_a_statement(age, ward, ill, items):
    """What is read off released numbers raises nothing that would end a run that has been charged."""
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "ill"}})
    wants = [Fact("age", "any"), Fact("ward", "any"), Fact("ill", "label"), Fact("items per user", "items")]
    asked = Facts(tuple(wants[:2]), {}, wants[2], wants[3], ())
    released = dict(zip(("age", "ward", "ill", "items per user"), (age, ward, ill, items), strict=True))
    for said_ in released.values():
        if "range" in said_:
            said_["held"] = 1500.0
            said_["range"].sort()
    paid = EstimatedBounds.calibrate(users=1500, columns=4, names=3, epsilon=4.0, delta=1e-6, share=0.1)
    try:
        found = Estimates.of(asked, released, paid=paid, widest=8, known=False)
        declared = estimated.configured(config, asked, found)
    except (NothingReleased, ConfigError):
        return
    assert not estimates_bounds(declared)
    text = Declarations(paid, found, asked).toml(declared)
    assert configs.parse(text).population == declared.population


def declared_by(ill: dict[str, Any], *, text: bool = False) -> Estimates:
    """What is read off releases in which `age` is a number and the label has these names with these votes."""
    votes_ = [1900.0, 0.0, 0.0, 0.0, 40.0]
    released = {"age": {"kind": "number", "votes": votes_, "range": [0.0, 90.0], "held": 1900.0}}
    released["ill"] = {"kind": "number", "votes": votes_, "names": [[name, held] for name, held in ill.items()]}
    asked = Facts((Fact("age", "any"),), {}, Fact("ill", "label"), None, ())
    paid = EstimatedBounds.calibrate(users=2000, columns=2, names=2, epsilon=4.0, delta=1e-6, share=0.1)
    return Estimates.of(asked, released, paid=paid, widest=8, known=False, text=text)


def test_a_label_that_is_rare_is_trained_on_where_its_other_value_is_known_and_said_to_be_rare():
    for name in ("0", "1", "-1", "False", "true"):
        found = declared_by({name: 1930.0})
        assert found.label == {}
        assert f"label 'ill' is {name!r} for all users but" in " ".join(found.missing)
    found = declared_by({"no": 1930.0})
    assert found.label == {"positive": "no"}
    assert "nothing if there are none" in " ".join(found.missing)
    assert declared_by({"0": 1900.0, "1": 60.0}).missing == ()


@pytest.mark.parametrize(
    ("names", "said"),
    [("10 20 30", "[10, 30], or wider"), ("1 2 3 4 5", "[1, 5]"), ("0 1 2", ""), ("2 7", ""), ("a 1 2", "")],
)
def test_classes_that_are_numbers_are_said_to_be_classes(names, said):
    each = names.split()
    found = declared_by(dict.fromkeys(each, 1930.0 / len(each)))
    assert len(found.label["classes"]) == len(each)
    assert [said in line for line in found.missing] == [True] * bool(said)


PEOPLE = 5_000


def careful() -> TablePopulation:
    """Users whose columns fill their declared ranges."""
    rules = Encoding((Numeric("age", 0, 100), Numeric("dose", 0, 5)), label=Signs("ill"))
    return from_table(patients(500), rules, user="who", loss=Logistic(), domain=L2Ball(3.0), test_fraction=0.0)


def configured(epsilon: float = 4.0, *, algorithm: str = "auto", **domain: Any) -> Config:
    section = {"kind": "table", "path": "-", "user": "-", "label": "- > 0", "columns": {"numeric": {"-": [0, 1]}}}
    privacy = {"epsilon": epsilon, "delta": 1e-6}
    tree = {"population": section, "privacy": privacy, "domain": domain, "algorithm": {"name": algorithm}}
    return from_tree(tree)


def test_where_no_radius_is_declared_nothing_bounds_models_whose_noise_needs_no_bound() -> None:
    free = problem(configured(), careful()).settled(wide=True)
    assert is_free(free.domain, free.feature_norm)
    assert domain_words(free) == "unbounded"
    assert free.domain.project(np.full(3, 1e7)).tolist() == [1e7] * 3
    assert problem(configured(radius=30.0), replace(careful(), domain=L2Ball(30.0))).wide is None
    assert problem(configured(kind="box"), careful()).wide is None
    # A linear loss has its least at the end of the domain; it has none where there is no end.
    assert problem(configured(), replace(careful(), loss=Linear())).wide is None
    assert problem(configured(), replace(careful(), loss=Linear(ridge=0.1))).wide is not None


@pytest.mark.parametrize(("robust", "slope"), [(True, 30.0), (True, 0.3), (False, 30.0)])
def test_a_cap_on_predictions_that_holds_the_model_is_said_for_real_and_in_a_simulation(
    robust: bool, slope: float, ledger: Path, tmp_path: Path
) -> None:
    draw = np.random.Generator(np.random.Philox(9))
    number = draw.uniform(-1, 1, PEOPLE)
    ill = draw.random(PEOPLE) < 1 / (1 + np.exp(-slope * number))
    frame = pd.DataFrame({"who": np.arange(PEOPLE), "x": number, "ill": ill})
    given = {
        "user": "who",
        "label": "ill",
        "columns": {"numeric": {"x": (-1, 1)}},
        "epsilon": 8.0,
        "algorithm": "whitened-tracking",
    }
    given["settings"] = [f"algorithm.options.robust={str(robust).lower()}"]
    for door in (quoron.train, quoron.simulate):
        summary = door(frame, **given, out=tmp_path / door.__name__).summary
        warnings = summary.remarks_simulation_only if door is quoron.simulate else summary.warnings
        found = [each for each in warnings if "held at a root mean square of 4, in fear of hostile users" in each]
        assert len(found) == (robust and slope == 30.0)


@pytest.mark.parametrize("kind", ["folder", "reader"])
def test_folders_and_readers_are_bought_of_too(kind, people, ledger, tmp_path, monkeypatch):
    source: Any = people
    table = pa.Table.from_pandas(people, preserve_index=False)
    if kind == "folder":
        (tmp_path / "people").mkdir()
        for number in range(3):
            some = table.filter(pa.array(people.who.to_numpy() % 3 == number))
            pq.write_table(some, tmp_path / "people" / f"{number}.parquet")
        source = configs.from_tree(
            {"population": {"kind": "table", "path": str(tmp_path / "people"), "user": "who", "label": "ill"}}
        )
    else:
        source = table.to_reader()
    more = {} if kind != "folder" else {"user": None, "label": None}
    given = dict(out=tmp_path / "run", **{"user": "who", "label": "ill"} | QUICK | more)
    found = {line.column: line.value for line in quoron.train(source, **given).estimated}
    assert found["ill"] == "classes = no, yes"
