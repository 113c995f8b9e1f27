"""An algorithm whose rounds are summed where no server sees an answer: its plan, and the coordinator's side.

    question   as the algorithm's own, of rows in whole steps of one server's noise (the plan's specification)
    sums       Σ z_u + N_B mod 2⁶⁴, with the chain of all lists so far; N_B is the second server's
    release    of (Σ z_u + N_B + N_A) mod 2⁶⁴ alone: nothing of a sum is a number before N_A is in

N_A is labelled by (key, run, round, chain of lists) and by no start: the same lists have the same noise after a crash,
other lists are a second release with noise of their own.

The plan is an ordinary one made at μ/√2, whose noise is half of one server's and half of the other's. So every number
that it holds or predicts knows of both noises, and nothing but the length of users' rows is added: in steps of 2⁻³⁰
deviations of *one* server's noise. What one server, or a holder of its key, learns is counted again from these whole
numbers alone. Statement and proof: docs/privacy/two-servers.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, Question, summed
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import ConfigError, Infeasible, Needs, RunError, VerificationError
from quoron_privacy.histograms import min_cohort as min_cohorts
from quoron_privacy.noise.streams import GRID_BITS, NoiseSource, total_variation
from quoron_privacy.prefix import noise as played
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_privacy.release import NoisySums, Sums
from quoron_privacy.two_servers import noise as accounted
from quoron_privacy.two_servers.noise import ServerNoise, simulated_chain
from quoron_privacy.two_servers.rows import RingRows, RingSums, added, signed
from quoron_privacy.two_servers.specification import SUMS, MechanismSpec, RoundSpec, Servers, louder, median
from quoron_server.algorithm import Algorithm, Update, Vector
from quoron_server.algorithms import options as own_options
from quoron_server.algorithms import search
from quoron_server.algorithms.search import two_digits
from quoron_server.parameters import Kind
from quoron_server.plan import MIN_EPSILON, Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.rounds import Engine
from quoron_server.wording import digest

if TYPE_CHECKING:
    from quoron_server.algorithms.registered import RegisteredAlgorithm

Steps = NDArray[np.int64]
Words = NDArray[np.uint64]

LARGEST = 2.0**62  # steps of a median: adversarial sums, made as large as all groups together, fit into no 64 bits
COORDINATOR, SECOND_SERVER = b"quoron-leader", b"quoron-helper"  # whose noise a key is for, also of one seed for both
STEPS = 2.0**GRID_BITS  # in one deviation of one server's noise
TRIES = 10  # of a plan, each quieter than what the last one cost: U is whole, so a little less may be no less
# How far two neighbours' rows are apart in units of U, and what cutting them to whole numbers adds, times √numbers:
# under replace-one, under zero-out. Written out again for those who verify: docs/privacy/two-servers.md#rows.
_APART = {
    "clipped": (2.0, 1.0, 0.0),
    "length": (1.0, 1.0, 0.0),
    "columns": (1.0, 1.0, 2.01),
    "shaped-moment": (math.sqrt(2), 1.0, 2.01),
    "moment": (math.sqrt(2), 1.0, 2.01),
    "norm-counts": (2.0, 1.0, 2.0),
    "soft-norm-counts": (2.0, 1.0, 2.0),
}


@dataclass(frozen=True, slots=True, eq=False)
class ServersState:
    """Between two rounds: what the algorithm keeps, all of it released, and the chain after every round's list."""

    round: int
    chains: NDArray[np.uint8]  # (rounds, 32); zeros for rounds to come
    running: NDArray[np.float64]  # of each group, of what is correlated over rounds: its released sum, (groups + 1, d)
    inner: Any


