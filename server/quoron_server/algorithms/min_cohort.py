"""A run with a minimum cohort: any algorithm, each of whose rounds counts only if enough of those asked answered.

    algorithm = WithMinCohort(plan, plan.guarantee.min_cohort, inner)

A round's answers reach the algorithm once the round has its minimum cohort, by the count of usable answers plus noise.
Below it the run has ended: nothing is released from that round but that, nobody is asked again, and there is no model.
Where a round's own release tells how many answered, what it tells decides: the release is part of the same commit, so
that the store never holds a decision without what it was made from. Where who answers is public, answers are counted as
they are: those that came, whatever is in them.

Statement and proof: docs/privacy/min-cohort.md, public-participation.md; its numbers:
quoron_privacy.histograms.min_cohort.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import scipy

from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import BelowMinCohort, Infeasible, VerificationError
from quoron_privacy.histograms import min_cohort as min_cohorts
from quoron_privacy.histograms.min_cohort import MinCohort, noisy_count, rest
from quoron_privacy.noise.streams import NoiseSource, RandomStream, total_variation
from quoron_privacy.release import Release, Sums
from quoron_server.algorithm import Algorithm, Update, Vector
from quoron_server.parameters import Kind
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import CountLeakage

MET, NOT_MET, UNDECIDED = "met", "not met", "not decided"  # what is reported of a round
TRUE_ANSWERS = (Kind.CONTRACTING_LOSSES, Kind.TRUE_GRADIENTS)  # by which zeros are none
_NOTHING = CountLeakage(0.0)
CountRoom = Callable[[Any, Problem, float, float], float]  # of `Guarantees`


@dataclass(frozen=True, slots=True, eq=False)
class MinCohortState:
    """Everything between two rounds."""

    round: int
    limit: int  # Ξ in whole users, once the first round is decided; secret
    ended: bool  # below the minimum cohort
    inner: Any  # the algorithm's own state


class WithMinCohort:
    """The algorithm `inner` with the minimum cohort of `plan`."""

    def __init__(self, plan: RunPlan, min_cohort: MinCohort, inner: Algorithm[Any]) -> None:
        self.plan, self.inner = plan, inner
        self._min_cohort, self._cohorts = min_cohort, plan.schedule.cohorts
        self._participation = plan.count_leakage() or (_NOTHING,) * len(self._cohorts)

    def init(self) -> MinCohortState:
        """Before the first round."""
        return MinCohortState(0, 0, False, self.inner.init())

    def request(self, state: MinCohortState, noise: NoiseSource) -> Question | None:
        """Return the algorithm's own question; None too once the run is below its minimum cohort."""
        question = None if state.ended else self.inner.request(state.inner, noise)
        if question is None or not self._min_cohort.public or self.plan.guarantee.servers is not None:
            return question
        if question.drawn:  # no plan of these is verified
            raise VerificationError(f"Expected cohorts that are public with public participation, got {question}.")
        return replace(question, attended=True)

    def update(self, state: MinCohortState, answers: Answers | Sums, noise: NoiseSource) -> Update[MinCohortState]:
        """Decide; with a minimum cohort, or where the own release is what decides, the algorithm's own update."""
        min_cohort, round_ = self._min_cohort, state.round
        asked, given = self._cohorts[round_], self._participation[round_]
        counted = self.counted(answers)
        own, limit, outcome = None, 0, MET
        releases: tuple[Release, ...] = ()
        if min_cohort.count_scale:
            releases = (min_cohort.entry(asked),)
            limit = state.limit if round_ else draw_limit(min_cohort, noise.stream("quorum", "threshold"))
            met = decide(min_cohort, counted, asked, limit, noise.stream("quorum", "count", round_))
        else:
            seen: Sequence[tuple[float, float]] = ()  # counts with noise, and the μ of each
            if given.released:
                own = self.inner.update(state.inner, answers, noise)
                assert own.present is not None
                seen = ((own.present, given.mu),)
            if (paid := min_cohort.deviation(0.0 if given.released else given.mu)) < math.inf:
                seen = (*seen, (noisy_count(counted, paid, noise.stream("quorum", "count", round_)), 1 / (paid or 1.0)))
                releases = (min_cohort.entry(asked, 0.0 if given.released else given.mu),)
            met, outcome = enough(min_cohort, seen, asked), MET if seen else UNDECIDED
        if not met:
            kept, shown = (state.inner, ()) if own is None else (own.state, own.releases)
            ended = MinCohortState(round_ + 1, 0, True, kept)
            return Update(ended, (*shown, *releases), {"min_cohort": NOT_MET}, {"answered": counted})
        own = own or self.inner.update(state.inner, answers, noise)
        return replace(
            own,
            state=MinCohortState(round_ + 1, limit, False, own.state),
            releases=(*own.releases, *releases),
            public={**own.public, "min_cohort": outcome},
            diagnostics={"answered": counted, **own.diagnostics},
        )

    def counted(self, answers: Answers | Sums) -> int:
        """Return users of a round whose answer is usable; where who answers is public, whose answer came."""
        return int(np.sum(answers.answered))

    def model(self, state: MinCohortState) -> Vector:
        """Return the algorithm's own; BelowMinCohort if the run has ended so."""
        if state.ended:
            count = "" if self._min_cohort.public else ", by a count with noise"
            raise BelowMinCohort(
                f"Round {state.round} of at most {self.plan.cost.rounds} was below its minimum cohort: fewer than a "
                f"share of {self._min_cohort.share:g} of those asked answered{count}. There is no model, and what the "
                "run has spent stays spent. See that clients are there, then submit another run."
            )
        return self.inner.model(state.inner)

    def iterate(self, state: MinCohortState) -> Vector:
        """Return the algorithm's own."""
        return self.inner.iterate(state.inner)


