"""`quoron tune`: one charge, nothing of a trial on a disk, the same trials after a kill."""

import gc
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dying
import quoron
from dying import Moment
from quoron.evaluation.scores import products
from quoron.run_folder import Identity
from quoron.training import lifetime, tuning
from quoron.training.tuning import Outcome, Price, best_trial, private_mean, user_scores, within
from quoron_client.data.items import ItemBatch
from quoron_client.losses import make_loss
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import Infeasible, NothingReleased, OtherVersion
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource, SecureNoise, SeededNoise
from quoron_privacy.selection.trials import Trials
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger

USERS = 1500
FEW = {"n_trials": 4.0}


@cache
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame({"user": np.arange(USERS), "a": rng.uniform(0, 1, USERS), "b": rng.uniform(-1, 1, USERS)})
    return made.assign(y=rng.uniform(size=USERS) < 1 / (1 + np.exp(-6 * (made.a - 0.5) - 3 * made.b)))


def asked(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "user": "user",
        "label": "y",
        "columns": {"numeric": {"a": (0, 1), "b": (-1, 1)}},
        "vary": {"loss.ridge": [0.0, 1.0]},
        "algorithms": ["one-pass-dp-sgd"],
        "epsilon": 4.0,
        "delta": 1e-5,
        **FEW,
        "out": folder / "run",
        "ledger": folder / "lifetime.sqlite",
    } | more


def charges(folder: Path) -> list[tuple[float, float]]:
    with lifetime.opened(folder / "lifetime.sqlite") as ledger:
        return [(each.epsilon, each.delta) for each in ledger.charges("everyone")]


class Killed(BaseException):
    """As if the process had ended here."""


class TestASearchOverATable:
    def test_takes_no_user_into_training_who_scores(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        training, scoring = [], []
        engine, batches = tuning.CuratorEngine, tuning.batches

        def trained(*args: Any, among: Any, **more: Any) -> Any:
            training.append(among.tolist())
            return engine(*args, among=among, **more)

        def scored(declared: Any, items: Any, users: Any) -> Any:
            scoring.append(users.tolist())
            return batches(declared, items, users)

        monkeypatch.setattr(tuning, "CuratorEngine", trained)
        monkeypatch.setattr(tuning, "batches", scored)
        quoron.tune(table(), **asked(tmp_path))
        assert len(training) == len(scoring) >= 1
        assert all(each == training[0] for each in training)  # one split for all trials
        assert all(each == scoring[0] for each in scoring)
        assert len(scoring[0]) == 150
        assert sorted(training[0] + scoring[0]) == list(range(USERS))

    def test_of_a_folder_comes_to_the_same_model_as_of_the_same_rows_in_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Identity, "fresh", classmethod(lambda cls, name: cls("own", 7, "2026-01-01")))
        (tmp_path / "rows").mkdir()
        named = table().assign(user=[f"{user:05}" for user in table().user])
        for part in range(2):
            named.iloc[part * 750 : (part + 1) * 750].to_parquet(tmp_path / "rows" / f"{part}.parquet")
        found = []
        for place, source in (("a", named), ("b", tmp_path / "rows")):
            (tmp_path / place).mkdir()
            more = {"epsilon": 4.0, "delta": 1e-5, "seed": 3, "algorithms": ["one-pass-dp-sgd", "tracking-srgd"]}
            found.append(quoron.tune(source, **asked(tmp_path / place, **more)))
        assert found[0].choice == found[1].choice
        assert np.array_equal(found[0].weights, found[1].weights)

    def test_too_little_epsilon_for_any_trial_is_infeasible(self, tmp_path: Path) -> None:
        with pytest.raises(Infeasible, match="selection"):
            quoron.tune(table(), **asked(tmp_path, epsilon=0.012, delta=1e-5), dry_run=True)

    def test_another_search_in_the_same_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Killed), ending(tuning.TableSearch, "perform", "after", 1):
            quoron.tune(table(), **asked(tmp_path))
        with pytest.raises(OtherVersion, match="the same plan"):
            quoron.tune(table(), **asked(tmp_path, vary={"loss.ridge": [0.0, 0.5]}))
        with pytest.raises(OtherVersion, match="same table"):
            quoron.tune(table().assign(a=0.5), **asked(tmp_path))

    def test_a_column_that_is_another_under_any_setting_is_another_table(self, tmp_path: Path) -> None:
        swept = {"vary": {"population.columns.numeric": [{"b": (-9, -8)}, {"b": (-1, 1)}]}}
        with pytest.raises(Killed), ending(tuning.TableSearch, "perform", "after", 1):
            quoron.tune(table(), **asked(tmp_path, **swept))
        with pytest.raises(OtherVersion, match="same table"):
            quoron.tune(table().assign(b=0.5), **asked(tmp_path, **swept))

    def test_is_priced_before_anything_is_charged_or_looked_at(self, tmp_path: Path) -> None:
        nonsense = table().assign(a="?", b=None, y="?")
        plans = [quoron.tune(each, **asked(tmp_path), dry_run=True) for each in (table(), nonsense)]
        assert plans[0].as_json() == plans[1].as_json()
        assert not (tmp_path / "lifetime.sqlite").exists()
        said = dict(plans[0].rows())
        assert set(said) >= {"the whole search", "one trial", "the clock"}
        assert said["the clock"].startswith("NOT padded")

    def test_is_charged_once_for_all_of_it_and_leaves_an_ordinary_model(self, tmp_path: Path) -> None:
        tuned = quoron.tune(table(), **asked(tmp_path))
        assert charges(tmp_path) == [(4.0, 1e-5)]
        assert tuned.model.promise is not None
        assert (tuned.model.promise.epsilon, tuned.summary.epsilon, tuned.summary.users) == (4.0, 4.0, 1350)
        assert "docs/privacy/selection.md#se1 over docs/privacy/gaussian.md" in tuned.statement
        assert "nobody learns how many trials there were" in tuned.statement
        assert np.array_equal(quoron.load(tmp_path / "run").weights, tuned.weights)
        assert tuned.choice.price["trial_epsilon"] < 4.0 < tuned.choice.price["trial_epsilon"] * 3
        again = quoron.resume(tmp_path / "run")
        assert np.array_equal(again.weights, tuned.weights)
        assert again.choice.name == tuned.choice.name  # type: ignore[union-attr]
        assert (tmp_path / "run" / "report.html").is_file()
        assert len(charges(tmp_path)) == 1


