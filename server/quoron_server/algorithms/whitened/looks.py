"""The looks at the features: what each second moment that is released does to the metric, and what none of them tells.

Functions of releases and public numbers; why each is as it is: docs/privacy/whitened-tracking.md, "What each part is
for".
"""

import math
from dataclasses import replace

import numpy as np

from quoron_client.protocol.questions import Answers
from quoron_privacy.means.free_presence import Length, Moment, Rows, moment_logs, vector_logs
from quoron_privacy.means.free_presence_columns import Columns
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release
from quoron_server.algorithm import Vector
from quoron_server.algorithms.whitened.columns import narrowed, scaled
from quoron_server.algorithms.whitened.estimates import GradientModel, WhitenedState, told
from quoron_server.algorithms.whitened.parameters import COLUMNS, STAGES, WhitenedParameters
from quoron_server.algorithms.whitening import aligned, typical_length, whitening, widened, without
from quoron_server.plan import RunPlan

FIRST_FACTOR = 1.5  # of the radius over a typical length at the start
MOMENTS_FROM = 70.0  # ν / d above which whitened moments are clipped at more than a typical length, in proportion
OPENED = 2.0  # times that, where directions were narrow: few users may have all that varies along them


def unit(plan: RunPlan) -> float:
    """What features are multiplied by, so that columns may be as long as 1."""
    return math.sqrt(plan.problem.features) / plan.parameters_of(WhitenedParameters).feature_norm


def looked(plan: RunPlan, state: WhitenedState, released: Columns, stage: int) -> WhitenedState:
    """By what was released of columns; after the last time those that surely are narrow are made wider."""
    p = plan.parameters_of(WhitenedParameters)
    mechanism, constant = p.columns(plan.problem.features), p.constant(plan.problem.features)
    presence = state.presence.seen(released.presence, mechanism.presence_deviation)
    windows = narrowed(state.windows, released, presence.share, mechanism, constant=constant)
    after = replace(state, presence=presence, windows=windows)
    if stage < COLUMNS - 1:
        return after
    return replace(after, transform=state.transform @ scaled(windows, constant=constant))


def at_features(
    plan: RunPlan, state: WhitenedState, factors: Rows, gradients: Answers, noise: NoiseSource
) -> tuple[WhitenedState, tuple[Release, ...]]:
    """All looks of a first message: columns, second moments, each clipped at a typical length; a typical gradient."""
    p, d = plan.parameters_of(WhitenedParameters), plan.problem.features
    entries: tuple[Release, ...] = ()
    answered, columns, length = gradients.answered, p.columns(d), p.length()
    for stage in range(COLUMNS):
        stream = noise.stream("columns", stage)
        seen = columns.release(factors, answered, state.windows.both, unit(plan), p.constant(d), stream)
        state = looked(plan, state, seen, stage)
        entries += (columns.entry(),)
    for stage in range(STAGES):
        logs = moment_logs(factors, state.transform)
        own = typical(plan, length.release(logs, answered, float(d), noise.stream("length", stage)))
        mechanism, clip = p.moment(plan.problem.dimension, stage), radius(plan, state, stage, own)
        moment = mechanism.release(factors, answered, state.transform, clip, noise.stream("moment", stage))
        state = whitened(plan, state, moment, stage, own)
        entries += (length.entry(), mechanism.entry())
    logs = vector_logs(gradients.values, state.transform)
    state = begun(plan, state, length.release(logs, answered, bound(plan), noise.stream("length", STAGES)))
    return state, (*entries, length.entry())


def typical(plan: RunPlan, released: Length) -> float:
    """A typical length of second moments, of users who have any."""
    d = float(plan.problem.features)
    return min(d, typical_length(released, plan.parameters_of(WhitenedParameters).length(), d))


def radius(plan: RunPlan, state: WhitenedState, stage: int, length: float) -> float:
    """At which second moments of a typical length are clipped."""
    p = plan.parameters_of(WhitenedParameters)
    if p.robust or stage == 0:
        return length
    room = max(1.0, p.resolution / (MOMENTS_FROM * plan.problem.features))
    return room * length * (1.0 if state.unwidened is None else OPENED)


def whitened(plan: RunPlan, state: WhitenedState, moment: Moment, stage: int, length: float) -> WhitenedState:
    """By a second moment of features that were clipped at a typical length.

    Between the first and the last only where it tells of directions that are narrow; else it waits for the next.
    """
    p = plan.parameters_of(WhitenedParameters)
    mechanism, constant = p.moment(plan.problem.dimension, stage), p.intercept
    between, last = 0 < stage < STAGES - 1, stage == STAGES - 1
    presence = state.presence.seen(moment.presence, mechanism.presence_deviation)
    weight = (mechanism.scale * radius(plan, state, stage, length)) ** -2
    known = state.known + weight
    moment = moment._replace(mean=state.moment + weight / known * (moment.mean - state.moment))
    found = whitening(moment, presence.share, known**-0.5, length, constant=constant, again=between)
    if between and not found.narrow:
        return replace(state, presence=presence, moment=moment.mean, known=known)
    transform, doubt, unwidened = state.transform @ found.transform, found.doubt, state.unwidened
    if between and unwidened is None:
        cautious = whitening(moment, presence.share, known**-0.5, length, constant=constant)
        unwidened = state.transform @ cautious.transform
    if p.outputs > 1 and last:
        transform, doubt = aligned(transform, doubt, constant=constant)
    after = replace(state, presence=presence, transform=transform, doubt=doubt, heard=found.heard)
    if last and unwidened is not None:
        after = replace(after, widened=widened(transform, doubt, unwidened, constant=constant))
    return replace(after, moment=np.zeros_like(moment.mean), known=0.0, unwidened=unwidened)


def bound(plan: RunPlan) -> float:
    """C₀: of a whitened gradient at 0, for a metric that has learnt nothing."""
    return plan.parameters_of(WhitenedParameters).start_slope * math.sqrt(plan.problem.features)


def begun(plan: RunPlan, state: WhitenedState, released: Length) -> WhitenedState:
    """With a typical length of gradients at the start."""
    most = bound(plan)
    start = typical_length(released, plan.parameters_of(WhitenedParameters).length(), most)
    return replace(state, start_length=start, radius=min(most, FIRST_FACTOR * start))


def known(plan: RunPlan, state: WhitenedState, model: GradientModel, point: Vector) -> Vector:
    """A point, (D,), less what lies along widened directions of which neither a look nor gradients tell anything."""
    if state.unwidened is None or not state.widened.any():
        return point
    gradient, error = model.at(np.zeros_like(point), state.walk)
    if told(gradient, error, state.widened, constant=plan.parameters_of(WhitenedParameters).intercept):
        return point
    rows = point.reshape(-1, len(state.widened))
    return without(rows, state.widened, state.transform, state.unwidened).ravel()
