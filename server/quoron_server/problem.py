"""What is publicly known about the optimisation problem before any data is touched.

>>> from quoron_client.domains import L2Ball
>>> problem = Problem(users=300_000, items_per_user=50, dimension=10, domain=L2Ball(3.0), lipschitz=1.0,
...                   smoothness=0.25, user_smoothness=0.055, convex=True)
>>> problem.beta
0.055
"""

from dataclasses import dataclass
from typing import Literal

from quoron_client.domains import Domain, L2Ball
from quoron_protos.errors import ConfigError
from quoron_server._validate import count, non_negative, positive

Curvature = Literal["unknown", "isotropic"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Public constants of min_{x in domain} E F_u(x), F_u the average loss of one user's items.

    Every bound holds for every conceivable item: clients enforce it by clipping features and labels.
    """

    users: int  # n
    items_per_user: int  # m; the public nominal number, for ragged users a lower typical value
    dimension: int  # d
    domain: Domain  # X
    lipschitz: float  # G or L: bound on every item's gradient norm
    smoothness: float | None  # β: bound on every item's Hessian; None for non-smooth losses
    convex: bool = True
    user_smoothness: float | None = None  # β_u: bound on every user's average Hessian, enforced by client scaling
    gradient_deviation: float | None = None  # σ_g: item gradient standard deviation; None means lipschitz
    heterogeneity: float = 0.0  # standard deviation of a user's expected gradient around the population's
    start_gradient: float | None = None  # bound on every item's gradient norm at x = 0; None means lipschitz
    curvature: Curvature = "unknown"  # public knowledge of the Hessian, used to predict risk, never for privacy
    typical_curvature: float | None = None  # mean eigenvalue of the expected Hessian at the optimum, when isotropic
    least_curvature: float | None = None  # its smallest eigenvalue; None means typical_curvature
    feature_norm: float | None = None  # R: bound on every item's ‖a‖, for losses φ(⟨a, x⟩, y)
    link_curvature: float | None = None  # sup φ''; None where φ' jumps
    ridge: float = 0.0  # λ of a public (λ/2)‖x‖², contained in lipschitz and smoothness
    hostile_share: float = 0.0  # declared share of users that may send anything

    def __post_init__(self) -> None:
        count(users=self.users, items_per_user=self.items_per_user, dimension=self.dimension)
        positive(lipschitz=self.lipschitz)
        if self.smoothness is not None:
            non_negative(smoothness=self.smoothness)
        non_negative(heterogeneity=self.heterogeneity, ridge=self.ridge, link_curvature=self.link_curvature or 0.0)
        if not 0 <= self.hostile_share < 0.5:
            raise ConfigError(f"Expected hostile_share in [0, 0.5), got hostile_share={self.hostile_share:g}.")
        for name in (
            "user_smoothness",
            "gradient_deviation",
            "start_gradient",
            "typical_curvature",
            "least_curvature",
            "feature_norm",
        ):
            if getattr(self, name) is not None:
                positive(**{name: getattr(self, name)})
        for name, value in (("lipschitz", self.lipschitz), ("radius of the domain", self.radius)):
            if not 1e-30 <= value <= 1e30:
                raise ConfigError(f"Expected {name} in [1e-30, 1e30], got {value:g}. Change the units.")
        if self.curvature == "isotropic" and self.typical_curvature is None:
            raise ConfigError("Expected typical_curvature with curvature='isotropic', got none.")

    @property
    def beta(self) -> float | None:
        """Smoothness that every user's (scaled) average loss satisfies: the smaller of β and β_u."""
        if self.smoothness is None or self.user_smoothness is None:
            return self.smoothness
        return min(self.smoothness, self.user_smoothness)

    @property
    def deviation(self) -> float:
        """σ_g, by default its bound G."""
        return self.lipschitz if self.gradient_deviation is None else self.gradient_deviation

    @property
    def user_deviation(self) -> float:
        """Standard deviation (root mean squared norm) of a user's average gradient around the population's."""
        return float((self.deviation**2 / self.items_per_user + self.heterogeneity**2) ** 0.5)

    @property
    def radius(self) -> float:
        """Largest distance of a point of the domain from the start point 0."""
        if isinstance(self.domain, L2Ball):
            return self.domain.radius
        return self.domain.norm_bound(self.dimension)
