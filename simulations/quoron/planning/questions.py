"""A question to a plan: how many users, or which ε, would do for a risk?

It is planning: each answer is a plan of its own, everything in it at its best, and no data is touched. A
forecast holds no better for being asked backwards.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from quoron.config import Config
from quoron.planning.plans import Candidate, choose
from quoron.results import Printed
from quoron_privacy.errors import ConfigError, QuoronError
from quoron_server.algorithms.info import start_risk
from quoron_server.algorithms.search import two_digits
from quoron_server.plan import LEAST_EPSILON, MOST_EPSILON, RunPlan
from quoron_server.problem import Problem

MOST_USERS = 10**10
EPSILONS = (LEAST_EPSILON, MOST_EPSILON)  # that are looked at
STRIDE = 4.0  # factor from one place to the next, until the answer lies between two
CLOSE = 1.04  # bisection ends when the ends are this factor apart


@dataclass(frozen=True, slots=True, repr=False)
class Enough(Printed):
    """What would do for a risk: with everything else as it is, so many users, or such an ε."""

    risk: float  # predicted excess risk that is asked for
    share: float  # of the bound on the start's excess risk
    users: int | None  # the fewest, to two digits; None if no number up to MOST_USERS does
    users_algorithm: str | None
    epsilon: float | None  # the least, to two digits; None if none up to 15 does
    epsilon_algorithm: str | None
    users_guessed: bool = False  # whether no bound stands behind the answer, but a guess that nobody has measured
    epsilon_guessed: bool = False

    @property
    def title(self) -> str:
        """Return what it is."""
        return "Required sample size"

    def rows(self) -> list[tuple[str, str]]:
        """Return the label and text of each line: the risk, and the users and the ε that would do for it."""
        users, epsilon = f"no number up to {MOST_USERS:,} would do with this ε", f"none up to {EPSILONS[1]:,g} would do"
        if self.users is not None:
            users = f"{self.users:,} users would do{_by(self.users_algorithm, self.users_guessed)}"
        if self.epsilon is not None:
            epsilon = f"{self.epsilon:g} would do with these users{_by(self.epsilon_algorithm, self.epsilon_guessed)}"
        risk = f"at most {self.risk:.2g} ({100 * self.share:.2g} % of the bound on the start's)"
        return [("excess risk", risk), ("users", users), ("ε", epsilon)]

    def as_json(self) -> dict[str, Any]:
        """Return the fields as `enough`."""
        return {"enough": asdict(self)}


def _by(algorithm: str | None, guessed: bool) -> str:
    return f" ({algorithm}, by a guess that nobody has measured)" if guessed else f" ({algorithm})"


def enough(config: Config, problem: Problem, risk: float) -> Enough:
    """The fewest users, and the least ε, for which a plan predicts at most `risk`, or guesses so where it has no bound.

    ConfigError unless risk > 0, and where nothing is predicted for the method.
    """
    if not (math.isfinite(risk) and risk > 0):
        raise ConfigError(f"Expected a risk > 0, got {risk}.")

    def candidate(other: Config, more: Problem) -> Candidate:
        try:
            return Candidate("", choose(other, more, alternatives=False).plan)
        except QuoronError as error:
            return Candidate("", None, error)

    def good(found: Candidate) -> RunPlan | None:
        return found.plan if found.risk is not None and found.risk <= risk else None

    here = (first := candidate(config, problem)).plan
    if here is not None and first.risk is None:
        raise ConfigError(
            f"Expected a method whose risk is predicted, got {here.algorithm}, for which nothing is with this loss. "
            "Take another loss, or name another algorithm."
        )

    def at_users(users: float) -> RunPlan | None:
        return good(candidate(config, replace(problem, users=round(users))))

    def at_epsilon(epsilon: float) -> RunPlan | None:
        return good(candidate(config.but(privacy={"epsilon": epsilon}), problem))

    users, of_users = least(at_users, problem.users, 2, MOST_USERS) or (None, None)
    epsilon, of_epsilon = least(at_epsilon, config.privacy.epsilon, *EPSILONS) or (None, None)
    return Enough(
        risk,
        risk / start_risk(problem),
        None if users is None else round(users),
        None if of_users is None else of_users.algorithm,
        epsilon,
        None if of_epsilon is None else of_epsilon.algorithm,
        users_guessed=of_users is not None and of_users.predicted_excess_risk is None,
        epsilon_guessed=of_epsilon is not None and of_epsilon.predicted_excess_risk is None,
    )


def least(
    found: Callable[[float], RunPlan | None], start: float, lowest: float, highest: float
) -> tuple[float, RunPlan] | None:
    """Return the least number at which `found` finds a plan, and that plan; None if there is none up to `highest`.

    To within 4 %, and rounded up to two digits. Searched by large strides from `start`, and then by bisection: where
    plans come and go, it is one of the places where they come.
    """
    good, plan, bad = start, found(start), start
    if plan is None:
        while plan is None:
            bad, good = good, min(good * STRIDE, highest)
            if bad >= highest:
                return None
            plan = found(good)
    else:
        while (at := found(bad := max(good / STRIDE, lowest))) is not None:
            good, plan = bad, at
            if good <= lowest:
                return good, plan
    while good / bad > CLOSE:
        middle = math.sqrt(good * bad)
        at = found(middle)
        if at is None:
            bad = middle
        else:
            good, plan = middle, at
    rounded = min(two_digits(good), highest)
    return (rounded, at) if (at := found(rounded)) is not None else (good, plan)


def wanted_risk(text: str, problem: Problem) -> float:
    """A risk in the units of the loss, or as a share of the bound on the start's, such as `5%`; else ConfigError."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"Expected a risk such as 1e-4, or a share of the start's such as 5%, got {text!r}.")
    return value * start_risk(problem) / 100 if text.strip().endswith("%") else value