class WithServers:
    """The algorithm `inner` of the plan of one server, with the rounds of `plan`."""

    def __init__(self, plan: RunPlan, inner: Algorithm[Any]) -> None:
        self.plan, self.inner = plan, inner
        self._sheet = plan.spec
        self._noise: tuple[bytes, ServerNoise] | None = None

    def init(self) -> ServersState:
        """Before the first round."""
        groups, first = self._sheet.groups, self._sheet.correlated[:1]
        series = sum(block.length for t in first for block in self._sheet.rounds[t].blocks if block.name == SUMS)
        running = np.zeros((groups + 1 if groups > 1 else 0, series))
        return ServersState(0, np.zeros((len(self._sheet.rounds), 32), np.uint8), running, self.inner.init())

    def request(self, state: ServersState, noise: NoiseSource) -> Question | None:
        """Return the algorithm's own question, about rows in whole steps."""
        question = self.inner.request(state.inner, noise)
        if question is None:
            return None
        own: Any = question.reduction  # ConfigError for none
        rows: Any = RingRows(self._sheet.rounds[state.round], own, _chains(state))
        return replace(question, reduction=rows)

    def update(self, state: ServersState, answers: Any, noise: NoiseSource) -> Update[ServersState]:
        """Return the algorithm's own, of the sum with both noises."""
        if not isinstance(answers, RingSums) or answers.chain is None:
            raise RunError("Expected a sum with the noise of both servers, got one without. Ask through both servers.")
        history = (*_chains(state), answers.chain)
        both = added(answers.total, noise_of_groups(self._own(noise), history))
        steps, running = self._middle(state, signed(both).reshape(self._sheet.groups, -1), answers.asked)
        released = NoisySums.of(steps, answers.answered)
        update = self.inner.update(state.inner, released, noise)
        chains = state.chains.copy()
        chains[state.round] = np.frombuffer(answers.chain, np.uint8)
        return replace(update, state=ServersState(state.round + 1, chains, running, update.state))

    def _middle(self, state: ServersState, sums: Steps, asked: int) -> tuple[Steps, NDArray[np.float64]]:
        """Of released sums of groups, (groups, k), what one sum of all is taken to be, in steps as the algorithm has
        them; and the running sums.

        A user adds more steps to a group's sum than to one of all, as the noise of a median is `louder`. What is
        correlated over rounds is summed before its median is taken.
        """
        groups = len(sums)
        if groups == 1:
            return sums[0], state.running
        sizes = np.array([len(range(g, max(asked, groups), groups)) for g in range(groups)])
        alike = sums * (sizes.sum() / sizes / louder(groups))[:, None]  # each as if all were as its users are
        steps, running = median(alike), state.running
        if state.round in self._sheet.correlated:
            at = next(at for block, at in self._sheet.rounds[state.round].parts() if block.name == SUMS)
            totals = running[:-1] + alike[:, at]
            running = np.concatenate([totals, [median(totals)]])
            steps[at] = running[-1] - state.running[-1]
        return np.rint(np.clip(steps, -LARGEST, LARGEST)).astype(np.int64), running

    def model(self, state: ServersState) -> Vector:
        """Return the algorithm's own."""
        return self.inner.model(state.inner)

    def iterate(self, state: ServersState) -> Vector:
        """Return the algorithm's own: all of it is released."""
        return self.inner.iterate(state.inner)

    def _own(self, noise: NoiseSource) -> ServerNoise:
        """Of the run's key, whichever start this is; kept, as correlated noise goes on from what it drew."""
        key = noise.export_key()
        if self._noise is None or self._noise[0] != key:
            self._noise = key, noise_of(key, COORDINATOR, self.plan)
        return self._noise[1]


def with_second_server(engine: Engine, plan: RunPlan, simulation_seed: int | None) -> Engine:
    """The engine itself, if it says that it `hides_answers` behind a second server; in a simulation one that plays it.

    RunError for any other: no client is asked for an answer that somebody would see.
    """
    if getattr(engine, "hides_answers", False):
        return engine
    if simulation_seed is None:
        raise RunError(
            "Expected an engine of two servers for a run of trust model two-servers, got one that sees single answers."
        )
    return BothServers(engine, plan, str(simulation_seed).encode())