def draw_limit(min_cohort: MinCohort, stream: RandomStream) -> int:
    """⌊Ξ⌋: the noise of the run's threshold, in whole users. Draw it once a run and keep it secret."""
    return int(stream.laplace_steps(min_cohort.threshold_scale, 1)[0]) if min_cohort.threshold_scale else 0


def decide(min_cohort: MinCohort, answered: int, asked: int, limit: int, stream: RandomStream) -> bool:
    """Return whether a round has its minimum cohort by Laplace noise.

    `answered` gave a usable answer, `asked` were planned.
    """
    noise = int(stream.laplace_steps(min_cohort.count_scale, 1)[0]) if min_cohort.count_scale else 0
    return answered + noise >= min_cohort.needed(asked) + limit


def enough(min_cohort: MinCohort, seen: Sequence[tuple[float, float]], asked: int) -> bool:
    """Return whether a round has its minimum cohort by all `seen` of it, each a count with the μ of its noise.

    Yes if nothing is.
    """
    if not seen:
        return True
    mean = math.fsum(value * mu**2 for value, mu in seen) / math.fsum(mu**2 for _, mu in seen)
    return mean >= min_cohort.needed(asked)


def with_min_cohort(
    own: RunPlan, privacy: Privacy, pair: DominatingPair | None, count_room: CountRoom, *, free: bool
) -> RunPlan:
    """The algorithm's own plan, worth `pair`, with the minimum cohort that is asked for: for nothing, or for its ε_q.

    Infeasible if that has too few users to count.
    """
    cohorts, alone, given = own.schedule.cohorts, own.guarantee, own.count_leakage()
    private = alone.trust_model != "none"
    room = partial(_room, own, privacy, pair, count_room) if private else lambda spent: 0.0
    min_cohort = min_cohorts.calibrate(
        float(privacy.min_cohort or 0.0),
        0.0 if free else privacy.min_cohort_epsilon,
        cohorts,
        participations=own.schedule.participations,
        rest=(alone.epsilon, alone.delta),
        free=[leakage.mu for leakage in given],
        room=room,
        present=_present(own),
        beta=min_cohorts.BETA / 2 if own.parameters.poisson_sampling else min_cohorts.BETA,
        name=f"{own.algorithm} with a minimum cohort",
    )
    return _beside(own, privacy, min_cohort)