@contextmanager
def ending(owner: Any, name: str, when: str, nth: int) -> Iterator[None]:
    """Within it, the n-th call of a function ends everything, before or after it has done its work."""
    original, left = vars(owner)[name], [nth]
    plain = original.__func__ if isinstance(original, classmethod) else original

    def deadly(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and when == "before":
            raise Killed
        done = plain(*args, **kwargs)
        if left[0] == 0:
            raise Killed
        return done

    setattr(owner, name, classmethod(deadly) if isinstance(original, classmethod) else deadly)
    try:
        yield
    finally:
        setattr(owner, name, original)


KEY = bytes(range(1, 33))
MOMENTS: list[tuple[Any, str, int]] = [
    (Ledger, "create", 1),
    (PopulationLedger, "charge", 1),
    (Ledger, "same_inputs", 1),
    (tuning.TableSearch, "perform", 2),
    (Ledger, "finish", 1),
    (PopulationLedger, "release", 1),
    (PopulationLedger, "end", 1),
]


# Before a step nearly as much is there as after the one before it.
LIVES = [
    pytest.param(each, when, id=f"{when}-{each[1]}-{each[2]}", marks=pytest.mark.slow if late else ())
    for place, each in enumerate(MOMENTS)
    for when, late in (("before", place > 0), ("after", place % 2 > 0))
]


class TestAKilledSearch:
    """Noise of one key, so that a search that nobody kills says what every killed one must come to."""

    @pytest.fixture(autouse=True)
    def _one_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SecureNoise, "fresh", classmethod(lambda cls: cls(KEY)))
        monkeypatch.setattr(Identity, "fresh", classmethod(lambda cls, name: cls(f"{name}-0", 7, "2026-01-01")))

    @staticmethod
    @cache
    def whole() -> tuple[str, float, bytes]:
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            done = quoron.tune(table(), **asked(Path(folder)))
        return done.choice.name, done.choice.score, done.weights.tobytes()

    @pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # nobody closes what has died
    @pytest.mark.parametrize(("moment", "when"), LIVES)
    def test_comes_to_the_same_end_for_one_charge(
        self, tmp_path: Path, moment: tuple[Any, str, int], when: str
    ) -> None:
        expected = self.whole()
        with pytest.raises(Killed), ending(*moment[:2], when, moment[2]):
            quoron.tune(table(), **asked(tmp_path))
        gc.collect()  # a process that is gone holds no file
        run = tmp_path / "run"
        done = quoron.resume(run) if (run / "model.json").is_file() else quoron.tune(table(), **asked(tmp_path))
        assert (done.choice.name, done.choice.score, done.weights.tobytes()) == expected  # type: ignore[union-attr]
        assert charges(tmp_path) == [(4.0, 1e-5)]
        with lifetime.opened(tmp_path / "lifetime.sqlite") as kept:
            assert [row["kind"] for row in kept.rows()] == ["charge", "release", "end"]
        with closing(Ledger.open(run / "ledger.sqlite")) as own, pytest.raises(Exception, match="erased"):
            _ = own.noise_key