class BothServers:
    """An engine with the second server of a simulation behind it: sums that hold its noise, by the seed.

    Of the list of a round the chain says which it is: who answered changes no bit of a simulation's noise. Sums of an
    engine that has a second server of its own are handed on.
    """

    def __init__(self, engine: Engine, plan: RunPlan, seed: bytes) -> None:
        self.engine = engine
        self._noise = noise_of(seed, SECOND_SERVER, plan.without("min_cohort"))

    def __getattr__(self, name: str) -> Any:
        if name == "engine":  # of one that is being made
            raise AttributeError(name)
        return getattr(self.engine, name)  # what it measures, and whose users it asks

    def ask(self, question: Question) -> Answers | Sums | Any:
        """Return the sum of the asked rows and the second server's noise."""
        if not isinstance(question.reduction, RingRows):
            return self.engine.ask(question)
        rows: Any = question.reduction
        groups = self._noise.spec.groups
        whole: Any = self.engine.ask(replace(question, reduction=None) if groups > 1 else question)
        sums: Any = summed(whole, rows) if groups == 1 else _grouped(whole, rows, groups)
        if sums.chain is not None:
            return sums
        history = (*rows.chains, simulated_chain(rows.chains, question.round))
        return replace(sums, total=added(sums.total, noise_of_groups(self._noise, history)), chain=history[-1])


def noise_of(key: bytes, whose: bytes, plan: RunPlan) -> ServerNoise:
    """One server's noise for a plan; a run's key is its own, so that its name need not be in the labels."""
    own = blake2b(key, digest_size=32, person=whose).digest()
    return ServerNoise(own, "", bytes.fromhex(digest(plan)), plan.spec)


def _chains(state: ServersState) -> tuple[bytes, ...]:
    return tuple(chain.tobytes() for chain in state.chains[: state.round])


def _grouped(answers: Answers, rows: Any, groups: int) -> RingSums:
    """Return the sums of groups, one after the other: the user in slot i is in group i mod groups."""
    answered = answers.answered
    group = np.arange(len(answered)) % groups
    sums = [rows.of(answers.values, answered & (group == g)) for g in range(groups)]
    total = np.concatenate([group_sums.total for group_sums in sums])
    return RingSums(total, None, int(np.count_nonzero(answered)), len(answered))


def noise_of_groups(noise: ServerNoise, history: Sequence[bytes]) -> Words:
    """One server's noise of the last round of a history, of all groups one after the other."""
    groups, now = noise.spec.groups, len(history) - 1
    return np.concatenate([noise.of(now, history, g) for g in range(groups)])


def planned(
    spec: "RegisteredAlgorithm", problem: Problem, privacy: Privacy, options: Any, constants: Any, seed: int
) -> RunPlan:
    """Return the plan with the least predicted risk under trust model two-servers.

    ConfigError for methods that two servers cannot carry out, naming why; Infeasible where noise leaves nothing.
    """
    if (why := spec.guarantees.one_server) is not None:
        raise ConfigError(f"Expected an algorithm of trust model two-servers, got algorithm.name={spec.name!r}: {why}.")
    if constants != "calibrated":
        raise ConfigError(f"Expected constants='calibrated' with trust model two-servers, got {constants!r}.")
    limit = privacy.server_epsilon or privacy.epsilon
    left = privacy.delta if privacy.min_cohort is None else min_cohorts.rest(limit, privacy.delta, 0.0)[1]
    server = gdp.mu_for(limit, left) * (1 - 1e-7)
    whole, options = min(gdp.mu_for(privacy.epsilon, left), server / math.sqrt(2)), own_options.summed(options)
    if getattr(options, "rate", 1.0) is None:  # everybody is in every round: cohorts would be drawn in secret
        options = replace(options, rate=1.0)
    joint, quieter = min(privacy.epsilon, gdp.epsilon_for(whole, left)), whole / louder(privacy.groups) * (1 - 1e-6)
    for again in range(TRIES):
        if (least := gdp.epsilon_for(quieter, left)) < MIN_EPSILON:
            enough = two_digits(2 * MIN_EPSILON * louder(privacy.groups))
            few = f"two noises leave epsilon={least:.2g}"
            raise Infeasible(spec.name, few, Needs(f"epsilon >= {enough:g}", epsilon=enough))
        own = spec.plan(problem, Privacy(least, left, adjacency=privacy.adjacency), options, constants, seed)
        require_masked(own)
        if (fewest := min(own.schedule.cohorts)) < privacy.groups:
            few = f"a round asks {fewest} users, fewer than its {privacy.groups} groups"
            raise Infeasible(spec.name, few, "fewer groups, or larger cohorts")
        sums = own.schedule.spec(privacy.groups)
        spent, outside = spent_by(sums)
        if spent <= server and outside <= whole:
            break
        quieter *= min(server / spent, whole / outside) * (1 - 1e-8 * 4**again)
    if privacy.server_epsilon is not None:  # no more is charged than is spent
        limit = min(limit, gdp.epsilon_for(spent * (1 + 1e-9), left * (1 - 1e-6)))
    return _both(own, joint, limit, privacy)


