"""A table of which nobody declared anything: bought within the promise, charged before, told after, once a run."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dying
import quoron
from dying import Moment
from quoron import config as configs
from quoron.cli import one_screen
from quoron.cli.app import invoke
from quoron.config import is_wanted
from quoron.run_folder import RunFolder
from quoron.training import buying, lifetime, look, run, votes
from quoron.training.found import Declarations, Found
from quoron.training.votes import Want
from quoron.training.wanted import Wanted, wanted
from quoron_client.data import row_kinds, tables
from quoron_privacy.counts.bought import Bought
from quoron_privacy.counts.bought_costs import costs
from quoron_privacy.counts.marks import KINDS
from quoron_privacy.errors import ConfigError, DataError, Infeasible, NothingReleased, OtherVersion, RunError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.books.ledger import Ledger
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.plan import BOUGHT
from said import said

pytestmark = pytest.mark.usefixtures("no_pictures")

USERS = 1500
QUICK: dict[str, Any] = {"epsilon": 4.0, "algorithm": "one-pass-dp-sgd", "settings": ["algorithm.options.rounds=3"]}
TABLE = """
[population]
kind = "table"
path = "people.csv"
user = "who"
label = "ill"
{more}
[privacy]
epsilon = 4.0
[algorithm]
name = "one-pass-dp-sgd"
[algorithm.options]
rounds = 3
"""


def crowd(users: int = USERS) -> pd.DataFrame:
    draw = np.random.Generator(np.random.Philox(3))
    age, dose = draw.uniform(20, 90, users), draw.uniform(0, 5, users)
    ward = draw.choice(["north", "south", "west"], users, p=[0.5, 0.3, 0.2])
    ill = np.where(age + 10 * dose + draw.normal(0, 10, users) > 80, "yes", "no")
    return pd.DataFrame({"who": np.arange(users), "age": age, "dose": dose, "ward": ward, "ill": ill})


@pytest.fixture
def people() -> pd.DataFrame:
    return crowd()


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own" / "lifetime.sqlite"
    monkeypatch.setenv(lifetime.VARIABLE, str(path))
    return path


def train(people: Any, out: Path, **more: Any) -> Any:
    return quoron.train(people, **said(out=out, user="who", **{"label": "ill"} | QUICK | more))


def charges(ledger: Path) -> list[Any]:
    with lifetime.opened(ledger) as kept:
        return kept.charges("everyone")


def bought(out: Path) -> Any:
    with Ledger.open(out / "ledger.sqlite") as own:
        return own.bought()


def test_every_door_trains_on_a_table_of_which_nothing_is_declared(people, ledger, tmp_path, capsys):
    """Noise is secret: a range or a value is missed with a chance below 1e-6, as it has eight standard errors."""
    people.to_csv(tmp_path / "people.csv", index=False)
    people.to_parquet(tmp_path / "people.parquet", index=False)
    (tmp_path / "people.toml").write_text(TABLE.format(more=""), encoding="utf-8")
    for place, source in enumerate((people, tmp_path / "people.csv", tmp_path / "people.parquet")):
        trained = train(source, tmp_path / f"run{place}")
        assert [line.column for line in trained.bought] == ["age", "dose", "ward", "ill", "items per user"]
        found = {line.column: line.value for line in trained.bought}
        assert sorted(found["ward"].split(", ")) == ["north", "south", "west"]
        assert found["ill"] == "classes = no, yes"
        assert found["items per user"] == "1"
        low, high = json.loads(found["age"])
        assert -300 < low < 45
        assert 65 < high < 300
        assert set(trained.model.classes_) == {"no", "yes"}
        assert len(quoron.load(trained.directory).predict(people)) == USERS
        assert trained.summary == quoron.resume(trained.directory).summary
        assert "bought" in (trained.directory / "report.html").read_text()
    out = str(tmp_path / "toml")
    assert invoke(["train", str(tmp_path / "people.toml"), "--out", out, "-q"]) == 0
    assert "bought: ward" in capsys.readouterr().out
    assert len(charges(ledger)) == 4
    assert {each.epsilon for each in charges(ledger)} == {4.0}


@pytest.mark.parametrize("kind", ["folder", "frame of dates", "reader"])
def test_folders_frames_with_dates_and_readers_are_bought_of_too(kind, people, ledger, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    elif kind == "reader":
        source = table.to_reader()
    else:
        born = pd.Series(pd.date_range("1930-01-01", periods=len(people), freq="16D"))
        source = pa.Table.from_pandas(people.assign(born=born, text=born.astype(str)), preserve_index=False)
    more = {} if kind != "folder" else {"user": None, "label": None}
    given = said(out=tmp_path / "run", **{"user": "who", "label": "ill"} | QUICK | more)
    found = {line.column: line.value for line in quoron.train(source, **given).bought}
    assert found["ill"] == "classes = no, yes"
    if kind == "frame of dates":
        for name in ("born", "text"):
            first, last = map(int, found[name].removeprefix("dates, years ").split(" to "))
            assert 1890 <= first <= 1940
            assert 1980 <= last <= 2110


def test_what_was_bought_is_a_configuration_that_trains_without_buying(people, ledger, tmp_path):
    people.to_csv(tmp_path / "people.csv", index=False)
    trained = train(tmp_path / "people.csv", tmp_path / "run")
    text = (tmp_path / "run" / "declared.toml").read_text()
    config = configs.parse(text)
    assert not is_wanted(config)
    again = quoron.train(tmp_path / "run" / "declared.toml", **said(out=tmp_path / "again", **QUICK))
    assert again.bought == ()
    assert again.model.feature_names_in_ == trained.model.feature_names_in_
    assert again.plan["guarantee"]["bought"] is None


def test_a_plan_says_beforehand_what_is_bought_and_what_is_left_and_looks_at_no_value(
    people, ledger, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(votes, "release", lambda *_: pytest.fail("somebody looked"))
    planned = quoron.plan_training(people, **said(user="who", label="ill", **QUICK))
    assert any("are bought with" in each and "epsilon=" in each for each in planned.remarks)
    assert any("from 4 to" in each for each in planned.remarks)
    assert planned.plan.guarantee.epsilon == 4.0
    assert planned.plan.guarantee.bought.share > 0
    assert not ledger.exists() or not charges(ledger)
    people.to_csv(tmp_path / "people.csv", index=False)
    told = ["train", str(tmp_path / "people.csv"), "--user", "who", "--label", "ill", "--epsilon", "4", "--dry-run"]
    assert invoke([*told, "--set", "algorithm.name=one-pass-dp-sgd"]) == 0
    assert "are bought with" in " ".join(capsys.readouterr().out.split())


def test_all_of_it_is_charged_before_any_value_is_looked_at_and_committed_before_it_is_told(
    people, ledger, tmp_path, monkeypatch
):
    order, release, buy, spend = [], votes.release, Ledger.buy, Ledger.spend

    def looking(*given: Any) -> Any:
        order.append(f"looked after {len(charges(ledger))}")
        return release(*given)

    monkeypatch.setattr(
        votes, "release", lambda *given: order.append(f"looked after {len(charges(ledger))}") or release(*given)
    )

    def buying(self: Ledger, *given: Any, **more: Any) -> None:
        order.append(f"told: {(tmp_path / 'run' / 'declared.toml').exists()}")
        buy(self, *given, **more)

    def spending(self: Ledger, question: Any, **more: Any) -> None:
        order.append("asked")
        spend(self, question, **more)

    monkeypatch.setattr(votes, "release", looking)
    monkeypatch.setattr(Ledger, "buy", buying)
    monkeypatch.setattr(Ledger, "spend", spending)
    train(people, tmp_path / "run")
    assert order[:3] == ["looked after 1", "told: False", "asked"]
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as own:
        first = [entry for number, entry in own.releases() if number == BOUGHT]
        plan = json.loads(own.plan_json)
    announced = Bought(**plan["guarantee"]["bought"] | {"scales": tuple(plan["guarantee"]["bought"]["scales"])})
    assert first
    assert all(entry in announced.entries() for entry in first)


MOMENTS = [
    (Ledger, "create"),
    (PopulationLedger, "charge"),
    (Ledger, "buy"),
    (Ledger, "go_by"),
    (RunFolder, "write_text"),
    (Ledger, "begin_with"),
    (Ledger, "spend"),
    (Ledger, "commit"),
    (Ledger, "finish"),
    (PopulationLedger, "end"),
]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_dies_anywhere_is_charged_once_and_tells_one_story(when, people, ledger, tmp_path, monkeypatch):
    """Before the commit nobody has seen what was drawn, and the next draw is another; after it, it stands."""
    drawn, release = [], votes.release

    def noting(*given: Any) -> Any:
        drawn.append(release(*given))
        return drawn[-1]

    monkeypatch.setattr(votes, "release", noting)
    out = tmp_path / "run"
    for kind, name in MOMENTS:
        real = kind.__dict__[name]
        plain = real.__func__ if isinstance(real, classmethod) else real

        def dies(*given: Any, plain: Any = plain, **more: Any) -> None:
            if when == "after":
                plain(*given, **more)
            raise KeyboardInterrupt

        before = bought(out) if (out / "ledger.sqlite").exists() else None
        with monkeypatch.context() as once:
            once.setattr(kind, name, classmethod(dies) if isinstance(real, classmethod) else dies)
            with pytest.raises(KeyboardInterrupt):
                train(people, out)
        kept = bought(out) if (out / "ledger.sqlite").exists() else None
        assert before in (None, kept)
        assert len(charges(ledger)) <= 1
    trained = quoron.resume(out)
    assert len(charges(ledger)) == 1
    assert bought(out)["bought"] == drawn[-1][0]
    assert len(drawn) == (2 if when == "before" else 1)
    assert {line.column for line in trained.bought} == {"age", "dose", "ward", "ill", "items per user"}
    if when == "before":
        assert drawn[0] != drawn[1]


@pytest.mark.parametrize("wrong", [RunError, DataError, ConfigError, OSError, MemoryError, KeyboardInterrupt])
def test_whatever_goes_wrong_with_the_plan_of_what_was_bought_tells_of_one_release(
    wrong, people, ledger, tmp_path, monkeypatch
):
    """An error in planning is a function of what was bought: told of a release of its own at every start, k starts
    would have told of k."""
    out, heard = tmp_path / "run", []

    def fails(*_: Any, bought: Declarations, **__: Any) -> None:
        heard.append(bought.found.ranges["age"])
        raise wrong(f"of ages {heard[-1]}")

    with monkeypatch.context() as twice:
        twice.setattr(run, "_planned", fails)
        for _ in range(2):
            with pytest.raises(NothingReleased if wrong is ConfigError else wrong, match="of ages"):
                train(people, out)
    assert len(set(heard)) == len(charges(ledger)) == 1
    assert list(heard[0]) == bought(out)["bought"]["age"]["range"]
    if wrong is not ConfigError:  # which is a statement
        assert json.loads({each.column: each.value for each in train(people, out).bought}["age"])


def test_what_was_bought_by_another_forecast_or_is_in_no_promise_is_not_gone_on_with(
    people, ledger, tmp_path, monkeypatch
):
    """Of another version, whose purchases have other shares; and of a plan that forgets them, which is whole alone."""

    def fails(*_: Any, **__: Any) -> None:
        raise RunError("no memory")

    def forgets(*given: Any, released: Any = votes.release) -> Any:
        monkeypatch.setattr(buying, "within", lambda *given: look.plan(*given[:3]))
        return released(*given)

    with monkeypatch.context() as once:
        once.setattr(run, "_planned", fails)
        with pytest.raises(RunError):
            train(people, tmp_path / "run")
    with monkeypatch.context() as once:
        once.setattr(buying.bought, "share_for", lambda **_: 0.4)
        with pytest.raises(OtherVersion):
            train(people, tmp_path / "run")
    assert train(people, tmp_path / "run").bought
    monkeypatch.setattr(votes, "release", forgets)
    with pytest.raises(NothingReleased, match="a promise of what was bought"):
        train(people, tmp_path / "forgetful")


def test_a_plan_that_was_made_of_what_was_bought_is_not_given_up_for_what_is_wrong_later(
    people, ledger, tmp_path, monkeypatch
):
    plain = Ledger.commit

    def dies(own: Ledger, at: int, *given: Any, **more: Any) -> None:
        if at >= 0:
            raise KeyboardInterrupt
        plain(own, at, *given, **more)

    def fails(*_: Any, **__: Any) -> None:
        raise ConfigError("of another table, perhaps")

    for place, name, does, wrong in (
        (Ledger, "commit", dies, KeyboardInterrupt),
        (run, "_planned", fails, ConfigError),
    ):
        with monkeypatch.context() as once:
            once.setattr(place, name, does)
            with pytest.raises(wrong):
                train(people, tmp_path / "run")
    assert train(people, tmp_path / "run").bought


@pytest.mark.programs
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", ["charge", "buy", "go_by", "begin_with", "finish"])
def test_a_program_that_is_killed_around_a_purchase_goes_on(at, when, people, ledger, tmp_path):
    people.to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.toml").write_text(TABLE.format(more=""), encoding="utf-8")
    command = ["train", str(tmp_path / "people.toml"), "--out", str(tmp_path / "run"), "-q"]
    dead = subprocess.run(
        dying.words(Moment(at, when), "quoron", *command), check=False, capture_output=True, timeout=300
    )
    assert dead.returncode == -signal.SIGKILL
    kept = bought(tmp_path / "run") if at != "charge" else None
    trained = quoron.resume(tmp_path / "run")
    assert len(charges(ledger)) == 1
    assert kept is None or bought(tmp_path / "run") == kept
    assert (kept is None) == (at == "charge" or (at, when) == ("buy", "before"))
    assert trained.bought


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
        (lambda people: "no", "for all users but"),
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


def test_a_table_without_a_column_that_can_be_told_ends_with_a_statement(ledger, tmp_path):
    people = crowd().drop(columns=["age", "dose", "ward"])
    people["name"] = [f"person {place}" for place in range(len(people))]
    with pytest.raises(NothingReleased, match=r"No feature is left. Column 'name' is left out: no word"):
        train(people, tmp_path / "run")


def test_columns_that_tell_nothing_are_left_out_by_name(people, ledger, tmp_path):
    people["name"] = [f"person {place}" for place in range(len(people))]
    people["empty"] = None
    people["born"] = [f"19{place % 90 + 10}-05-01" for place in range(len(people))]
    warned = " ".join(train(people, tmp_path / "run").summary.warnings)
    for name, why in (("name", "no word of it has"), ("empty", "fewer than")):
        assert f"Column {name!r} is left out: {why}" in warned


def test_too_few_users_are_refused_before_the_charge(ledger, tmp_path):
    with pytest.raises(Infeasible, match="users"):
        train(crowd(60), tmp_path / "run", epsilon=1.0)
    assert not ledger.exists() or not charges(ledger)


def test_a_method_that_is_not_gaussian_as_a_whole_is_refused_with_the_fix(people, ledger, tmp_path):
    with pytest.raises(ConfigError, match=r"Gaussian as a whole beside declarations that are bought.*leave the method"):
        train(people, tmp_path / "run", algorithm="outlier-iterates", settings=())
    assert not ledger.exists() or not charges(ledger)


@pytest.mark.parametrize(
    ("columns", "features"),
    [
        ({"numeric": ["age", "dose"]}, [("age", "number"), ("dose", "number")]),
        ({"numeric": {"age": (0, 100), "dose": None}}, [("dose", "number")]),
        ({"categorical": ["ward"]}, [("ward", "category")]),
        ({"numeric": {"age": (0, 100)}, "buy": {"*": "any"}}, [("dose", "any"), ("ward", "any")]),
        ({"buy": {"d*": "number"}}, [("dose", "number")]),
    ],
)
def test_what_is_declared_is_not_bought(columns, features, people):
    tree = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "ill", **columns}})
    assert is_wanted(tree)
    assert [(each.column, each.what) for each in wanted(tree, Path(), tables.opened(people)).features] == features


def test_types_that_a_schema_declares_are_bought_nothing_for(people):
    table = pa.Table.from_pandas(people.assign(smokes=people.age > 50), preserve_index=False)
    table = table.append_column("visits", pa.array([[1]] * len(people)))
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "smokes"}})
    found = wanted(config, Path(), tables.opened(table))
    assert [(each.column, each.what) for each in found.features] == [
        ("age", "number"),
        ("dose", "number"),
        ("ward", "any"),
        ("ill", "any"),
    ]
    assert found.label is None
    assert found.left_out[0].startswith("Column 'visits' is left out: Expected column 'visits' to hold numbers or text")
    asked = {"kind": "table", "path": "-", "user": "who", "label": "smokes", "buy": {"visits": "number"}}
    with pytest.raises(DataError, match="visits"):
        wanted(configs.from_tree({"population": asked}), Path(), tables.opened(table))


def test_under_zero_out_slots_that_hold_nobody_are_bought_nothing_of(people, ledger, tmp_path):
    more = {"adjacency": "zero-out", "algorithm": "tracking-srgd", "settings": [f"train.users={USERS + 200}"]}
    trained = train(people, tmp_path / "run", **more)
    assert trained.summary.adjacency == "zero-out"
    assert trained.plan["guarantee"]["bought"]["users"] == USERS + 200


@pytest.mark.parametrize("held", [{"who": ["a"], "x": [1.0], "w": ["b"]}, {"who": [], "x": [], "w": []}])
def test_whether_anybody_who_is_drawn_is_there_is_told_by_noise_alone(held):
    """Under zero-out a slot may hold nobody, and so may all that are drawn: that was an error, which told of it."""
    kinds = {"who": pa.string(), "x": pa.float64(), "w": pa.string()}
    table = pa.table({name: pa.array(values, kinds[name]) for name, values in held.items()})
    paid = Bought.calibrate(users=100, columns=3, names=1, epsilon=1.0, delta=1e-6, share=0.5, adjacency="zero-out")
    wants = [Want("x", "number"), Want("w", "label"), Want("items per user", "items")]
    owners = np.arange(table.num_rows)
    for seed in range(8):  # of whom some draw the one that is there, and some do not
        found, entries = votes.release(paid, wants, tables.opened(table), owners, 300, SeededNoise(seed))
        assert set(found) == {"x", "w", "items per user"}
        assert len(entries) >= 3


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


def test_what_one_user_holds_changes_what_is_counted_by_one_users_marks(people):
    """The counts that are released, of tables that differ in one user: by what the theorem says, whatever it holds."""
    table = pa.Table.from_pandas(people.astype(str), preserve_index=False)
    hostile = people.astype(str)
    hostile.loc[7, ["age", "dose", "ward", "ill"]] = ["1e308", "north", "\x00", "nan"]
    other = pa.Table.from_pandas(hostile, preserve_index=False)
    for name in ("age", "dose", "ward", "ill"):
        apart = row_kinds.kinds(table, name) != row_kinds.kinds(other, name)
        assert set(np.flatnonzero(apart)) <= {7}


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
    wants = [Want("age", "any"), Want("ward", "any"), Want("ill", "label"), Want("items per user", "items")]
    asked = Wanted(tuple(wants[:2]), {}, wants[2], wants[3], ())
    released = dict(zip(("age", "ward", "ill", "items per user"), (age, ward, ill, items), strict=True))
    for said_ in released.values():
        if "range" in said_:
            said_["held"] = 1500.0
            said_["range"].sort()
    paid = Bought.calibrate(users=1500, columns=4, names=3, epsilon=4.0, delta=1e-6, share=0.1)
    try:
        found = Found.of(asked, released, paid=paid, widest=8, known=False)
        declared = buying.configured(config, asked, found)
    except (NothingReleased, ConfigError):
        return
    assert not is_wanted(declared)
    text = Declarations(paid, found, asked).toml(declared)
    assert configs.parse(text).population == declared.population


def declared_by(ill: dict[str, Any], *, text: bool = False) -> Found:
    """What is read off releases in which `age` is a number and the label has these names with these votes."""
    votes_ = [1900.0, 0.0, 0.0, 0.0, 40.0]
    released = {"age": {"kind": "number", "votes": votes_, "range": [0.0, 90.0], "held": 1900.0}}
    released["ill"] = {"kind": "number", "votes": votes_, "names": [[name, held] for name, held in ill.items()]}
    asked = Wanted((Want("age", "any"),), {}, Want("ill", "label"), None, ())
    paid = Bought.calibrate(users=2000, columns=2, names=2, epsilon=4.0, delta=1e-6, share=0.1)
    return Found.of(asked, released, paid=paid, widest=8, known=False, text=text)


def test_a_label_that_is_rare_is_trained_on_where_its_other_value_is_known_and_said_to_be_rare():
    for name in ("0", "1", "-1", "False", "true"):
        found = declared_by({name: 1930.0})
        assert found.label == {}
        assert f"label 'ill' is {name!r} for all users but" in " ".join(found.missing)
    with pytest.raises(NothingReleased, match="nothing to learn"):
        declared_by({"no": 1930.0})
    assert declared_by({"0": 1900.0, "1": 60.0}).missing == ()


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["1", "0"], ["0", "1"]),
        (["0"], ["0", "1"]),
        (["-1"], ["-1", "1"]),
        (["True", "False"], ["False", "True"]),
        (["FALSE"], ["FALSE", "TRUE"]),
        (["true"], ["false", "true"]),
    ],
)
def test_signs_that_a_schema_says_are_text_are_declared_as_they_are_written(names, classes):
    """A schema's text says nothing by itself, and is refused without its classes: after the charge that is too late."""
    assert declared_by(dict.fromkeys(names, 1930.0 / len(names)), text=True).label == {"classes": classes}


