"""Least squares in one round: everybody's second moment of features and label, once, with noise.

    M      the mean over users of z zᵀ averaged over their items, z = (a / R, κ y / Y), plus symmetric noise
    model  (s₀ / φ₂) (S₊ + (r + λ) I)⁻¹ b / R,  S the moment of the features and b that with the label, in M

Moments and correlations are one positive semidefinite matrix, clipped as one. r, the noise's spectral norm, is public.
For a logistic loss it is one Newton step from zero.

After Wang (2018), AdaSSP, at the level of users. Statement and proof: docs/privacy/one-round-least-squares.md.
"""

from dataclasses import dataclass

import numpy as np

from quoron_client.protocol.moments import SecondMoment
from quoron_client.protocol.questions import Answers, Question, summed
from quoron_privacy.means.moment import SecondMomentNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency, Sums, packed
from quoron_server.algorithm import Update, Vector
from quoron_server.parameters import MaskedRounds, Parameters, PlannedRelease
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

MOST_COLUMNS = 128  # of which the moment is told, as it was released: coefficients' intervals are made of it
LABEL_WEIGHT = 0.4**0.5  # κ: noise of S and of b, in the units of each, is about the same


@dataclass(frozen=True, slots=True)
class OneRoundParameters(Parameters):
    """Public numbers of one run."""

    cohort_size: int  # n: everybody
    rounds: int  # 1
    adjacency: Adjacency
    moment_scale: float  # s, of a diagonal entry
    moment_norm: float  # bound on ‖(a, c y)‖
    label_scale: float  # c = κ R / Y
    feature_norm: float  # R
    label_bound: float  # Y
    target: float  # s₀ / φ₂: what predictions approach for labels of Y
    ridge: float  # λ / φ₂
    mu: float

    def moment(self, dimension: int) -> SecondMomentNoise:
        """Of features and label."""
        return SecondMomentNoise(dimension + 1, self.moment_norm, self.cohort_size, self.adjacency, self.moment_scale)

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """The moment."""
        moment = self.moment(dimension)
        return (PlannedRelease(moment, moment.entry(), 1, range(1), self.mu),)

    def masked(self, problem: Problem) -> MaskedRounds:
        """The moment."""
        return MaskedRounds(self.adjacency, ((self.rounds, self.moment(problem.dimension).masked),))

    def cohorts(self) -> tuple[int, ...]:
        """Everybody, once."""
        return (self.cohort_size,) * self.rounds

    def reads_sums(self) -> bool:
        """Always."""
        return True

    def asks(self, problem: Problem) -> SecondMoment:
        """A second moment of features and label."""
        return SecondMoment(problem.features + 1, self.label_scale)

    def answer_length(self, problem: Problem) -> int:
        """A second moment of features and label."""
        return packed(problem.features + 1)


@dataclass(frozen=True, slots=True, eq=False)
class OneRoundState:
    """Before the round or after it."""

    round: int
    model: Vector


class OneRoundLeastSquares:
    """Algorithm object for a plan with OneRoundParameters."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.parameters = plan.parameters_of(OneRoundParameters)

    def init(self) -> OneRoundState:
        """Zero."""
        return OneRoundState(0, np.zeros(self.plan.problem.dimension))

    def request(self, state: OneRoundState, noise: NoiseSource) -> Question | None:
        """Everybody's moment."""
        del noise
        if state.round == 1:
            return None
        p, d = self.parameters, self.plan.problem.dimension
        everybody = np.arange(p.cohort_size, dtype=np.int64)
        return Question(0, everybody, SecondMoment(d + 1, p.label_scale), reduction=p.moment(d).reduction)

    def update(self, state: OneRoundState, answers: Answers | Sums, noise: NoiseSource) -> Update[OneRoundState]:
        """Release and solve."""
        p, d = self.parameters, self.plan.problem.dimension
        mechanism = p.moment(d)
        sums = summed(answers, mechanism.reduction)
        moment = mechanism.release(sums, noise.stream("release", 0))
        values, basis = np.linalg.eigh(moment[:d, :d])
        least = mechanism.spectral_error + p.ridge
        along = basis.T @ moment[:d, d] / (p.label_scale * p.label_bound)
        solved = p.target * (basis @ (along / (np.maximum(values, 0.0) + least)))
        model = self.plan.problem.domain.project(solved)
        diagnostics = {"answered": sums.answered}
        told = {"moment": moment[np.triu_indices(d + 1)].tolist()} if d <= MOST_COLUMNS else {}
        return Update(OneRoundState(1, model), (mechanism.entry(),), told, diagnostics)

    def model(self, state: OneRoundState) -> Vector:
        """Zero, then the solution."""
        return state.model

    def iterate(self, state: OneRoundState) -> Vector:
        """As `model`."""
        return state.model
