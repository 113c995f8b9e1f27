"""The price of a private search, computed a second time: from the law of one trial's loss, atom by atom.

    >>> from quoron_privacy.accounts.pair import DominatingPair
    >>> law = Trials.negative_binomial(40.0)
    >>> round(delta(law, (DominatingPair.gaussian(0.2367),), 1.93) * 1e6, 1) <= 1.0
    True

`price` takes a profile, and adds hockey sticks over an envelope of lines. This takes the atoms of the exported law, has
the most that another world may have above a rank from the test of Neyman and Pearson between them, and the generating
function's slope term by term; they share no function. Statement and proof: docs/privacy/selection.md#se2.
"""

import math
from functools import lru_cache

import numpy as np

from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.accounts.pld_lattice import Law
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import VerificationError
from quoron_privacy.selection.trials import Trials

_RANKS = np.concatenate([[0.0], np.geomspace(1e-12, 1e-5, 30), np.geomspace(1e-5, 1.0, 6000)[1:]])
_AT_ONCE, _ATOMS = 256, 4000  # atoms


@lru_cache(maxsize=64)
def delta(trials: Trials, pairs: tuple[DominatingPair, ...], epsilon: float, *, near: float = 1e-7) -> float:
    """Return δ at ε of the best of so many trials, each of them worth the worst of `pairs`; never below the truth.

    Values far below `near` are not resolved. The worst of every order of every pair is met by the most that any of them
    may have above a rank.
    """
    laws = [law for pair in dict.fromkeys(pairs) for law in pair.lattice(near / (100 * trials.mean)).laws]
    highest = np.max([_most(law) for law in laws], axis=0)
    own, other = _slopes(trials, _RANKS[:-1]), _slopes(trials, highest[1:])
    found = max(_sum(law, epsilon, own, other) for law in laws)
    inexact = max(pair.variation for pair in pairs) * trials.mean * (1 + math.exp(min(epsilon, 700.0)))
    return min(1.0, found * (1 + 1e-9) + inexact)


def check(trials: Trials, pairs: tuple[DominatingPair, ...], epsilon: float, promised: float) -> None:
    """Raise VerificationError unless it is within what is promised."""
    found = delta(trials, pairs, epsilon, near=promised)
    if not found <= promised:
        raise VerificationError(
            f"Expected the search to cost delta={promised:g} at epsilon={epsilon:g}, got {found:g}."
        )


def _slopes(trials: Trials, above: Vector) -> Vector:
    """f'(1 - s) at each s = `above`."""
    numbers = np.arange(1.0, trials.most + 1)
    weights = numbers * np.array([math.ldexp(float(weight), -60) for weight in trials.weights])
    with np.errstate(divide="ignore"):
        logs = np.log1p(-above)
    found = np.full(len(above), weights[0])
    for number, weight in zip(numbers[1:].tolist(), weights[1:].tolist(), strict=True):
        found += weight * np.exp((number - 1) * logs)
    return found


def _most(law: Law) -> Vector:
    """Of a set that has a rank s under one law, the most under the other, by the largest losses first."""
    masses = law.masses[::-1]
    with np.errstate(over="ignore"):
        others = masses * np.exp(-law.losses[::-1])
    seen = np.concatenate([[0.0], np.cumsum(others)])
    most = np.concatenate([[law.infinite], law.infinite + np.cumsum(masses)])
    return np.asarray(np.minimum(1.0, np.interp(_RANKS, seen, most, right=1.0)))


def _sum(law: Law, epsilon: float, own: Vector, other: Vector) -> float:
    """Σ of the losses' masses times the most that they may count; several small losses count as the largest of them."""
    losses = law.losses
    with np.errstate(divide="ignore"):
        least = epsilon - float(np.max(np.log(own) - np.log(np.maximum(other, 1e-300))))  # below, none counts
    places = np.flatnonzero((law.masses > 0) & (losses > least - law.gap))
    together = max(1, -(-len(places) // _ATOMS))
    ends = np.arange(together - 1, len(places) + together - 1, together).clip(max=max(len(places) - 1, 0))
    masses = np.add.reduceat(law.masses[places], np.arange(0, len(places), together)) if len(places) else np.empty(0)
    tops = losses[places[ends]] if len(places) else np.empty(0)
    total = law.infinite * float(own[0])
    for first in range(0, len(masses), _AT_ONCE):
        lost = np.exp(np.minimum(epsilon - tops[first : first + _AT_ONCE], 700.0))
        counts = np.maximum(own[:, None] - np.outer(other, lost), 0.0).max(axis=0)
        total += float(masses[first : first + _AT_ONCE] @ counts)
    return total