def test_a_parquet_label_of_signs_in_text_is_trained_on(people, ledger, tmp_path):
    people["ill"] = np.where(people.ill == "yes", "1", "0")
    people.to_parquet(tmp_path / "people.parquet", index=False)
    trained = train(tmp_path / "people.parquet", tmp_path / "run")
    assert [*trained.model.classes_] == ["0", "1"]
    assert one_screen.coefficient(trained.model) == "coefficient for 1"


def test_what_is_to_be_left_out_is_a_column_of_the_table_and_is_never_bought(people, ledger, tmp_path):
    for more in ({}, {"numeric": {"age": (0, 100)}}):
        with pytest.raises(ConfigError, match="columns that 'nope' excludes, got none"):
            quoron.plan_training(people, **said(user="who", label="ill", exclude=["nope"], **more, **QUICK))
    people = people.rename(columns={"age": "x_age", "dose": "x_dose"})
    people.to_csv(tmp_path / "people.csv", index=False)
    for source in (people, tmp_path / "people.csv"):
        given = {"numeric": {"x_*": (0, 100)}, "buy": {"*": "any"}, "exclude": ["x_dose", "w*"]}
        planned = quoron.plan_training(source, **said(user="who", label="ill", **given, **QUICK))
        assert costs(planned.plan.guarantee.bought)[0].what.startswith("the kind of 2 columns")


