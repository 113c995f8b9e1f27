"""What is bought of a table is charged before it is looked at, told after, and once a run, wherever a run dies."""

import gc
import json
import shutil
import signal
import subprocess
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dying
import quoron
from committed import charges
from dying import Moment
from quoron.cli.app import invoke
from quoron.data import index
from quoron.evaluation import figures
from quoron.run_folder import RunFolder
from quoron.training import column_bounds, data_quality, evaluated, run
from quoron.training.estimated import MAX_CLASSES, Declarations
from quoron_client.data.users import Numbering
from quoron_privacy.errors import ConfigError, DataError, NothingReleased, OtherVersion, RunError
from quoron_privacy.histograms.held_out import HeldOut
from quoron_privacy.histograms.private_bounds import EstimatedBounds
from quoron_server.plan import ESTIMATES, EVALUATED, PLANNED, PREFACE
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from undeclared import TABLE, crowd, estimates, train


@pytest.fixture
def people() -> pd.DataFrame:
    return crowd()


def test_all_of_it_is_charged_before_any_value_is_looked_at_and_committed_before_it_is_told(
    people, ledger, tmp_path, monkeypatch
):
    order, release, commit, spend = [], column_bounds.release, Ledger.commit, Ledger.spend

    def looking(*given: Any) -> Any:
        order.append(f"looked after {len(charges(ledger))}")
        return release(*given)

    def estimating(self: Ledger, *given: Any, **more: Any) -> None:
        if given[0] == ESTIMATES:
            order.append(f"told: {(tmp_path / 'run' / 'declared.toml').exists()}")
        commit(self, *given, **more)

    def spending(self: Ledger, question: Any, *more: Any) -> None:
        order.append("asked")
        spend(self, question, *more)

    monkeypatch.setattr(column_bounds, "release", looking)
    monkeypatch.setattr(Ledger, "commit", estimating)
    monkeypatch.setattr(Ledger, "spend", spending)
    train(people, tmp_path / "run")
    assert order[:3] == ["looked after 1", "told: False", "asked"]
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as own:
        first = [entry for number, entry in own.releases() if number == ESTIMATES]
        plan = json.loads(own.plan_json)
    announced = EstimatedBounds(
        **plan["guarantee"]["estimates"] | {"scales": tuple(plan["guarantee"]["estimates"]["scales"])}
    )
    assert first
    told = [entry for entry, _ in announced.releases()]
    assert all(entry in told for entry in first)


MOMENTS = [
    (Ledger, "create"),
    (PopulationLedger, "charge"),
    (Ledger, "commit", ESTIMATES),
    (Ledger, "commit", PLANNED),
    (RunFolder, "write_text"),
    (Ledger, "commit", PREFACE),
    (Ledger, "spend"),
    (Ledger, "commit"),
    (Ledger, "finish"),
    (PopulationLedger, "end"),
]
FEWER = [MOMENTS[place] for place in (0, 2, 6, 9)]  # before a step as much is there as after the one before it


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # nobody closes what has died
@pytest.mark.parametrize(
    ("when", "moments"), [pytest.param("before", FEWER, marks=pytest.mark.slow), ("after", MOMENTS)]
)
def test_a_run_that_dies_anywhere_is_charged_once_and_tells_one_story(
    when, moments, people, ledger, tmp_path, monkeypatch
):
    """Before the commit nobody has seen what was drawn, and the next draw is another; after it, it stands."""
    drawn, release = [], column_bounds.release

    def noting(*given: Any) -> Any:
        drawn.append(release(*given))
        return drawn[-1]

    monkeypatch.setattr(column_bounds, "release", noting)
    out = tmp_path / "run"
    for kind, name, *stage in moments:
        real = kind.__dict__[name]
        plain = real.__func__ if isinstance(real, classmethod) else real

        def dies(*given: Any, plain: Any = plain, stage: list[int] = stage, **more: Any) -> None:
            if stage and given[1] not in stage:
                return plain(*given, **more)
            if when == "after":
                plain(*given, **more)
            raise KeyboardInterrupt

        before = estimates(out) if (out / "ledger.sqlite").exists() else None
        with monkeypatch.context() as once:
            once.setattr(kind, name, classmethod(dies) if isinstance(real, classmethod) else dies)
            with pytest.raises(KeyboardInterrupt):
                train(people, out)
        gc.collect()  # a process that dies closes its files
        kept = estimates(out) if (out / "ledger.sqlite").exists() else None
        assert before in (None, kept)
        assert len(charges(ledger)) <= 1
    trained = quoron.resume(out)
    assert len(charges(ledger)) == 1
    assert estimates(out)["estimates"] == drawn[-1][0]
    assert len(drawn) == (2 if when == "before" else 1)
    assert {line.column for line in trained.estimated} == {"age", "dose", "ward", "ill", "items per user"}
    if when == "before":
        assert drawn[0] != drawn[1]


