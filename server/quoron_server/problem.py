"""What is publicly known about the optimisation problem before any data is touched, and what is only believed.

>>> from quoron_client.protocol.domains import L2Ball
>>> problem = Problem(users=300_000, items_per_user=50, dimension=10, domain=L2Ball(3.0), lipschitz=1.0,
...                   smoothness=0.25, user_smoothness=0.055, convex=True)
>>> problem.beta
0.055
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

from quoron_client.protocol.domains import Bounds, Domain, L2Ball
from quoron_privacy.errors import ConfigError, VerificationError, count, non_negative, positive

Curvature = Literal["unknown", "isotropic"]
MOST = 10**12  # users, items of one, or numbers of a model
_CONSTANTS = (
    "lipschitz",
    "smoothness",
    "user_smoothness",
    "start_gradient",
    "feature_norm",
    "link_curvature",
    "ridge",
    "coordinate_lipschitz",
    "coordinate_smoothness",
)
LARGEST = 1e30  # constant in its units, the smallest is 1 / LARGEST; beyond, squares and quotients leave float64


def _in_range(held: Any, names: tuple[str, ...], *, zero: tuple[str, ...] = ()) -> None:
    """Each number that is given is positive, or zero where that is meant, and within floating point; made a float."""
    for name in names:
        value = getattr(held, name)
        if value is None:
            continue
        (non_negative if name in zero else positive)(**{name: value})
        if not (value == 0 or 1 / LARGEST <= value <= LARGEST):
            raise ConfigError(f"Expected {name} in [1e-30, 1e30], got {name}={value:g}. Change the units.")
        object.__setattr__(held, name, float(value))


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What is believed of the users. It steers sizes and predictions of risk, never noise: `verify` does not see it."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    gradient_deviation: float | None = None  # σ_g: item gradient standard deviation; None means a bound on it
    heterogeneity: float = 0.0  # standard deviation of a user's expected gradient around the population's
    curvature: Curvature = "unknown"  # public knowledge of the Hessian
    distance: float | None = None  # of the optimum from the start; None means the domain's radius
    typical_curvature: float | None = None  # mean eigenvalue of the expected Hessian at the optimum, when isotropic
    least_curvature: float | None = None  # its smallest eigenvalue; None means typical_curvature
    hostile_share: float = 0.0  # declared share of users that may send anything
    sigmoid: bool = False  # whether φ' is the logistic function: then curvature falls as predictions grow
    label_bound: float | None = None  # of a regression: |y| is at most this, and so no prediction need be longer
    intercept: bool = False  # whether the last feature is the same number for every item
    groups: tuple[int, ...] = ()  # of every feature: 0, or the curve or product that it is of; empty: all are columns
    start_loss: float | None = None  # an item's loss at 0 is at most so much above the least that it can be
    label_rate: float | tuple[float, float] | None = None  # of two classes: share of positive labels, or least and most
    label_unit: float | None = None  # of squares: what one unit of a prediction is in the label's own units

    def __post_init__(self) -> None:
        curvatures = ("typical_curvature", "least_curvature")
        rate = 0.5 if self.label_rate is None else self.label_rate
        ends = rate if isinstance(rate, tuple) else (rate,)
        if not 0 < ends[0] <= ends[-1] < 1:
            raise ConfigError(f"Expected label_rate in (0, 1), the least first, got label_rate={self.label_rate}.")
        names = (
            "gradient_deviation",
            "heterogeneity",
            "distance",
            *curvatures,
            "label_bound",
            "start_loss",
            "label_unit",
        )
        _in_range(self, names, zero=("heterogeneity",))
        if not 0 <= self.hostile_share < 0.5:
            raise ConfigError(f"Expected hostile_share in [0, 0.5), got hostile_share={self.hostile_share}.")
        if self.curvature == "isotropic" and self.typical_curvature is None:
            raise ConfigError("Expected typical_curvature with curvature='isotropic', got none.")

    @property
    def label_rates(self) -> tuple[float, float] | None:
        """Of the declared label rates the one farthest from ½, and the one nearest to it."""
        if self.label_rate is None:
            return None
        low, high = self.label_rate if isinstance(self.label_rate, tuple) else (self.label_rate, self.label_rate)
        return low if low + high < 1 else high, min(max(0.5, low), high)

    @property
    def isotropic(self) -> float | None:
        """The mean eigenvalue of the Hessian where it is known to be isotropic, else None."""
        return self.typical_curvature if self.curvature == "isotropic" else None


class _Unseen:
    """Beliefs that a verifier of guarantees may not read."""

    def __getattr__(self, name: str) -> Any:
        raise VerificationError(f"Expected a check that rests on the problem alone, got one that looks at {name}.")


@dataclass(frozen=True, slots=True)
class Wide:
    """A wider domain, and the bound on every item's gradient norm there; the other constants hold in it as well."""

    domain: Domain
    lipschitz: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Public constants of min_{x in domain} E F_u(x), F_u the average loss of one user's items, each times its weight.

    Every bound holds for every conceivable item: clients enforce it by clipping features and labels.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    users: int  # n
    items_per_user: int  # m; the public nominal number, for ragged users a lower typical value
    dimension: int  # d, of the model: outputs times the number of features
    domain: Domain  # X
    lipschitz: float  # G or L: bound on every item's gradient norm
    smoothness: float | None  # β: bound on every item's Hessian; None for non-smooth losses
    convex: bool = True
    user_smoothness: float | None = None  # β_u: bound on every user's average Hessian, enforced by client scaling
    start_gradient: float | None = None  # bound on every item's gradient norm at x = 0; None means lipschitz
    feature_norm: float | None = None  # R: bound on every item's ‖a‖, for losses φ(⟨a, x_1⟩, ..., ⟨a, x_K⟩, y)
    link_curvature: float | None = None  # the largest eigenvalue of φ's Hessian, so sup φ''; None where φ' jumps
    ridge: float = 0.0  # λ of a public (λ/2)‖x‖², contained in lipschitz and smoothness
    coordinate_lipschitz: float | None = None  # G∞: bound on every coordinate of every item's gradient
    coordinate_smoothness: float | None = None  # β∞: on row sums of Hessians, all diagonally dominant; None: not sure
    wide: Wide | None = None  # for methods whose noise does not depend on the domain
    outputs: int = 1  # K: predictions of an item, such as one for each of several classes
    beliefs: Beliefs = Beliefs()

    def __post_init__(self) -> None:
        count(users=self.users, items_per_user=self.items_per_user, dimension=self.dimension, outputs=self.outputs)
        if self.dimension % self.outputs:
            raise ConfigError(
                f"Expected dimension to be a multiple of outputs={self.outputs}, got dimension={self.dimension}."
            )
        if isinstance(self.beliefs, Beliefs) and len(self.beliefs.groups) not in (0, self.features):
            raise ConfigError(f"Expected groups of {self.features} features, got {len(self.beliefs.groups)} of them.")
        for name in ("users", "items_per_user", "dimension"):
            if getattr(self, name) > MOST:
                raise ConfigError(f"Expected {name} <= {MOST:,}, got {name}={getattr(self, name):,}.")
        _in_range(self, _CONSTANTS, zero=("smoothness", "ridge", "link_curvature", "coordinate_smoothness"))
        if not 1 / LARGEST <= self.radius <= LARGEST:
            raise ConfigError(f"Expected the radius of the domain in [1e-30, 1e30], got {self.radius:g}.")

    @property
    def beta(self) -> float | None:
        """Smoothness that every user's (scaled) average loss satisfies: the smaller of β and β_u."""
        if self.smoothness is None or self.user_smoothness is None:
            return self.smoothness
        return self.smoothness if self.smoothness < self.user_smoothness else self.user_smoothness

    @property
    def coordinate_beta(self) -> float | None:
        """β∞ of every user's (scaled) average loss: of a dominant Hessian no row sum exceeds twice an eigenvalue."""
        if self.coordinate_smoothness is None or self.beta is None:
            return None
        return min(self.coordinate_smoothness, 2 * self.beta)

    @property
    def coordinate_bound(self) -> float:
        """G∞, at most G."""
        return min(self.coordinate_lipschitz or self.lipschitz, self.lipschitz)

    @property
    def deviation(self) -> float:
        """σ_g, by default a bound on item gradients as far away as the optimum is believed to be."""
        if self.beliefs.gradient_deviation is not None:
            return self.beliefs.gradient_deviation
        if self.smoothness is None:
            return self.lipschitz
        return min(self.lipschitz, self.start + self.smoothness * self.distance)

    @property
    def start(self) -> float:
        """Bound on every item's gradient norm at x = 0, by default its bound everywhere."""
        return self.lipschitz if self.start_gradient is None else self.start_gradient

    @property
    def user_deviation(self) -> float:
        """Standard deviation (root mean squared norm) of a user's average gradient around the population's."""
        return float((self.deviation**2 / self.items_per_user + self.beliefs.heterogeneity**2) ** 0.5)

    @property
    def widest_deviation(self) -> float:
        """As `user_deviation`, but as far from the optimum as the start is believed to be.

        With curvature h known in every direction, an item's gradient differs from that at the optimum by H_z (x - x*),
        whose mean square is at most β h ‖x - x*‖², as H_z² ≼ β H_z. Otherwise `user_deviation` itself.
        """
        curvature = self.beliefs.isotropic
        if curvature is None or self.smoothness is None:
            return self.user_deviation
        change = self.smoothness * curvature * self.distance**2
        return float(((self.deviation**2 + change) / self.items_per_user + self.beliefs.heterogeneity**2) ** 0.5)

    @property
    def distance(self) -> float:
        """What the optimum is believed to be away from the start, at most the radius."""
        return self.radius if self.beliefs.distance is None else min(self.beliefs.distance, self.radius)

    def settled(self, *, wide: bool) -> "Problem":
        """The same with one domain: the wide one, if there is one and the method's noise does not depend on it."""
        if not wide or self.wide is None:
            return replace(self, wide=None)
        wider = self.wide
        return replace(self, domain=wider.domain, lipschitz=wider.lipschitz, coordinate_lipschitz=None, wide=None)

    def without_beliefs(self) -> "Problem":
        """Return the problem for a verifier of guarantees: reading a belief raises VerificationError."""
        return replace(self, beliefs=cast(Beliefs, _Unseen()))

    @property
    def features(self) -> int:
        """Features of an item."""
        return self.dimension // self.outputs

    @property
    def even_curvature(self) -> float | None:
        """φ's curvature where chances are even: 1/K between any two of K classes. For predictions of risk only."""
        if self.outputs == 1 or self.link_curvature is None:
            return self.link_curvature
        return min(self.link_curvature, 1 / self.outputs)

    @property
    def bounds(self) -> Bounds:
        """What an honest answer keeps."""
        return Bounds(self.lipschitz, self.radius, self.feature_norm or 1.0)

    @property
    def radius(self) -> float:
        """Largest distance of a point of the domain from the start point 0."""
        if isinstance(self.domain, L2Ball):
            return self.domain.radius
        return self.domain.norm_bound(self.dimension)
