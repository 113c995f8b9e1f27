"""A run with a quorum: any algorithm, each of whose rounds counts only if enough of those asked answered.

    algorithm = WithQuorum(plan, plan.guarantee.quorum, inner)

A round's answers reach the algorithm once the round has its quorum, by the count of usable answers plus noise. Below it
the run has ended: nothing is released from that round but that, nobody is asked again, and there is no model. Where a
round's own release tells how many answered, what it tells decides: the release is part of the same commit, so that the
books never hold a decision without what it was made from. Where who answers is public, answers are counted as they
are: those that came, whatever is in them.

Statement and proof: docs/privacy/quorum.md, quorum-free.md, public-attendance.md; its numbers:
quoron_privacy.counts.quorum.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.accounts import gdp
from quoron_privacy.counts import quorum as quorums
from quoron_privacy.counts.quorum import Quorum, noisy_count, rest
from quoron_privacy.errors import Infeasible, VerificationError, WithoutQuorum
from quoron_privacy.noise.streams import NoiseSource, RandomStream
from quoron_privacy.release import Release, Sums
from quoron_server.algorithm import Algorithm, Update, Vector
from quoron_server.algorithms import checks
from quoron_server.parameters import Attendance, GaussianPromise, Kind, Moves
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

if TYPE_CHECKING:
    from quoron_server.algorithms.info import Counting

MET, NOT_MET, UNDECIDED = "met", "not met", "not decided"  # what is told of a round
TRUE_ANSWERS = (Kind.CONTRACTING_LOSSES, Kind.TRUE_GRADIENTS, Kind.FULL_ATTENDANCE)  # by which zeros are none
_NOTHING = Attendance(0.0)


@dataclass(frozen=True, slots=True, eq=False)
class QuorumState:
    """Everything between two rounds."""

    round: int
    limit: int  # Ξ in whole users, once the first round is decided; secret
    ended: bool  # below the quorum
    inner: Any  # the algorithm's own state


class WithQuorum:
    """The algorithm `inner` with the quorum of `plan`."""

    def __init__(self, plan: RunPlan, quorum: Quorum, inner: Algorithm[Any]) -> None:
        self.plan, self.inner = plan, inner
        self._quorum, self._cohorts = quorum, plan.parameters.cohorts()
        self._attendance = plan.attendance() or (_NOTHING,) * len(self._cohorts)

    def init(self) -> QuorumState:
        """Before the first round."""
        return QuorumState(0, 0, False, self.inner.init())

    def request(self, state: QuorumState, noise: NoiseSource) -> Question | None:
        """The algorithm's own question; None too once the run is without a quorum."""
        question = None if state.ended else self.inner.request(state.inner, noise)
        if question is None or not self._quorum.public or self.plan.guarantee.servers is not None:
            return question
        if question.drawn:  # no plan of these is verified
            raise VerificationError(f"Expected cohorts that are public with public attendance, got {question}.")
        return replace(question, attended=True)

    def update(self, state: QuorumState, answers: Answers | Sums, noise: NoiseSource) -> Update[QuorumState]:
        """Decide; with a quorum, or where the own release is what decides, the algorithm's own update."""
        quorum, round_ = self._quorum, state.round
        asked, given = self._cohorts[round_], self._attendance[round_]
        counted = self.counted(answers)
        counted = counted if given.most is None else min(counted, given.most)
        own, limit, told = None, 0, MET
        releases: tuple[Release, ...] = ()
        if quorum.count_scale:
            releases = (quorum.entry(asked),)
            limit = state.limit if round_ else draw_limit(quorum, noise.stream("quorum", "threshold"))
            met = decide(quorum, counted, asked, limit, noise.stream("quorum", "count", round_))
        else:
            seen: Sequence[tuple[float, float]] = ()  # counts with noise, and the μ of each
            if given.told:
                own = self.inner.update(state.inner, answers, noise)
                assert own.present is not None
                seen = ((own.present, given.mu),)
            if (paid := quorum.deviation(0.0 if given.told else given.mu)) < math.inf:
                seen = (*seen, (noisy_count(counted, paid, noise.stream("quorum", "count", round_)), 1 / (paid or 1.0)))
                releases = (quorum.entry(asked, 0.0 if given.told else given.mu),)
            met, told = enough(quorum, seen, asked), MET if seen else UNDECIDED
        if not met:
            kept, shown = (state.inner, ()) if own is None else (own.state, own.releases)
            ended = QuorumState(round_ + 1, 0, True, kept)
            return Update(ended, (*shown, *releases), {"quorum": NOT_MET}, {"answered": counted})
        own = own or self.inner.update(state.inner, answers, noise)
        return replace(
            own,
            state=QuorumState(round_ + 1, limit, False, own.state),
            releases=(*own.releases, *releases),
            public={**own.public, "quorum": told},
            diagnostics={"answered": counted, **own.diagnostics},
        )

    def counted(self, answers: Answers | Sums) -> int:
        """Users of a round whose answer is usable; where who answers is public, whose answer came."""
        return int(np.sum(answers.answered))

    def model(self, state: QuorumState) -> Vector:
        """The algorithm's own; WithoutQuorum if the run has ended so."""
        if state.ended:
            count = "" if self._quorum.public else ", by a count with noise"
            raise WithoutQuorum(
                f"Round {state.round} of at most {self.plan.cost.rounds} was without a quorum: fewer than a share of "
                f"{self._quorum.share:g} of those asked answered{count}. There is no model, and what the run has spent "
                "stays spent. See that clients are there, then submit another run."
            )
        return self.inner.model(state.inner)

    def iterate(self, state: QuorumState) -> Vector:
        """The algorithm's own."""
        return self.inner.iterate(state.inner)