class TestNothingOfATrialIsOutside:
    def test_every_file_stays_as_it_is_from_trial_to_trial(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        run, seen = tmp_path / "run", []
        original = tuning.TableSearch.perform

        def watched(self: Any, *given: Any) -> Outcome:
            done = original(self, *given)
            seen.append({str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()})
            return done

        monkeypatch.setattr(tuning.TableSearch, "perform", watched)
        quoron.tune(table(), **asked(tmp_path, n_trials=2.0, padded=True))
        assert len(seen) == 6
        assert all(each == seen[0] for each in seen)
        assert capfd.readouterr() == ("", "")

    def test_and_afterwards_the_folder_tells_nothing_of_how_many_there_were(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = []
        for number in (1, 6):
            monkeypatch.setattr(Trials, "draw", lambda *_, number=number: number)
            folder = tmp_path / str(number)
            folder.mkdir()
            quoron.tune(table(), **asked(folder))
            run = folder / "run"
            files = sorted(path.name for path in run.iterdir())
            tally = (run / "ledger.sqlite-acknowledged").read_bytes()
            found.append((files, tally, (run / "ledger.sqlite").stat().st_size))
        assert found[0] == found[1]


class TestTheClock:
    """Whoever counts trials, by the clock, learns their number: unless they are always as many."""

    @staticmethod
    def counted(seed: int, *, padded: bool) -> tuple[int, int, float]:
        law, seen = Trials.negative_binomial(6.0, most=20), []

        def perform(candidate: int, noise: NoiseSource, _: NoiseSource) -> Outcome:
            seen.append(candidate)
            return Outcome(float(noise.stream("score").uniform(1)[0]), np.zeros(1))

        price = Price(law, (DominatingPair.gaussian(0.1),), 1.0, 1e-6, "replace-one", 3, padded)
        best = best_trial(price, SeededNoise(seed), perform)
        return len(seen), best.candidate, best.score

    def test_tells_nothing_where_it_is_and_the_outcome_is_the_same(self) -> None:
        padded, plain = ([self.counted(seed, padded=each) for seed in range(20)] for each in (True, False))
        assert {each[0] for each in padded} == {20}
        assert [each[1:] for each in padded] == [each[1:] for each in plain]


@pytest.mark.programs
def test_a_program_that_is_killed_again_and_again_is_charged_once_and_leaves_no_secret(tmp_path: Path) -> None:
    """Outright, at every kind of step: the same command, or `quoron resume`, goes on from what is kept."""
    table().to_csv(tmp_path / "t.csv", index=False)
    command = [
        *("tune", str(tmp_path / "t.csv"), "--user", "user", "--label", "y", "--numeric", "a=0:1"),
        *("--epsilon", "4", "--set", "privacy.delta=1e-5", "--algorithms", "one-pass-dp-sgd", "--trials", "mean=4"),
        *(
            "--trials",
            "most=12",
            "--trials",
            "padded=1",
            "--vary",
            "loss.ridge=[0, 1]",
            "--set",
            f"train.ledger={tmp_path / 'lifetime.sqlite'}",
        ),
        *("--out", str(tmp_path / "run")),
    ]
    lives = [("charge", "before"), ("charge", "after"), *[("search", "before"), ("search", "after")] * 2]
    for at, when in [*lives, ("finish", "before"), ("finish", "after"), ("end", "before")]:
        begun = (tmp_path / "run" / "ledger.sqlite").is_file()
        resumed = at == "end" or (begun and when == "after")
        words = ["resume", str(tmp_path / "run")] if resumed else command
        life = subprocess.run(dying.words(Moment(at, when), "quoron", *words), capture_output=True, timeout=600)
        assert life.returncode == -signal.SIGKILL, (at, when, life.stdout.decode(), life.stderr.decode())
    last = subprocess.run([sys.executable, "-m", "quoron", "resume", str(tmp_path / "run")], capture_output=True)
    assert last.returncode == 0, last.stderr.decode()
    done = quoron.resume(tmp_path / "run")
    assert charges(tmp_path) == [(4.0, 1e-5)]
    assert done.choice.name.startswith("one-pass-dp-sgd")  # type: ignore[union-attr]


class TestTheScore:
    ITEMS = ItemBatch(
        np.array([[1.0], [1.0], [-1.0], [0.5]]), np.array([1.0, -1.0, -1.0, 1.0]), np.array([0, 2, 3, 4, 4])
    )

    def test_of_each_user_weighs_one_and_is_bounded(self) -> None:
        loss = make_loss("logistic", feature_norm=1.0)
        for weights in (np.array([3.0]), np.array([1e300]), np.array([np.nan]), np.array([-np.inf])):
            found = user_scores(weights, loss, self.ITEMS)
            assert found.shape == (4,)
            assert ((found >= 0) & (found <= 1)).all()
            assert found[3] == 0
        assert user_scores(np.array([3.0]), loss, self.ITEMS)[1] > 0.99

    @pytest.mark.parametrize(
        ("loss", "labels", "right"),
        [
            (make_loss("logistic", feature_norm=1.0), [1.0, -1.0], [50.0]),
            (make_loss("softmax", feature_norm=1.0, classes=4), [0.0, 3.0], [50.0, 0.0, 0.0, 0.0]),
            (make_loss("absolute", feature_norm=1.0, label_bound=2.0), [2.0, -2.0], [2.0]),
        ],
        ids=lambda each: getattr(each, "name", ""),
    )
    def test_holds_errors_at_twice_those_of_who_knows_nothing(self, loss: Any, labels: Any, right: Any) -> None:
        items = ItemBatch(np.ones((2, 1)), np.array(labels), np.array([0, 1, 2]))
        assert user_scores(np.array(right), loss, items) == pytest.approx([1.0, 0.0], abs=1e-9)
        if loss.name != "absolute":  # of which the middle is a quarter off for labels all over the range
            assert user_scores(np.zeros(len(right)), loss, items) == pytest.approx(0.5)

    def test_of_a_row_is_the_same_bit_for_bit_whatever_lies_beside(self) -> None:
        """Else a user's own number of rows would move others'."""
        random, counts = np.random.default_rng(3), np.arange(202)
        for outputs in (1, 3):
            features, weights = random.normal(size=(201, 17)), random.normal(size=17 * outputs)
            whole = products(ItemBatch(features, np.ones(201), counts), weights, outputs)
            for first, last in ((1, 201), (7, 8), (100, 103)):
                some = ItemBatch(features[first:last], np.ones(last - first), counts[: last - first + 1])
                assert np.array_equal(products(some, weights, outputs), whole[first:last])

    def test_means_of_neighbours_differ_by_less_than_the_noise_is_made_for(self) -> None:
        # The same noise, so what is left is what one user moves: at most 1/200.
        one = np.full(200, 0.3)
        other = one.copy()
        other[7] = np.nan
        noise = GaussianNoise.for_mu(sensitivity=1 / 200, mu=0.3, dimension=1)
        moved = private_mean(one, noise, SeededNoise(1)) - private_mean(other, noise, SeededNoise(1))
        assert abs(moved - 0.3 / 200) < 1e-9


class TestTrials:
    PAIR = DominatingPair.gaussian(0.1)
    PRICE = Price(Trials.negative_binomial(20.0, most=60), (PAIR,), 1.0, 1e-6, "replace-one", 2, False)

    def test_that_are_no_gaussian_are_priced_by_their_own_pairs(self) -> None:
        spent: list[float] = []

        def plan(mu: float, _: float) -> tuple[None, list[DominatingPair]]:
            spent.append(mu)
            return None, [DominatingPair.gaussian(mu), DominatingPair.approximate(2 * mu, 1e-9)]

        _, price = within(replace(self.PRICE, trials=Trials.negative_binomial(4.0, most=12), pairs=()), plan)
        assert price.pairs == (DominatingPair.gaussian(spent[-1]), DominatingPair.approximate(2 * spent[-1], 1e-9))
        assert price.selection.promised(1e-6) <= 1.0 + 1e-9
        assert spent[-1] < spent[0]

    def test_that_cost_more_than_the_guarantee_are_refused(self) -> None:
        cost = self.PRICE.selection.promised(1e-6)
        replace(self.PRICE, epsilon=1.01 * cost).verify()
        with pytest.raises(Infeasible, match="cost epsilon"):
            replace(self.PRICE, epsilon=0.98 * cost).verify()

    def test_whose_numbers_are_not_finite_are_the_worst_and_show_nothing(self) -> None:
        """Raised, an error would say that there was such a trial: SE5."""
        seen: list[int] = []

        def perform(candidate: int, *_: NoiseSource) -> Outcome:
            np.exp(np.array([1e4]))  # whose warning would tell of this trial
            warnings.warn("so would this", stacklevel=1)
            broken = [(np.nan, np.ones(2)), (np.inf, np.ones(2)), (0.2, np.array([0.0, np.nan]))]
            seen.append(candidate)
            return Outcome(*broken[len(seen) % 3]) if candidate == 0 else Outcome(0.2, np.full(2, 7.0))

        best = best_trial(self.PRICE, SeededNoise(2), perform)
        assert {0, 1} == set(seen)
        assert best.weights.tolist() == [7.0, 7.0]

    def test_of_which_none_is_a_model_release_nothing_for_the_one_charge(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tuning.TableSearch, "perform", lambda *_: Outcome(np.nan, np.zeros(3)))
        for _ in range(2):
            with pytest.raises(NothingReleased, match="finite"):
                quoron.tune(table(), **asked(tmp_path))
        assert charges(tmp_path) == [(4.0, 1e-5)]
