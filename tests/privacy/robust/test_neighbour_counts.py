from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from cover import by_default
from quoron_privacy.robust import outlier_mean_loops
from quoron_privacy.robust import outlier_mean_loops as loops
from quoron_privacy.robust.outlier_mean import distance_slack, neighbour_counts, score
from quoron_privacy.robust.outlier_mean_loops import CHUNK, ERROR, HEIGHT, WIDTH, squared_distance

examples = settings(derandomize=True, deadline=None, max_examples=60)
KINDS = ["normal", "lattice", "copies", "clusters", "strays", "huge", "tiny", "sphere"]
KIND = st.sampled_from(KINDS)
SEED = st.integers(0, 2**32 - 1)


def cohort(kind, users, dimension, rng):
    """Answers and a radius at which they are hard to decide."""
    rows = rng.normal(size=(users, dimension))
    typical = np.sqrt(2.0 * dimension)
    if kind == "lattice":  # whole coordinates: many distances are exactly the radius
        return np.rint(2 * rows), 5.0 if dimension > 1 else 2.0
    if kind == "copies":
        return np.repeat(rows[:1], users, axis=0), 1.0
    if kind == "clusters":  # beyond one another's reach, so each needs a centre of its own
        return rows + 1e4 * rng.integers(0, 6, size=(users, 1)), typical
    if kind == "strays":
        rows[rng.random(users) < 0.1] *= 10.0 ** rng.integers(1, 12)
    if kind == "huge":
        rows[rng.random(users) < 0.1] *= 1e300
        rows[rng.random(users) < 0.1] = 1.7e308
    if kind == "tiny":
        return rows * 1e-119, typical * 1e-119
    if kind == "sphere":  # all at one distance from the middle, which the centre does not tell apart
        rows *= np.sqrt(dimension) / np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, typical


def reference_counts(rows, answered, radius):
    """The rule, step by step, in plain Python floats."""

    def near(a, b):
        sums = [0.0] * 4
        whole = len(a) - len(a) % 4
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            difference = x - y
            sums[k % 4 if k < whole else 0] += difference * difference
        return (sums[0] + sums[2]) + (sums[1] + sums[3]) <= radius * radius

    users = [i for i in range(len(rows)) if answered[i] and all(map(np.isfinite, rows[i]))]
    points = {i: [float(x) for x in rows[i]] for i in users}
    return [sum(near(points[i], points[j]) for j in users) if i in points else 1 for i in range(len(rows))]


@njit
def all_pairs(rows, limits):
    """By the rule of record alone."""
    counts = np.ones((len(limits), len(rows)), np.int64)
    for i in range(len(rows)):
        for j in range(i):
            square = squared_distance(rows[i], rows[j])
            for k in range(len(limits)):
                near = square <= limits[k]
                counts[k, i] += near
                counts[k, j] += near
    return counts


def counts_of_all_pairs(rows, answered, radii):
    """The counts that every path has to give."""
    present = answered & np.isfinite(rows).all(axis=1)
    found = np.ones((len(radii), len(rows)), np.int64)
    found[:, present] = all_pairs(rows[present], np.array([radius * radius for radius in radii]))
    return found


@examples
@given(seed=SEED, users=st.integers(1, 30), dimension=st.integers(1, 9), kind=KIND, factor=st.sampled_from([0.5, 1, 2]))
def test_counts_equal_the_step_by_step_reference(seed, users, dimension, kind, factor):
    rng = np.random.default_rng(seed)
    rows, radius = cohort(kind, users, dimension, rng)
    answered = rng.random(users) < 0.9
    rows[rng.random(users) < 0.1, 0] = rng.choice([np.nan, np.inf, -np.inf])
    counts = neighbour_counts(rows, answered, (factor * radius,))
    assert counts[0].tolist() == reference_counts(rows, answered, factor * radius)


PATHS = [(dimension, kind) for dimension in (1, 7, 150) for kind in KINDS]
ALIKE = [(150, kind) for kind in ("normal", "lattice", "copies", "sphere")]


@pytest.mark.parametrize(("dimension", "kind"), by_default(PATHS, [each for each in PATHS if each not in ALIKE]))
def test_every_path_gives_the_counts_of_all_pairs(kind, dimension, monkeypatch):
    rng = np.random.default_rng(11)
    users = 2 * HEIGHT + WIDTH // 3
    rows, radius = cohort(kind, users, dimension, rng)
    answered = rng.random(users) < 0.97
    for factor in (0.3, 1.0, 2.5):
        radii = (factor * radius, 2 * factor * radius)
        expected = counts_of_all_pairs(rows, answered, radii)
        for threads in (1, 2, 3) if factor == 1.0 else (2,):
            monkeypatch.setattr(loops, "all_threads", lambda threads=threads: threads)
            assert np.array_equal(neighbour_counts(rows, answered, radii), expected)
        assert np.array_equal(neighbour_counts(rows, answered, radii[::-1])[::-1], expected)