@pytest.mark.parametrize("wrong", [DataError, ConfigError, KeyboardInterrupt])
def test_whatever_goes_wrong_with_the_plan_of_what_was_bought_tells_of_one_release(
    wrong, people, ledger, tmp_path, monkeypatch
):
    """An error in planning is a function of what was bought: told of a release of its own at every start, k starts
    would have told of k."""
    out, heard = tmp_path / "run", []

    def fails(*_: Any, estimates: Declarations, **__: Any) -> None:
        heard.append(estimates.estimates.features["age"].value)
        raise wrong(f"of ages {heard[-1]}")

    with monkeypatch.context() as twice:
        twice.setattr(run, "_planned", fails)
        for _ in range(2):
            with pytest.raises(NothingReleased if wrong is ConfigError else wrong, match="of ages"):
                train(people, out)
    assert len(set(heard)) == len(charges(ledger)) == 1
    assert list(heard[0]) == estimates(out)["estimates"]["age"]["range"]
    if wrong is not ConfigError:  # which is a statement
        assert json.loads({each.column: each.value for each in train(people, out).estimated}["age"])


def test_what_was_bought_by_another_forecast_or_is_in_no_promise_is_not_gone_on_with(
    people, ledger, tmp_path, monkeypatch
):
    """Of another version, whose purchases have other shares; and of a plan that forgets them, which is whole alone."""

    def fails(*_: Any, **__: Any) -> None:
        raise RunError("no memory")

    def forgets(*given: Any, released: Any = column_bounds.release) -> Any:
        monkeypatch.setattr(run.estimating, "within", lambda *given: data_quality.plan(*given[:3]))
        return released(*given)

    with monkeypatch.context() as once:
        once.setattr(run, "_planned", fails)
        with pytest.raises(RunError):
            train(people, tmp_path / "run")
    with monkeypatch.context() as once:
        once.setattr(column_bounds, "share_for", lambda **_: 0.4)
        with pytest.raises(OtherVersion):
            train(people, tmp_path / "run")
    assert train(people, tmp_path / "run").estimated
    monkeypatch.setattr(column_bounds, "release", forgets)
    with pytest.raises(NothingReleased, match="a guarantee of the estimates"):
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
    assert train(people, tmp_path / "run").estimated


STEPS = ("charge", "bounds", "plan", "quality", "finish")
RELEASED = {ESTIMATES: "bounds", PREFACE: "quality", EVALUATED: "finish"}  # by the step that commits it


@pytest.mark.programs
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", STEPS)
def test_a_program_that_is_killed_around_a_purchase_a_look_or_an_evaluation_releases_each_once_for_one_charge(
    at, when, people, ledger, tmp_path
):
    """Before a commit nobody has seen what was drawn; after it, it is what it was."""
    people.to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.toml").write_text(TABLE.format(more=""), encoding="utf-8")
    out = tmp_path / "run"
    command = ["--quiet", "train", str(tmp_path / "people.toml"), "--out", str(out), "--holdout", "0.2"]
    dead = subprocess.run(
        dying.words(Moment(at, when), "quoron", *command), check=False, capture_output=True, timeout=300
    )
    assert dead.returncode == -signal.SIGKILL, dead.stderr.decode()

    def released() -> dict[int, Any]:
        with Ledger.open(out / "ledger.sqlite") as own:
            return {number: own.released(number) for number in RELEASED}

    kept = released() if at != "charge" else dict.fromkeys(RELEASED)
    committed = STEPS.index(at) + (when == "after")
    assert [kept[number] is not None for number in RELEASED] == [
        STEPS.index(step) < committed for step in RELEASED.values()
    ]
    trained = quoron.resume(out)
    assert len(charges(ledger)) == 1
    assert trained.estimated
    assert trained.evaluation == quoron.load(out).evaluation
    assert trained.evaluation.users == 300
    assert all(value in (None, released()[number]) for number, value in kept.items())
    with Ledger.open(out / "ledger.sqlite") as own:
        told = [(number, entry.mechanism) for number, entry in own.releases() if number < 0]
    assert [mechanism for number, mechanism in told if number == PREFACE] == ["data-quality"]
    assert [mechanism for number, mechanism in told if number == EVALUATED] == [
        "held-out-places",
        "held-out-figures",
    ]