def draw_limit(quorum: Quorum, stream: RandomStream) -> int:
    """⌊Ξ⌋: the noise of the run's threshold, in whole users. Draw it once a run and keep it secret."""
    return int(stream.laplace_steps(quorum.threshold_scale, 1)[0]) if quorum.threshold_scale else 0


def decide(quorum: Quorum, answered: int, asked: int, limit: int, stream: RandomStream) -> bool:
    """Whether a round has its quorum by Laplace noise: `answered` gave a usable answer, `asked` were planned."""
    noise = int(stream.laplace_steps(quorum.count_scale, 1)[0]) if quorum.count_scale else 0
    return answered + noise >= quorum.needed(asked) + limit


def enough(quorum: Quorum, seen: Sequence[tuple[float, float]], asked: int) -> bool:
    """Whether a round has its quorum by all `seen` of it, each a count with the μ of its noise; yes if nothing is."""
    if not seen:
        return True
    mean = math.fsum(value * mu**2 for value, mu in seen) / math.fsum(mu**2 for _, mu in seen)
    return mean >= quorum.needed(asked)


def with_quorum(
    own: RunPlan, privacy: Privacy, promise: GaussianPromise | None, counting: "Counting", *, free: bool
) -> RunPlan:
    """The algorithm's own plan, worth `promise`, with the quorum that is asked for: for nothing, or for its ε_q.

    Infeasible if that has too few users to count.
    """
    cohorts, alone, given = own.parameters.cohorts(), own.guarantee, own.attendance(paid=not free)
    private = alone.trust_model != "none"
    room = partial(_room, own, privacy, promise, counting) if private else lambda spent: 0.0
    quorum = quorums.calibrate(
        float(privacy.quorum or 0.0),
        0.0 if free else privacy.quorum_epsilon,
        cohorts,
        participations=own.parameters.participations(),
        rest=(alone.epsilon, alone.delta),
        free=[each.mu for each in given],
        room=room,
        present=_present(own, given),
        beta=quorums.BETA / 2 if own.parameters.poisson_sampling else quorums.BETA,
        name=f"{own.algorithm} with a quorum",
    )
    whole = replace(
        alone,
        epsilon=privacy.epsilon if private else alone.epsilon,
        delta=privacy.delta if private else alone.delta,
        quorum=quorum,
    )
    return replace(own, guarantee=whole)


