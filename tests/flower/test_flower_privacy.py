"""What docs/flower.md says of Flower's own accountant and noise, held to the Flower that is installed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant as Renyi
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, FedMedian
from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, clip_inputs_inplace, compute_stdv

from quoron_privacy.accounts.gdp import delta_for, epsilon_for
from quoron_privacy.accounts.lifetime import Charge, compose

PAGE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")
ROUNDS, MULTIPLIER, DELTA = 3, 2.0, 1e-5  # of the page's example; three rounds are Flower's default
MU = math.sqrt(ROUNDS) / MULTIPLIER
TAKEN = {
    (SamplingMethod.POISSON, NeighboringRelation.ADD_OR_REMOVE_ONE),
    (SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE),
    (SamplingMethod.NO_AMPLIFICATION, NeighboringRelation.ADD_OR_REMOVE_ONE),
}


def config(
    sampling: SamplingMethod = SamplingMethod.NO_AMPLIFICATION,
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> PrivacyConfig:
    return PrivacyConfig(DELTA, 100, relation, sampling)


def flowers(rounds: int = ROUNDS, multiplier: float = MULTIPLIER) -> float:
    """ε that Flower's accountant says."""
    accountant = RdpAccountant(config())
    accountant.compose(GaussianPrivacyEvent(multiplier, 100, 100), rounds)
    return accountant.get_epsilon(DELTA)


def renyi(multiplier: float) -> float:
    """The same by dp-accounting, without Flower."""
    accountant = Renyi()
    accountant.compose(GaussianDpEvent(multiplier), ROUNDS)
    return float(accountant.get_epsilon(DELTA))


def test_its_four_is_more_than_eight_for_whoever_is_replaced() -> None:
    said, exactly = flowers(), epsilon_for(2 * MU, DELTA)
    assert (round(said, 2), round(epsilon_for(MU, DELTA), 2)) == (4.01, 3.71)
    assert (round(renyi(MULTIPLIER / 2), 2), round(exactly, 2)) == (9.01, 8.39)
    assert said == pytest.approx(renyi(MULTIPLIER), rel=1e-12)
    for figure in ("4.01", "3.71", "9.01", "8.39", "0.866", "1.732"):
        assert figure in PAGE
    assert f"{MU:.3f}, {2 * MU:.3f}" == "0.866, 1.732"


def test_what_it_says_is_exceeded_so_many_times_whatever_the_rounds_and_the_noise() -> None:
    grid = [(t, z) for t in (1, 3, 10, 100, 1000) for z in (0.5, 1.0, 2.0, 5.0, 20.0)]
    times = [epsilon_for(2 * math.sqrt(t) / z, DELTA) / flowers(t, z) for t, z in grid]
    assert f"{math.floor(10 * min(times)) / 10:.1f} to {math.ceil(10 * max(times)) / 10:.1f} times" in PAGE


def test_a_mean_of_replies_moves_twice_as_far_as_its_noise_is_made_for() -> None:
    """One of K updates, clipped, at both ends of what it may be; the deviation is zC/K."""
    clip, cohort = 0.7, 10

    def mean(own: np.ndarray) -> np.ndarray:
        updates = [own, *(np.ones(4) for _ in range(cohort - 1))]
        for each in updates:
            clip_inputs_inplace([each], clip)
        return np.mean(updates, axis=0)

    def far(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.linalg.norm(mean(one) - mean(other)))

    away = np.array([9.0, 0.0, 0.0, 0.0])
    sensitivity = compute_stdv(MULTIPLIER, clip, cohort) / MULTIPLIER
    assert far(away, np.full(4, 1e-12)) == pytest.approx(sensitivity)
    assert far(away, -away) == pytest.approx(2 * sensitivity)