def _both(own: RunPlan, joint: float, limit: float, privacy: Privacy) -> RunPlan:
    """Return the plan of two servers whose noise together is that of `own`."""
    min_cohort, schedule = None, own.schedule
    if privacy.min_cohort is not None:  # who answers is seen by both servers, so counting costs nothing
        rest, often = (limit, own.guarantee.delta), schedule.participations
        min_cohort = min_cohorts.exact(privacy.min_cohort, schedule.cohorts, participations=often, rest=rest)
    guarantee = replace(
        own.guarantee,
        epsilon=limit,
        delta=privacy.delta,
        trust_model="two-servers",
        servers=Servers(joint, privacy.groups),
    )
    return replace(own, guarantee=replace(guarantee, min_cohort=min_cohort))


def require_masked(plan: RunPlan) -> None:
    """Raise Infeasible unless its rows may be summed where no server sees one, by cohorts that both servers know."""
    name = plan.algorithm
    if plan.guarantee.rests_on(Kind.SECRET_COHORTS):
        condition = "its guarantee rests on cohorts that are drawn in secret, and two servers see whom they ask"
        raise Infeasible(name, condition, "everybody in every round (rate=1)")
    if plan.schedule.rows is None:
        condition = "no rows that add up unseen are known for it with this problem and these options"
        raise Infeasible(name, condition, "other options, or tracking-srgd")


def pairs(plan: RunPlan) -> tuple[DominatingPair, ...]:
    """What a run costs against one server, by the whole numbers of its specification and nothing else of the plan."""
    spec = plan.spec
    numbers = spec.groups * sum(rows.length for rows in spec.rounds)
    return (DominatingPair.gaussian(spent_by(spec)[0], total_variation(gaussians=numbers)),)


def spent_by(spec: MechanismSpec) -> tuple[float, float]:
    """μ against one server and against outsiders: the larger of what the library says of a spec and what is here."""
    return max(server_mu(spec), accounted.server_mu(spec)), max(outsiders_mu(spec), accounted.outsiders_mu(spec))


def outsiders_mu(spec: MechanismSpec) -> float:
    """Return μ against an observer who sees the releases alone, where both servers follow the protocol.

    What a user adds is half of it in what one server's noise hides and half in the other's: each is a release of its
    own, at half the μ but for what is rounded.
    """
    return math.sqrt(2) * server_mu(spec, 0.5)


