"""Rows of the papers' tables that nobody can run, listed with the reason: outside the registry, and never planned.

    >>> count = subsets(100_000, deletions(1.0, 1e-6))
    >>> round(count, 1)  # decimal digits
    62.9

Ghazi et al. (2023) look for a stable set of users: a subset of which, after up to κ deletions, the empirical minimiser
moves little under all further deletions of order κ; it is then released with noise. For general convex losses we know
of no way to find one but to minimise over every subset, and a count says what that is. It is a count for *this search*,
not a proof that there is no other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quoron_privacy.errors import Infeasible
from quoron_server.algorithms import references
from quoron_server.algorithms.references import Source
from quoron_server.plan import Privacy, TrustModel
from quoron_server.problem import Problem


@dataclass(frozen=True, slots=True)
class Refused:
    """One line of `quoron show algorithms` that has no plan."""

    name: str
    summary: str
    source: Source
    trust_model: TrustModel
    theorem: str  # the page that says why

    @property
    def paper(self) -> str:
        """The paper that describes it."""
        return str(self.source)

    def refuse(self, problem: Problem, privacy: Privacy) -> Infeasible:
        """Why there is no plan here, with the count."""
        kappa = deletions(privacy.epsilon, privacy.delta)
        digits = subsets(problem.users, kappa)
        return Infeasible(
            self.name,
            f"its search for a stable set minimises over all subsets, {kappa} deleted of n={problem.users:,} users, "
            f"10^{digits:.1f} of them",
            "a shortcut for general convex losses; we know of none",
        )


def deletions(epsilon: float, delta: float) -> int:
    """κ = 1 + ⌈ln(1/δ)/ε⌉: how far from stable a noisy test must be able to tell sets, with chance 1 - δ."""
    return 1 + math.ceil(math.log(1 / delta) / epsilon)


def subsets(users: int, deleted: int) -> float:
    """log10 of the number of ways to delete `deleted` of `users`; 0 where there are not as many."""
    if deleted >= users:
        return 0.0
    ways = math.lgamma(users + 1) - math.lgamma(deleted + 1) - math.lgamma(users - deleted + 1)
    return ways / math.log(10)


GHAZI_2023 = Refused(
    name="ghazi-2023",
    summary="Search for a stable set of users, then output perturbation; refused: its search is super-polynomial",
    source=references.GHAZI_2023.at(),
    trust_model="central-release",
    theorem="docs/tables-row-by-row.md",
)
REFUSED: Mapping[str, Refused] = MappingProxyType({each.name: each for each in (GHAZI_2023,)})
