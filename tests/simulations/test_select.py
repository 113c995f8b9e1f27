"""`quoron.select`: one charge for trials that a program carries out, and what a trial is judged by."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from quoron import Effort, Keep, Method, Privacy
from quoron.training import lifetime
from quoron.tuning.scoring import noise_for, pair_of, private_mean, user_scores
from quoron.tuning.select import price_of
from quoron_client.data.items import ItemBatch
from quoron_client.losses import make_loss
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible, UsageError
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

    def test_noise_is_worth_what_the_second_account_says_and_no_more(self) -> None:
        noise = noise_for(0.3, 200)
        assert 0.2999 < pair_of(noise, 200).mu <= 0.3 * (1 + 1e-9)

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
        given = {"users": 600, "privacy": Privacy(4.0, 1e-5), "effort": FEW, "keep": keep} | more
        return quoron.select([{"clip": 1.0}, {"clip": 0.1}], trial, **given)

    @staticmethod
    def trial(setting: dict[str, float], at: quoron.Trial) -> tuple[float, np.ndarray]:
        def rows(users: np.ndarray, point: np.ndarray) -> np.ndarray:
            assert not set(users.tolist()) & set(at.held_out.tolist())
            return point - np.stack([np.sin(users), np.cos(users)], axis=1)

        method = Method(clip_norm=setting["clip"], radius=2.0)
        weights = at.train(rows, dimension=2, method=method)
        return at.score(np.full(len(at.held_out), 0.5)), weights

    def test_is_charged_once_and_read_again_without_a_trial(self, tmp_path: Path) -> None:
        done = self.of(tmp_path, self.trial)
        with lifetime.opened(tmp_path / "lifetime.sqlite") as ledger:
            assert [(each.epsilon, each.delta) for each in ledger.charges("everyone")] == [(4.0, 1e-5)]
        assert done.model.shape == (2,)
        assert not (tmp_path / "run" / "private").exists()
        again = self.of(tmp_path, lambda *_: pytest.fail("a search that is over tries nothing"))
        assert np.array_equal(again.model, done.model)
        assert again.candidate == done.candidate
        with pytest.raises(ConfigError, match=r"quoron\.select"):
            quoron.resume(tmp_path / "run")

    def test_a_trial_that_trains_or_scores_twice_is_refused(self, tmp_path: Path) -> None:
        def greedy(_: Any, at: quoron.Trial) -> tuple[float, np.ndarray]:
            at.score(np.zeros(len(at.held_out)))
            return at.score(np.zeros(len(at.held_out))), np.zeros(2)

        with pytest.raises(UsageError, match="paid for once"):
            self.of(tmp_path, greedy)

    def test_a_method_that_is_no_gaussian_is_refused(self, tmp_path: Path) -> None:
        def sampled(_: Any, at: quoron.Trial) -> tuple[float, np.ndarray]:
            method = Method("dp-sgd-wor", {"rounds": 20, "rate": 0.1, "step_size": 0.1}, clip_norm=1.0, radius=1.0)
            return 0.0, at.train(lambda users, _: np.zeros((len(users), 2)), dimension=2, method=method)

        with pytest.raises(ConfigError, match="Gaussian as a whole"):
            self.of(tmp_path, sampled, privacy=Privacy(4.0, 1e-5, simulation_seed=1))

    def test_of_a_declared_base_costs_what_the_price_says_or_is_refused(self, tmp_path: Path) -> None:
        base = Pair.gaussian(0.2)
        least = price_of(2, base, 1e-5, FEW)

        def trial(_: Any, at: quoron.Trial) -> tuple[float, np.ndarray]:
            noise = at.noise.stream("own").gaussian_steps(1)[0] * 2.0**-30
            return float(noise), np.array([noise])

        refused, done = (
            {"users": None, "base": base, "privacy": Privacy(least * times, 1e-5)} for times in (0.98, 1.01)
        )
        with pytest.raises(Infeasible, match="cost epsilon"):
            self.of(tmp_path / "refused", trial, **refused)
        chosen = self.of(tmp_path, trial, **done)
        assert chosen.score == chosen.model[0]
        assert "its declared pair" in chosen.statement

    def test_best_of_many_equals_the_best_that_was_tried(self, tmp_path: Path) -> None:
        seen: list[float] = []

        def trial(_: Any, at: quoron.Trial) -> tuple[float, np.ndarray]:
            seen.append(float(at.noise.stream("own").uniform(1)[0]))
            return seen[-1], np.zeros(1)

        privacy = Privacy(4.0, 1e-5, simulation_seed=4)
        assert self.of(tmp_path, trial, users=None, base=Pair.gaussian(0.2), privacy=privacy).score == max(seen)
        assert not (tmp_path / "lifetime.sqlite").exists()
