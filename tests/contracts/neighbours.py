"""What the neighbour of `replay` sends: corners, around the thresholds of every round."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts.charges import mean_of
from contracts.scenes import Quadratic
from quoron_client.protocol.questions import Answers, Question, RangeReport, Status, VectorReport
from quoron_privacy.means.rotation import padded
from quoron_server.algorithm import Algorithm
from quoron_server.algorithms.accelerated_erm import AcceleratedERM
from quoron_server.algorithms.chains import ChainPhase, largest
from quoron_server.algorithms.local_model import LocalModel
from quoron_server.algorithms.localised.median import CoordinateMedianParameters
from quoron_server.algorithms.localised.phased import GroupedParameters, LocalisedSGD, PhasedParameters
from quoron_server.algorithms.mean import MeanSGD
from quoron_server.algorithms.min_cohort import WithMinCohort
from quoron_server.algorithms.noisy import NoisySGD
from quoron_server.algorithms.one_epoch import OneEpoch
from quoron_server.algorithms.one_round import OneRoundLeastSquares
from quoron_server.algorithms.outlier_gd import OutlierGD, OutlierGDParameters
from quoron_server.algorithms.outlier_iterates import OutlierIterates
from quoron_server.algorithms.tracking import PILOT, TrackingSRGD
from quoron_server.algorithms.whitened.method import WhitenedTracking
from quoron_server.algorithms.winsorised import WinsorisedERM
from quoron_server.plan import RunPlan

Row = np.ndarray | None  # None: no answer


@dataclass(frozen=True)
class Edges:
    """Where a round treats an answer differently: at these distances from a centre."""

    centre: np.ndarray
    radii: tuple[float, ...]


def edges(algorithm: Algorithm[Any], state: Any, honest: np.ndarray) -> Edges:
    """The thresholds of this round; of an algorithm that is not named here, where its honest answers lie."""
    if isinstance(algorithm, WithMinCohort):
        return edges(algorithm.inner, state.inner, honest)
    p, zero = algorithm.plan.parameters, np.zeros(honest.shape[1:])
    middle = honest.mean(axis=0) if len(honest) else zero
    if isinstance(algorithm, NoisySGD) and p.adaptive is not None:
        return Edges(zero, (state.radius, 0.97 * state.radius, 2 * state.radius / 3))
    if isinstance(algorithm, NoisySGD | OneEpoch):
        return Edges(zero, (p.clip_norm,))
    if isinstance(algorithm, TrackingSRGD):
        if state.round < PILOT:
            return Edges(zero, (p.feature_norm,))
        # Along the first coordinate these are where whitened answers are clipped, and where they count as within.
        reach = algorithm._target(state).radius / float(np.linalg.norm(algorithm._whole(state).transform[0]))
        return Edges(zero, (reach, 0.75 * reach, 2 * reach / 3, 2 * reach))  # clients take the centre off
    if isinstance(algorithm, WhitenedTracking):
        if state.round == 0:  # a factor, then a gradient
            return Edges(zero, (p.feature_norm, p.start_slope, state.radius))
        if state.round == p.gradients:
            bound = algorithm.voting(state).norm
            return Edges(zero, (bound, bound / 2))
        # Along the first coordinate these are where whitened answers are clipped, and where they count as within.
        contrasts = algorithm._contrasts.matrix()
        reach = state.radius / float(np.linalg.norm(state.transform[0]) * np.linalg.norm(contrasts[0]))
        centre = np.linalg.solve(state.transform.T, state.centre.reshape(contrasts.shape[1], -1).T)
        centre = (contrasts @ centre.T).ravel()
        return Edges(centre, (reach, 0.75 * reach, 2 * reach / 3, 2 * reach))
    if isinstance(algorithm, OneRoundLeastSquares):
        return Edges(zero, (p.moment_norm,))
    if isinstance(algorithm, LocalModel):
        return Edges(state.centre, (state.radius,))
    if isinstance(algorithm, MeanSGD):
        return Edges(state.centre, (state.radius, state.radius if p.crude is None else p.crude.half_width))
    if isinstance(algorithm, LocalisedSGD) and isinstance(p, PhasedParameters | GroupedParameters):
        longest = algorithm.plan.problem.lipschitz
        return Edges(zero, (longest, longest * (1 + 1e-6)))
    if isinstance(algorithm, LocalisedSGD) and isinstance(p, CoordinateMedianParameters):
        lonely = -math.log(p.median.core) / p.temperature
        return Edges(middle, (p.median.reach / p.temperature, p.radius, lonely, p.clip_bound))
    if isinstance(algorithm, LocalisedSGD):
        floor = getattr(p.filter, "threshold", p.cohort_size * getattr(p.filter, "floor", 1.0)) / p.cohort_size
        edge = -math.log(floor) / p.temperature  # where a user alone before all others scores just the threshold
        return Edges(middle, (edge, 1.5 * edge, 2 * edge, p.distance))
    if isinstance(algorithm, OutlierIterates):
        phase = p.phases[algorithm.phase_index(state.round)]
        reach = phase.radius * phase.averaged
        return Edges(middle, (reach, reach / 2, 2 * reach, largest(algorithm.plan.problem)))
    if isinstance(algorithm, WinsorisedERM):
        mean = p.mean
        return Edges(zero, (mean.half_width * math.sqrt(padded(len(zero))), mean.crude.half_width, mean.half_width))
    if isinstance(algorithm, OutlierGD):
        return Edges(middle, (p.radius, p.radius / 2, 2 * p.radius, 2.0**20 * p.radius))
    if isinstance(algorithm, AcceleratedERM):
        phase = p.phases[algorithm.phase_index(state.round)]
        radius = phase.radius
        return Edges(middle, (radius, radius / 2, 2 * radius, 2.0**20 * radius))
    spread = float(np.linalg.norm(honest - middle, axis=-1).max(initial=1.0))
    return Edges(middle, (spread, spread / 2))


SIZES = (5e-324, 1e-308, 1e-200, 1e-9, 1e9, 1e200, 1.7e308)
NEAR = (1 - 1e-9, 1.0, 1 + 1e-9)
DIRECTIONS = 4
PLAIN = 6
RADII = 4
CORNERS = PLAIN + DIRECTIONS * (len(SIZES) + RADII * len(NEAR))
ABSENT = 0


def corner(number: int, at: Edges, own: np.ndarray) -> Row:
    """Corner `number` of what a user may send: nothing, nonsense, any size, and either side of every threshold."""
    if number < PLAIN:
        broken = own.copy()
        broken.flat[-1] = np.nan
        plain = (None, np.zeros_like(own), np.full_like(own, np.nan), np.full_like(own, np.inf), broken, own)
        return plain[number]
    which, number = divmod(number - PLAIN, len(SIZES) + RADII * len(NEAR))
    direction = np.zeros_like(own)
    if which < 2:
        direction[..., 0] = 1.0 - 2.0 * which
    elif which == 2:
        direction[..., -1] = 1.0
    else:
        direction[...] = 1 / math.sqrt(own.shape[-1])
    if number < len(SIZES):
        return SIZES[number] * direction
    radius, near = divmod(number - len(SIZES), len(NEAR))
    return np.asarray(at.centre + at.radii[radius % len(at.radii)] * NEAR[near] * direction)


def threshold(radius: int, direction: int, near: int = 1) -> int:
    """The number of a corner at a threshold."""
    return PLAIN + direction * (len(SIZES) + RADII * len(NEAR)) + len(SIZES) + radius * len(NEAR) + near


def far(direction: int) -> int:
    """The number of a corner beyond every threshold, where all arithmetic still works."""
    return PLAIN + direction * (len(SIZES) + RADII * len(NEAR)) + SIZES.index(1e9)


@dataclass(frozen=True)
class Pair:
    """Two neighbouring data sets: one user of one round's cohort sends corner `first` or `second`, then others."""

    round: int
    slot: int  # in that round's cohort, modulo its size
    first: int
    second: int
    crowded: bool = False  # the others as far apart as a test may let pass
    turn: int = 7  # from round to round corners move on by so many