def test_a_plan_says_of_each_purchase_its_share_and_its_error(people, tmp_path, capsys):
    people.to_csv(tmp_path / "people.csv", index=False)
    told = ["train", str(tmp_path / "people.csv"), "--user", "who", "--label", "ill", "--epsilon", "4", "--dry-run"]
    told += ["--set", "algorithm.name=one-pass-dp-sgd"]
    assert invoke([*told, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert sum(each["share"] for each in plan["purchases"]) == pytest.approx(plan["guarantee"]["bought"]["share"])
    assert all(0 < each["error"] < USERS for each in plan["purchases"])
    assert invoke([*told, "--details"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for each in plan["purchases"]:
        assert f"{each['share']:.2g} of μ²: ± {each['error']:,.0f} users" in shown


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


def test_a_comparison_and_a_question_of_what_nobody_declared_are_refused_with_the_fix(people):
    """Neither buys: it would leave out columns that somebody wants, or say that there are no features."""
    for more in ({}, {"numeric": {"age": (0, 100)}, "buy": {"dose": "number"}}):
        with pytest.raises(ConfigError, match=r"declared for compare.*declared\.toml"):
            quoron.compare(people, user="who", label="ill", seeds=1, **more)
        with pytest.raises(ConfigError, match="declared for ask"):
            quoron.ask(people, user="who", label="ill", risk="5%", **more)


def test_a_column_that_is_declared_is_not_paid_for_as_well(people):
    with pytest.raises(ConfigError, match="'age' to be declared or bought, got both"):
        quoron.plan_training(
            people, **said(user="who", label="ill", numeric={"age": (0, 9)}, buy={"age": "any"}, **QUICK)
        )