def test_only_three_models_are_counted_and_one_strategy_is() -> None:
    for sampling in SamplingMethod:
        for relation in NeighboringRelation:
            if (sampling, relation) in TAKEN:
                config(sampling, relation)
            else:
                with pytest.raises(ValueError, match="Unsupported privacy accounting model"):
                    config(sampling, relation)

    def strategy(base: Any, accountant: RdpAccountant) -> Any:
        return DifferentialPrivacyServerSideFixedClipping(base, MULTIPLIER, 1.0, 10, accountant=accountant)

    strategy(FedAvg(), RdpAccountant(config()))
    for sampling, relation in TAKEN - {(SamplingMethod.NO_AMPLIFICATION, NeighboringRelation.ADD_OR_REMOVE_ONE)}:
        with pytest.raises(ValueError, match="requires sampling_method='no-amplification'"):
            strategy(FedAvg(), RdpAccountant(config(sampling, relation)))
    with pytest.raises(ValueError, match=r"requires a strategy using FedAvg\.aggregate_train"):
        strategy(FedMedian(), RdpAccountant(config()))


def test_a_tenth_of_the_clients_costs_what_all_of_them_do() -> None:
    costs = set()
    for sampled in (10, 100):
        accountant = RdpAccountant(config())
        accountant.compose(GaussianPrivacyEvent(MULTIPLIER, sampled, 100), ROUNDS)
        costs.add(accountant.get_epsilon(DELTA))
    assert len(costs) == 1


def test_its_noise_is_that_of_the_global_generator_in_the_precision_of_the_model() -> None:
    def noised(seed: int) -> np.ndarray:
        model = np.full(1000, 1000.0, np.float32)
        np.random.seed(seed)  # noqa: NPY002 - it is what Flower draws from
        add_gaussian_noise_inplace([model], 1.0)
        return model

    state = np.random.get_state()  # noqa: NPY002
    try:
        np.testing.assert_array_equal(noised(7), noised(7))
        assert noised(7).dtype == np.float32
        steps = noised(7).astype(np.float64) * 2.0**14  # every output lies on the grid of its own magnitude
        np.testing.assert_array_equal(steps, np.round(steps))
    finally:
        np.random.set_state(state)  # noqa: NPY002


def test_what_is_entered_in_the_ledger_counts_as_the_page_says() -> None:
    replaced = Charge("spring", "everyone", 8.3855, DELTA, mu=1.7321)
    zeroed = Charge("spring", "everyone", 4.0114, DELTA, mu=0.8661, adjacency="zero-out")
    printed = Charge("spring", "everyone", 4.0114, DELTA, adjacency="zero-out")
    assert replaced.epsilon >= epsilon_for(2 * MU, DELTA)
    assert replaced.mu is not None
    assert replaced.mu >= 2 * MU
    assert printed.epsilon >= flowers()
    assert round(compose([replaced]).epsilon, 2) == 8.39
    assert round(compose([zeroed], DELTA).epsilon, 2) == 8.39
    assert round(compose([zeroed]).epsilon, 2) == 6.58
    assert round(compose([printed]).epsilon, 2) == 8.02
    assert f"{compose([printed]).delta:.1e}" == "5.6e-04"
    for each in ("--epsilon 8.3855", "--mu 1.7321", "--epsilon 4.0114", "--mu 0.8661", "6.58", "8.02"):
        assert each in PAGE


def test_its_clip_passes_what_is_no_number_and_fails_on_zeros() -> None:
    poisoned = [np.array([np.nan, 1e9])]
    clip_inputs_inplace(poisoned, 1.0)
    assert poisoned[0][1] == 1e9
    with pytest.raises(ZeroDivisionError):
        clip_inputs_inplace([np.zeros(3)], 1.0)


@pytest.mark.parametrize(("asked", "gets"), [(10.0, 10.4), (50.0, 96.4)])
def test_its_local_noise_promises_less_than_it_is_asked_for(asked: float, gets: float) -> None:
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=asked, delta=DELTA)
    deviation = mod.sensitivity * math.sqrt(2 * math.log(1.25 / mod.delta)) / mod.epsilon
    assert delta_for(1 / deviation, asked) > DELTA
    assert epsilon_for(1 / deviation, DELTA) == pytest.approx(gets, abs=0.05)