def phase_of(plan: RunPlan, round_: int) -> Any:
    """The phase of a round in the parameters of an outlier mean."""
    if isinstance(plan.parameters, OutlierGDParameters):
        return plan.parameters
    phases = plan.parameters.phases
    ends = np.cumsum([phase.users if isinstance(phase, ChainPhase) else phase.rounds for phase in phases])
    return phases[int(np.searchsorted(ends, round_, side="right"))]


CROWD = 0.3  # coordinates of the middle of a crowd


def crowd(plan: RunPlan, round_: int, honest: np.ndarray) -> None:
    """Moves the answers of an outlier mean's users: a core of two halves, and outliers that one of them holds.

    Outliers have just as many neighbours as the ramp starts from, so that one user more gives all of them weight
    (docs/privacy/outlier-mean.md#o1); there are as many as leave the score a level above C k.
    """
    mean, radius = mean_of(plan, round_), phase_of(plan, round_).radius
    size, reach = mean.cohort_size, mean.removal_radius * 0.995
    lost = 2 * (size - mean.ramp_low) if mean.kappa == 1 else 2 * size  # pairs, for each outlier
    outliers = max(0, (size * (size - mean.core) - 4 * size) // lost)
    places = np.full(size, -0.01)
    places[: max(0, mean.ramp_low - outliers)] = 0.0
    places[size - outliers :] = reach
    honest[...] = CROWD
    honest[..., 0] += (radius * places).reshape((-1,) + (1,) * (honest.ndim - 2))


class Neighbours(Quadratic):
    """Honest users, and one that sends corners."""

    def __init__(
        self, algorithm: Algorithm[Any], user: int, start: int = 0, turn: int = 0, crowded: bool = False
    ) -> None:
        super().__init__()
        self.algorithm, self.user, self.start, self.turn, self.crowded = algorithm, user, start, turn, crowded
        self.times = 0
        self.replaced: tuple[int, Any] | None = None

    def answer(self, question: Question, state: Any) -> tuple[Answers, int | None]:
        """The answers as users sent them, and the neighbour's row."""
        rows = np.flatnonzero(question.cohort == self.user)
        if not len(rows):
            return self._honest(question), None
        number, self.times = (self.start + self.turn * self.times) % CORNERS, self.times + 1
        row = int(rows[0])
        if isinstance(question.task, RangeReport | VectorReport):
            # Corners of the gradient behind a report; who sends none is public in the local model.
            self.replaced = row, lambda honest: corner(number or ABSENT + 1, self._edges(state, honest), honest[row])
            try:
                return self._honest(question), row
            finally:
                self.replaced = None
        answers = self._honest(question)
        sent = corner(number, self._edges(state, answers.values), answers.values[row])
        answers.values[row] = 0.0 if sent is None else sent
        answers.status[row] = Status.MISSING if sent is None else Status.ANSWERED
        return answers, row

    def _honest(self, question: Question) -> Answers:
        answers = self.ask(question)
        if self.crowded:
            crowd(self.algorithm.plan, question.round, answers.values)
        return answers

    def _edges(self, state: Any, honest: np.ndarray) -> Edges:
        if not self.crowded:
            return edges(self.algorithm, state, honest)
        phase = phase_of(self.algorithm.plan, state.round)
        radius = phase.radius * getattr(phase, "averaged", 1)
        reach = 0.99 * mean_of(self.algorithm.plan, state.round).removal_radius
        return Edges(np.full(honest.shape[1:], CROWD), (reach * radius, 0.99 * radius, radius / 2, 2 * radius))

    def _gradients(self, task: Any, centres: np.ndarray) -> np.ndarray:
        honest = super()._gradients(task, centres)
        if self.replaced is not None:
            row, sent = self.replaced
            honest[row] = sent(honest)
        return honest
