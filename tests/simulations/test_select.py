"""`quoron.select`: one charge for trials that a program carries out, and what a trial is judged by."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from quoron import Effort, Keep, Method, Privacy
from quoron.evaluating.scores import products
from quoron.training import lifetime
from quoron.tuning.private_state import Known, PrivateState
from quoron.tuning.scoring import noise_for, private_mean, user_scores
from quoron.tuning.select import price_of
from quoron_client.data.items import ItemBatch
from quoron_client.losses import make_loss
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible, NothingReleased, OtherVersion
from quoron_privacy.noise.sources import SeededNoise

FEW = Effort(trials=4.0)


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
        noise = noise_for(0.3, 200)
        moved = private_mean(one, noise, SeededNoise(1)) - private_mean(other, noise, SeededNoise(1))
        assert abs(moved - 0.3 / 200) < 1e-9


class TestSelectionOfAnything:
    @staticmethod
    def of(folder: Path, trial: Callable[..., Any], **more: Any) -> Any:
        keep = Keep(folder / "run", ledger=folder / "lifetime.sqlite")
        given = {"users": 600, "dimensions": 2, "privacy": Privacy(4.0, 1e-5), "effort": FEW, "keep": keep} | more
        return quoron.select([{"clip": 1.0}, {"clip": 0.1}], trial, **given)

    @staticmethod
    def by_clip(setting: dict[str, float]) -> Method:
        return Method(clip_norm=setting["clip"], radius=2.0)

    @staticmethod
    def trial(_: Any, at: quoron.Trial) -> tuple[float, np.ndarray]:
        def rows(users: np.ndarray, point: np.ndarray) -> np.ndarray:
            assert not set(users.tolist()) & set(at.held_out.tolist())
            return point - np.stack([np.sin(users), np.cos(users)], axis=1)

        weights = at.train(rows)
        return at.score(np.full(len(at.held_out), 0.5)), weights

    def test_is_charged_once_and_read_again_without_a_trial(self, tmp_path: Path) -> None:
        done = self.of(tmp_path, self.trial, methods=self.by_clip)
        assert "a row depends on the items of its own user" in done.statement
        with lifetime.opened(tmp_path / "lifetime.sqlite") as ledger:
            assert [(each.epsilon, each.delta) for each in ledger.charges("everyone")] == [(4.0, 1e-5)]
        assert done.model.shape == (2,)
        assert not (tmp_path / "run" / "private").exists()
        never = lambda *_: pytest.fail("a search that is over tries nothing")  # noqa: E731
        again = self.of(tmp_path, never, methods=self.by_clip)
        assert np.array_equal(again.model, done.model)
        assert again.candidate == done.candidate
        with pytest.raises(ConfigError, match=r"quoron\.select"):
            quoron.resume(tmp_path / "run")

    def test_methods_that_are_no_gaussian_are_priced_by_their_own_pairs(self, tmp_path: Path) -> None:
        options = {"rounds": 20, "rate": 0.1, "step_size": 0.1}

        def either(setting: dict[str, float]) -> Method:
            name = "dp-sgd-wor" if setting["clip"] == 1.0 else "one-pass-dp-sgd"
            return Method(name, options if name == "dp-sgd-wor" else {}, clip_norm=setting["clip"], radius=1.0)

        done = self.of(tmp_path, self.trial, methods=either)
        assert done.price["epsilon"] == 4.0
        assert done.price["trial_epsilon"] < 4.0

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"methods": Method("filtered-sgd", clip_norm=1.0, radius=1.0)}, "rests on the server alone"),
            ({"methods": {"clip": 1.0}}, "as a Method"),
            ({"methods": Method(clip_norm=1.0, radius=1.0), "users": None, "base": Pair.gaussian(0.1)}, "beside base"),
            ({"data": [object()]}, "data as arrays"),
        ],
    )
    def test_what_cannot_be_is_refused_before_any_charge(self, tmp_path: Path, more: Any, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            self.of(tmp_path, lambda *_: pytest.fail("nothing is tried"), **more)
        assert not (tmp_path / "lifetime.sqlite").exists()

    def test_a_trial_whose_numbers_are_not_finite_is_the_worst_and_shows_nothing(self, tmp_path: Path) -> None:
        """Raised, it would say that there was such a trial beside the best: SE5."""
        seen = []

        def trial(setting: Any, at: quoron.Trial) -> tuple[float, np.ndarray]:
            score = at.score(np.full(len(at.held_out), 0.2))
            np.exp(np.array([1e4]))  # whose warning would tell of this trial
            warnings.warn("so would this", stacklevel=1)
            broken = [(np.nan, np.ones(2)), (np.inf, np.ones(2)), (score, np.array([0.0, np.nan]))]
            seen.append(setting["clip"])
            return broken[len(seen) % 3] if setting["clip"] == 1.0 else (score, np.full(2, 7.0))

        done = self.of(tmp_path, trial, effort=Effort(trials=20.0), privacy=Privacy(4.0, 1e-5, simulation_seed=2))
        assert {1.0, 0.1} == set(seen)
        assert done.model.tolist() == [7.0, 7.0]

    def test_where_every_trial_is_no_model_nothing_is_released_for_the_one_charge(self, tmp_path: Path) -> None:
        for _ in range(2):
            with pytest.raises(NothingReleased, match="finite"):
                self.of(tmp_path, lambda *_: (np.nan, np.zeros(2)), methods=self.by_clip)
        with lifetime.opened(tmp_path / "lifetime.sqlite") as ledger:
            assert len(ledger.charges("everyone")) == 1
        assert not (tmp_path / "run" / "private").exists()

    def test_goes_on_with_the_same_data_alone_where_it_is_given_some(self, tmp_path: Path) -> None:
        data = np.arange(600.0)

        def stopped(_: Any, at: quoron.Trial) -> Any:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.of(tmp_path, stopped, methods=self.by_clip, data=data)
        with pytest.raises(OtherVersion, match="same data"):
            self.of(tmp_path, self.trial, methods=self.by_clip, data=data + 1)
        with pytest.raises(OtherVersion, match="settings to try"):  # its promise would be another
            self.of(tmp_path, self.trial, methods=self.by_clip)
        with pytest.raises(OtherVersion, match="settings to try"):
            self.of(tmp_path, self.trial, methods=Method(clip_norm=0.5, radius=2.0), data=data)
        done = self.of(tmp_path, self.trial, methods=self.by_clip, data=data)
        assert "goes on with the same data" not in done.statement
        assert not (tmp_path / "run" / "private").exists()

    def test_the_private_file_is_as_large_whichever_candidate_is_the_best(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: dict[float, set[int]] = {}
        original = PrivateState.write

        def watched(self: PrivateState, known: Known) -> None:
            original(self, known)
            assert known.best is not None
            sizes.setdefault(len(known.best.weights), set()).add(self.path.stat().st_size)

        monkeypatch.setattr(PrivateState, "write", watched)
        long = lambda each: 50_000 if each["clip"] == 1.0 else 2  # noqa: E731

        def trial(setting: Any, at: quoron.Trial) -> tuple[float, np.ndarray]:
            return at.score(np.full(len(at.held_out), setting["clip"])), np.zeros(long(setting))

        seeded = {"privacy": Privacy(4.0, 1e-5, simulation_seed=7), "effort": Effort(trials=20.0), "dimensions": long}
        self.of(tmp_path, trial, **seeded)
        assert set(sizes) == {2, 50_000}
        assert len(set.union(*sizes.values())) == 1

    def test_of_a_declared_base_costs_what_the_price_says_or_is_refused(self, tmp_path: Path) -> None:
        base = Pair.gaussian(0.2)
        least = price_of(2, base, 1e-5, FEW)

        def trial(_: Any, at: quoron.Trial) -> tuple[float, np.ndarray]:
            noise = at.noise.stream("own").gaussian_steps(1)[0] * 2.0**-30
            return float(noise), np.array([noise])

        own = {"users": None, "base": base, "dimensions": 1}
        refused, done = (own | {"privacy": Privacy(least * times, 1e-5)} for times in (0.98, 1.01))
        with pytest.raises(Infeasible, match="cost epsilon"):
            self.of(tmp_path / "refused", trial, **refused)
        chosen = self.of(tmp_path, trial, **done)
        assert chosen.score == chosen.model[0]
        assert "its declared pair" in chosen.statement