def with_public_attendance(own: RunPlan, privacy: Privacy) -> RunPlan:
    """The algorithm's own plan with a quorum of exact counts, which costs nothing: who answers is public.

    Infeasible unless public-attendance#pa1 is about it.
    """
    alone = own.guarantee
    quorum = quorums.exact(
        float(privacy.quorum or 0.0),
        own.parameters.cohorts(),
        participations=own.parameters.participations(),
        rest=(alone.epsilon, alone.delta),
    )
    private = alone.trust_model != "none"
    epsilon, delta = (privacy.epsilon, privacy.delta) if private else (alone.epsilon, alone.delta)
    plan = replace(own, guarantee=replace(alone, epsilon=epsilon, delta=delta, quorum=quorum))
    if (why := told_too_much(plan)) is not None:
        raise Infeasible(
            f"{own.algorithm} with public attendance", why, "attendance='private' (privacy.attendance), or another one"
        )
    return plan


def told_too_much(plan: RunPlan) -> str | None:
    """Why who answers may not be public in a run of this plan; None if it may (public-attendance#pa1), or is private.

    By the promise and the parameters alone: what is asked here is what `verify` asks.
    """
    promise, quorum = plan.guarantee, plan.guarantee.quorum
    if quorum is None or not quorum.public or promise.trust_model == "none":
        return None
    if promise.servers is not None:
        return None  # both servers see whose sealed answers come, whatever is in them (docs/privacy/two-servers.md)
    if promise.adjacency != "replace-one":
        return f"under {promise.adjacency} whether a user is there is what the promise hides"
    if promise.trust_model != "central-broadcast" or any(map(promise.rests_on, TRUE_ANSWERS)):
        return (
            "a client whose answer is not ready has no neutral one to send: the proof is about answers that are true, "
            f"or private by themselves (trust model {promise.trust_model})"
        )
    if promise.rests_on(Kind.SECRET_COHORTS) or plan.parameters.poisson_sampling:
        return "its promise rests on secret cohorts, and the names of those who are missing tell who was asked"
    if promise.held_out is not None:
        return "who is held out is drawn in secret, and the names of those who are missing tell who was not"
    return None


def _room(own: RunPlan, privacy: Privacy, promise: GaussianPromise | None, counting: "Counting", spent: float) -> float:
    """μ of a count in every round, beside the run as planned, for all that (ε, δ) leaves; about, for another ε_q."""
    parameters, problem, rounds = own.parameters, own.problem, len(own.parameters.cohorts())
    planned = spent == privacy.quorum_epsilon
    delta = privacy.delta - checks.slack(privacy.epsilon, gaussians=rounds + 1)
    epsilon = privacy.epsilon if planned else own.guarantee.epsilon + spent
    if promise is None:
        return counting.room(parameters, problem, epsilon, delta)
    left = delta - (1 + math.exp(epsilon)) * promise.variation
    whole = gdp.mu_for(epsilon, left) * (1 - 1e-9) if left > 0 else 0.0  # verified by other arithmetic
    alone = own.guarantee.epsilon, own.guarantee.delta - (1 + math.exp(own.guarantee.epsilon)) * promise.variation
    mu = max(promise.mu, gdp.mu_for(*alone))  # what the run was planned for, whatever the second account says of it
    return math.sqrt(max(whole**2 - mu**2, 0.0) / parameters.participations())


def verify_quorum(plan: RunPlan) -> None:
    """The promise pays for its quorum, too, if it has one; VerificationError.

    Of counts with Gaussian noise, that they are paid for: `verify_counts` asks what they are, and what they cost beside
    the run is asked of the pair of both.
    """
    promise, quorum, cohorts = plan.guarantee, plan.guarantee.quorum, plan.parameters.cohorts()
    if quorum is None or promise.trust_model == "none":
        return
    attendance, participations = plan.attendance(), plan.parameters.participations()
    if (why := told_too_much(plan)) is not None:
        raise VerificationError(f"Expected private attendance in a plan of {plan.algorithm}, got public: {why}.")
    if len(cohorts) != plan.cost.rounds or sum(cohorts) != plan.cost.messages:
        raise VerificationError(f"Expected the cost's rounds and messages in cohorts, got {cohorts}.")
    if not (quorum.epsilon > 0 or (attendance and len(attendance) == len(cohorts))):
        raise VerificationError(f"Expected quorum.epsilon > 0 in a plan of {plan.algorithm}, got {quorum.epsilon}.")
    if (quorum.each > 0) != (quorum.epsilon > 0 and not quorum.count_scale):
        raise VerificationError(f"Expected counts that are paid for exactly by quorum.epsilon > 0, got {quorum}.")
    quorums.verify(quorum, promise.epsilon, promise.delta, cohorts, participations=participations)


