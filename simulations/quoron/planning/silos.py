"""Silos of a configuration: what plans for them assume, and what is said beside one of a silo that is away."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from quoron.config import Config, TableSection
from quoron_privacy.accounts.lifetime import Charge, compose
from quoron_privacy.errors import ConfigError, Infeasible, QuoronError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.forecast import start_risk
from quoron_server.parameters import Kind
from quoron_server.plan import RunPlan
from quoron_server.silos import UNSURE, Away, Silos, largest_away

FIX = (
    "Each client counts as ONE user, whatever its table holds. If these are hospitals or other silos of many persons, "
    "start each client with `quoron client --data FILE --user COLUMN`, submit with --users as the number of persons "
    "and population.silos, serve with --set max_users_per_client=N, and each person is protected (docs/silos.md)."
)
FEW = 100  # users, below which a run that can learn nothing is likely to be one over silos


def silos_of(config: Config, users: int) -> Silos | None:
    """The silos of so many users; None where each has a client of its own. ConfigError where they do not fit.

    Of a table some of whose users are held out, each silo has its share of those who are not.
    """
    section = config.population
    if section.silos is None:
        for key in ("silo_sums", "silos_away", "silos_hostile"):
            if given := getattr(section, key):
                raise ConfigError(
                    f"Expected population.silos with population.{key}, got none and "
                    f"{key}={given if isinstance(given, bool) else list(given)}. Say how many silos there are."
                )
        return None
    said = section.silos
    of = None
    if isinstance(section, TableSection) and not isinstance(said, int):
        whole, kept = sum(said), 1 - section.test_fraction  # each is held out by a coin of its own
        of = whole if abs(users - whole * kept) <= 1 + 6 * math.sqrt(whole * kept * (1 - kept)) else None
    return Silos.declared(said, users, sums=section.silo_sums, of=of)


def warnings(plan: RunPlan, sizes: Sequence[int] | None) -> tuple[str, ...]:
    """What whoever submits is told before a run can begin and be charged; () where nothing is amiss."""
    if sizes is None:
        return () if (said := useless(plan)) is None else (said,)
    away = largest_away(plan, Silos(tuple(sizes)))
    return (f"WARNING: {_holds(away, len(sizes))}, {_spared(away)}.",) if away.too_large else ()


def remarks(plan: RunPlan, silos: Silos, without: Callable[[int], RunPlan]) -> tuple[str, ...]:
    """What the largest silo's absence costs; `without` makes the plan of fewer users, or raises as planning does."""
    away = largest_away(plan, silos)
    risk = _risk(plan, away.users - away.persons, without)
    who = _holds(away, len(silos.sizes))
    told = [f"A silo that is away is as many absent users: {who}. Without it, {_spared(away)}; {risk}."]
    promise, worth = plan.guarantee, ALGORITHMS[plan.algorithm].gaussian(plan)
    if worth is not None:
        own = Charge("", "", promise.epsilon, promise.delta, worth.mu, "zero-out", worth.variation)  # is passed twice
        twice = compose([own], promise.delta).epsilon
        told.append(
            f"A person known to two silos is two users: of this run, which is Gaussian as a whole, ε = {twice:.3g} is "
            f"then promised at the same δ, where one known to one silo is promised {promise.epsilon:g} "
            "(docs/privacy/silos.md#si6)."
        )
    return tuple(told)


def _holds(away: Away, silos: int) -> str:
    return f"silo {away.silo}, the largest of {silos:,}, holds {away.persons:,} of {away.users:,} persons"


def _spared(away: Away) -> str:
    """What the minimum cohort makes of it."""
    if away.share is None:
        return "no minimum cohort is declared, so the run goes on"
    lower = "" if away.holding is None else f"privacy.min_cohort of at most {away.holding:g}, or "
    spared = f"the minimum cohort of {away.share:g} spares {away.spare:,}"
    if away.too_large:
        return (
            f"MORE THAN THE MINIMUM COHORT CAN SPARE: {spared}, so the run ends without a model whenever that silo is "
            f"away. Declare {lower}more and smaller silos"
        )
    if away.ends is not None and away.ends > UNSURE:
        told = f"{spared}, but ends the run with a chance of up to {away.ends:.2g} while that silo is away"
        return f"{told}. Declare {lower}more and smaller silos"
    return f"{spared}, and holds"


def _risk(plan: RunPlan, users: int, without: Callable[[int], RunPlan]) -> str:
    """As of a run planned over the others: its noise is that of this run, as divisors stay."""
    before = plan.predicted_excess_risk or plan.guessed_excess_risk
    if before is None:
        return "nothing is predicted of either"
    try:
        left = without(users) if users else None
    except QuoronError:
        left = None
    after = None if left is None else left.predicted_excess_risk or left.guessed_excess_risk
    if after is None:
        return "the others are too few for this method"
    return f"the excess risk of the {users:,} others is predicted to be {after:.2g}, where that of all is {before:.2g}"


def useless(plan: RunPlan) -> str | None:
    """What to say, before anything is charged, of a run over few users that is forecast to learn nothing."""
    users, predicted = plan.problem.users, plan.predicted_excess_risk or plan.guessed_excess_risk
    start = start_risk(plan.problem)
    if plan.guarantee.rests_on(Kind.PERSONS_OF_SILOS) or users >= FEW or (predicted is not None and predicted < start):
        return None
    forecast = "nothing is predicted" if predicted is None else f"an excess risk of {predicted:.2g} is predicted"
    fix = "" if Silos((2,)).refused(plan) else f" {FIX}"
    return (
        f"WARNING: {users:,} users, of whom nothing can be learnt: {forecast}, where not training leaves at most "
        f"{start:.2g}.{fix}"
    )


@contextmanager
def few(config: Config, users: int, say: Callable[[str], None]) -> Iterator[None]:
    """Of few users that no method can learn of, the error with what may be meant, where silos are not refused."""
    try:
        yield
    except Infeasible:
        if users < FEW and config.privacy.trust_model != "two-servers":
            say(FIX)
        raise
