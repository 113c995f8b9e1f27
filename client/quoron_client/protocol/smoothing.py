"""Smooth stand-ins for losses whose slope jumps, and the two constants of each that a plan needs.

    >>> stand_in = Moreau(0.5)
    >>> stand_in.smoothness(lipschitz=1.0, dimension=10), stand_in.bias(lipschitz=1.0, dimension=10)
    (2.0, 0.25)

Both act on each item's loss φ(⟨a, x⟩, y), before averages: a user's average stays as concentrated as it was. A ridge
term is smooth already and is left alone. `lipschitz` is L, a bound on ‖a‖ · |φ'|, below.

| stand-in    | value against the loss f        | smoothness without ridge | holds where                           |
| ----------- | ------------------------------- | ------------------------ | ------------------------------------- |
| Convolution | f ≤ f_r ≤ f + 2 c_d L r/(d + 1) | 2 c_d L / r              | L bounds the slopes on the domain + rB |
| Moreau      | f - λ L²/2 ≤ f_λ ≤ f            | 1 / λ                    | L bounds the slopes on the domain     |

c_d is the volume of the unit ball in d - 1 dimensions over that in d, below √((d + 1)/2π). Gradients of either are no
longer than L. For general losses, 2 c_d/(d + 1) is to be replaced by d/(d + 1): linear predictors see one coordinate of
the shift only.
"""

from dataclasses import dataclass
from math import exp, lgamma, log, pi
from typing import ClassVar

from quoron_privacy.errors import ConfigError, positive


@dataclass(frozen=True, slots=True)
class Convolution:
    """f_r(x) = E f(x + r u), u uniform in the unit ball; each item's gradient is taken at one such point of its own.

    An item gradient is unbiased for that of f_r and no longer than L, but as a function of x it jumps like that of f:
    the smoothness is that of the expectation. Proofs that use every user's own smoothness, such as the contraction of
    local SGD, need `Moreau`.

    The points come from `seed`, the round and the user: the same for the same simulation. No guarantee rests on them.

    Source: Lowy, Liu & Asi (2024), section 4; Duchi, Bartlett & Wainwright (2012), lemma 8, with √d for 2 c_d.
    Smoothness: ∇f averages over a ball, and two unit balls whose centres are t apart share all but c_d t of their
    volume on either side. Bias: Jensen, and E|u_1| = 2 c_d/(d + 1).
    """

    radius: float  # r, in units of the model
    seed: int = 0  # not in a question: whoever answers it draws its own

    def __post_init__(self) -> None:
        positive(radius=self.radius)
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"Expected seed in [0, 2^64), got seed={self.seed}.")

    @property
    def reach(self) -> float:
        """How far outside the domain the loss is evaluated: its constants must hold there."""
        return self.radius

    def smoothness(self, *, lipschitz: float, dimension: int) -> float:
        """Return the bound on the Hessian of every item's f_r, without ridge."""
        return 2.0 * ball_ratio(dimension) * lipschitz / self.radius

    def bias(self, *, lipschitz: float, dimension: int) -> float:
        """Return the bound on f_r - f, which is never negative."""
        return 2.0 * ball_ratio(dimension) / (dimension + 1) * lipschitz * self.radius


@dataclass(frozen=True, slots=True)
class Moreau:
    """The Moreau envelope f_λ(x) = min_v f(v) + ‖v - x‖²/2λ of each item's loss.

    With q = ⟨a, x⟩ the minimiser moves along a alone, to the prediction p* = argmin_p φ(p, y) + (p - q)²/2λ‖a‖². The
    gradient is (q - p*)/λ‖a‖² · a: a subgradient of φ at p*, times a. Its length is at most that of every subgradient
    at x, so constants of the loss on the domain hold for it.

    Source: Moreau (1965); Bassily & Sun (2023), section 5, whose parameter β is 1/λ. f - f_λ ≤ λ L²/2 because
    f(v) ≥ f(x) - L ‖v - x‖.
    """

    parameter: float  # λ, in units of model² per loss
    reach: ClassVar[float] = 0.0  # constants of the loss on the domain suffice

    def __post_init__(self) -> None:
        positive(parameter=self.parameter)

    def smoothness(self, *, lipschitz: float, dimension: int) -> float:
        """Return the bound on the Hessian of every item's f_λ, without ridge."""
        del lipschitz, dimension
        return 1.0 / self.parameter

    def bias(self, *, lipschitz: float, dimension: int) -> float:
        """Return the bound on f - f_λ, which is never negative."""
        del dimension
        return 0.5 * self.parameter * lipschitz**2


Smoothing = Convolution | Moreau


def moreau(parameter: float) -> Moreau | None:
    """Return the envelope with λ = `parameter`; None for 0, which is no smoothing."""
    return Moreau(parameter) if parameter else None


def ball_ratio(dimension: int) -> float:
    """c_d: volume of the unit ball in d - 1 dimensions over that in d; the density of u_1 at zero."""
    return exp(lgamma(dimension / 2 + 1) - lgamma(dimension / 2 + 0.5) - 0.5 * log(pi))