def verify_counts(plan: RunPlan, moves: Callable[[Any, Problem], Sequence[Moves | None]]) -> None:
    """No count of a verified plan is finer, as drawn, than what its round leaves and ε_q pays for; VerificationError.

    `moves` counts again how far a user moves each round: by staying away and one in the count, no farther than by being
    another. So it asks neither what a plan declares of that, nor the algorithm that claims the room.
    """
    promise, quorum, cohorts = plan.guarantee, plan.guarantee.quorum, plan.parameters.cohorts()
    if quorum is None or promise.trust_model == "none" or quorum.count_scale:
        return
    attendance = plan.attendance() or (_NOTHING,) * len(cohorts)
    halved = promise.adjacency == "replace-one" and not plan.parameters.poisson_sampling
    left: Sequence[Moves | None] = moves(plan.parameters, plan.problem) if halved else ()
    left = left or (None,) * len(cohorts)
    if not len(attendance) == len(left) == len(cohorts):
        raise VerificationError(f"Expected attendance of {len(cohorts)} rounds, got {attendance}.")
    for round_, (given, own) in enumerate(zip(attendance, left, strict=True)):
        if (promise.trust_model == "local" or quorum.public) and math.isinf(given.mu):
            continue
        room = 0.0
        if given.told:
            _verify_told(plan, round_, given)
        elif given.mu and own is not None and given.most == own.most:
            room = own.replaced**2 - own.away**2
        deviation = quorum.deviation(0.0 if given.told else given.mu)
        if not (deviation > 0 and deviation**-2 <= room + quorum.each**2):
            raise VerificationError(
                f"Expected a count that its round's releases leave room for, or that is paid for, got {given} and "
                f"noise of {deviation} users beside {own}."
            )


def _verify_told(plan: RunPlan, round_: int, given: Attendance) -> None:
    """A release of the round tells how many answered, as finely as is said."""
    for each in plan.parameters.releases(plan.problem.dimension):
        teller = each.mechanism
        if round_ in each.rounds and isinstance(teller, quorums.TellsPresence):
            finest = 1 / (teller.users * teller.presence_deviation)
            if 0 < given.mu <= finest * (1 + 1e-9):
                return
    raise VerificationError(f"Expected a release of round {round_ + 1} that tells who answers, got {given}.")


def _present(plan: RunPlan, given: Sequence[Attendance]) -> Callable[[int], int]:
    """How many who count are there of a cohort when everybody is; by coins, but for a chance of BETA / 2 a run."""
    cohorts = plan.parameters.cohorts()
    if not plan.parameters.poisson_sampling:
        asked = zip(given, cohorts, strict=False)
        most, cohort = next(((each.most, cohort) for each, cohort in asked if each.most is not None), (1, 1))
        return lambda size: size * most // cohort
    users, rare = plan.problem.users, quorums.BETA / (2 * len(cohorts))

    @cache
    def of_coins(size: int) -> int:
        return int(scipy.stats.binom.ppf(rare, max(users, size), size / max(users, size)))

    return of_coins


def left_by_quorum(target: Privacy, *, spent: bool = True) -> Privacy:
    """What is left for the algorithm of what is asked for: all of it but the samplers' if the quorum costs nothing."""
    left = rest(target.epsilon, target.delta, target.quorum_epsilon if spent else 0.0)
    return Privacy(*left, adjacency=target.adjacency)
