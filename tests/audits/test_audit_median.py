"""Audits of one phase of median-sgd on worst-case neighbours, and of its broken twins.

One dimension, τ = η = 1, one round. Every bound here is wrong with probability at most `harness.FAILURE` = 1e-8.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.robust.coordinate_median import calibrate, debiased_mean, verify
from quoron_privacy.robust.filter.concentration import score_error, scores

EPSILON, DELTA, SIZE, DRAWS = 2.0, 1e-3, 2000, 120_000
# Held to the median itself: the theorem's shift is the same, and a mean in between would hide most of it.
SOUND = replace(calibrate(EPSILON, DELTA, SIZE, 0.0, 2.0, score_error=score_error(SIZE, 1)), room=1e-6)
NOISE = SeededNoise(47)
HALTED = 1e12


def test_the_phase_is_what_the_theorem_covers() -> None:
    assert verify(SOUND, EPSILON, DELTA) <= DELTA


def score(rows: np.ndarray) -> float:
    return float(np.mean(scores(rows, 1.0, norm="linf")))


def crowd(own: float, size: int = SIZE) -> np.ndarray:
    """All at one place but the own user."""
    rows = np.zeros((size, 1))
    rows[-1] = own
    return rows


def decision(values: np.ndarray, scale: float, name: str):
    """Whether a phase with this score would pass, many times; the threshold far above, where chances are e^ε apart."""
    test = replace(SOUND.test, scale=scale, threshold=score(crowd(0.0)) + 1.0)
    return lambda draws: test.noisy.decide(np.full(draws, score(values)), NOISE.stream(name, "median"))


@pytest.mark.parametrize(("twin", "caught"), [("sound", False), ("noise of the printed sensitivity 1", True)])
def test_one_bit_costs_no_more_than_planned_and_noise_for_half_the_sensitivity_is_caught(twin, caught) -> None:
    # The paper's Lemma 36 takes a sensitivity of 1 for scores that its own equation (17) lets move by 2.
    near, far = crowd(0.0), crowd(1e6)
    assert score(near) - score(far) == pytest.approx(2 * (SIZE - 1) / SIZE)
    scale = SOUND.test_scale / (2 if caught else 1)
    found = epsilon_lower_bound(decision(near, scale, "P"), decision(far, scale, "Q"), delta=0.0, draws=2 * DRAWS)
    assert (found > SOUND.test.epsilon) == caught
    assert found > 0.7 * SOUND.test.epsilon  # an audit that sees next to nothing would prove nothing


def released(rows: np.ndarray, twin: str, name: str):
    """Draws of what a phase of one round releases: its noisy iterate, or a huge number where it halts."""
    held = rows if twin == "unheld" else np.clip(rows, -SOUND.clip, SOUND.clip)
    estimate = held.mean(axis=0) if twin in ("unheld", "mean") else debiased_mean(held, SOUND.trim, SOUND.room)
    sigma = SOUND.noise_scale(1.0, SOUND.theta) / (
        10 if twin == "quiet" else 1
    )  # this pair attains four tenths of the shift
    scored = score(held)

    def sample(draws: int) -> np.ndarray:
        noise = np.random.default_rng([len(name), len(twin), ord(name[0])])
        passes = SOUND.test.noisy.decide(np.full(draws, scored), NOISE.stream(name, twin))
        return np.where(passes, -estimate[0] + sigma * noise.normal(size=draws), HALTED)

    return sample


def halves(own: float, apart: float) -> np.ndarray:
    """Two halves of others, and the own user with one of them: it decides where the median lies."""
    rows = np.zeros((SIZE, 1))
    rows[SIZE // 2 :] = apart
    rows[0] = own
    return rows


def apart() -> float:
    """So far that the score, B(1 + e^-apart)/2, passes nearly always."""
    return -math.log(2 * (SOUND.threshold + 4 * SOUND.test_scale) / SIZE - 1)


@pytest.mark.parametrize(("twin", "caught"), [("sound", False), ("quiet", True), ("mean", False), ("unheld", True)])
def test_a_phase_never_exceeds_its_promise_and_broken_ones_are_caught(twin, caught) -> None:
    found = 0.0
    pairs = [
        (halves(0.0, apart()), halves(apart(), apart())),
        (crowd(0.0), crowd(1e6)),
        (crowd(SOUND.clip), crowd(-SOUND.clip)),
    ]
    for number, (one, other) in enumerate(pairs):
        worlds = released(one, twin, f"P{number}"), released(other, twin, f"Qx{number}")
        found = max(found, epsilon_lower_bound(*worlds, delta=DELTA, draws=DRAWS))
    assert (found > EPSILON) == caught
