"""A run with a quorum: any algorithm, each of whose rounds counts only if enough of those asked answered.

    algorithm = WithQuorum(plan, plan.guarantee.quorum, inner, cohorts)

A round's answers reach the algorithm once the round has its quorum, by the count of usable answers plus noise. Below it
the run has ended: nothing is released from that round but that, nobody is asked again, and there is no model. Statement
and proof: docs/privacy/quorum.md; its numbers: quoron_privacy.counts.quorum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.counts import quorum as quorums
from quoron_privacy.counts.quorum import Quorum, rest
from quoron_privacy.errors import VerificationError, WithoutQuorum
from quoron_privacy.noise.streams import NoiseSource, RandomStream
from quoron_privacy.release import Sums
from quoron_server.algorithm import Algorithm, Update, Vector
from quoron_server.plan import Plan, Privacy

MET, NOT_MET = "met", "not met"  # what is told of a round


@dataclass(frozen=True, slots=True, eq=False)
class QuorumState:
    """Everything between two rounds."""

    round: int
    limit: int  # Ξ in whole users, once the first round is decided; secret
    ended: bool  # below the quorum
    inner: Any  # the algorithm's own state


class WithQuorum:
    """The algorithm `inner` with the quorum of `plan`; `cohorts` are the users asked in each round, as planned."""

    def __init__(self, plan: Plan, quorum: Quorum, inner: Algorithm[Any], cohorts: Sequence[int]) -> None:
        self.plan, self.inner = plan, inner
        self._quorum, self._cohorts = quorum, tuple(cohorts)

    def init(self) -> QuorumState:
        """Before the first round."""
        return QuorumState(0, 0, False, self.inner.init())

    def request(self, state: QuorumState, noise: NoiseSource) -> Question | None:
        """The algorithm's own question; None too once the run is without a quorum."""
        return None if state.ended else self.inner.request(state.inner, noise)

    def update(self, state: QuorumState, answers: Answers | Sums, noise: NoiseSource) -> Update[QuorumState]:
        """Decide; with a quorum, the algorithm's own update."""
        quorum, round_ = self._quorum, state.round
        limit = state.limit if round_ else draw_limit(quorum, noise.stream("quorum", "threshold"))
        counted = self.counted(answers)
        met = decide(quorum, counted, self._cohorts[round_], limit, noise.stream("quorum", "count", round_))
        release = quorum.entry(self._cohorts[round_])
        if not met:
            ended = QuorumState(round_ + 1, 0, True, state.inner)
            return Update(ended, (release,), {"quorum": NOT_MET}, {"answered": counted})
        own = self.inner.update(state.inner, answers, noise)
        after = QuorumState(round_ + 1, limit, False, own.state)
        return replace(
            own,
            state=after,
            releases=(*own.releases, release),
            public={**own.public, "quorum": MET},
            diagnostics={"answered": counted, **own.diagnostics},
        )

    def counted(self, answers: Answers | Sums) -> int:
        """Users of a round whose answer is usable."""
        return int(np.sum(answers.answered))

    def model(self, state: QuorumState) -> Vector:
        """The algorithm's own; WithoutQuorum if the run has ended so."""
        if state.ended:
            raise WithoutQuorum(
                f"Round {state.round} of at most {self.plan.cost.rounds} was without a quorum: fewer than a share of "
                f"{self._quorum.share:g} of those asked answered, by a count with noise. There is no model, and what "
                "the run has spent stays spent. See that clients are there, then submit another run."
            )
        return self.inner.model(state.inner)

    def iterate(self, state: QuorumState) -> Vector:
        """The algorithm's own."""
        return self.inner.iterate(state.inner)


def draw_limit(quorum: Quorum, stream: RandomStream) -> int:
    """⌊Ξ⌋: the noise of the run's threshold, in whole users. Draw it once a run and keep it secret."""
    return int(stream.laplace_steps(quorum.threshold_scale, 1)[0]) if quorum.threshold_scale else 0


def decide(quorum: Quorum, answered: int, asked: int, limit: int, stream: RandomStream) -> bool:
    """Whether a round has its quorum, when `answered` users gave a usable answer and `asked` were planned."""
    noise = int(stream.laplace_steps(quorum.count_scale, 1)[0]) if quorum.count_scale else 0
    return answered + noise >= quorum.needed(asked) + limit


def with_quorum(own: Plan, privacy: Privacy, *, free: bool) -> Plan:
    """The algorithm's own plan with the quorum that is asked for; Infeasible if that has too few users to count."""
    cohorts, promise = own.parameters.cohorts(), own.guarantee
    quorum = quorums.calibrate(
        float(privacy.quorum or 0.0),
        0.0 if free else privacy.quorum_epsilon,
        cohorts,
        participations=own.parameters.participations(),
        rest=(promise.epsilon, promise.delta),
        present=_present(own, len(cohorts)) if own.parameters.poisson_sampling else int,
        name=f"{own.algorithm} with a quorum",
    )
    private = promise.exposure != "none"
    whole = replace(
        promise,
        epsilon=privacy.epsilon if private else promise.epsilon,
        delta=privacy.delta if private else promise.delta,
        quorum=quorum,
    )
    return replace(own, guarantee=whole)


def verify_quorum(plan: Plan) -> None:
    """The promise pays for its quorum, too, if it has one; VerificationError."""
    promise, quorum, cohorts = plan.guarantee, plan.guarantee.quorum, plan.parameters.cohorts()
    if quorum is None or promise.exposure == "none":
        return
    if promise.exposure != "local" and not quorum.epsilon > 0:
        raise VerificationError(f"Expected quorum.epsilon > 0 in a plan of {plan.algorithm}, got {quorum.epsilon}.")
    if len(cohorts) != plan.cost.rounds or sum(cohorts) != plan.cost.messages:
        raise VerificationError(f"Expected the cost's rounds and messages in cohorts, got {cohorts}.")
    participations = plan.parameters.participations()
    quorums.verify(quorum, promise.epsilon, promise.delta, cohorts, participations=participations)


def _present(plan: Plan, rounds: int) -> Callable[[int], int]:
    """How many of a cohort drawn by coins are there when everybody is, but for a chance that is half of BETA a run."""
    users, rare = plan.problem.users, quorums.BETA / (2 * rounds)
    return lambda size: int(scipy.stats.binom.ppf(rare, max(users, size), size / max(users, size)))


def left_by_quorum(target: Privacy, *, spent: bool = True) -> Privacy:
    """What is left for the algorithm of what is asked for: all of it if the quorum is not `spent` on."""
    left = rest(target.epsilon, target.delta, target.quorum_epsilon) if spent else (target.epsilon, target.delta)
    return Privacy(*left, adjacency=target.adjacency)
