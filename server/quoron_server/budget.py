"""A budget in rounds, item gradients, answers and bytes, refused before it is exceeded; and how large δ may be.

>>> Budget(rounds=10).check(rounds=10, gradient_evaluations=0)
>>> Budget(rounds=10).check(rounds=11, gradient_evaluations=0)
Traceback (most recent call last):
quoron_privacy.errors.BudgetExceeded: Expected rounds <= 10 (budget.rounds), got 11. Raise the budget or run shorter.

What a run may ask of users, and what a method's own rule says of a plan under that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quoron_privacy.errors import BudgetExceeded, ConfigError, count
from quoron_server.plan import RunPlan

EVERYONE = "everyone"  # whose lifetime account is charged, and as whom users are enrolled, unless told


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper limits; None means no limit."""

    rounds: int | None = None  # adaptive interactions: exactly so many are planned for
    max_rounds: int | None = None  # and of these at most so many
    gradient_evaluations: int | None = None  # item gradients at the nominal items per user
    answers_per_user: int | None = None  # questions that one user is asked
    bytes_per_user: int | None = None  # float64 payload that one who is asked as often as anybody sends and receives

    def __post_init__(self) -> None:
        if self.rounds is not None and self.max_rounds is not None:
            raise ConfigError(
                f"Expected budget.rounds (exactly so many) or budget.max_rounds (at most), got both: "
                f"{self.rounds:,} and {self.max_rounds:,}. Leave out one."
            )
        for name in ("rounds", "max_rounds", "gradient_evaluations", "answers_per_user", "bytes_per_user"):
            if getattr(self, name) is not None:
                count(**{name: getattr(self, name)})

    def check(self, *, rounds: int, gradient_evaluations: int) -> None:
        """Raises BudgetExceeded if any of these totals is over its limit."""
        self._check({"rounds": rounds, "max_rounds": rounds, "gradient_evaluations": gradient_evaluations})

    def check_plan(self, plan: RunPlan) -> None:
        """Raises BudgetExceeded if the whole plan could exceed the budget."""
        self._check(used(plan))

    def exceeded(self, plan: RunPlan) -> dict[str, float]:
        """What the whole plan uses of each thing whose limit that is over."""
        limits = {name: getattr(self, name) for name in used(plan)}
        return {name: total for name, total in used(plan).items() if limits[name] is not None and total > limits[name]}

    def _check(self, totals: Mapping[str, float]) -> None:
        for name, total in totals.items():
            limit = getattr(self, name)
            if limit is not None and total > limit:
                raise BudgetExceeded(
                    f"Expected {name} <= {limit} (budget.{name}), got {total}. Raise the budget or run shorter."
                )


def used(plan: RunPlan) -> dict[str, float]:
    """The most that a whole plan can use, by the names of a budget."""
    cost, asked = plan.cost, plan.parameters.participations()
    return {
        "rounds": cost.rounds,
        "max_rounds": cost.rounds,
        "gradient_evaluations": cost.gradient_evaluations,
        "answers_per_user": asked,
        "bytes_per_user": -(-asked * (cost.bytes_down + cost.bytes_up) // max(1, cost.messages)),
    }


def check_delta(delta: float, users: int, *, allowed: bool, key: str = "privacy.allow_large_delta") -> None:
    """ConfigError for δ > 1/n, unless that is `allowed`: by the `key` that whoever asks has said so with."""
    if delta * users > 1 and not allowed:
        raise ConfigError(
            f"Expected delta <= 1/n = {1 / users:.3g} for n={users:,} users, got delta={delta:g}: to publish all of "
            f"one user in n would keep that promise. Lower delta, or say {key}=true."
        )


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a run may ask of users: public, and all that `auto`'s rules know beside a plan."""

    budget: Budget = field(default_factory=Budget)
    everybody: bool = False  # whether one machine holds all rows: to ask all users again then costs nobody anything
    participation: float = 1.0  # declared share of those asked who are expected to answer


class Verdict(NamedTuple):
    """What a method's own rule says of a plan."""

    taken: bool
    because: str = ""  # a clause of the sentence that `auto` tells, if there is something to be told
