"""The looks at the features: what each release of columns and of second moments does to the metric.

Functions of releases and public numbers; why each is as it is: docs/privacy/whitened-tracking.md, "What each part is
for".
"""

import math
from dataclasses import replace

from quoron_privacy.means.free_presence import Length, Moment
from quoron_privacy.means.free_presence_columns import Columns
from quoron_server.algorithms.whitened.columns import narrowed, standardised
from quoron_server.algorithms.whitened.estimates import WhitenedState
from quoron_server.algorithms.whitened.parameters import COLUMNS, STAGES, WhitenedParameters
from quoron_server.algorithms.whitening import aligned, typical_length, whitening
from quoron_server.plan import Plan

FIRST_FACTOR = 1.5  # of the radius over a typical length at the start
MOMENTS_FROM = 70.0  # ν / d above which whitened moments are clipped at more than a typical length, in proportion
OPENED = 2.0  # times that, where most users have a column at one place: few have all that varies of it


def unit(plan: Plan) -> float:
    """What features are multiplied by, so that columns may be as long as 1."""
    return math.sqrt(plan.problem.features) / plan.parameters_of(WhitenedParameters).feature_norm


def typical(plan: Plan, released: Length) -> float:
    """A typical length of second moments, of users who have any."""
    d = float(plan.problem.features)
    return min(d, typical_length(released, plan.parameters_of(WhitenedParameters).length(), d))


def radius(plan: Plan, state: WhitenedState, length: float) -> float:
    """At which second moments of a typical length are clipped."""
    p = plan.parameters_of(WhitenedParameters)
    if p.robust:
        return length
    room = max(1.0, p.resolution / (MOMENTS_FROM * plan.problem.features))
    return room * length * (OPENED if state.windows.held.any() else 1.0)


def looked(plan: Plan, state: WhitenedState, released: Columns, stage: int) -> WhitenedState:
    """By what was released of columns; after the last time they are made alike."""
    p = plan.parameters_of(WhitenedParameters)
    mechanism, constant = p.columns(plan.problem.features), p.constant(plan.problem.features)
    presence = state.presence.seen(released.presence, mechanism.presence_deviation)
    windows = narrowed(state.windows, released, presence.share, mechanism, constant=constant)
    after = replace(state, presence=presence, windows=windows)
    if stage < COLUMNS - 1:
        return after
    return replace(after, transform=state.transform @ standardised(windows, constant=constant))


def whitened(plan: Plan, state: WhitenedState, moment: Moment, stage: int, length: float) -> WhitenedState:
    """By a second moment of features that were clipped at a typical length."""
    p = plan.parameters_of(WhitenedParameters)
    mechanism, constant = p.moment(plan.problem.dimension, stage), p.intercept
    presence = state.presence.seen(moment.presence, mechanism.presence_deviation)
    deviation = mechanism.scale * radius(plan, state, length)
    found = whitening(moment, presence.share, deviation, length, constant=constant)
    transform, doubt = state.transform @ found.transform, found.doubt
    if p.outputs > 1 and stage == STAGES - 1:
        transform, doubt = aligned(transform, doubt, constant=constant)
    return replace(state, presence=presence, transform=transform, doubt=doubt, heard=found.heard)


def bound(plan: Plan) -> float:
    """C₀: of a whitened gradient at 0, for a metric that has learnt nothing."""
    return plan.parameters_of(WhitenedParameters).start_slope * math.sqrt(plan.problem.features)


def begun(plan: Plan, state: WhitenedState, released: Length) -> WhitenedState:
    """With a typical length of gradients at the start."""
    most = bound(plan)
    start = typical_length(released, plan.parameters_of(WhitenedParameters).length(), most)
    return replace(state, start_length=start, radius=min(most, FIRST_FACTOR * start))
