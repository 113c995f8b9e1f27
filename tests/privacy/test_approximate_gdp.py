"""What is said to be μ-GDP but for t is: held against trade-off curves taken from all outcomes, one by one."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from cover import by_default
from quoron_privacy.accounts.approximate_gdp import SHARES, Profile, holds, least_mu, points, profile
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.accounts.pair import DominatingPair

quick = settings(derandomize=True, deadline=None, max_examples=40)


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def both(p, q):
    """δ at ε of two laws on the same outcomes, in the worse order."""
    return lambda epsilon, near: max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon)) + 1e-300


def corners(p, q):
    """Corners (α, β) of the trade-off curve of two laws: the best tests, by Neyman and Pearson."""
    order = np.argsort(-np.divide(q, p, out=np.full(len(p), np.inf), where=p > 0), kind="stable")
    return np.append(0.0, np.cumsum(p[order])), 1 - np.append(0.0, np.cumsum(q[order]))


def gaussian_but_for(mu, lost, alpha):
    """G_μ ⊗ f_{0,t} at α: with chance t all is told."""
    return (1 - lost) * norm.sf(norm.ppf(1 - np.minimum(alpha / (1 - lost), 1.0)) * -1 + mu)


def excess(p, q, mu, lost):
    """How far the curve of a Gaussian run but for t is above that of two laws, at most. The former is convex."""
    worst = -1.0
    for one, other in ((p, q), (q, p)):
        alpha, beta = corners(one, other)
        worst = max(worst, float(np.max(gaussian_but_for(mu, lost, alpha) - beta)))
    return worst


def mixture(chances, shifts, number=4001):
    """A mixture of unit Gaussians on cells of a line."""
    edges = np.linspace(-9, 11, number)
    cells = sum(c * np.diff(norm.cdf(edges - s)) for c, s in zip(chances, shifts, strict=True))
    return cells / cells.sum()


@quick
@given(
    weights=st.lists(st.tuples(st.floats(1e-3, 1.0), st.floats(-0.4, 0.4)), min_size=2, max_size=6),
    told=st.sampled_from([0.0, 1e-9, 1e-6]),
)
def test_of_any_two_laws_what_is_found_is_true(weights, told):
    p = np.array([weight for weight, _ in weights])
    q = p * np.exp([loss for _, loss in weights])
    p, q = np.append(p / p.sum() * (1 - told), [told, 0]), np.append(q / q.sum() * (1 - told), [0, told])
    for mu, lost in points(both(p, q), 0.2, 1e-5):
        assert excess(p, q, mu, lost) <= 1e-13


KINDS = [
    (kind, *numbers)
    for kind in ("replaced", "absent", "items")
    for numbers in ((0.1, 1.0, 1), (0.02, 2.5, 1), (0.3, 0.4, 2))
]


@pytest.mark.parametrize(
    ("kind", "rate", "mu", "rounds"),
    by_default(KINDS, [each for each in KINDS if each[0] == "replaced" or each[1] == 0.1]),
)
def test_rounds_on_secret_samples_are_no_worse_than_is_said_and_hardly_better(kind, rate, mu, rounds):
    nobody = {"absent": ([1.0], [0.0]), "items": ([1 - rate, rate], [0.0, -mu])}.get(kind, ([1.0], [0.0]))
    cells = 4001 if rounds == 1 else 121
    p, q = mixture([1 - rate, rate], [0.0, mu], cells), mixture(*nobody, cells)
    if kind == "replaced":  # K1's pair as docs/privacy/pairs.md says it, cell by cell
        more, less = np.where(p > q, p, 0.0), np.where(p > q, q, 0.0)
        left = 1 - more.sum() - less.sum()
        p, q = np.concatenate([more, less[::-1], [left]]), np.concatenate([less, more[::-1], [left]])
    delta = {
        "replaced": DominatingPair.sampled(rate, mu, rounds, "replace-one"),
        "absent": DominatingPair.sampled(rate, mu, rounds, "zero-out"),
        "items": DominatingPair.coins(rate, mu, rounds),
    }[kind].delta
    if rounds == 2:
        p, q = np.outer(p, p).ravel(), np.outer(q, q).ravel()
    epsilon, at = 1.0, DominatingPair.sampled(rate, mu, rounds, "replace-one").delta(1.0, 1e-3)
    found = points(delta, epsilon, at)
    assert found
    for size, lost in found:
        assert excess(p, q, size, lost) <= 2e-9
        if rounds == 1:
            assert excess(p, q, 0.98 * size, lost) > 0


def rounds():
    return DominatingPair.sampled(0.05, 0.2, 100, "replace-one").delta


def test_what_is_found_is_proved_again_and_a_smaller_mu_is_not():
    known = profile(rounds(), 0.5, 1e-10)
    for mu, lost in points(rounds(), 0.5, 1e-7):
        assert holds(known, mu, lost)
        assert not holds(known, 0.99 * mu, lost)
        assert not holds(known, mu, 0.5 * known.deltas[-1])
        worse = Profile(known.x, np.minimum(known.deltas * 1.05, 1.0))
        assert not holds(worse, 0.999 * mu, lost)


def test_where_the_far_end_of_the_lattice_costs_more_than_t_nothing_is_promised():
    told = lambda epsilon, near: max(delta_for(0.1, epsilon), 2.9e-9)  # noqa: E731
    assert [lost for _, lost in points(told, 0.5, 1e-7)] == [3e-9]
    assert points(lambda epsilon, near: 1e-6, 0.5, 1e-7) == ()


def test_a_twin_that_fits_one_order_only_is_caught():
    rate, mu = 0.02, 2.0
    p, q = mixture([1 - rate, rate], [0.0, mu]), mixture([1.0], [0.0])
    honest = both(p, q)
    found = {}
    for name, delta in (("both", honest), ("one", lambda epsilon, near: hockey_stick(q, p, epsilon) + 1e-300)):
        found[name] = least_mu(profile(delta, 1.0, 1e-7), 1e-5)
    assert excess(p, q, found["both"], 1e-5) <= 1e-12
    assert found["one"] < 0.9 * found["both"]
    assert excess(p, q, found["one"], 1e-5) > 1e-4


def test_a_twin_that_forgets_the_tail_is_caught():
    rate, mu = 1e-3, 3.0  # a sampled run tells next to nothing, or all
    p, q = mixture([1 - rate, rate], [0.0, mu]), mixture([1 - rate, rate], [0.0, -mu])
    known = profile(both(p, q), 0.5, 1e-9)
    near_middle = Profile(known.x[:20], known.deltas[:20])
    lost = 1e-6
    assert near_middle.deltas[-1] > lost
    assert least_mu(near_middle, lost) == math.inf
    assert not holds(near_middle, 10.0, lost)
    forgetful = least_mu(Profile(near_middle.x, np.append(near_middle.deltas[:-1], lost)), lost)
    assert excess(p, q, forgetful, lost) > 1e-5


def test_a_twin_whose_lattice_is_joined_below_the_profile_is_caught():
    """Between two points of the lattice the line between them is known, and no step at its lower end."""
    p, q = mixture([0.9, 0.1], [0.0, 1.0]), mixture([0.9, 0.1], [0.0, -1.0])
    known = profile(both(p, q), 0.6, 1e-5)
    few = Profile(known.x[::8], known.deltas[::8])
    few = Profile(np.append(few.x, known.x[-1]), np.append(few.deltas, known.deltas[-1]))
    lower = Profile(few.x[:-1], few.deltas[1:])
    lost = 1e-4
    assert excess(p, q, least_mu(few, lost), lost) <= 1e-12
    assert excess(p, q, least_mu(lower, lost), lost) > 2e-5


def test_the_last_bits_of_a_library_are_in_no_promise():
    nudged = lambda epsilon, near: rounds()(epsilon, near) * (1 + 1e-13)  # noqa: E731
    assert points(nudged, 0.5, 1e-7) == points(rounds(), 0.5, 1e-7)
    assert all(float(f"{mu:.4g}") == mu for mu, _ in points(rounds(), 0.5, 1e-7))


@pytest.mark.parametrize("mu", [0.01, 0.11, 0.9, 5.0])
def test_a_gaussian_run_is_found_to_be_one(mu):
    epsilon = mu * 4.5
    known = profile(lambda at, near: delta_for(mu, at), epsilon, 1e-3 * delta_for(mu, epsilon))
    for share in SHARES:
        lost = share * delta_for(mu, epsilon)
        assert 0.99 * mu < least_mu(known, lost) < 1.012 * mu
        assert holds(known, 1.012 * mu, lost)
        assert not holds(known, 0.98 * mu, lost)


def test_less_noise_or_a_smaller_t_never_means_a_smaller_mu():
    by_noise = [points(DominatingPair.sampled(0.05, mu, 1, "replace-one").delta, 0.5, 1e-7) for mu in (0.4, 0.7, 1.0)]
    for less, more in pairwise(map(dict, (((lost, mu) for mu, lost in each) for each in by_noise))):
        assert all(less[lost] < mu for lost, mu in more.items())
    for each in by_noise:
        assert len(each) > 1
        assert all(large < small and rare < often for (large, often), (small, rare) in pairwise(each))
