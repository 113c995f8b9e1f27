"""The look at a table: what one user moves, against a slow reference; its calibration, its re-check; what it sees."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import VerificationError
from quoron_privacy.histograms import data_quality
from quoron_privacy.histograms.data_quality import FALSE_ALARM, MOST, DataQuality
from quoron_privacy.noise.streams import SeededNoise

anything = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0, 0.5, 1e-300, 1 - 2.0**-53])


def a_look(columns: int = 3, labels: int = 2, users: int = 50, mu: float = 0.5, adjacency: str = "replace-one"):
    return DataQuality.for_mu(users=users, columns=columns, labels=labels, mu=mu, adjacency=adjacency)  # type: ignore[arg-type]


@st.composite
def users_of(draw, columns: int, labels: int):
    """What one user may say of itself, true or not."""
    numbers = [draw(st.lists(anything, min_size=size, max_size=size)) for size in (1, labels, columns)]
    return tuple(np.array([each]) for each in (numbers[0], numbers[1], numbers[2]))


def one(user) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    none, labels, columns = user
    return none[0], labels, columns


def reference(none: float, labels: list[float], columns: list[float]) -> list[float]:
    """The vector of docs/privacy/data-quality.md, written out in fractions but for square roots."""
    weights = (0.4, 0.2, 0.4) if len(columns) > 1 else (0.5, 0.0, 0.5)
    shares = [Fraction(each) for each in columns]
    length = math.sqrt(sum(each * each for each in shares))
    parts = [1.0, *(0.0 for _ in labels)] if none else [0.0, *labels]
    whole = [math.sqrt(weights[1]) * float(sum(shares) / len(shares))] if len(columns) > 1 else []
    single = [math.sqrt(weights[2]) * float(each) / max(1.0, length) for each in shares]
    return [math.sqrt(weights[0]) * each for each in parts] + whole + single


@given(
    none=st.booleans(),
    counts=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)),
    columns=st.lists(st.integers(0, 10), min_size=1, max_size=6),
)
def test_a_users_vector_is_what_the_page_says(none, counts, columns):
    labels = [each / sum(counts) for each in counts[:2]]
    shares = [each / 10 for each in columns]
    made = a_look(columns=len(columns)).vectors(np.array([float(none)]), np.array([labels]), np.array([shares]))
    np.testing.assert_allclose(made[0], reference(none, labels, shares), atol=1e-14)


@given(
    data=st.data(),
    columns=st.integers(1, 5),
    labels=st.integers(0, 3),
    adjacency=st.sampled_from(["replace-one", "zero-out"]),
)
def test_no_user_moves_the_release_by_more_than_its_sensitivity(data, columns, labels, adjacency):
    quality = a_look(columns, labels, users=3, adjacency=adjacency)
    mine = quality.vectors(*one(data.draw(users_of(columns, labels))))
    other = quality.vectors(*one(data.draw(users_of(columns, labels))))
    kept = quality.vectors(np.zeros(2), np.full((2, labels), 0.5), np.full((2, columns), 0.7))
    if adjacency == "zero-out":
        other = np.zeros_like(mine)

    def mean(own):
        rows = np.vstack([kept, own])
        return quality.reduction.mean(quality.reduction.of(rows, np.ones(len(rows), bool)))

    assert np.linalg.norm(mean(mine) - mean(other)) <= quality.entry().parameters["sensitivity"]
    assert (mine >= 0).all()


WHOLE = {"epsilon": 1.0, "delta": 1e-6}


def paid(share: float = 0.05, **sizes):
    """A look with its share of a promise, and what the rest keeps."""
    given = {"users": 1000, "columns": 21, "labels": 2, "adjacency": "replace-one"} | sizes
    left = data_quality.rest(*WHOLE.values(), share)
    own = DominatingPair.gaussian(gdp.mu_for(*left) * (1 - 1e-9), 1e-40)
    quality = data_quality.calibrate(**WHOLE, share=share, own=own, **given)
    assert quality is not None
    return quality, own, given


def verify(quality, own, *, users=1000, adjacency="replace-one", epsilon=1.0, delta=1e-6):
    quality.verify(epsilon, delta, users=users, adjacency=adjacency, own=own)


@pytest.mark.parametrize(
    "broken",
    [
        lambda quality, own: (replace(quality, scale=0.999 * quality.scale), own, {}),
        lambda quality, own: (quality, own, {"users": 999}),
        lambda quality, own: (quality, own, {"adjacency": "zero-out"}),
        lambda quality, own: (replace(quality, share=0.0), own, {}),
        lambda quality, own: (quality, replace(own, mu=1.001 * own.mu), {}),
        lambda quality, own: (quality, replace(own, variation=1e-7), {}),
        lambda quality, own: (quality, own, {"delta": 0.99e-6}),
    ],
)
def test_a_look_with_too_little_noise_or_other_numbers_is_refused(broken):
    quality, own, given = broken(*paid()[:2])
    with pytest.raises(VerificationError, match="data quality check"):
        verify(quality, own, **given)


def test_of_very_many_users_enough_are_looked_at_and_the_check_knows(monkeypatch):
    monkeypatch.setattr(data_quality, "ENOUGH", 400)
    assert [data_quality.looked_at(users) for users in (399, 400, 10**9)] == [399, 400, 400]
    quality, own, _ = paid(users=400)
    for users in (400, 1000):
        verify(quality, own, users=users)
    for users in (399, 401):
        with pytest.raises(VerificationError, match="a divisor of"):
            verify(replace(quality, users=users), own)


def test_a_promise_that_the_rest_has_taken_leaves_no_look():
    quality = data_quality.calibrate(
        **WHOLE,
        share=0.05,
        own=DominatingPair.gaussian(gdp.mu_for(**WHOLE)),
        users=10,
        columns=2,
        labels=0,
        adjacency="replace-one",
    )
    assert quality is None


# n = 1,000, ε = 1, twenty features and a label: the look of the default share.
MARK = DataQuality.for_mu(users=1000, columns=21, labels=2, mu=gdp.mu_for(1.0, 1e-6) * math.sqrt(MOST))


def released(none: np.ndarray, columns: np.ndarray, seed: int):
    labels = np.full((1000, 2), 0.5)
    rows = MARK.vectors(none, labels, columns)
    sums = MARK.reduction.of(rows, np.ones(1000, bool))
    return MARK.shares(MARK.release(sums, SeededNoise(seed).stream("look")))


def test_half_of_a_thousand_users_without_a_usable_row_are_said_in_ninety_nine_of_a_hundred_runs():
    """The chance of a miss is below 1e-14; that one of these hundred misses has probability below 1e-12."""
    assert data_quality.share_for(users=1000, columns=21, labels=2, mu=gdp.mu_for(1.0, 1e-6)) == MOST
    assert MARK.said(0.5) > 1 - 1e-13
    lost = (np.arange(1000) < 500).astype(float)
    unfit = np.outer(lost, np.eye(21)[3])
    found = [released(lost, unfit, seed) for seed in range(100)]
    assert all(each.unusable >= MARK.threshold(MARK.errors.unusable) for each in found)
    assert all(np.argmax(each.columns) == 3 for each in found)
    # a mean of a hundred is within 6 of its own standard errors but with probability 2e-9
    for name, values, error in (
        ("users", [each.unusable for each in found], MARK.errors.unusable),
        ("column", [each.columns[3] for each in found], MARK.errors.column),
        ("values", [each.values * 21 for each in found], MARK.errors.values * 21),
    ):
        assert abs(np.mean(values) - 0.5) < 6 * error / 10, name


def test_of_a_table_in_which_nothing_is_amiss_nothing_is_said():
    """400 runs, in each something with probability at most 1e-3: eight or more with probability below 2e-8."""
    said = 0
    for seed in range(400):
        found = released(np.zeros(1000), np.zeros((1000, 21)), seed)
        errors = MARK.errors
        said += (
            found.unusable >= MARK.threshold(errors.unusable)
            or found.values >= MARK.threshold(errors.values)
            or bool((found.columns >= MARK.threshold(errors.column)).any())
        )
    assert said < 8
    assert FALSE_ALARM == 1e-3


def test_the_farthest_two_users_use_nearly_all_of_it():
    quality = a_look(columns=40, labels=2, users=5)
    far = (
        quality.vectors(np.array([1.0]), np.zeros((1, 2)), np.eye(40)[:1]),
        quality.vectors(np.array([0.0]), np.array([[1.0, 0.0]]), np.eye(40)[1:2]),
    )
    moved = np.linalg.norm(far[0] - far[1]) / quality.users
    assert 0.89 < moved / quality.entry().parameters["sensitivity"] <= 1  # but for all values, which are alike