def _beside(own: RunPlan, privacy: Privacy, min_cohort: MinCohort) -> RunPlan:
    """Return the plan with this minimum cohort, which promises all that is asked for."""
    asked = own.guarantee if own.guarantee.trust_model == "none" else privacy
    return replace(
        own, guarantee=replace(own.guarantee, epsilon=asked.epsilon, delta=asked.delta, min_cohort=min_cohort)
    )


def with_public_participation(own: RunPlan, privacy: Privacy) -> RunPlan:
    """The algorithm's own plan with a minimum cohort of exact counts, which costs nothing: who answers is public.

    Infeasible unless public-participation#pa1 is about it.
    """
    alone = own.guarantee
    min_cohort = min_cohorts.exact(
        float(privacy.min_cohort or 0.0),
        own.schedule.cohorts,
        participations=own.schedule.participations,
        rest=(alone.epsilon, alone.delta),
    )
    plan = _beside(own, privacy, min_cohort)
    if (why := participation_refusal(plan)) is not None:
        raise Infeasible(
            f"{own.algorithm} with public participation",
            why,
            "participation='private' (privacy.min_cohort.participation), or another one",
        )
    return plan


def participation_refusal(plan: RunPlan) -> str | None:
    """Return why who answers may not be public in a run of this plan; None if it may (public-participation#pa1), or is
    private.

    By the guarantee and the parameters alone: what is asked here is what `verify` asks.
    """
    guarantee, min_cohort = plan.guarantee, plan.guarantee.min_cohort
    if min_cohort is None or not min_cohort.public or guarantee.trust_model == "none":
        return None
    if guarantee.servers is not None:
        return None  # both servers see whose sealed answers come, whatever is in them (docs/privacy/two-servers.md)
    if guarantee.adjacency != "replace-one":
        return f"under {guarantee.adjacency} whether a user is there is what the guarantee hides"
    if guarantee.trust_model != "central-broadcast" or any(map(guarantee.rests_on, TRUE_ANSWERS)):
        return (
            "a client whose answer is not ready has no neutral one to send: the proof is about answers that are true, "
            f"or private by themselves (trust model {guarantee.trust_model})"
        )
    if guarantee.rests_on(Kind.SECRET_COHORTS) or plan.parameters.poisson_sampling:
        return "its guarantee rests on secret cohorts, and the names of those who are missing tell who was asked"
    if guarantee.held_out is not None:
        return "who is held out is drawn in secret, and the names of those who are missing tell who was not"
    return None


def _room(own: RunPlan, privacy: Privacy, pair: DominatingPair | None, count_room: CountRoom, spent: float) -> float:
    """μ of a count in every round, beside the run as planned, for all that (ε, δ) leaves; about, for another ε_q."""
    parameters, problem, rounds = own.parameters, own.problem, len(own.schedule.cohorts)
    planned = spent == privacy.min_cohort_epsilon
    delta = privacy.delta - (1 + math.exp(privacy.epsilon)) * total_variation(gaussians=rounds + 1)
    epsilon = privacy.epsilon if planned else own.guarantee.epsilon + spent
    if pair is None:
        return count_room(parameters, problem, epsilon, delta)
    left = delta - (1 + math.exp(epsilon)) * pair.variation
    whole = gdp.mu_for(epsilon, left) * (1 - 1e-9) if left > 0 else 0.0  # verified by other arithmetic
    alone = own.guarantee.epsilon, own.guarantee.delta - (1 + math.exp(own.guarantee.epsilon)) * pair.variation
    mu = max(pair.mu, gdp.mu_for(*alone))  # what the run was planned for, whatever the second account says of it
    return math.sqrt(max(whole**2 - mu**2, 0.0) / own.schedule.participations)


