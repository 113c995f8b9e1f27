"""A user's lifetime: what several runs over the same users promise together, and a limit that they never exceed.

    >>> runs = [Charge("spring", "everyone", 0.5, 1e-6), Charge("summer", "everyone", 0.5, 1e-6)]
    >>> compose(runs).words()
    'ε = 1, δ = 2e-06'
    >>> Limit("everyone", 1.2, 1e-5).has_room(runs, Charge("autumn", "everyone", 0.5, 1e-6))
    False

A run counts in full from its first question on, whether it completes or not: what an aborted run has shown is at most
what the whole run would have shown.

Statement, proof and symbols: docs/privacy/lifetime.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Required, TypedDict

from quoron_privacy.accounts.gdp import compose as compose_gdp
from quoron_privacy.accounts.gdp import epsilon_for, mu_for
from quoron_privacy.errors import ConfigError, non_negative, positive, probability

SAMPLERS = 1e-6  # of the Gaussian share's δ: what the samplers of its runs may add (lifetime#lt2)
LOST = 2.0**-5  # of the Gaussian share's δ: what its runs are but for which they are Gaussian (lifetime#lt2)
_MOST_STEPS = 200  # of a search that converges as fast as the samplers' part of δ is small


class Promise(TypedDict, total=False):
    """Keywords of what a `Charge` promises to every user."""

    epsilon: Required[float]
    delta: Required[float]
    mu: float | None
    adjacency: str
    variation: float
    near: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Charge:
    """One run's promise to a group of users, as it was given."""

    run: str
    group: str
    epsilon: float
    delta: float
    mu: float | None = None  # everything that the run releases is μ-GDP up to `variation`
    adjacency: str = "replace-one"
    variation: float = 0.0  # s, total variation from the run whose noise is exact where one user needs it; 0 without μ
    near: tuple[tuple[float, float], ...] = ()  # (μ, t), t falling: μ-GDP but for t, up to s, for *replacing* a user

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        non_negative(delta=self.delta)
        if self.delta >= 1:
            raise ConfigError(f"Expected delta in [0, 1), got delta={self.delta}.")
        if self.mu is not None:
            positive(mu=self.mu)
        object.__setattr__(self, "near", tuple((mu, lost) for mu, lost in self.near))  # of JSON they are lists
        if self.near and self.mu is not None:
            raise ConfigError(f"Expected mu or near, got mu={self.mu} and near={self.near}.")
        for mu, lost in self.near:
            positive(mu=mu)
            if not 0 < lost < 0.5:
                raise ConfigError(f"Expected every t of near in (0, 0.5), got {lost}.")
        non_negative(variation=self.variation)
        if self.variation >= 1 or (self.mu is None and not self.near and self.variation):
            raise ConfigError(f"Expected variation in [0, 1), and 0 without mu, got variation={self.variation}.")
        if self.adjacency not in ("replace-one", "zero-out"):
            raise ConfigError(
                f"Expected adjacency replace-one or zero-out, got {self.adjacency!r}: nothing is guaranteed."
            )

    @property
    def promise(self) -> tuple[object, ...]:
        """All but the name."""
        return self.group, self.epsilon, self.delta, self.mu, self.adjacency, self.variation, self.near

    @cached_property
    def replace_one(self) -> tuple[Fraction, Fraction, float | None]:
        """(ε, δ, μ) for replacing one user; zero-out is passed twice (lifetime#lt4). Decimal numbers are meant exactly.

        `variation` is the same for both.
        """
        epsilon, delta = _exact(self.epsilon), _exact(self.delta)
        if self.adjacency == "replace-one":
            return epsilon, delta, self.mu
        factor = 1 + Fraction(math.exp(self.epsilon) * (1 + 1e-12))
        return 2 * epsilon, factor * delta, None if self.mu is None else 2 * self.mu

    @property
    def gaussian(self) -> tuple[tuple[float, float], ...]:
        """(μ, t) for replacing one user, t falling: with each it is a Gaussian run but for t; none where there is none.

        The run's theorem proves all of them at once, so an accountant may take any (lifetime#lt2).
        """
        mu = self.replace_one[2]
        return self.near if mu is None else ((mu, 0.0),)

    def words(self) -> str:
        """Return the promise for people."""
        far = f" up to {self.variation:.2g} in total variation" if self.variation else ""
        gaussian = "" if self.mu is None else f", μ = {self.mu:g}{far}"
        text = f"ε = {self.epsilon:g}, δ = {self.delta:g}{gaussian} ({self.adjacency})"
        if not self.near:
            return text
        (mu, lost), (most, least) = self.near[0], self.near[-1]
        between = f"μ = {mu:g} but for t = {lost:.2g}" + (f", to {most:g} but for {least:.2g}" if most > mu else "")
        return f"{text}; {between}{far} (replace-one)"


