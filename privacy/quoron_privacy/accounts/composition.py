"""The first account of many equal rounds: δ at ε of all of them, from the profile of one.

    >>> from quoron_privacy.accounts.gdp import delta_for
    >>> same = lambda epsilon: delta_for(0.1, epsilon)
    >>> round(delta(same, same, 9, 1.0) / delta_for(0.3, 1.0), 2)
    1.0

A round's profile is looked at in some thousand places, whole multiples of a gap, closely near 0 and in proportion
beyond. Lines between them (over e^ε) lie above it, and belong to a law of finitely many losses. The sum of all rounds'
losses is taken by a Fourier transform of the law times e^{tilt · loss}, which makes δ = 1e-30 as exact as δ = 1e-3.

Statement and proof: docs/privacy/subsampling.md, "Arithmetic". `verify` asks another account.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.accounts.roots import root
from quoron_privacy.arrays import Vector

Profile = Callable[[Vector], Vector]  # δ of one round at each ε >= 0, never below the truth

SAFETY = (
    0.995  # share of δ that calibration may use; the rest covers float arithmetic, and what the second account adds
)
_COARSE = 1e-3  # relative growth of δ that the lattice may cost
_BEYOND = 1e-6  # share of δ in all rounds that losses beyond the lattice add, about
_WRAPPED = 1e-8, 1e-11, 1e-14  # of the tilted law of the sum: mass on either side of the window, the first that does
_MOST = 1 << 21  # points of a transform: where more would be needed, the lattice is coarser
_FARTHEST = 600.0  # losses beyond count as infinite


@dataclass(frozen=True, slots=True, eq=False)
class _Law:
    """Losses of one round, whole multiples of a gap, and their log chances; `lost` is the chance of an infinite one."""

    places: NDArray[np.int64]
    logs: Vector
    gap: float
    lost: float

    def tilted(self, tilt: float) -> tuple[float, Vector]:
        """Return ln E e^{tilt · loss} of the finite losses, and their law times e^{tilt · loss}, divided by that."""
        exponents = tilt * self.gap * self.places + self.logs
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        return top + math.log(total), weights / total


def delta(forward: Profile, backward: Profile, rounds: int, epsilon: float, *, least: float = 1e-15) -> float:
    """Return δ at ε >= 0 of `rounds` adaptive rounds of profile `forward`; `backward` is that of the worlds exchanged.

    Values far below `least` are not resolved.
    """
    if rounds == 1:
        return min(1.0, float(forward(np.array([epsilon]))[0]))
    apart = float(forward(np.zeros(1))[0])
    if apart >= 1:
        return 1.0
    reach = _reach(forward, _BEYOND * least / rounds), _reach(backward, 1e-18)
    rough = _law(forward, backward, apart / 10, reach, 60)
    if rounds * rough.gap * float(rough.places[-1]) <= epsilon:
        return min(1.0, rounds * rough.lost)
    tilt = _saddle(rough, rounds, epsilon)
    # However small the tilt, δ changes over ε, or over what the sum usually is.
    steep = tilt + 1 / max(epsilon, 2.5 * math.sqrt(rounds) * apart)
    gap = math.sqrt(8 * _COARSE / (rounds * steep * (1 + steep)))
    while True:
        law = _law(forward, backward, gap, reach, 500)
        found = _tail(law, rounds, epsilon, tilt)
        if found is not None:
            return min(1.0, found + rounds * law.lost)
        gap *= 2


def largest(delta_of: Callable[[float], float], guess: float, delta: float) -> float:
    """Return the largest number at which a growing `delta_of` is SAFETY · δ; to a relative 1e-5, rounded down."""
    wanted = math.log(SAFETY * delta)

    def excess(log: float) -> float:
        return math.log(max(delta_of(math.exp(log)), 1e-300)) - wanted

    low, high = math.log(guess) - 0.05, math.log(guess) + 0.05
    step = 0.1
    while excess(high) <= 0:
        low, high, step = high, high + step, 2 * step
    step = 0.1
    while excess(low) > 0:
        low, high, step = low - step, low, 2 * step
    found = root(excess, low, high, xtol=1e-5, rtol=1e-12)
    while excess(found) > 0:
        found -= 1e-5
    return math.exp(found)


def _reach(profile: Profile, share: float) -> float:
    """Return a loss at which the profile is `share` at most, found by halving; _FARTHEST where it never is."""
    low, high = 0.0, _FARTHEST
    for _ in range(7):  # 32 places at a time
        places = np.linspace(low, high, 33)
        above = int(np.count_nonzero(profile(places) > share))
        if above > 32:
            return high
        low, high = float(places[max(above - 1, 0)]), float(places[above])
        if high - low < 0.02 * high:
            break
    return high


def _law(forward: Profile, backward: Profile, gap: float, reach: tuple[float, float], fine: int) -> _Law:
    """The law of the loss whose profile joins dots of the true one, `fine` of them at 0 in a row on either side."""
    up, down = (_places(math.ceil(most / gap) + 1, fine) for most in reach)
    above, below = forward(np.multiply(up, gap)), backward(np.multiply(down, gap))
    gains, drops = above[:-1] - above[1:], below[:-1] - below[1:]  # what each falls by from one place to the next
    # Over α = e^ε a line falls by drop / (α' - α) per α: what that is before a place, less what it is behind it,
    # is the mass of the other law there, and α times that is the mass of the own law.
    own = _jumps(gains, np.diff(up) * gap)
    other = _jumps(drops, np.diff(down) * gap)
    first, last = math.expm1(gap * float(up[1])), math.expm1(gap * float(down[1]))
    middle = 1 - max(above[0], below[0]) - gains[0] / first - drops[0] / last
    chances = np.concatenate([(other * np.exp(-gap * down[1:]))[::-1], [middle], own])
    places = np.concatenate([-down[:0:-1], up])
    kept = chances > 0  # rounding alone makes one negative
    return _Law(places[kept], np.log(chances[kept]), gap, float(above[-1]))


def _jumps(drops: Vector, widths: Vector) -> Vector:
    """Masses of the own law at all places but the first, from what its profile falls by before and behind them."""
    found: Vector = drops / -np.expm1(-widths)
    found[:-1] -= drops[1:] / np.expm1(widths[1:])
    return found


def _places(most: int, fine: int) -> NDArray[np.int64]:
    """0, 1, … `fine`, then ever wider by a share 1 / `fine`, up to `most`."""
    if most <= fine:
        return np.arange(most + 1)
    wide = np.rint(fine * np.exp(np.arange(1, math.ceil(fine * math.log(most / fine))) / fine)).astype(np.int64)
    found: NDArray[np.int64] = np.concatenate([np.arange(fine + 1), wide[wide < most], [most]])  # ascending
    return found.compress(np.append(True, np.diff(found) > 0))


def _saddle(law: _Law, rounds: int, epsilon: float) -> float:
    """Where T ln E e^{tilt · loss} - tilt · ε - ln(tilt (tilt + 1)) is least: the sum's tail is seen best there."""
    values = law.gap * law.places

    def slope(log: float) -> float:
        tilt = math.exp(log)
        return rounds * float(law.tilted(tilt)[1] @ values) - epsilon - 1 / tilt - 1 / (1 + tilt)

    low, high = math.log(1e-3), math.log(1e9)
    if slope(high) <= 0:
        return 1e9
    if slope(low) >= 0:
        return 1e-3
    return math.exp(root(slope, low, high, xtol=1e-3))


