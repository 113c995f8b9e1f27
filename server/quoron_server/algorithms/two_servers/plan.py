"""Plans of two servers: an ordinary plan made at μ/√2, whose noise is half of one server's and half of the other's.

So every number that a plan holds or predicts knows of both noises, and nothing but the length of users' rows is added:
in steps of 2⁻³⁰ deviations of *one* server's noise. What one server, or whoever holds its key, learns is counted again
from these whole numbers alone. Statement and proof: docs/privacy/two-servers.md.
"""

import math
from dataclasses import dataclass, fields, replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.counts import quorum as quorums
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.streams import GRID_BITS, total_variation
from quoron_privacy.prefix import played
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_privacy.two_servers.sheet import SUMS, Block, RoundSheet, Sheet
from quoron_server.algorithms import checks
from quoron_server.parameters import Kind, Served
from quoron_server.plan import LEAST_EPSILON, Plan, Privacy
from quoron_server.problem import Problem

if TYPE_CHECKING:
    from quoron_server.algorithms.registered import Registered

STEPS = 2.0**GRID_BITS  # in one deviation of one server's noise
TRIES = 4  # of a plan, each a little quieter than what the whole numbers of the last one cost
# How far two neighbours' rows are apart in units of U, and what cutting them to whole numbers adds, times √numbers:
# under replace-one, under zero-out. Written out again for those who verify: docs/privacy/two-servers.md#rows.
_APART = {
    "clipped": (2.0, 1.0, 0.0),
    "length": (1.0, 1.0, 0.0),
    "moment": (math.sqrt(2), 1.0, 2.0),
    "shaped-moment": (math.sqrt(2), 1.0, 2.0),
    "norm-counts": (2.0, 1.0, 2.0),
    "soft-norm-counts": (2.0, 1.0, 2.0),
}


@dataclass(frozen=True, slots=True)
class Servers:
    """Beside what each of two servers is held to: what their noise makes together."""

    together_epsilon: float  # ε of the plan of one server with as much noise
    outside: (
        bool  # whether that is promised to whoever sees only what is released: noise of no two rounds is correlated
    )


def planned(info: "Registered", problem: Problem, privacy: Privacy, options: Any, constants: Any, seed: int) -> Plan:
    """The plan with the least predicted risk under exposure two-servers.

    ConfigError for methods that two servers cannot carry out, naming why; Infeasible where noise leaves nothing.
    """
    if info.one_server is not None:
        raise ConfigError(
            f"Expected an algorithm of exposure two-servers, got algorithm.name={info.name!r}: {info.one_server}."
        )
    if constants != "calibrated":
        raise ConfigError(f"Expected constants='calibrated' with exposure two-servers, got {constants!r}.")
    limit = privacy.server_epsilon or privacy.epsilon
    server = gdp.mu_for(limit, privacy.delta) * (1 - 1e-7)
    whole, options = min(gdp.mu_for(privacy.epsilon, privacy.delta), server / math.sqrt(2)), _asking_all(options)
    for _ in range(TRIES):
        together = min(privacy.epsilon, gdp.epsilon_for(whole, privacy.delta))
        if together < LEAST_EPSILON:
            raise Infeasible(info.name, f"two noises leave epsilon={together:.2g}", f"epsilon >= {2 * LEAST_EPSILON:g}")
        own = info.plan(
            problem, Privacy(together, privacy.delta, adjacency=privacy.adjacency), options, constants, seed
        )
        require_served(own)
        plan = _both(own, together, limit, privacy)
        spent = pairs(plan)[0].mu
        if spent <= server:
            break
        whole *= server / spent * (1 - 1e-9)
    if privacy.server_epsilon is not None:  # no more is charged than is spent
        cost = gdp.epsilon_for(spent * (1 + 1e-9), privacy.delta * (1 - 1e-6))
        plan = replace(plan, guarantee=replace(plan.guarantee, epsilon=min(limit, cost)))
    if privacy.server_epsilon is not None and plan.guarantee.servers and not plan.guarantee.servers.outside:
        raise Infeasible(
            info.name,
            "noise that is correlated over rounds is proved for each server, not for both noises together",
            "no privacy.server_epsilon, or a method with independent noise, such as one-round-least-squares",
        )
    return plan


def _asking_all(options: Any) -> Any:
    """The same options, with everybody in every round where cohorts would be drawn in secret."""
    names = {each.name for each in fields(options)}
    return replace(options, rate=1.0) if "rate" in names and options.rate is None else options


def _both(own: Plan, together: float, limit: float, privacy: Privacy) -> Plan:
    """The plan of two servers whose noise together is that of `own`."""
    sheet = own.parameters.sheet(own.problem)
    servers = Servers(together, outside=sheet.factorisation is None)
    quorum = None
    if privacy.quorum is not None:
        p = own.parameters
        quorum = quorums.exact(
            privacy.quorum, p.cohorts(), participations=p.participations(), rest=(limit, privacy.delta)
        )
    promise = replace(own.guarantee, epsilon=limit, exposure="two-servers", servers=servers, quorum=quorum)
    return replace(own, guarantee=promise)


def require_served(plan: Plan) -> None:
    """Infeasible unless its rows may be summed where nobody sees one, by cohorts that both servers know."""
    name, p = plan.algorithm, plan.parameters
    if plan.guarantee.rests_on(Kind.SECRET_COHORTS):
        condition = "its promise rests on cohorts that are drawn in secret, and two servers see whom they ask"
        raise Infeasible(name, condition, "everybody in every round (rate=1)")
    if p.served(plan.problem) is None:
        raise Infeasible(name, "it looks at single answers with these options", "other options, or tracking-srgd")


