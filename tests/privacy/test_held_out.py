"""What held-out users tell: how far one user moves it, its calibration, its re-check, and who is held out."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quoron.evaluation.scores import held_users, parts
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, VerificationError
from quoron_privacy.histograms import held_out as room
from quoron_privacy.histograms.held_out import LABELS, PLACES, STEPS, HeldOut
from quoron_privacy.noise.streams import SeededNoise

KINDS = [2, 0, 3, 10]
anything = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0, 0.5, 1e-300, 1 - 2.0**-53])


def a_release(classes: int, users: int = 50, adjacency: str = "replace-one", epsilon: float = 1.0):
    return HeldOut.calibrate(
        users=users,
        classes=classes,
        epsilon=epsilon,
        delta=1e-6,
        adjacency=adjacency,  # type: ignore[arg-type]
    )


def blocks(classes: int) -> list[int]:
    return [PLACES] if classes == 2 else [STEPS] if classes else [STEPS, LABELS]


@st.composite
def vectors(draw, held: HeldOut):
    """What one user may say in both releases, true or not."""

    def row(size):
        where, value = draw(st.integers(0, size - 1)), draw(anything)
        made = np.full((1, size), draw(st.sampled_from([0.0, 1 / size, 1.0, np.nan])))
        made[0, where] = value
        return made

    first = held.first_vectors(*(row(size) for size in blocks(held.classes)))
    size = 4 * held.cells if held.classes == 2 else held.classes + 2 if held.classes else 3
    return first, held.second_vectors(row(size))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_that_a_user_says_depend_on_nobody_beside_it(kind):
    held, rng = a_release(kind), np.random.default_rng(0)
    size = 4 * held.cells if held.classes == 2 else held.classes + 2 if held.classes else 3
    shares = [rng.random((97, each)) for each in blocks(held.classes)]
    parts = rng.random((97, size))
    whole = np.hstack([held.first_vectors(*shares), held.second_vectors(parts)])
    for some in (slice(0, 1), slice(5, 6), slice(90, 97), slice(1, 97), slice(0, 97, 3)):
        first = held.first_vectors(*(each[some] for each in shares))
        second = held.second_vectors(parts[some])
        assert np.array_equal(np.hstack([first, second]), whole[some])


@given(data=st.data(), kind=st.sampled_from(KINDS), adjacency=st.sampled_from(["replace-one", "zero-out"]))
def test_no_user_moves_a_release_by_more_than_its_sensitivity(data, kind, adjacency):
    held = a_release(kind, users=3, adjacency=adjacency)
    mine, other = data.draw(vectors(held)), data.draw(vectors(held))
    for which, noise in enumerate(held.noises):
        own = np.zeros_like(other[which]) if adjacency == "zero-out" else other[which]
        means = [
            held._reduction(which).mean(held.sums(which, np.vstack([mine[which], mine[which], each])))
            for each in (mine[which], own)
        ]
        assert np.linalg.norm(means[0] - means[1]) <= noise.sensitivity


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("users", [1, 1000, 10**6])
@pytest.mark.parametrize("classes", KINDS)
def test_what_is_calibrated_is_verified_at_any_size_and_nearly_no_less(users, classes, adjacency):
    for epsilon, delta in ((0.0102, 1e-12), (1.0, 0.1), (15.0, 1e-6)):
        held = HeldOut.calibrate(users=users, classes=classes, epsilon=epsilon, delta=delta, adjacency=adjacency)
        held.verify(epsilon, delta, adjacency=adjacency)
        assert 0.999 * delta <= gdp.delta_for(held.pair.mu, epsilon) <= delta
        first, second = (mu for _, mu in held.releases())
        assert first**2 / (first**2 + second**2) == pytest.approx(room.PLACED if classes == 2 else room.FIRST, rel=1e-4)


@pytest.mark.parametrize("users", [3, 2**16, 2**17, 10**7, 2**30])
@pytest.mark.parametrize("classes", KINDS)
def test_what_is_charged_is_no_less_than_what_was_calibrated_for_however_coarse_the_grid_is(users, classes):
    """The grid of a sum is coarser for more users; a fixed one, of 2⁻³⁸, was too fine from 2¹⁷ on."""
    for adjacency in ("replace-one", "zero-out"):
        held = a_release(classes, users=users, adjacency=adjacency)
        mu = gdp.compose(*(each for _, each in held.releases()))
        assert mu <= held.pair.mu <= mu * (1 + 1e-8)
    means = room.HeldMeans.calibrate(users=users, figures=max(classes, 1), epsilon=1.0, delta=1e-6)
    means.verify(1.0, 1e-6, adjacency="replace-one")


@pytest.mark.parametrize(
    "change", [{"users": 499}, {"classes": 0}, {"adjacency": "replace-one"}, {"scales": (0.01, 0.004)}]
)
def test_a_plan_with_less_noise_than_its_theorem_asks_is_refused(change):
    held = a_release(2, users=500, adjacency="zero-out")
    held.verify(1.0, 1e-6, adjacency="zero-out")
    with pytest.raises(VerificationError, match="in an evaluation"):
        replace(held, **change).verify(1.0, 1e-6, adjacency="zero-out")


def test_so_many_are_held_out_and_the_same_whenever_the_run_goes_on():
    trained, apart = parts(1000, held_users(1000, 0.1), SeededNoise(4))
    assert (len(apart), sorted([*trained, *apart])) == (100, [*range(1000)])
    assert (apart == parts(1000, 100, SeededNoise(4))[1]).all()
    assert (apart != parts(1000, 100, SeededNoise(5))[1]).any()
    for users, share in ((3, 0.1), (10, 0.99)):
        with pytest.raises(ConfigError, match="both sides"):
            held_users(users, share)


def test_everybody_is_held_out_equally_often():
    """Of 4,000 draws: each count is binomial, and five deviations off in one of 20 with probability below 2e-5 each,

    so the bound is six and a half: false alarm below 1e-8.
    """
    times = sum(np.bincount(parts(20, 5, SeededNoise(seed))[1], minlength=20) for seed in range(4000))
    assert np.abs(times - 1000).max() < 6.5 * np.sqrt(4000 * 0.25 * 0.75)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("classes", KINDS)
def test_the_farthest_two_users_use_all_of_it(classes, adjacency):
    """Of all corners, pair by pair: what a release is calibrated to is what two users can be apart."""
    held = a_release(classes, adjacency=adjacency)
    for which, made in enumerate(([*room._first(classes)], room._vertices(classes, held.cells))):
        far = 0.0
        for block in made:
            corners = [np.zeros(len(block)), *block.T]
            pairs = combinations(corners, 2) if adjacency == "replace-one" else ((corners[0], each) for each in corners)
            far += max(float(((one - other) ** 2).sum()) for one, other in pairs)
        assert held.noises[which].sensitivity * held.users == pytest.approx(far**0.5, rel=1e-6)


def test_any_two_cells_are_as_far_apart_and_more_of_them_cost_nothing():
    """So how many there are is free: what a user moves is the same, and the most is a public number's."""
    moved = set()
    for cells in (2, 3, 20):
        held = replace(a_release(2), cells=cells)
        corners = room.two_classes(cells)[2:].T[::2]
        apart = np.linalg.norm(corners[:, None] - corners[None], axis=2)[~np.eye(2 * cells, dtype=bool)]
        np.testing.assert_allclose(apart, (1 - room.CORRECT) ** 0.5)
        moved.add(round(held.noises[1].sensitivity * held.users, 9))
    assert moved == {1.0}
    assert [room.cells_for(each) for each in (1, 124, 1e3, 1e9)] == [2, 3, 6, 20]