def gaussian(mu: float | None, lost: float) -> dict[str, Any]:
    """The numbers of a `Charge` of a run that is `mu`-GDP, or with `lost` > 0 but for that, as another tool says it."""
    if lost and mu is None:
        raise ConfigError(f"Expected mu with lost, got lost={lost} alone.")
    if lost and not 0 < lost < 0.5:
        raise ConfigError(f"Expected lost in [0, 0.5), got lost={lost}.")
    return {"mu": mu, "near": ()} if mu is None or not lost else {"mu": None, "near": ((mu, lost),)}


@dataclass(frozen=True, slots=True)
class Spent:
    """What all charges of a group promise together, for replacing one user."""

    epsilon: float
    delta: float
    runs: int
    mu: float  # of all Gaussian runs together; 0 without
    variation: float  # Σ s of these
    lost: float = 0.0  # Σ t of these

    def words(self) -> str:
        """Return the sum for people."""
        return f"ε = {self.epsilon:g}, δ = {self.delta:g}"


def compose(charges: Sequence[Charge], delta: float | None = None) -> Spent:
    """Return (ε, δ) of all `charges` together, rounded up, by the smaller of two bounds (lifetime#lt3).

    At δ = Σ δ, or at the given `delta`, one bound is Σ ε. The other is Σ ε of the runs without μ plus the ε of √(Σ μ²)
    at what is left of δ, the Σ t of the others and their samplers' total variation paid. The result's `epsilon` is inf
    if `delta` is too small for the runs. Exact when the guarantees did not depend on releases; if later guarantees were
    chosen in view of earlier releases, it is the limit that holds (lifetime#lt1 and lifetime#lt2).
    """
    promises = [charge.replace_one for charge in charges]
    whole = sum((promise[1] for promise in promises), Fraction(0))
    asked = whole if delta is None else _exact(delta)
    variation = _up(sum((_exact(charge.variation) for charge in charges), Fraction(0)))
    plain = [promise for promise, charge in zip(promises, charges, strict=True) if not charge.gaussian]
    counted = [charge.gaussian for charge in charges if charge.gaussian]
    basic = _up(sum((promise[0] for promise in promises), Fraction(0))) if whole <= asked else math.inf
    found = []
    for which in range(max(map(len, counted), default=1)):  # of every run the same t, in units of its δ
        chosen = [points[min(which, len(points) - 1)] for points in counted]
        mu, lost = compose_gdp(*(mu for mu, _ in chosen)), sum((_exact(lost) for _, lost in chosen), Fraction(0))
        left = asked - lost - sum((promise[1] for promise in plain), Fraction(0))
        own = _gaussian_epsilon(mu, variation, left) if chosen else math.inf
        mixed = _up(sum((promise[0] for promise in plain), Fraction(own))) if own < math.inf else math.inf
        found.append((mixed, mu, _up(lost)))
    mixed, mu, lost_ = min(found)
    return Spent(min(basic, mixed), _up(asked), len(promises), mu, variation, lost_)


@dataclass(frozen=True)
class Limit:
    """The most that a group's users may ever lose: (ε, δ) in two accounts that are fixed beforehand (lifetime#lt2).

    `gaussian_share` of ε and of δ is kept for runs that promise μ-GDP, or μ-GDP but for t as those on secret samples
    do: these add up as √(Σ μ²), t and samplers' variations as sums. The rest is for all others, and for Gaussian
    runs that no longer fit, which add up as Σ ε and Σ δ.
    """

    group: str
    epsilon: float
    delta: float
    gaussian_share: float = 0.0

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        probability(delta=self.delta)
        if not 0 <= self.gaussian_share <= 1:
            raise ConfigError(f"Expected gaussian_share in [0, 1], got gaussian_share={self.gaussian_share}.")

    def has_room(self, charges: Sequence[Charge], wanted: Charge) -> bool:
        """Return whether `wanted` fits behind `charges`, each in the first account with room for it."""
        return self.account(charges).after(wanted).holds

    def account(self, charges: Sequence[Charge] = ()) -> "Account":
        """Return the account of `charges`, in their order."""
        counted = Account(self)
        for charge in charges:
            counted = counted.after(charge)
        return counted

    @cached_property
    def mu(self) -> float:
        """The Gaussian account: the most that √(Σ μ²) may reach."""
        share = self.gaussian_share
        return mu_for(share * self.epsilon, share * self.delta * (1 - SAMPLERS - LOST)) if share else 0.0

    @cached_property
    def variation(self) -> float:
        """The most that the total variations of the Gaussian account's runs may add up to, rounded down."""
        epsilon, delta = self.gaussian_share * self.epsilon, self.gaussian_share * self.delta
        return SAMPLERS * delta / (1 + math.exp(epsilon)) * (1 - 1e-12) if epsilon < 700 else 0.0

    @cached_property
    def lost(self) -> Fraction:
        """The most that the t of the Gaussian account's runs may add up to."""
        return _exact(LOST) * _exact(self.gaussian_share) * _exact(self.delta)

    def words(self) -> str:
        """Return the limit for people."""
        share = f", {self.gaussian_share:.0%} of it for Gaussian runs" if self.gaussian_share else ""
        return f"ε = {self.epsilon:g}, δ = {self.delta:g}{share}"


