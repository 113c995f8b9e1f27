"""Whitened tracking whose first message is thirteen questions, each for one release, and whose answers are only summed.

    columns, three times        as the first message's factor
    length, moment, four times       the same, of the features as whitened so far
    length, round 0                   of the gradient at 0, then its mean
    rounds 1 to T - 1, vote           as `method`

Each question is clipped by what the one before released, as the releases of one message are; so the transcript, and
what it costs, is that of docs/privacy/whitened-tracking.md#w1, in T + 13 rounds. Two servers need it, and silos that
send sums: nobody sees a row.
"""

from dataclasses import dataclass, replace
from typing import Any

from quoron_client.protocol.questions import Answers, AverageGradient, Question, SecondMoment, summed
from quoron_privacy.means.clipping import ChangeSum
from quoron_privacy.means.contrasts import Contrasts, ContrastSum
from quoron_privacy.means.free_presence import LengthSum, ShapedMomentSum, VectorLengthSum
from quoron_privacy.means.free_presence_columns import ColumnSum
from quoron_privacy.means.norm_counts import NormCountSum
from quoron_privacy.noise.streams import NoiseSource, RandomStream
from quoron_privacy.release import NoisySums, Sums
from quoron_server.algorithm import Algorithm, Update, Vector
from quoron_server.algorithms.whitened import looks
from quoron_server.algorithms.whitened.estimates import WhitenedState
from quoron_server.algorithms.whitened.method import WhitenedTracking
from quoron_server.algorithms.whitened.parameters import COLUMNS, PARTS, WhitenedParameters
from quoron_server.plan import RunPlan

VECTOR = PARTS - 1  # the part that asks for the length of a gradient


@dataclass(frozen=True, slots=True, eq=False)
class PartsState:
    """Between two questions."""

    part: int  # questions so far
    typical: float  # length of second moments, between two parts
    inner: WhitenedState


def made(plan: RunPlan) -> Algorithm[Any]:
    """Of a plan with WhitenedParameters."""
    return WhitenedInParts(plan) if plan.parameters_of(WhitenedParameters).parts else WhitenedTracking(plan)


class WhitenedInParts:
    """Algorithm object for a plan with WhitenedParameters in parts."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan, self.inner = plan, WhitenedTracking(plan)
        self.parameters = self.inner.parameters
        self._contrasts = Contrasts(plan.problem.features, plan.problem.outputs)

    def init(self) -> PartsState:
        """Start at zero."""
        return PartsState(0, 0.0, self.inner.init())

    def request(self, state: PartsState, noise: NoiseSource) -> Question | None:
        """Of everybody, with what is read of it."""
        part, own = state.part, state.inner
        question = self.inner.request(own, noise)
        if question is None:
            return None
        if part < VECTOR:
            task: SecondMoment | AverageGradient = SecondMoment(self._contrasts.features)
            return Question(part, question.cohort, task, reduction=self._reduction(state))
        if own.round == 0:  # whose task is a moment as well
            at = self.inner.iterate(own)
            return Question(
                part, question.cohort, AverageGradient(at[None, :], (1.0,)), reduction=self._reduction(state)
            )
        return replace(question, round=part, reduction=self._reduction(state))

    def update(self, state: PartsState, answers: Answers | Sums, noise: NoiseSource) -> Update[PartsState]:
        """Release, and whiten or step."""
        p, part, own, dimension = self.parameters, state.part, state.inner, self.plan.problem.dimension
        sums, stream, typical = summed(answers, self._reduction(state)), self._stream(state, noise), state.typical
        if part >= PARTS:
            if own.round == p.gradients:
                mean = sums if isinstance(sums, NoisySums) else self.inner.voting(own).unit_mean(sums)
                update = self.inner.voted(own, float(p.vote.release(mean, stream)[0]), sums.answered)
            else:
                released = p.gradient(dimension, own.round).release_sums(sums, stream)
                update = self.inner.stepped(own, released, sums.answered)
            after, seen = PartsState(part + 1, 0.0, update.state), (update.public, update.diagnostics)
            return Update(after, update.releases, *seen, update.present)
        entry, present = p.length().entry(), None
        stage, whole = divmod(part - COLUMNS, 2)
        if part < COLUMNS:
            columns = p.columns(self._contrasts.features)
            found = columns.release_sums(sums, stream)
            own, entry = looks.looked(self.plan, own, found, part), columns.entry()
        elif part == VECTOR:
            own = looks.begun(self.plan, own, p.length().release_sums(sums, stream))
        elif not whole:
            typical = looks.typical(self.plan, p.length().release_sums(sums, stream))
        else:
            mechanism = p.moment(dimension, stage)
            moment = mechanism.release_sums(sums, looks.radius(self.plan, own, stage, typical), stream)
            own, entry = looks.whitened(self.plan, own, moment, stage, typical), mechanism.entry()
            present = moment.presence * p.cohort_size
        return Update(PartsState(part + 1, typical, own), (entry,), {}, {"answered": sums.answered}, present)

    def _stream(self, state: PartsState, noise: NoiseSource) -> RandomStream:
        """As of the same release of one message: so a run by sums has the bits of one by rows."""
        part, round_ = state.part, state.inner.round
        if part < COLUMNS:
            return noise.stream("columns", part)
        if part < PARTS:
            stage, whole = divmod(part - COLUMNS, 2)
            return noise.stream("moment" if whole else "length", stage)
        return noise.stream("vote" if round_ == self.parameters.gradients else "release", round_)

    def _reduction(self, state: PartsState) -> Any:
        """All that a round reads of its answers."""
        p, own, users = self.parameters, state.inner, self.parameters.cohort_size
        features = self._contrasts.features
        if state.part < COLUMNS:
            return ColumnSum(users, own.windows.both, looks.unit(self.plan), p.constant(features))
        if state.part == VECTOR:
            return self._of_gradients(VectorLengthSum(users, own.transform, self.inner.bound))
        stage, whole = divmod(state.part - COLUMNS, 2)
        if state.part < VECTOR and not whole:
            return LengthSum(users, own.transform, float(features))
        if state.part < VECTOR:
            return ShapedMomentSum(users, own.transform, looks.radius(self.plan, own, stage, state.typical))
        if own.round == p.gradients:
            return ChangeSum(self.inner.voting(own))
        return self._of_gradients(NormCountSum(own.radius, users, own.transform, own.centre))

    def _of_gradients(self, own: NormCountSum | VectorLengthSum) -> NormCountSum | VectorLengthSum | ContrastSum:
        return own if self.plan.problem.outputs == 1 else ContrastSum(self._contrasts, own)

    def model(self, state: PartsState) -> Vector:
        """See method."""
        return self.inner.model(state.inner)

    def iterate(self, state: PartsState) -> Vector:
        """See method."""
        return self.inner.iterate(state.inner)