def test_slots_are_the_same_users_in_what_is_bought_and_in_all_that_follows(people, ledger, tmp_path, monkeypatch):
    """One user of another name between two starts moves the slots of others: of those who are held out now some had
    a part in what was bought. The twin is a run that does not remember whom it bought from."""
    bought_from, measured, release, batches = [], [], column_bounds.release, evaluated.batches

    def estimating(*given: Any) -> Any:
        bought_from.append(set(names()[given[6]]))
        return release(*given)

    def measuring(declared: Any, items: Any, users: Any) -> Any:
        measured.append(set(names()[users]))
        return batches(declared, items, users)

    def names() -> Any:
        return np.unique(table["who"].to_numpy())

    monkeypatch.setattr(column_bounds, "release", estimating)
    monkeypatch.setattr(evaluated, "batches", measuring)
    table, out = people.assign(who=[f"u{each:04}" for each in people["who"]]), tmp_path / "run"
    with monkeypatch.context() as once:
        once.setattr(run, "_try_plan", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(table, out, holdout=0.3)
    shutil.copytree(out, tmp_path / "twin")
    before, table = table, table.assign(who=table["who"].replace("u0007", "zoe"))
    with pytest.raises(OtherVersion, match="same table"):
        train(table, out, holdout=0.3)
    assert not measured
    with monkeypatch.context() as twin:
        twin.setattr(Numbering, "digest", property(lambda self: b"\0" * 32))
        twin.setattr(Ledger, "same_inputs", lambda *_: True)
        train(table, tmp_path / "twin", holdout=0.3)
    assert bought_from[0] & measured[-1]
    table = before
    train(table, out, holdout=0.3)
    assert len(bought_from) == 1
    assert not bought_from[0] & measured[-1]
    assert bought_from[0] | measured[-1] == set(names())


def test_a_table_that_changes_once_its_run_is_charged_says_how_to_go_on_for_that_charge(
    people, ledger, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    people.to_csv("people.csv", index=False)
    words = ["--quiet", "train", "people.csv", "--user", "who", "--label", "ill", "--epsilon", "4", "--out", "run"]

    def grown(*given: Any) -> Any:
        raise DataError("Expected 'people.csv' as it was when it was opened, but it has changed. Begin again.")

    with monkeypatch.context() as patched:
        patched.setattr(column_bounds, "release", grown)
        assert invoke(words) == DataError.exit_code
    assert "is charged. Go on, for that charge, with: quoron resume run" in " ".join(capsys.readouterr().err.split())
    assert invoke(["--quiet", "resume", "run"]) == 0
    assert len(charges(ledger)) == 1


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"label": "who"}, "as the label too"),
        ({"label": "who > 3"}, "as the label too"),
        ({"columns": {"weight": {"column": "ill", "most": 3}}}, "a weight other than the label's own"),
        ({"columns": {"exclude": ["age", "dose", "ward"]}}, "Expected features, got none"),
    ],
)
def test_what_names_alone_show_is_refused_before_anything_is_bought(columns, why, people, ledger, tmp_path):
    with pytest.raises(ConfigError, match=why):
        train(people, tmp_path / "run", **columns)
    assert not ledger.exists()


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_held_out_users_who_do_for_the_most_classes_do_for_all_labels(epsilon):
    def tell(users: int, classes: int) -> bool:
        held = HeldOut.calibrate(users=users, classes=classes, epsilon=epsilon, delta=1e-6)
        return figures.expected(held) < 0.5

    least = next(users for users in range(4, 1000) if tell(users, MAX_CLASSES))
    assert all(tell(least, classes) for classes in (0, *range(2, MAX_CLASSES)))


def test_a_folder_of_a_complete_run_is_said_to_be_one(people, ledger, tmp_path):
    train(people, tmp_path / "run")
    for epsilon in (4.0, 2.0):
        with pytest.raises(ConfigError, match=r"run of a complete one\. Read its model"):
            train(people, tmp_path / "run", epsilon=epsilon)
    assert len(charges(ledger)) == 1


def test_a_folder_that_has_changed_since_it_was_indexed_is_trained_on_as_it_is(people, ledger, tmp_path, monkeypatch):
    folder = tmp_path / "visits"
    folder.mkdir()
    people.to_parquet(folder / "0.parquet")
    index.opened(folder, "who")
    people.iloc[:-1].to_parquet(folder / "0.parquet")
    train(str(folder), tmp_path / "run")
    assert len(charges(ledger)) == 1
