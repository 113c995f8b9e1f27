"""Votes: every user votes for at most k bins, and how many votes each bin has is released with noise.

    >>> holders = HiddenBins.calibrate(most=1, epsilon=1.0, delta=1e-6)
    >>> holders.noise, round(holders.scale, 6), holders.threshold, holders.kept_from(0.99)
    ('laplace', 2.0, 28, 36)
    >>> [HiddenBins.calibrate(most=8, epsilon=1.0, delta=1e-6, noise=each).kept_from(0.99) for each in NOISES]
    [308, 129]

`KnownBins` are public beforehand: every count is shown, with whole noise. `HiddenBins` are whatever users bring along,
such as words: only bins that somebody votes for get noise, and only counts that reach a threshold are shown. A bin that
a single user brings along passes it with a chance that δ pays for. Laplace noise grows with the bins that one user
changes, Gaussian noise with their root, and takes some of δ: of the two the one that asks for fewer votes.

Source: Dwork, McSherry, Nissim & Smith (2006); Korolova et al. (2009), Wilson et al. (2020) for bins that are not known
beforehand. Statement, proof and symbols: docs/privacy/votes.md.

Facts about a table that nobody declared, each released for its own ε: items per user, categories.

    >>> from quoron_privacy.noise.streams import SeededNoise
    >>> held = np.repeat([5, 6, 7, 90], 500)
    >>> release_items_per_user(held, epsilon=0.2, stream=SeededNoise(1).stream("items")).value
    6
    >>> users_for_items(epsilon=0.2), holders_of_category(epsilon=0.2, delta=1e-6)
    (480, 173)

Items are a rank: every user votes for the bin of its own number, and the bin in which a declared rank falls is chosen
by the exponential mechanism. Ranges are `bought`, of all columns at once. What is too little to tell from noise is
refused before data is touched: an error is a function of the number of users and of the declared parameters.

All promises are for replacing one user; how many users there are is public. Proofs: docs/privacy/votes.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from statistics import NormalDist
from types import MappingProxyType
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError, count, non_negative, probability
from quoron_privacy.means.private_range import bounded_range_mu, weights
from quoron_privacy.noise.streams import GRID_BITS, RandomStream, total_variation
from quoron_privacy.release import Adjacency, Release

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Noise = Literal["laplace", "gaussian"]

NOISES: tuple[Noise, Noise] = "laplace", "gaussian"
_OF: Mapping[Noise, str] = MappingProxyType({"laplace": "", "gaussian": "-gaussian"})  # in the ledger
MOST_VOTES = 64  # k, beyond which `verify` would take long and noise leave little
_LEAST, _LARGEST = 1e-6, 20.0  # of ε
_UP = 1 + 1e-12
_ARITHMETIC = 1 + 1e-9
_FINE = 2.0**51  # steps up to which a quotient of floats is off by at most an eighth
_CLEAR = 0.99  # the chance of being shown at which the noises of hidden bins are compared


@dataclass(frozen=True, slots=True)
class KnownBins:
    """`bins` bins that are public beforehand; every count is shown.

    Formal guarantee: a release is (`epsilon`, `delta`)-DP under `adjacency`, for every dataset; δ is what the sampler
    lacks, and 0 with exact noise (votes#v1).

    | input                              | what happens                                               |
    | ---------------------------------- | ---------------------------------------------------------- |
    | a user with more than `most` bins  | as many of them count, drawn from the stream               |
    | a bin named twice by one user      | counts once                                                |
    | a bin outside [0, bins)            | no vote                                                    |
    | no votes at all                    | noise                                                      |
    """

    bins: int
    most: int  # k
    scale: float  # s or σ, in votes
    adjacency: Adjacency = "replace-one"
    noise: Noise = "laplace"
    at: float = 0.0  # ε for which Gaussian noise has its δ

    def __post_init__(self) -> None:
        count(bins=self.bins)
        _check(self)

    @classmethod
    def calibrate(
        cls,
        *,
        bins: int,
        most: int,
        epsilon: float,
        delta: float = 0.0,
        adjacency: Adjacency = "replace-one",
        noise: Noise | None = None,
    ) -> "KnownBins":
        """The least noise for ε and, where δ is more than the samplers lack, for (ε, δ); `noise` asks for one kind."""
        _check_epsilon(epsilon)
        laplace = cls(bins, most, 1.0, adjacency)
        laplace = replace(laplace, scale=laplace.changes / epsilon * _UP**2)
        if noise == "laplace" or (noise is None and delta <= 0):
            return laplace
        scale = _gaussian_scale(laplace.changes, epsilon, delta)
        gaussian = cls(bins, most, scale, adjacency, "gaussian", epsilon)
        return gaussian if noise or scale < math.sqrt(2) * laplace.scale else laplace

    @property
    def changes(self) -> int:
        """Bins whose count one user can change, each by one."""
        return min(_changes(self.most, self.adjacency), self.bins)

    @property
    def epsilon(self) -> float:
        """What a release costs, rounded up."""
        return self.at if self.noise == "gaussian" else self.changes / self.scale * _UP

    @property
    def delta(self) -> float:
        """At `epsilon`: of Gaussian noise, and what the samples of the bins that change may lack; rounded up."""
        own = gdp.delta_for(self.mu, self.at) * _UP if self.noise == "gaussian" else 0.0
        return own + _slack(self.changes, self.epsilon, self.noise)

    @property
    def mu(self) -> float:
        """A release with exact noise is μ-GDP; as drawn, up to a total variation of `variation`."""
        return _gaussian_mu(self.changes, self.scale) if self.noise == "gaussian" else gdp.pure_mu(self.epsilon)

    @property
    def variation(self) -> float:
        """See `mu`; of all bins, as a law with exact noise must be one for all neighbours."""
        return _variation(self.bins, self.noise)

    def release(self, owners: Integers, votes: Integers, stream: RandomStream) -> Integers:
        """Noisy counts, shape (bins,). Vote i is for bin votes[i], by user owners[i]; both (v,), in any order."""
        owners, votes = _checked(owners, votes)
        known = (votes >= 0) & (votes < self.bins)
        counted = counted_votes(owners[known], votes[known], self.most, stream)
        held: Integers = np.bincount(counted, minlength=self.bins).astype(np.int64)
        return _noised(held, self.scale, self.noise, stream)

    def entry(self) -> Release:
        """The ledger entry of a release."""
        figures = {"epsilon": self.epsilon, "delta": self.delta, "scale": self.scale, "most": float(self.most)}
        return Release("known-bins" + _OF[self.noise], figures | {"bins": float(self.bins)})


@dataclass(frozen=True, slots=True)
class HiddenBins:
    """Bins that nobody knows beforehand; those whose noisy count reaches `threshold` are shown, with that count.

    Formal guarantee: a release is (`epsilon`, `delta`)-DP under `adjacency`, for every dataset and for any universe of
    bins, however large (votes#v2).

    | input                              | what happens                                               |
    | ---------------------------------- | ---------------------------------------------------------- |
    | a user with more than `most` bins  | as many of them count, drawn from the stream               |
    | a bin named twice by one user      | counts once                                                |
    | a bin of one user alone            | shown with a chance of at most δ, over all of that user's  |
    | no votes at all                    | nothing is shown                                           |
    """

    most: int  # k
    scale: float  # s or σ, in votes
    threshold: int  # T
    adjacency: Adjacency = "replace-one"
    noise: Noise = "laplace"
    at: float = 0.0  # ε for which Gaussian noise has its δ

    def __post_init__(self) -> None:
        _check(self)
        count(threshold=self.threshold)

    @classmethod
    def calibrate(
        cls,
        *,
        most: int,
        epsilon: float,
        delta: float,
        adjacency: Adjacency = "replace-one",
        noise: Noise | None = None,
    ) -> "HiddenBins":
        """The least noise for ε, and the least threshold for δ with it, of either kind of noise.

        Of the two that which shows a bin of fewer votes with a chance of 0.99; `noise` asks for one.
        """
        _check_epsilon(epsilon)
        probability(delta=delta)
        free = cls(most, 1.0, 1, adjacency)
        made = [
            free._laplace(epsilon, delta) if each == "laplace" else free._gaussian(epsilon, delta)
            for each in ((noise,) if noise else NOISES)
        ]
        return min(made, key=lambda bins: bins.kept_from(_CLEAR))  # the first of equals

    def _laplace(self, epsilon: float, delta: float) -> "HiddenBins":
        scale = self.changes / epsilon * _UP**2
        left = delta - _slack(self.changes, epsilon)
        if left <= delta / 2:
            raise ConfigError(
                f"Expected delta >= {2 * (delta - left):.2g} at epsilon={epsilon:g}, got delta={delta:g}."
            )
        alone = min(-math.expm1(math.log1p(-left) / self.most), -math.expm1(-1 / scale)) / _UP**2
        return replace(self, scale=scale, threshold=1 + max(0, math.ceil(-scale * math.log(2 * alone) * _UP)))

    def _gaussian(self, epsilon: float, delta: float) -> "HiddenBins":
        scale = _gaussian_scale(self.changes, epsilon, delta)
        made = replace(self, scale=scale, noise="gaussian", at=epsilon)
        low, high = 0, 1 + math.ceil(40 * scale)  # no chance is left beyond
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if replace(made, threshold=middle).delta <= delta else (middle, high)
        return replace(made, threshold=high)

    @property
    def changes(self) -> int:
        """Bins whose count one user can change, each by one."""
        return _changes(self.most, self.adjacency)

    @property
    def alone(self) -> float:
        """p: the chance that a bin with one vote is shown, with Gaussian noise rounded up."""
        if self.noise == "laplace":
            return math.exp(-(self.threshold - 1) / self.scale) / 2
        return math.erfc(_beyond(self.scale, self.threshold) / math.sqrt(2)) / 2 * _UP

    @property
    def epsilon(self) -> float:
        """What a release costs, rounded up."""
        if self.noise == "gaussian":
            return self.at
        return self.changes * max(1 / self.scale, -math.log1p(-self.alone)) * _UP

    @property
    def delta(self) -> float:
        """At `epsilon`: that one of a user's own bins is shown, of Gaussian noise, and of samplers; rounded up."""
        own = -math.expm1(self.most * math.log1p(-self.alone))
        if self.noise == "gaussian":
            gone, new, allowed = _ways(self.most, self.changes)
            each, moved = -math.log1p(-self.alone), np.maximum(self.changes - gone - new, 0)
            inside = gdp.delta_for(np.sqrt(moved) * _gaussian_mu(1, self.scale), self.at + (gone - new) * each)
            own = float(np.max(allowed * (-np.expm1(-gone * each) + np.exp(-gone * each) * inside)))
        return own * _UP + _slack(self.changes, self.epsilon, self.noise)

    def kept_from(self, chance: float) -> int:
        """The least number of votes with which a bin is shown with this `chance`, of at least one half."""
        if not 0.5 <= chance < 1:
            raise ConfigError(f"Expected chance in [0.5, 1), got chance={chance}.")
        if self.noise == "gaussian":
            return self.threshold + math.ceil(self.scale * NormalDist().inv_cdf(chance))
        return self.threshold + math.ceil(-self.scale * math.log(2 * (1 - chance)))

    def release(self, owners: Integers, votes: Integers, stream: RandomStream) -> tuple[Integers, Integers]:
        """(bins shown, their noisy counts), the largest count first, shapes (s,).

        Vote i is for bin votes[i], any integer, by user owners[i]; both (v,), in any order. Bins of equal count stand
        in the order of their numbers, which must therefore not tell who voted first.
        """
        counted = counted_votes(*_checked(owners, votes), self.most, stream)
        found, held = np.unique(counted, return_counts=True)
        noisy = _noised(held, self.scale, self.noise, stream)
        shown = np.flatnonzero(noisy >= self.threshold)
        order = shown[np.argsort(-noisy[shown], kind="stable")]
        return found[order], noisy[order]

    def entry(self) -> Release:
        """The ledger entry of a release."""
        figures = {"epsilon": self.epsilon, "delta": self.delta, "scale": self.scale, "most": float(self.most)}
        return Release("hidden-bins" + _OF[self.noise], figures | {"threshold": float(self.threshold)})


def counted_votes(owners: Integers, votes: Integers, most: int, stream: RandomStream) -> Integers:
    """The votes that count: of each user's distinct bins at most `most`, a uniform choice. Shape (c,), in any order.

    Which ones depends on the user's own bins and on draws of its own, never on the order of the rows.
    """
    if not len(votes):
        return votes
    order = np.lexsort((votes, owners))
    own, bins = owners[order], votes[order]
    new = np.ones(len(own), np.bool_)
    new[1:] = (own[1:] != own[:-1]) | (bins[1:] != bins[:-1])
    own, bins = own[new], bins[new]
    order = np.lexsort((stream.words(len(own)), own))
    own, bins = own[order], bins[order]
    first = np.flatnonzero(np.r_[True, own[1:] != own[:-1]])
    place = np.arange(len(own)) - np.repeat(first, np.diff(np.r_[first, len(own)]))
    counted: Integers = bins[place < most]
    return counted


def verify(mechanism: KnownBins | HiddenBins, epsilon: float, delta: float) -> None:
    """VerificationError unless a release is (ε, δ)-DP, by another route than its calibration.

    The privacy loss of every way in which one user's votes can go and come is enumerated: bins that both worlds have,
    bins that only one of them has.
    """
    non_negative(epsilon=epsilon, delta=delta)
    worst = _gaussian_worst(mechanism, epsilon) if mechanism.noise == "gaussian" else _laplace_worst(mechanism, epsilon)
    total = worst * _UP + _slack(mechanism.changes, epsilon, mechanism.noise)
    if not total <= delta:
        raise VerificationError(f"Expected votes that are ({epsilon:g}, {delta:g})-private, got δ = {total:.3g}.")


def _laplace_worst(mechanism: KnownBins | HiddenBins, epsilon: float) -> float:
    hidden = isinstance(mechanism, HiddenBins)
    alone = _alone(mechanism.scale, mechanism.threshold) if isinstance(mechanism, HiddenBins) else 0.0
    most, changes = mechanism.most, mechanism.changes
    gone = [(a, b) for a in range(most + 1) for b in range(most + 1) if a + b <= changes] if hidden else [(0, 0)]
    walks = _walks(mechanism.scale, changes)
    return max(_divergence(epsilon, mechanism.scale, alone, a, b, walks[changes - a - b]) for a, b in gone)


def _gaussian_worst(mechanism: KnownBins | HiddenBins, epsilon: float) -> float:
    """The pair of worlds with the largest δ by the formula for Gaussians, and its δ by the second account."""
    gone = new = np.zeros((1, 1))
    alone, allowed = 0.0, np.ones((1, 1), np.bool_)
    if isinstance(mechanism, HiddenBins):
        gone, new, allowed = _ways(mechanism.most, mechanism.changes)
        alone = float(ndtr(-_beyond(mechanism.scale, mechanism.threshold))) * _UP
    each, moved = -math.log1p(-alone), np.where(allowed, mechanism.changes - gone - new, 0)
    mus = np.sqrt(np.maximum(moved, 1e-9)) * (_ARITHMETIC / mechanism.scale + 2.0 ** (1 - GRID_BITS))
    losses = epsilon + (gone - new) * each
    inside = np.exp(log_ndtr(mus / 2 - losses / mus)) - np.exp(losses + log_ndtr(-mus / 2 - losses / mus))
    inside = np.where(moved > 0, inside, np.maximum(0.0, -np.expm1(losses)))
    shown = -np.expm1(-gone * each)
    place = np.unravel_index(int(np.argmax(np.where(allowed, shown + (1 - shown) * inside, 0.0))), inside.shape)
    own = float(inside[place])
    if moved[place]:
        size = abs(float(losses[place]))
        own = Pair.gaussian(float(mus[place])).delta(size, near=max(own, 1e-300))
        if losses[place] < 0:  # a shifted Gaussian pair is symmetric
            own = math.exp(-size) * own - math.expm1(-size)
    return float(shown[place] + (1 - shown[place]) * own)


def _ways(most: int, changes: int) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """How many of a user's bins are gone, how many are new, shape (k + 1, k + 1), and which of these can be."""
    gone, new = np.meshgrid(np.arange(most + 1.0), np.arange(most + 1.0), indexing="ij")
    return gone, new, gone + new <= changes


def _walks(scale: float, changes: int) -> list[Floats]:
    """Laws of the privacy loss of m bins that both worlds have, in units of 1/s, for m = 0 to `changes`.

    One bin moves the loss by +1, 0 or -1, with chances 1/2, (1 - e^(-1/s))/2 and e^(-1/s)/2.
    """
    step = np.array([math.exp(-1 / scale), -math.expm1(-1 / scale), 1.0]) / 2
    laws: list[Floats] = [np.ones(1)]
    for _ in range(changes):
        laws.append(np.convolve(laws[-1], step))
    return laws


def _divergence(epsilon: float, scale: float, alone: float, gone: int, come: int, walk: Floats) -> float:
    """δ at ε where `gone` bins of one vote are no longer there, `come` are new, and the others move by `walk`."""
    reach = len(walk) // 2
    each = -math.log1p(-alone)
    loss = (come - gone) * each + np.arange(-reach, reach + 1) / scale
    inside = float(walk @ -np.expm1(np.minimum(epsilon - loss, 0.0)))
    return -math.expm1(-gone * each) + math.exp(-gone * each) * inside


def _alone(scale: float, threshold: int) -> float:
    """The chance that a bin with one vote is shown, from 40 digits, rounded up."""
    with localcontext() as context:
        context.prec = 40
        return math.nextafter(float((-Decimal(threshold - 1) / Decimal(scale)).exp() / 2), 1.0)


def _changes(most: int, adjacency: Adjacency) -> int:
    return 2 * most if adjacency == "replace-one" else most


def _slack(changes: int, epsilon: float, noise: Noise = "laplace") -> float:
    """What the samplers of the bins that change add to δ; other bins have the same law in both worlds (votes#v3)."""
    return _variation(changes, noise) * (1 + math.exp(epsilon)) * _UP


def _variation(bins: int, noise: Noise) -> float:
    return total_variation(gaussians=bins) if noise == "gaussian" else total_variation(laplaces=bins)


def _gaussian_mu(changes: int, scale: float) -> float:
    """μ of so many counts that move by one, on the grid (votes#v7)."""
    return math.sqrt(changes) * (_ARITHMETIC / scale + 2.0 ** (1 - GRID_BITS))


def _gaussian_scale(changes: int, epsilon: float, delta: float) -> float:
    """σ, in votes, with which so many counts that move by one are (ε, δ)-DP, samplers included."""
    probability(delta=delta)
    lacking = _slack(changes, epsilon, "gaussian")
    if lacking >= delta / 2:
        raise ConfigError(f"Expected delta >= {2 * lacking:.2g} at epsilon={epsilon:g}, got delta={delta:g}.")
    each = gdp.mu_for(epsilon, (delta - lacking) * (1 - 1e-7)) / math.sqrt(changes) - 2.0 ** (1 - GRID_BITS)
    return _ARITHMETIC / each * _UP


def _beyond(scale: float, threshold: int) -> float:
    """How many deviations of Gaussian noise a bin with one vote needs, less what rounding may add (votes#v7)."""
    return (threshold - 1) / scale * (1 - 1e-12) - 2.0 ** (1 - GRID_BITS)


def _noised(held: Integers, scale: float, noise: Noise, stream: RandomStream) -> Integers:
    """Whole noisy counts: c + ⌊L⌋, or ⌊c + N⌋ with c and N on the grid of N."""
    if noise == "laplace":
        return held + stream.laplace_steps(scale, len(held))
    step = scale * 2.0**-GRID_BITS
    whole: Integers = np.floor((_steps(held, step) + stream.gaussian_steps(len(held))) * step).astype(np.int64)
    return whole


def _steps(held: Integers, step: float) -> Integers:
    """Counts in whole steps, up to 2⁶¹, each off by at most 5/8 (votes#v7): where floats are coarser, by integers."""
    quotient = held / step
    steps = np.rint(np.minimum(quotient, _FINE)).astype(np.int64)
    large = np.flatnonzero(quotient >= _FINE)
    steps[large] = [min(round(Fraction(int(each)) / Fraction(step)), 1 << 61) for each in held[large]]
    return steps


def _checked(owners: Integers, votes: Integers) -> tuple[Integers, Integers]:
    owners, votes = np.asarray(owners), np.asarray(votes)
    if owners.ndim != 1 or owners.shape != votes.shape or {owners.dtype.kind, votes.dtype.kind} - {"i", "u"}:
        raise ConfigError(
            f"Expected owners and votes as integers of one shape (v,), got {owners.dtype} {owners.shape} and "
            f"{votes.dtype} {votes.shape}."
        )
    return owners.astype(np.int64), votes.astype(np.int64)  # injective, for unsigned ones too


def _check(mechanism: KnownBins | HiddenBins) -> None:
    most, scale, adjacency = mechanism.most, mechanism.scale, mechanism.adjacency
    count(most=most)
    if most > MOST_VOTES:
        raise ConfigError(f"Expected most <= {MOST_VOTES} votes of a user, got most={most}.")
    if not 2.0**-10 <= scale <= 2.0**50:
        raise ConfigError(f"Expected scale in [2**-10, 2**50], got scale={scale}.")
    if adjacency not in ("replace-one", "zero-out"):
        raise ConfigError(f"Expected adjacency replace-one or zero-out, got {adjacency!r}: nothing is guaranteed.")
    if mechanism.noise not in NOISES:
        raise ConfigError(f"Expected noise in {NOISES}, got noise={mechanism.noise!r}.")
    if mechanism.noise == "gaussian":
        _check_epsilon(mechanism.at)


def _check_epsilon(epsilon: float) -> None:
    if not _LEAST <= epsilon <= _LARGEST:
        raise ConfigError(f"Expected epsilon in [{_LEAST:g}, {_LARGEST:g}], got epsilon={epsilon:g}.")


Category = str | int
T = TypeVar("T")

FAILURE = 1e-3  # β: chance that a rank is off by more than is declared
MOST_BELOW = 0.5  # declared share of users, where nothing else is said

_ITEM_EDGES = np.array(sorted({math.isqrt(2**power - 1) + 1 for power in range(2 * 40 + 1)}))  # ⌈√2^i⌉ up to 2⁴⁰


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A released value, and what it cost whoever is replaced."""

    value: T
    epsilon: float
    delta: float
    mu: float | None  # the release is μ-GDP; None: no such bound
    entries: tuple[Release, ...]


@dataclass(frozen=True, slots=True)
class RankChoice:
    """One of `bins` ordered bins, near the one in which a declared rank falls; each user votes for one bin.

    Formal guarantee: a choice is `epsilon`-bounded-range under replace-one, so ε-DP, for every dataset, without any δ:
    its integer weights are drawn from exactly (votes#v4).

    | input                               | what happens                                    |
    | ----------------------------------- | ----------------------------------------------- |
    | several bins at the same distance   | equally likely                                  |
    | fewer votes than the rank           | the last bin is the nearest, and the likeliest  |
    """

    epsilon: float
    bins: int

    def __post_init__(self) -> None:
        count(bins=self.bins)
        _check_epsilon(self.epsilon)

    @property
    def mu(self) -> float:
        """A choice is μ-GDP."""
        return bounded_range_mu(self.epsilon)

    @property
    def error(self) -> int:
        """Δ: users by which the rank is off at most, but with probability FAILURE / 2 (votes#v5)."""
        return math.ceil(2 / self.epsilon * math.log(2 * self.bins / FAILURE) * (1 + 1e-9))

    def choose(self, votes: Integers, rank: int, stream: RandomStream) -> int:
        """A bin, given the votes of each; shape (bins,). Beyond `farthest` distances are no longer told apart."""
        farthest = math.ceil(2 / self.epsilon * (math.log(self.bins) + 60))
        cost = np.minimum(distances(votes, rank), farthest)
        return stream.weighted_choice(weights(cost, self.epsilon))

    def entry(self) -> Release:
        """The ledger entry of a choice."""
        return Release("rank-choice", {"epsilon": self.epsilon, "bins": float(self.bins)})


def distances(votes: Integers, rank: int) -> Integers:
    """How many users would have to move for `rank` to fall into each bin; shape (bins,).

    max(0, users in earlier bins - rank, rank - users in it and earlier bins): one user moves it by at most one.
    """
    reached = np.cumsum(votes)
    far: Integers = np.maximum(0, np.maximum(reached - votes - rank, rank - reached))
    return far


def release_items_per_user(
    held: Integers, *, epsilon: float, stream: RandomStream, most_below: float = MOST_BELOW
) -> Fact[int]:
    """A number of items that most users hold at least, and some hold about.

    `held` has each user's number of items, shape (n,); less than one counts as one. Values are ⌈√2^i⌉. But with
    probability FAILURE at most a share `most_below` of the users hold fewer than the value, and somebody holds fewer
    than the next such value. Infeasible if there are fewer users than `users_for_items` says.
    """
    held = _whole(held, "held")
    choice = items_choice(len(held), epsilon=epsilon, most_below=most_below)
    cells = np.searchsorted(_ITEM_EDGES, np.maximum(held, 1), side="right") - 1
    votes = np.bincount(cells, minlength=len(_ITEM_EDGES)).astype(np.int64)
    chosen = choice.choose(votes, _rank(len(held), most_below, 2), stream)
    return Fact(int(_ITEM_EDGES[chosen]), epsilon, 0.0, choice.mu, (choice.entry(),))


def release_categories(
    values: Sequence[object],
    owners: Integers,
    *,
    epsilon: float,
    delta: float,
    stream: RandomStream,
    most_votes: int = 1,
) -> Fact[dict[Category, int]]:
    """The categories that enough users hold, the most frequent first, each with its noisy number of votes.

    Row i is values[i] of user owners[i], any integer; both (N,). Texts and integers are categories; anything else is
    none, such as None. Of a user with more than `most_votes` categories as many count, drawn from the stream.
    `holders_of_category` says how many votes a category needs. There may be none.
    """
    owners = _whole(owners, "owners")
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if len(listed) != len(owners):
        raise ConfigError(f"Expected one owner for each value, got {len(owners)} for {len(listed)}.")
    bins = HiddenBins.calibrate(most=most_votes, epsilon=epsilon, delta=delta)
    # Numbered by what they are, not by who came first: bins of equal count are shown in this order.
    found: list[Category] = sorted({value for value in listed if type(value) is int})
    found += sorted({value for value in listed if type(value) is str})
    numbers: dict[object, int] = {value: number for number, value in enumerate(found)}
    votes = np.array([numbers[value] if type(value) in (str, int) else -1 for value in listed], np.int64)
    shown, held = bins.release(owners[votes >= 0], votes[votes >= 0], stream)
    kept = {found[number]: int(times) for number, times in zip(shown, held, strict=True)}
    return Fact(kept, bins.epsilon, bins.delta, None, (bins.entry(),))


def users_for_items(*, epsilon: float, most_below: float = MOST_BELOW) -> int:
    """The fewest users from whom `release_items_per_user` tells anything."""
    return _users(RankChoice(epsilon, len(_ITEM_EDGES)), most_below, 2)


def holders_of_category(*, epsilon: float, delta: float, most_votes: int = 1, chance: float = 0.99) -> int:
    """Votes from which on `release_categories` shows a category with this `chance`, of one half or more."""
    return HiddenBins.calibrate(most=most_votes, epsilon=epsilon, delta=delta).kept_from(chance)


def items_choice(users: int, *, epsilon: float, most_below: float = MOST_BELOW) -> RankChoice:
    """What `release_items_per_user` draws from; Infeasible for too few users, with what would do."""
    choice = RankChoice(epsilon, len(_ITEM_EDGES))
    _check_users("items per user", choice, users, most_below, 2, f"epsilon={epsilon:g}, most_below={most_below:g}")
    return choice


def _check_users(what: str, choice: RankChoice, users: int, share: float, parts: int, declared: str) -> None:
    """The error of a choice may be the rank itself at most."""
    needed = _users(choice, share, parts)
    if users < needed:
        least = choice.epsilon * (parts // 2) * choice.error / max(_rank(users, share, parts), 1)
        raise Infeasible(
            what,
            f"{users:,} users do not tell a rank from noise at {declared}",
            f"{needed:,} users, or epsilon >= {1.005 * least:.3g}",
        )


def _users(choice: RankChoice, share: float, parts: int) -> int:
    """The fewest users of whose rank Δ is at most the whole."""
    users = math.ceil(parts * choice.error / _share(share))
    while _rank(users, share, parts) < choice.error:
        users += 1
    return users


def _rank(users: int, share: float, parts: int) -> int:
    """r: the rank asked for, a part of the users that may lie beyond."""
    return math.floor(_share(share) * users / parts)


def _share(share: float) -> float:
    if not 0.001 <= share <= 0.9:
        raise ConfigError(f"Expected a share of users in [0.001, 0.9], got {share}.")
    return share


def _whole(values: Integers, name: str) -> Integers:
    values = np.asarray(values)
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise ConfigError(f"Expected {name} as integers of shape (N,), got {values.dtype} {values.shape}.")
    return values.astype(np.int64)