def server_mu(spec: MechanismSpec, part: float = 1.0) -> float:
    """Return μ of all rounds of one user against one server, rounded up, for `part` of what the user adds.

    Statement: docs/privacy/two-servers.md#ts2.

    Rounds without correlation add their squares, the loudest that a user may be in. Correlated ones are played through
    the sampler; where a user may be in both kinds, both are counted.
    """
    series = set(spec.correlated)
    known = {rows: _alone(rows, part) for rows in set(spec.rounds)}
    alone = [0.0 if t in series else known[rows] for t, rows in enumerate(spec.rounds)]
    rest = math.hypot(*sorted(alone, reverse=True)[: spec.participations])
    compose = max if spec.participations == 1 else math.hypot
    return compose(rest, _series(spec, part)) * (1 + 1e-12)


def _alone(made: RoundSpec, part: float) -> float:
    """Of one round by itself. A row of several blocks is one of the block of the largest unit: no two are farther."""
    largest = max(made.blocks, key=lambda block: block.unit)
    if len({block.kind for block in made.blocks}) > 1:
        raise VerificationError(f"Expected rows of one kind in a round, got {made.blocks}.")
    return _apart(largest.kind, largest.unit, made, part)


def _apart(kind: str, unit: int, made: RoundSpec, part: float) -> float:
    """Return how far two neighbours' rows are apart, in deviations; a part of them is rounded to whole steps."""
    far, left_out, cut = _APART[kind]
    root, replaced = math.sqrt(made.length), made.adjacency == "replace-one"
    whole = far * unit + cut * root if replaced else left_out * unit
    return (part * whole + (0.0 if part == 1 else root)) / STEPS


def _series(spec: MechanismSpec, part: float) -> float:
    """Of all rounds with correlated noise: of "sums" by what the sampler does, of what stands beside them at most."""
    if not spec.correlated:
        return 0.0
    rounds = len(spec.correlated)
    noise = PrefixNoise(rounds, 1.0, 1.0, str(spec.factorisation), spec.participations, spec.separation)
    # of the groups that a user may be in, each predicts and rounds by itself
    rounded = 2 * noise.factors.rounding * math.sqrt(rounds) / STEPS
    worst, others = 0.0, rounded * (math.sqrt(min(spec.groups, spec.participations)) - 1)
    for made in {spec.rounds[t] for t in spec.correlated}:
        for block in made.blocks:
            mu = far = _apart(block.kind, block.unit, made, part)
            if block.name == SUMS:
                mu = played.mu(noise, far, made.length) + others * math.sqrt(made.length)
            worst = max(worst, mu)
        if len(made.blocks) > 1 and spec.participations > 1:
            raise VerificationError("Expected users of one round beside correlated noise, got several rounds.")
    return worst


def verify(plan: RunPlan) -> None:
    """The spec is of this guarantee's adjacency and rounds, and what it costs outsiders keeps ε of both noises."""
    guarantee = plan.guarantee
    servers, own = guarantee.servers, plan.without("min_cohort")
    if servers is None or own.guarantee.curated:
        raise VerificationError(f"Expected two servers and clients of their own in a plan of {plan.algorithm}.")
    beside = (guarantee.data_quality, guarantee.estimates, guarantee.held_out)
    rows = plan.schedule.rows
    search.require(
        plan.algorithm,
        ("no data quality check, estimate or held-out users with two servers", beside == (None,) * 3, beside),
        ("rows that two servers may sum", rows is not None, plan.parameters),
        ("cohorts that are public", not guarantee.rests_on(Kind.SECRET_COHORTS), guarantee.assumptions),
    )
    spec = plan.spec
    adjacency = {rows.adjacency for rows in spec.rounds}
    search.require(
        plan.algorithm,
        ("rows of the guaranteed adjacency", adjacency == {guarantee.adjacency}, adjacency),
        ("together_epsilon <= epsilon", servers.together_epsilon <= own.guarantee.epsilon, servers),
        (
            "a minimum cohort by exact counts",
            guarantee.min_cohort is None or guarantee.min_cohort.public,
            guarantee.min_cohort,
        ),
    )
    (against,) = pairs(plan)
    both = replace(against, mu=spent_by(spec)[1], variation=2 * against.variation)  # of either server's sampler
    search.require_spent(own.without("servers"), (both,))