@dataclass(frozen=True, slots=True)
class Account:
    """What a limit counts of the charges so far, and what it leaves: two accounts (lifetime#lt2), for replacing one.

        >>> counted = Limit("everyone", 9.0, 1e-5).account([Charge("spring", "everyone", 5.36, 1e-6)])
        >>> counted.largest_epsilon(1e-6)
        3.64
        >>> counted.after(Charge("summer", "everyone", 3.65, 1e-6)).holds
        False

    This is what decides. What `compose` proves of the same charges is often less, and no run is admitted by it: an
    account chosen after seeing releases proves nothing (docs/privacy/lifetime.md).
    """

    limit: Limit
    epsilon: Fraction = Fraction(0)  # counted in the plain account: Σ ε
    delta: Fraction = Fraction(0)  # Σ δ there
    square: Fraction = Fraction(0)  # counted in the Gaussian account: Σ μ²
    variation: Fraction = Fraction(0)  # Σ of the samplers' total variations there
    lost: Fraction = Fraction(0)  # Σ t there
    runs: int = 0

    def after(self, charge: Charge) -> "Account":
        """With one charge more, in the first account that has room for it."""
        variation = self.variation + _exact(charge.variation)
        room = Fraction(self.limit.mu) ** 2 - self.square, self.limit.lost - self.lost
        wanted = [(Fraction(mu) ** 2, _exact(lost)) for mu, lost in charge.gaussian]
        fitting = [point for point in wanted if point[0] <= room[0] and point[1] <= room[1]]
        if fitting and variation <= Fraction(self.limit.variation):
            # The one of which most fit: whichever is scarce, the squares or the t, decides.
            square, lost = min(fitting, key=lambda point: (max(point[0] * room[1], point[1] * room[0]), point))
            square, lost = self.square + square, self.lost + lost
            return replace(self, square=square, lost=lost, variation=variation, runs=self.runs + 1)
        epsilon, delta, _ = charge.replace_one
        return replace(self, epsilon=self.epsilon + epsilon, delta=self.delta + delta, runs=self.runs + 1)

    @property
    def holds(self) -> bool:
        """Whether the limit covers what is counted. False where it was set below that: then nothing fits any more."""
        return min(self._epsilon_left, self._delta_left) >= 0

    def largest_epsilon(self, delta: float, adjacency: str = "replace-one") -> float:
        """Return the largest ε, rounded down, of a run without μ that still fits with this δ; 0 where none does."""
        if not self.holds or _exact(delta) > self._delta_left:
            return 0.0
        if adjacency == "replace-one":
            return _down(self._epsilon_left)
        epsilon = float(self._epsilon_left) / 2
        if delta > 0 and (room := float(self._delta_left / _exact(delta))) < 1 + math.exp(min(epsilon, 700.0)):
            epsilon = math.log(room - 1) if room > 2 else 0.0
        step = 1e-15
        while epsilon > 0 and not self.after(Charge("", "", epsilon, delta, adjacency=adjacency)).holds:
            epsilon, step = epsilon * (1 - step), 2 * step
        return epsilon if step < 1e-6 else 0.0

    @property
    def largest_delta(self) -> float:
        """The largest δ, rounded down, of a run without μ that still fits; 0 where none does."""
        return _down(self._delta_left) if self.holds else 0.0

    def largest_mu(self, variation: float, adjacency: str = "replace-one") -> float:
        """Return the largest μ, rounded down, of a run that the Gaussian account still takes; 0 where it takes none."""
        left = Fraction(self.limit.mu) ** 2 - self.square
        if not self.holds or left <= 0 or self.variation + _exact(variation) > Fraction(self.limit.variation):
            return 0.0
        mu = math.sqrt(float(left))
        while Fraction(mu) ** 2 > left:
            mu = math.nextafter(mu, 0.0)
        return mu / (1 if adjacency == "replace-one" else 2)

    @property
    def largest_lost(self) -> float:
        """The largest t, rounded down, of a run that is Gaussian but for it and still fits the Gaussian account."""
        return _down(self.limit.lost - self.lost) if self.holds else 0.0

    def words(self) -> str:
        """Return what is counted, of what, for people."""
        plain = f"ε = {_short(_up(self.epsilon))} of {_short(float(self._plain * _exact(self.limit.epsilon)))}"
        text = f"{plain}, δ = {_short(_up(self.delta))} of {_short(float(self._plain * _exact(self.limit.delta)))}"
        if self.limit.gaussian_share:
            text += f"; μ = {_short(math.sqrt(self.square))} of {_short(self.limit.mu)} for Gaussian runs"
            text += f", t = {_short(_up(self.lost))} of {_short(float(self.limit.lost))}" if self.lost else ""
        return text

    def left_words(self) -> str:
        """Return what still fits, for people: numbers rounded down, so that they fit as written."""
        if not self.holds:
            return "nothing"
        text = f"ε = {below(float(self._epsilon_left))}, δ = {below(float(self._delta_left))}"
        if self.limit.gaussian_share:
            text += f"; or μ = {below(self.largest_mu(0.0))} of a Gaussian run, but for t = {below(self.largest_lost)}"
        return text

    def fitting(self, wanted: Charge) -> str:
        """Return what of the kind of a charge still fits, in a sentence, with numbers that fit as they are written."""
        epsilon = self.largest_epsilon(wanted.delta, wanted.adjacency)
        if epsilon <= 0:
            text = f"Nothing fits with δ = {wanted.delta:g}"
        else:
            text = f"What fits with δ = {wanted.delta:g} is ε = {below(epsilon)} at most"
        if self.limit.gaussian_share:
            adjacency = "replace-one" if wanted.near else wanted.adjacency
            text += f", or μ = {below(self.largest_mu(wanted.variation, adjacency))} of a Gaussian run"
            text += f", but for t = {below(self.largest_lost)}" if wanted.near else ""
        elif wanted.gaussian:
            text += ". A limit with a --gaussian-share would count this run by its μ"
        return text + "."

    @property
    def _plain(self) -> Fraction:
        return 1 - _exact(self.limit.gaussian_share)

    @property
    def _epsilon_left(self) -> Fraction:
        return self._plain * _exact(self.limit.epsilon) - self.epsilon

    @property
    def _delta_left(self) -> Fraction:
        return self._plain * _exact(self.limit.delta) - self.delta


