"""Votes: every user votes for at most k bins, and how many votes each bin has is released with noise.

    >>> holders = HiddenBins.calibrate(most=1, epsilon=1.0, delta=1e-6)
    >>> round(holders.scale, 6), holders.threshold, holders.kept_from(0.99)
    (2.0, 28, 36)

`KnownBins` are public beforehand: every count is shown, with whole Laplace noise. `HiddenBins` are whatever users bring
along, such as words: only bins that somebody votes for get noise, and only counts that reach a threshold are shown. A
bin that a single user brings along passes it with a chance that δ pays for.

Source: Dwork, McSherry, Nissim & Smith (2006); Korolova et al. (2009), Wilson et al. (2020) for bins that are not known
beforehand. Statement, proof and symbols: docs/privacy/votes.md.
"""

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, VerificationError, count, non_negative, probability
from quoron_privacy.noise.streams import RandomStream, total_variation
from quoron_privacy.release import Adjacency, Release

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_VOTES = 64  # k, beyond which `verify` would take long and noise leave little
_LEAST, _LARGEST = 1e-6, 20.0  # of ε
_UP = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class KnownBins:
    """`bins` bins that are public beforehand; every count is shown.

    Formal guarantee: a release is (`epsilon`, `delta`)-DP under `adjacency`, for every dataset; δ is what the sampler
    lacks, and 0 with exact noise (theorem V1).

    | input                              | what happens                                               |
    | ---------------------------------- | ---------------------------------------------------------- |
    | a user with more than `most` bins  | as many of them count, drawn from the stream               |
    | a bin named twice by one user      | counts once                                                |
    | a bin outside [0, bins)            | no vote                                                    |
    | no votes at all                    | noise                                                      |
    """

    bins: int
    most: int  # k
    scale: float  # s, in votes
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        count(bins=self.bins)
        _check(self.most, self.scale, self.adjacency)

    @classmethod
    def calibrate(cls, *, bins: int, most: int, epsilon: float, adjacency: Adjacency = "replace-one") -> "KnownBins":
        """The least noise for ε."""
        _check_epsilon(epsilon)
        free = cls(bins, most, 1.0, adjacency)
        return cls(bins, most, free.changes / epsilon * _UP**2, adjacency)

    @property
    def changes(self) -> int:
        """Bins whose count one user can change, each by one."""
        return min(_changes(self.most, self.adjacency), self.bins)

    @property
    def epsilon(self) -> float:
        """What a release costs, rounded up."""
        return self.changes / self.scale * _UP

    @property
    def delta(self) -> float:
        """What the samples of the bins that change may lack."""
        return _slack(self.changes, self.epsilon)

    @property
    def mu(self) -> float:
        """A release with exact noise is μ-GDP; as drawn, up to a total variation of `variation`."""
        return gdp.pure_mu(self.epsilon)

    @property
    def variation(self) -> float:
        """See `mu`; of all bins, as a law with exact noise must be one for all neighbours."""
        return total_variation(laplaces=self.bins)

    def release(self, owners: Integers, votes: Integers, stream: RandomStream) -> Integers:
        """Noisy counts, shape (bins,). Vote i is for bin votes[i], by user owners[i]; both (v,), in any order."""
        owners, votes = _checked(owners, votes)
        known = (votes >= 0) & (votes < self.bins)
        counted = counted_votes(owners[known], votes[known], self.most, stream)
        noise = stream.laplace_steps(self.scale, self.bins)
        return np.bincount(counted, minlength=self.bins).astype(np.int64) + noise

    def entry(self) -> Release:
        """The ledger entry of a release."""
        figures = {"epsilon": self.epsilon, "delta": self.delta, "scale": self.scale, "most": float(self.most)}
        return Release("known-bins", figures | {"bins": float(self.bins)})


