"""Audits of what held-out users tell, on worst-case neighbours, and of its broken twins."""

from dataclasses import replace

import numpy as np
import pytest

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron_privacy.counts import held_out as room
from quoron_privacy.counts.held_out import HeldOut
from quoron_privacy.noise.sources import SecureNoise, SeededNoise

EPSILON, DELTA, USERS = 1.0, 0.01, 5
DRAWS = 10_000
HONEST = HeldOut.calibrate(users=USERS, classes=2, epsilon=EPSILON, delta=DELTA)
CELLS = HONEST.cells
NUMBERS = HeldOut.calibrate(users=USERS, classes=0, epsilon=EPSILON, delta=DELTA)


def corner(class_: int, cell: int, right: int) -> np.ndarray:
    made = np.zeros((1, 4 * CELLS))
    made[0, (class_ * CELLS + cell) * 2 + right] = 1.0
    return made


def farthest() -> tuple[np.ndarray, np.ndarray]:
    """The two rows whose vectors are farthest apart."""
    cells = room.two_classes(CELLS).T
    apart = ((cells[:, None] - cells[None]) ** 2).sum(axis=2)
    one, other = np.unravel_index(apart.argmax(), apart.shape)
    return np.eye(4 * CELLS)[[one]], np.eye(4 * CELLS)[[other]]


ONE, OTHER = farthest()
NOBODY = np.zeros((1, 4 * CELLS))
WRONG_AND_RIGHT = np.array([[1.0, 1.0, 1.0]]), np.array([[1.0, 0.0, 0.0]])


def mean(held: HeldOut, own: np.ndarray, times: int = 1) -> np.ndarray:
    """The mean of the second release of four other users and an own one, whose vector counts so often in the twin."""
    others = np.repeat(held.second_vectors(np.full_like(own, 1 / own.shape[1])), USERS - 1, axis=0)
    mine = held.second_vectors(own)
    if times == 1:
        return held._reduction(1).mean(held.sums(1, np.vstack([others, mine])))
    return (others.sum(axis=0) + times * mine[0]) / USERS  # the twin's reduction does not shorten


def audit(held, one=ONE, other=OTHER, source=SeededNoise(41), times=1):  # noqa: B008
    """ε that two worlds provably exceed, along the line on which they differ."""
    means = [mean(held, own, times) for own in (one, other)]
    line = means[0] - means[1]

    def world(centre, name):
        stream = source.stream(name)
        return lambda draws: held.noises[1].release(np.tile(centre, (draws, 1)), stream) @ line

    return epsilon_lower_bound(world(means[0], "P"), world(means[1], "Q"), delta=DELTA, draws=DRAWS)


@pytest.mark.parametrize("source", [SeededNoise(42), SecureNoise(b"e" * 32)], ids=["seeded", "secure"])
def test_replacing_a_user_by_the_farthest_other_is_within_the_promise(source):
    assert 0.1 < audit(HONEST, source=source) <= EPSILON


def test_leaving_a_user_out_is_within_the_promise_under_its_own_noise():
    held = HeldOut.calibrate(users=USERS, classes=2, epsilon=EPSILON, delta=DELTA, adjacency="zero-out")
    assert 0.1 < audit(held, corner(0, 0, 0), NOBODY) <= EPSILON


def test_errors_of_numbers_are_within_the_promise():
    """The farthest two: one whose rows are all as wrong as can be, the other's all right."""
    assert 0.1 < audit(NUMBERS, *WRONG_AND_RIGHT) <= EPSILON


def test_both_releases_together_use_what_they_are_charged_and_no_more():
    """By the likelihood ratio of what came out: a bound for δ(ε) from both sides, false alarm below 1e-8."""
    far = [noise.sensitivity / noise.scale for noise in HONEST.noises]
    stream, losses = SeededNoise(43).stream("both"), np.zeros(40_000)
    for apart in far:
        drawn = stream.gaussian_steps(len(losses)) * 2.0**-30
        losses += apart * drawn + apart**2 / 2
    low, high = delta_bounds(losses, epsilon=EPSILON)
    assert low <= DELTA
    assert high > 0.2 * DELTA


def test_a_quarter_of_the_noise_is_caught():
    first, second = HONEST.scales
    assert audit(replace(HONEST, scales=(first, second / 4))) > EPSILON


def test_a_histogram_in_which_a_user_weighs_by_its_items_is_caught():
    assert audit(HONEST, times=4) > EPSILON


def test_errors_that_are_clipped_row_by_row_and_summed_are_caught():
    assert audit(NUMBERS, *WRONG_AND_RIGHT, times=4) > EPSILON


def test_noise_for_the_distance_from_zero_alone_is_caught():
    """The twin's noise is made as if a user's row were in the same cell whoever it is: for right or wrong alone."""
    first, second = HONEST.scales
    assert audit(replace(HONEST, scales=(first, second * room.CORRECT**0.5))) > EPSILON


def test_cells_of_which_each_class_is_charged_alone_are_caught():
    """The twin takes the classes for two histograms of different users: but a user's rows may change their class.

    By the likelihood ratio of two users in other classes, of both releases: false alarm below 1e-8.
    """
    stream, steps = SeededNoise(45).stream("classes"), []
    apart = np.linalg.norm(np.subtract(*(mean(HONEST, corner(class_, 0, class_)) for class_ in (0, 1))))
    for scale in (HONEST.scales[1], HONEST.scales[1] / 2**0.5):
        far = np.hypot(HONEST.noises[0].sensitivity / HONEST.scales[0], apart / scale)
        steps.append(far * stream.gaussian_steps(100_000) * 2.0**-30 + far**2 / 2)
    assert delta_bounds(steps[0], epsilon=EPSILON)[0] <= DELTA
    assert delta_bounds(steps[1], epsilon=EPSILON)[0] > DELTA


def test_an_evaluation_on_training_users_is_caught_by_its_sum_and_by_no_part():
    """The twin trains on everybody and measures on some of them, each for all of ε: the sum of both losses.

    A user in one part only costs (ε, δ); in both at once δ(ε) is several times δ. False alarm below 1e-8.
    """
    stream, mu = SeededNoise(44).stream("twin"), HONEST.mu
    parts = [mu * stream.gaussian_steps(100_000) * 2.0**-30 + mu**2 / 2 for _ in range(2)]
    assert delta_bounds(parts[0], epsilon=EPSILON)[0] <= DELTA
    assert delta_bounds(parts[0] + parts[1], epsilon=EPSILON)[0] > DELTA