def verify_min_cohort(plan: RunPlan, moves: Callable[[Any, Problem], Sequence[float | None]]) -> None:
    """The guarantee pays for its minimum cohort, too, if it has one, of an otherwise verified plan; VerificationError.

    Of counts with Gaussian noise: none is finer, as drawn, than what its round leaves and ε_q pays for. What they cost
    beside the run is asked of the pair of both. `moves` counts again how far a user moves each round: as far by being
    another as by staying away and one in the count. So it asks neither what a plan declares of that, nor the algorithm
    that claims the room.
    """
    guarantee, min_cohort = plan.guarantee, plan.guarantee.min_cohort
    if min_cohort is None or guarantee.trust_model == "none":
        return
    participation, participations, cohorts = plan.count_leakage(), plan.schedule.participations, plan.schedule.cohorts
    if (why := participation_refusal(plan)) is not None:
        raise VerificationError(f"Expected private participation in a plan of {plan.algorithm}, got public: {why}.")
    if not (min_cohort.epsilon > 0 or (participation and len(participation) == len(cohorts))):
        raise VerificationError(
            f"Expected minimum cohort.epsilon > 0 in a plan of {plan.algorithm}, got {min_cohort.epsilon}."
        )
    if (min_cohort.each > 0) != (min_cohort.epsilon > 0 and not min_cohort.count_scale):
        raise VerificationError(
            f"Expected counts that are paid for exactly by minimum cohort.epsilon > 0, got {min_cohort}."
        )
    min_cohorts.verify(min_cohort, guarantee.epsilon, guarantee.delta, cohorts, participations=participations)
    if min_cohort.count_scale:
        return
    participation = participation or (_NOTHING,) * len(cohorts)
    halved = guarantee.adjacency == "replace-one" and not plan.parameters.poisson_sampling
    left: Sequence[float | None] = moves(plan.parameters, plan.problem) if halved else ()
    left = left or (None,) * len(cohorts)
    if not len(participation) == len(left) == len(cohorts):
        raise VerificationError(f"Expected participation of {len(cohorts)} rounds, got {participation}.")
    for round_, (given, own) in enumerate(zip(participation, left, strict=True)):
        if (guarantee.trust_model == "local" or min_cohort.public) and math.isinf(given.mu):
            continue
        room = 0.0
        if given.released:
            _verify_leakage(plan, round_, given)
        elif given.mu and own is not None:
            room = own**2 - (own / 2) ** 2
        deviation = min_cohort.deviation(0.0 if given.released else given.mu)
        if not (deviation > 0 and deviation**-2 <= room + min_cohort.each**2):
            raise VerificationError(
                f"Expected a count that its round's releases leave room for, or that is paid for, got {given} and "
                f"noise of {deviation} users beside {own}."
            )


def _verify_leakage(plan: RunPlan, round_: int, given: CountLeakage) -> None:
    """A release of the round tells how many answered, as finely as is said."""
    for planned in plan.schedule.releases:
        teller = planned.mechanism
        if round_ in planned.rounds and isinstance(teller, min_cohorts.TellsPresence):
            finest = 1 / (teller.users * teller.presence_deviation)
            if 0 < given.mu <= finest * (1 + 1e-9):
                return
    raise VerificationError(f"Expected a release of round {round_ + 1} that tells who answers, got {given}.")


def _present(plan: RunPlan) -> Callable[[int], int]:
    """How many who count are there of a cohort when everybody is; by coins, but for a chance of BETA / 2 a run."""
    cohorts = plan.schedule.cohorts
    if not plan.parameters.poisson_sampling:
        return lambda size: size
    users, rare = plan.problem.users, min_cohorts.BETA / (2 * len(cohorts))

    @cache
    def of_coins(size: int) -> int:
        return int(scipy.stats.binom.ppf(rare, max(users, size), size / max(users, size)))

    return of_coins


def left_by_min_cohort(target: Privacy, *, spent: bool = True) -> Privacy:
    """Return what is left for the algorithm of what is asked for.

    All of it but the samplers' if the minimum cohort costs nothing.
    """
    left = rest(target.epsilon, target.delta, target.min_cohort_epsilon if spent else 0.0)
    return Privacy(*left, adjacency=target.adjacency)