@dataclass(frozen=True, slots=True)
class HiddenBins:
    """Bins that nobody knows beforehand; those whose noisy count reaches `threshold` are shown, with that count.

    Formal guarantee: a release is (`epsilon`, `delta`)-DP under `adjacency`, for every dataset and for any universe of
    bins, however large (theorem V2).

    | input                              | what happens                                               |
    | ---------------------------------- | ---------------------------------------------------------- |
    | a user with more than `most` bins  | as many of them count, drawn from the stream               |
    | a bin named twice by one user      | counts once                                                |
    | a bin of one user alone            | shown with a chance of at most δ, over all of that user's  |
    | no votes at all                    | nothing is shown                                           |
    """

    most: int  # k
    scale: float  # s, in votes
    threshold: int  # T
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        _check(self.most, self.scale, self.adjacency)
        count(threshold=self.threshold)

    @classmethod
    def calibrate(
        cls, *, most: int, epsilon: float, delta: float, adjacency: Adjacency = "replace-one"
    ) -> "HiddenBins":
        """The least noise for ε, and the least threshold for δ with it."""
        _check_epsilon(epsilon)
        probability(delta=delta)
        free = cls(most, 1.0, 1, adjacency)
        scale = free.changes / epsilon * _UP**2
        left = delta - _slack(free.changes, epsilon)
        if left <= delta / 2:
            raise ConfigError(
                f"Expected delta >= {2 * (delta - left):.2g} at epsilon={epsilon:g}, got delta={delta:g}."
            )
        alone = min(-math.expm1(math.log1p(-left) / most), -math.expm1(-1 / scale)) / _UP**2
        return cls(most, scale, 1 + max(0, math.ceil(-scale * math.log(2 * alone) * _UP)), adjacency)

    @property
    def changes(self) -> int:
        """Bins whose count one user can change, each by one."""
        return _changes(self.most, self.adjacency)

    @property
    def alone(self) -> float:
        """p: the chance that a bin with one vote is shown."""
        return math.exp(-(self.threshold - 1) / self.scale) / 2

    @property
    def epsilon(self) -> float:
        """What a release costs, rounded up."""
        return self.changes * max(1 / self.scale, -math.log1p(-self.alone)) * _UP

    @property
    def delta(self) -> float:
        """That one of a user's own bins is shown, and what the samples of the bins that change may lack; rounded up."""
        return -math.expm1(self.most * math.log1p(-self.alone)) * _UP + _slack(self.changes, self.epsilon)

    def kept_from(self, chance: float) -> int:
        """The least number of votes with which a bin is shown with this `chance`, of at least one half."""
        if not 0.5 <= chance < 1:
            raise ConfigError(f"Expected chance in [0.5, 1), got chance={chance}.")
        return self.threshold + math.ceil(-self.scale * math.log(2 * (1 - chance)))

    def lost_below(self, chance: float) -> int:
        """Bins with fewer votes than this are hidden with this `chance` or more, of at least one half."""
        return max(1, 2 * self.threshold - self.kept_from(chance))

    def release(self, owners: Integers, votes: Integers, stream: RandomStream) -> tuple[Integers, Integers]:
        """(bins shown, their noisy counts), the largest count first, shapes (s,).

        Vote i is for bin votes[i], any integer, by user owners[i]; both (v,), in any order. Bins of equal count stand
        in the order of their numbers, which must therefore not tell who voted first.
        """
        counted = counted_votes(*_checked(owners, votes), self.most, stream)
        found, held = np.unique(counted, return_counts=True)
        noisy = held + stream.laplace_steps(self.scale, len(found))
        shown = np.flatnonzero(noisy >= self.threshold)
        order = shown[np.argsort(-noisy[shown], kind="stable")]
        return found[order], noisy[order]

    def entry(self) -> Release:
        """The ledger entry of a release."""
        figures = {"epsilon": self.epsilon, "delta": self.delta, "scale": self.scale, "most": float(self.most)}
        return Release("hidden-bins", figures | {"threshold": float(self.threshold)})


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
    hidden = isinstance(mechanism, HiddenBins)
    alone = _alone(mechanism.scale, mechanism.threshold) if isinstance(mechanism, HiddenBins) else 0.0
    most, changes = mechanism.most, _changes(mechanism.most, mechanism.adjacency)
    if isinstance(mechanism, KnownBins):
        changes = min(changes, mechanism.bins)
    gone = [(a, b) for a in range(most + 1) for b in range(most + 1) if a + b <= changes] if hidden else [(0, 0)]
    walks = _walks(mechanism.scale, changes)
    worst = max(_divergence(epsilon, mechanism.scale, alone, a, b, walks[changes - a - b]) for a, b in gone)
    total = worst * _UP + _slack(changes, epsilon)
    if not total <= delta:
        raise VerificationError(f"Expected votes that are ({epsilon:g}, {delta:g})-private, got δ = {total:.3g}.")


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


def _slack(changes: int, epsilon: float) -> float:
    """What the samplers of the bins that change add to δ; other bins have the same law in both worlds (lemma V3)."""
    return total_variation(laplaces=changes) * (1 + math.exp(epsilon)) * _UP


def _checked(owners: Integers, votes: Integers) -> tuple[Integers, Integers]:
    owners, votes = np.asarray(owners), np.asarray(votes)
    if owners.ndim != 1 or owners.shape != votes.shape or {owners.dtype.kind, votes.dtype.kind} - {"i", "u"}:
        raise ConfigError(
            f"Expected owners and votes as integers of one shape (v,), got {owners.dtype} {owners.shape} and "
            f"{votes.dtype} {votes.shape}."
        )
    return owners.astype(np.int64), votes.astype(np.int64)  # injective, for unsigned ones too


def _check(most: int, scale: float, adjacency: Adjacency) -> None:
    count(most=most)
    if most > MOST_VOTES:
        raise ConfigError(f"Expected most <= {MOST_VOTES} votes of a user, got most={most}.")
    if not 2.0**-10 <= scale <= 2.0**50:
        raise ConfigError(f"Expected scale in [2**-10, 2**50], got scale={scale}.")
    if adjacency not in ("replace-one", "zero-out"):
        raise ConfigError(f"Expected adjacency replace-one or zero-out, got {adjacency!r}: nothing is promised.")


def _check_epsilon(epsilon: float) -> None:
    if not _LEAST <= epsilon <= _LARGEST:
        raise ConfigError(f"Expected epsilon in [{_LEAST:g}, {_LARGEST:g}], got epsilon={epsilon:g}.")
