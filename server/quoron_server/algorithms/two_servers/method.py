"""An algorithm whose rounds are summed where no server sees an answer: the coordinator's side.

    question   as the algorithm's own, of rows in whole steps of one server's noise (the plan's specification)
    sums       Σ z_u + N_B mod 2⁶⁴, with the chain of all lists so far; N_B is the second server's
    release    of (Σ z_u + N_B + N_A) mod 2⁶⁴ alone: nothing of a sum is a number before N_A is in

N_A is labelled by (key, run, round, chain of lists) and by no start: the same lists have the same noise after a crash,
other lists are a second release with noise of their own. Source: docs/privacy/two-servers.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, Question, summed
from quoron_privacy.errors import RunError
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import NoisySums, Sums
from quoron_privacy.two_servers.noise import ServerNoise, simulated_chain
from quoron_privacy.two_servers.rows import RingRows, RingSums, added, signed
from quoron_privacy.two_servers.specification import SUMS, louder, median
from quoron_server.algorithm import Algorithm, Update, Vector
from quoron_server.plan import RunPlan
from quoron_server.rounds import Engine
from quoron_server.wording import digest

Steps = NDArray[np.int64]
Words = NDArray[np.uint64]

LARGEST = 2.0**62  # steps of a median: adversarial sums, made as large as all groups together, fit into no 64 bits
COORDINATOR, SECOND_SERVER = b"quoron-leader", b"quoron-helper"  # whose noise a key is for, also of one seed for both


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
        series = sum(each.length for t in first for each in self._sheet.rounds[t].blocks if each.name == SUMS)
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
            told = running[:-1] + alike[:, at]
            running = np.concatenate([told, [median(told)]])
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
    return tuple(each.tobytes() for each in state.chains[: state.round])


def _grouped(answers: Answers, rows: Any, groups: int) -> RingSums:
    """Return the sums of groups, one after the other: the user in slot i is in group i mod groups."""
    answered = answers.answered
    group = np.arange(len(answered)) % groups
    sums = [rows.of(answers.values, answered & (group == g)) for g in range(groups)]
    total = np.concatenate([each.total for each in sums])
    return RingSums(total, None, int(np.count_nonzero(answered)), len(answered))


def noise_of_groups(noise: ServerNoise, history: Sequence[bytes]) -> Words:
    """One server's noise of the last round of a history, of all groups one after the other."""
    groups, now = noise.spec.groups, len(history) - 1
    return np.concatenate([noise.of(now, history, g) for g in range(groups)])