def sheet_of(served: Served | None, participations: int) -> Sheet:
    """What both servers and every client agree on. VerificationError where no such rows are proved."""
    if served is None:
        raise VerificationError("Expected rows that two servers may sum, got a method that looks at single ones.")
    made = ((times, RoundSheet(tuple(map(_block, rows)), served.adjacency)) for times, rows in served.rounds)
    rounds = tuple(chain.from_iterable(repeat(each, times) for times, each in made))
    return Sheet(rounds, served.factorisation, participations, served.separation, served.pilot)


def _block(rows: Any) -> Block:
    """U: one unit of a row in steps of one server's noise, whose deviation is √½ of the release's."""
    return Block(rows.name, rows.length, math.floor(math.sqrt(2) * STEPS * rows.deviations), rows.kind)


def pairs(plan: Plan) -> tuple[Pair, ...]:
    """What a run costs against one server, by the whole numbers of its sheet and nothing else of the plan."""
    sheet = plan.parameters.sheet(plan.problem)
    numbers = sum(each.length for each in sheet.rounds)
    return (Pair.gaussian(server_mu(sheet), total_variation(gaussians=numbers)),)


def server_mu(sheet: Sheet) -> float:
    """μ of all rounds of one user against one server, rounded up (docs/privacy/two-servers.md#ts1).

    Rounds without correlation add their squares, the loudest that a user may be in. Correlated ones are played through
    the sampler; where a user may be in both kinds, both are counted.
    """
    series = set(sheet.correlated)
    known = {each: _alone(each) for each in set(sheet.rounds)}
    alone = [0.0 if t in series else known[each] for t, each in enumerate(sheet.rounds)]
    pilot = math.hypot(*alone[: sheet.pilot])
    rest = math.hypot(*sorted(alone[sheet.pilot :], reverse=True)[: sheet.participations])
    together = max if sheet.participations == 1 else math.hypot
    return max(pilot, together(rest, _series(sheet))) * (1 + 1e-12)


def _alone(made: RoundSheet) -> float:
    """Of one round by itself. A row of several blocks is one of the block of the largest unit: no two are farther."""
    largest = max(made.blocks, key=lambda block: block.unit)
    if len({block.kind for block in made.blocks}) > 1:
        raise VerificationError(f"Expected rows of one kind in a round, got {made.blocks}.")
    return _apart(largest.kind, largest.unit, made.length, made.adjacency == "replace-one")


def _apart(kind: str, unit: int, length: int, replaced: bool) -> float:
    """How far two neighbours' rows are apart, in deviations."""
    far, left_out, cut = _APART[kind]
    return (far * unit + cut * math.sqrt(length) if replaced else left_out * unit) / STEPS


def _series(sheet: Sheet) -> float:
    """Of all rounds with correlated noise: of "sums" by what the sampler does, of what stands beside them at most."""
    if not sheet.correlated:
        return 0.0
    rounds = len(sheet.correlated)
    noise = PrefixNoise(rounds, 1.0, 1.0, str(sheet.factorisation), sheet.participations, sheet.separation)
    worst = 0.0
    for made in {sheet.rounds[t] for t in sheet.correlated}:
        replaced = made.adjacency == "replace-one"
        for block in made.blocks:
            far = _apart(block.kind, block.unit, made.length, replaced)
            worst = max(worst, played.mu(noise, far, made.length) if block.name == SUMS else far)
        if len(made.blocks) > 1 and sheet.participations > 1:
            raise VerificationError("Expected users of one round beside correlated noise, got several rounds.")
    return worst


def verify(plan: Plan) -> None:
    """The sheet is of this promise's adjacency and rounds, and what it costs outsiders keeps ε of both noises."""
    promise = plan.guarantee
    servers, own = promise.servers, plan.without_quorum()
    if servers is None or own.guarantee.curated:
        raise VerificationError(f"Expected two servers and clients of their own in a plan of {plan.algorithm}.")
    beside = (promise.health, promise.bought, promise.held_out)
    served = plan.parameters.served(plan.problem)
    checks.require(
        plan.algorithm,
        ("no look at the table, purchase or held-out users with two servers", beside == (None,) * 3, beside),
        ("rows that two servers may sum", served is not None, plan.parameters),
        ("cohorts that are public", not promise.rests_on(Kind.SECRET_COHORTS), promise.assumptions),
    )
    sheet = plan.parameters.sheet(plan.problem)
    adjacency = {each.adjacency for each in sheet.rounds}
    checks.require(
        plan.algorithm,
        ("rows of the promised adjacency", adjacency == {promise.adjacency}, adjacency),
        ("a round of the sheet for each planned", len(sheet.rounds) == plan.cost.rounds, len(sheet.rounds)),
        ("what outsiders are told of independent noise alone", servers.outside == (not sheet.factorisation), servers),
        ("together_epsilon <= epsilon", servers.together_epsilon <= own.guarantee.epsilon, servers),
        ("a quorum by exact counts", promise.quorum is None or promise.quorum.public, promise.quorum),
    )
    if servers.outside:
        ((found,),) = (pairs(plan),)
        both = replace(found, mu=found.mu / math.sqrt(2) * (1 + 1e-9))
        checks.require_spent(plan.without_quorum().without_servers(), (both,))