def test_paths_agree_when_most_answers_are_hostile():
    rng = np.random.default_rng(12)
    rows = rng.normal(size=(1200, 6))
    rows[:900] *= 10.0 ** rng.integers(-3, 300, size=(900, 1))
    everyone = np.ones(1200, dtype=bool)
    for radius in (0.1, 3.0, 1e20):
        expected = counts_of_all_pairs(rows, everyone, (radius,))
        assert np.array_equal(neighbour_counts(rows, everyone, (radius,)), expected)


@examples
@given(seed=SEED, users=st.integers(2, 40), dimension=st.integers(1, 5), kind=KIND)
def test_replacing_one_answer_moves_other_counts_by_one_and_the_score_by_two_per_other_answer(
    seed, users, dimension, kind
):
    rng = np.random.default_rng(seed)
    rows, radius = cohort(kind, users, dimension, rng)
    everyone, own = np.ones(users, dtype=bool), rng.integers(users)
    before = neighbour_counts(rows, everyone, (radius,))[0]
    for value in (0.0, np.nan, np.inf, 1e300, rows[rng.integers(users)], rows[own] + radius):
        replaced = rows.copy()
        replaced[own] = value
        after = neighbour_counts(replaced, everyone, (radius,))[0]
        assert np.abs(np.delete(before - after, own)).max() <= 1
        assert abs(score(before) - score(after)) <= 2 * (users - 1)


@examples
@given(seed=SEED, dimension=st.integers(1, 40), scale=st.sampled_from([1e-100, 1.0, 1e100]))
def test_the_rule_is_symmetric_and_within_distance_slack_of_the_real_distance(seed, dimension, scale):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, dimension)) * scale
    assert squared_distance(a, b) == squared_distance(b, a)
    real = sum((Fraction(float(x)) - Fraction(float(y))) ** 2 for x, y in zip(a, b, strict=True))
    rows, everyone = np.stack([a, b]), np.ones(2, dtype=bool)
    for radius in np.sqrt(squared_distance(a, b)) * (1 + np.arange(-3, 4) * 2.0**-52):
        slack = Fraction(distance_slack(dimension))
        near = neighbour_counts(rows, everyone, (float(radius),))[0, 0] == 2
        if near:
            assert real <= (Fraction(float(radius)) * (1 + slack)) ** 2
        if real <= (Fraction(float(radius)) * (1 - slack)) ** 2:
            assert near


@pytest.mark.parametrize("dimension", [1, 5, CHUNK, 1000, 5000])
@pytest.mark.parametrize("kind", ["normal", "opposite", "uneven"])
def test_products_lie_within_their_certified_error(dimension, kind):
    rng = np.random.default_rng(6)
    depth = -(-dimension // 4) * 4
    left, right = np.zeros((8, depth)), np.zeros((depth, WIDTH))
    left[:, :dimension], right[:dimension] = rng.normal(size=(8, dimension)), rng.normal(size=(dimension, WIDTH))
    if kind == "opposite":
        right[:, :8] = -left.T
    if kind == "uneven":
        left *= 10.0 ** rng.uniform(-6, 6, size=depth)
    product = np.empty((8, WIDTH), np.float32)
    loops._multiply(left.astype(np.float32), right.astype(np.float32), np.empty((4, WIDTH), np.float32), product)
    bound = ERROR * (1 + dimension / (32 * CHUNK)) * (np.abs(left) @ np.abs(right))
    assert (np.abs(product - left @ right) <= bound / 2).all()  # half is left for the other roundings


@given(kind=KIND, users=st.integers(2, 40), dimension=st.integers(1, 60), seed=SEED)
@examples
def test_blocks_of_the_gram_matrix_give_the_counts_of_the_rule(kind, users, dimension, seed):
    """Of answers that stand exactly at the radius, are copies, overflow or vanish, whatever the centre."""
    rng = np.random.default_rng(seed)
    rows, radius = cohort(kind, users, dimension, rng)
    radii = (radius, 2 * radius)
    answered = rng.random(users) < 0.9
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loops, "WIDE", 1)
        patched.setattr(outlier_mean_loops, "HEIGHT", 7)
        patched.setattr(outlier_mean_loops, "DEPTH", 13)
        found = neighbour_counts(rows, answered, radii)
    np.testing.assert_array_equal(found, counts_of_all_pairs(rows, answered, radii))


def test_one_shift_of_a_user_shows_in_every_direction_of_wide_answers():
    """A random projection would have a kernel to hide in; products of all columns have none."""
    rng = np.random.default_rng(1)
    rows = 0.001 * rng.normal(size=(30, loops.WIDE + 5))
    for column in (0, outlier_mean_loops.DEPTH - 1, outlier_mean_loops.DEPTH, loops.WIDE + 4):
        moved = rows.copy()
        moved[7, column] += 3.0
        counts = neighbour_counts(moved, np.ones(30, bool), (1.0,))[0]
        assert counts[7] == 1
        np.testing.assert_array_equal(np.delete(counts, 7), 29)
