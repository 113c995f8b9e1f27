"""Audits of one phase's release on worst-case neighbours, and of its broken twins.

One dimension, τ = 1. Score, weights and aggregate of each world come from the mechanism itself; coins and noise are
drawn by the samplers of a run. What is seen is what is released: the noisy mean, or silence. Every bound is wrong with
probability at most `harness.FAILURE` = 1e-8; sound mechanisms are tried 23 times, so a false alarm anywhere has
probability below 2.4e-7.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.robust import one_release
from quoron_privacy.robust.lottery import TICKETS, Lottery
from quoron_privacy.robust.one_release import Target, release_scale
from quoron_privacy.robust.outlier_mean import in_score_units, score_scale
from quoron_server.algorithms.chains import ChainPhase

EPSILON, DELTA, CHAINS, DRAWS = 1.0, 1e-3, 300, 120_000
SILENT = 1e12
FAR = 1e5


COMBINATIONS = {  # test, kind of mean, kappa
    "lottery, weighted, kappa 1": ("lottery", "weighted", 1),
    "lottery, weighted, kappa 2": ("lottery", "weighted", 2),
    "lottery, random": ("lottery", "random", 2),
    "laplace, weighted": ("laplace", "weighted", 2),
    "laplace, random": ("laplace", "random", 2),
}
CONTROL = "lottery, weighted, kappa 2"


@cache
def phase_of(name):
    target = Target(EPSILON, DELTA, *COMBINATIONS[name])
    made = one_release.release(target, CHAINS, CHAINS**2)
    return ChainPhase(1, 1, 1.0, 1.0, release_scale(made, 1.0, 1), made)


@dataclass(frozen=True)
class Twin:
    """What is run; the default is what is claimed."""

    noise: float = 1.0  # times the claimed noise
    tests: bool = True


def antipodal(phase):
    """Everybody at zero but the own chain, at τ on one side or the other."""
    del phase
    others = np.zeros((CHAINS - 1, 1))
    return [np.vstack([[[sign]], others]) for sign in (1.0, -1.0)]


def with_strays(gone):
    """So many isolated; the own chain is in the cluster or isolated too, which moves the score the farthest."""
    others = np.zeros((CHAINS - 1, 1))
    others[:gone, 0] = FAR * np.arange(1, gone + 1)
    return [np.vstack([[[at]], others]) for at in (0.0, -FAR)]


def strays_for(phase, chance):
    """How many isolated chains bring the chance of a release, own chain in the cluster, down to `chance`."""
    test = phase.release.lottery if hasattr(phase.release, "lottery") else phase.release.test
    return next(gone for gone in range(CHAINS) if test.chance((CHAINS - gone) ** 2 + gone) <= chance)


def at_the_edge(phase):
    """A release is nearly forbidden."""
    return with_strays(strays_for(phase, 2 * DELTA))


def on_the_ladder(phase):
    """A release is possible, and the own chain changes its chance."""
    return with_strays(strays_for(phase, 0.3))


def two_halves(phase):
    """Equal clusters far apart: the own chain makes one of them the majority, or neither."""
    del phase
    others = np.concatenate([np.full(CHAINS // 2, -FAR), np.full(CHAINS - 1 - CHAINS // 2, FAR)])[:, None]
    return [np.vstack([[[at]], others]) for at in (-FAR, FAR)]


def on_the_ramp(phase):
    """A core, and chains at whose height the own chain decides: their weight moves with it."""
    mean = phase.release.mean
    stray = max(1, (CHAINS - mean.core) // 3)
    others = np.zeros((CHAINS - 1, 1))
    others[:stray] = mean.removal_radius
    others[stray : (CHAINS + stray) // 2] = 1e-3
    return [np.vstack([[[at]], others]) for at in (0.9, -1.0)]


SCENARIOS = {
    "antipodal": antipodal,
    "at the edge": at_the_edge,
    "on the ladder": on_the_ladder,
    "two halves": two_halves,
    "on the ramp": on_the_ramp,
}
CERTAIN = [name for name in SCENARIOS if name != "on the ramp"]  # where random inclusion leaves nothing to chance


def released(phase, rows, twin, label):
    """Draws of what one world shows."""
    mean, at = phase.release.mean, {"radius": phase.radius, "reference": np.zeros(1)}
    seen = mean.observe(rows, np.ones(CHAINS, bool), **at)
    source, test = SeededNoise(17), phase.release.test
    gaussian = GaussianNoise(1.0, phase.release_scale * twin.noise)

    def passes(draws):
        stream = source.stream("test", label)
        if not twin.tests:
            return np.ones(draws, bool)
        if isinstance(test, Lottery):
            return stream.uniform_below(TICKETS, draws) < test.tickets(seen.score)
        noise = stream.laplace_steps(score_scale(test.scale, CHAINS), draws)
        return seen.score + noise >= in_score_units(test.threshold, CHAINS)

    def means(draws):
        if mean.kind == "weighted":
            return np.full(draws, mean.aggregate(rows, seen.weights, **at)[0])
        stream = source.stream("inclusion", label)
        kept = [mean.include(seen.weights, stream) for _ in range(400)]  # as many different aggregates
        found = np.array([mean.aggregate(rows, weights, **at)[0] for weights in kept])
        return found[stream.uniform_below(len(found), draws)] if len(np.unique(found)) > 1 else np.full(draws, found[0])

    def sample(draws):
        noisy = gaussian.release(means(draws), source.stream("release", label))
        return np.where(passes(draws), noisy, SILENT)

    return sample


def found(name, scenario, twin=Twin()):
    phase = phase_of(name)
    worlds = [released(phase, rows, twin, label) for label, rows in zip("PQ", scenario(phase), strict=True)]
    return epsilon_lower_bound(*worlds, delta=DELTA, draws=DRAWS)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", [name for name in COMBINATIONS if "random" not in name])
def test_what_a_phase_shows_never_exceeds_the_claim(name, scenario):
    assert found(name, SCENARIOS[scenario]) <= EPSILON


@pytest.mark.parametrize("scenario", CERTAIN)
@pytest.mark.parametrize("name", [name for name in COMBINATIONS if "random" in name])
def test_what_a_phase_with_random_inclusion_shows_never_exceeds_the_claim(name, scenario):
    assert found(name, SCENARIOS[scenario]) <= EPSILON


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_audit_catches_a_thirty_second_of_the_noise(name):
    assert found(name, antipodal, Twin(noise=1 / 32)) > EPSILON


def test_the_audit_catches_a_sixteenth_of_the_noise():
    assert found(CONTROL, antipodal, Twin(noise=1 / 16)) > EPSILON


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_audit_catches_a_phase_that_does_not_test(name):
    assert found(name, two_halves, Twin(tests=False)) > EPSILON
