"""Winsorised means: the bounded range of choices and the box that are charged, for either adjacency."""

import numpy as np
import pytest

from quoron_privacy.means.private_range import PrivateRange, WinsorisedMean, box_sensitivity, choices_mu


class Silent:
    """No Gaussian noise."""

    def gaussian_steps(self, shape):
        return np.zeros(shape, np.int64)


class Chosen:
    """Choices that are given."""

    def __init__(self, places):
        self.places = iter(places)

    def weighted_choice(self, weights_):
        return next(self.places)


def box_mean(users, dimension, adjacency="replace-one", half_width=0.3):
    crude = PrivateRange(0.5, 8, 2.0)
    mu = 2 * choices_mu(crude, dimension, adjacency)
    return WinsorisedMean.for_mu(
        users=users, crude=crude, half_width=half_width, mu=mu, dimension=dimension, adjacency=adjacency
    )


def test_opposite_ends_use_the_whole_box_and_an_absent_user_half_of_it():
    users, places = 5, [4, 4, 4, 4]
    mean, signs = box_mean(users, 4), np.ones(4)
    rows = np.zeros((users, 4))
    ends = []
    for own, there in ((1e9, True), (-1e9, True), (0.0, False)):
        rows[0, 0] = own
        present = np.ones(users, np.bool_)
        present[0] = there
        ends.append(mean.release(rows, present, signs, Chosen(places), Silent())[0])
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(box_sensitivity(0.3, users, 4), rel=1e-6)
    assert np.linalg.norm(ends[0] - ends[2]) == pytest.approx(box_sensitivity(0.3, users, 4, "zero-out"), rel=1e-6)


def test_an_absent_row_clamped_around_the_choice_would_move_twice_as_far():
    """Why an absent user's residual is zero: with a_j = 5, h = 1 a row of 0 would count as 4, a present one as 6."""
    clamp = lambda value: min(max(value, 5.0 - 1.0), 5.0 + 1.0)  # noqa: E731
    assert clamp(9.0) - clamp(0.0) == 2.0