def _gaussian_epsilon(mu: float, variation: float, most: Fraction) -> float:
    """An ε with δ_μ(ε) + (1 + e^ε) variation < most, the smallest up to a relative 1e-9; inf where none is found.

    From below: whatever is too small for the last ε's price of the samplers is too small.
    """
    if most <= 0:
        return math.inf
    delta = min(math.nextafter(float(most), 0.0), math.nextafter(1.0, 0.0))
    if not variation:
        return epsilon_for(mu, delta)
    epsilon = 0.0
    for _ in range(_MOST_STEPS):
        left = delta - (1 + math.exp(epsilon)) * variation * (1 + 1e-12) if epsilon < 700 else 0.0
        if left <= delta * 1e-9:
            return math.inf
        needed = epsilon_for(mu, math.nextafter(left, 0.0))
        if needed <= epsilon:
            return epsilon
        epsilon = needed * (1 + 1e-9)
    return math.inf


def _exact(value: float) -> Fraction:
    """Return the decimal number as it is written: ten times 0.1 is 1."""
    return Fraction(Decimal(repr(float(value))))


def _up(value: Fraction) -> float:
    near = float(value)
    return near if _exact(near) >= value else math.nextafter(near, math.inf)


def _down(value: Fraction) -> float:
    near = float(value)
    return near if _exact(near) <= value else math.nextafter(near, -math.inf)


def below(value: float) -> str:
    """Return a number for people, of six digits, rounded down."""
    return f"{float(Context(prec=6, rounding=ROUND_FLOOR).create_decimal(repr(value))):g}"


def _short(value: float) -> str:
    return f"{value:.6g}"