def _tail(law: _Law, rounds: int, epsilon: float, tilt: float) -> float | None:
    """E (1 - e^{ε - sum})_+ of `rounds` independent finite losses; None where that takes too long a transform."""
    log_scale, weights = law.tilted(tilt)
    values = law.gap * law.places
    deviation = max(math.sqrt(rounds * float(weights @ (values - float(weights @ values)) ** 2)), law.gap)

    def edge(sign: int, wrapped: float) -> float:
        """Where so much is left, by Markov's inequality for powers; by convexity all behind the first worse one are."""
        least = math.inf
        for more in np.geomspace(0.05, 20, 20)[::-1] / deviation:
            found = float((rounds * (law.tilted(tilt + sign * more)[0] - log_scale) - math.log(wrapped)) / more)
            if found > least:
                break
            least = found
        return least / law.gap

    # The largest weight of (1 - e^{-y}) e^{-tilt y}, y > 0: what one sum that is not looked at is worth at most.
    most = math.exp(-tilt * math.log1p(1 / tilt)) / (1 + tilt)
    start = math.floor(epsilon / law.gap) + 1
    for wrapped in _WRAPPED:
        bottom, top = min(-math.ceil(edge(-1, wrapped)), start), max(math.ceil(edge(1, wrapped)), start)
        length = scipy.fft.next_fast_len(max(top - bottom + 1, 16), real=True)
        if length > _MOST:
            return None
        spectrum = scipy.fft.rfft(np.bincount(law.places % length, weights=weights, minlength=length))
        spectrum[np.abs(spectrum) < math.exp(-800 / rounds)] = 0.0  # as their powers are, which take long
        sums = scipy.fft.irfft(spectrum**rounds, length)
        places = np.arange(start, top + 1)
        beyond = places * law.gap - epsilon
        seen = float(np.exp(-tilt * beyond) * -np.expm1(-beyond) @ sums.take(places, mode="wrap"))
        if wrapped * most < 1e-4 * seen:
            break
    seen = max(seen, 0.0) + wrapped * most
    return math.exp(min(rounds * log_scale - tilt * epsilon + math.log(seen), 1.0))
