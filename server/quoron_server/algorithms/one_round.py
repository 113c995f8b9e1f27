"""Least squares in one round: everybody's second moment of features and label with noise, and confidence intervals.

    M      the mean over users of z zᵀ averaged over their items, z = (a / R, κ y / Y), plus symmetric noise
    model  (s₀ / φ₂) (S₊ + (r + λ) I)⁻¹ b / R,  S the moment of the features and b that with the label, in M

Moments and correlations are one positive semidefinite matrix, clipped as one. The spectral norm r of the noise is
public. For a logistic loss it is one Newton step from zero. There is one Gaussian release, so all of μ goes into it.

After Wang (2018), AdaSSP, at the level of users. Statement and proof: docs/privacy/one-round-least-squares.md; of the
coefficients' intervals one-round-least-squares.md#ui1.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtri

from quoron_client.protocol.questions import Answers, Question, SecondMoment, summed
from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Matrix
from quoron_privacy.errors import Infeasible
from quoron_privacy.means.free_counts import MomentMean, ShapedMomentSum
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Adjacency, Sums, packed
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms import search, spec
from quoron_server.algorithms.references import WANG_2018, ours
from quoron_server.algorithms.spec import AlgorithmSpec, Calibrated, Factor, Guarantees, NoBlackBoxes, Policy
from quoron_server.parameters import Parameters
from quoron_server.plan import Decision, PolicyInputs, Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import MaskedRows, RoundRelease, Rounds

NAME = "one-round-least-squares"
THEOREM = "docs/privacy/one-round-least-squares.md#ls1"
LARGEST_DIMENSION = 300
MIN_RESOLUTION = 20.0  # ν = nμ / √d
HALF, POWER = 60.0, 0.5  # at most (HALF / ν)^POWER of the start's excess risk is left in nine of ten problems

MAX_ROUNDS = 3  # that a budget allows for it to be taken: whitened tracking needs four, and fewer are worth no more
ONE = "three rounds or fewer are allowed, and it needs one"

MAX_COLUMNS = 128  # whose moment is reported as released: intervals of coefficients are computed from it
LABEL_WEIGHT = 0.4**0.5  # κ: noise of S and of b, in the units of each, is about the same

SURE = float(ndtri(0.98))  # of a normal law 96 % lie within; the rest of 5 % pays for the two below
LONG, FAR = 0.005, 3.5  # chance of a longer Gaussian vector; a spectral norm's deviations, missed by 2 exp(-FAR²/2)
MAX_DOUBT = 0.5  # δ, from which directions cannot be distinguished from noise


@dataclass(frozen=True, slots=True)
class OneRoundParameters(Parameters):
    """Public numbers of one run."""

    cohort_size: int  # n: everybody
    rounds: int  # 1
    adjacency: Adjacency
    moment_scale: float  # s, of a diagonal entry
    moment_norm: float  # bound on ‖(a, c y)‖, and its square on the Frobenius norm of a user's moment
    label_scale: float  # c = κ R / Y
    feature_norm: float  # R
    label_bound: float  # Y
    target: float  # s₀ / φ₂: what predictions approach for labels of Y
    ridge: float  # λ / φ₂
    mu: float

    def moment(self, dimension: int) -> MomentMean:
        """Of features and label, in units of the largest moment of a user."""
        unit = self.moment_scale / self.moment_norm**2
        return MomentMean(dimension + 1, self.cohort_size, self.adjacency, unit, presence=False)

    def reduction(self, dimension: int) -> ShapedMomentSum:
        """All that the release reads of users' factors."""
        return ShapedMomentSum(self.cohort_size, np.eye(dimension + 1), self.moment_norm**2)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return a second moment of features and label."""
        moment, task = self.moment(problem.dimension), SecondMoment(problem.features + 1, self.label_scale)
        made, rows = RoundRelease(moment, moment.entry(), self.mu), MaskedRows(self.adjacency, moment.masked)
        return (Rounds(1, self.cohort_size, task, (made,), summed=True, rows=rows),)


@dataclass(frozen=True, slots=True, eq=False)
class OneRoundState:
    """Before the round or after it."""

    round: int
    model: Vector


class OneRoundLeastSquares(OfPlan[OneRoundParameters]):
    """Algorithm object for a plan with OneRoundParameters."""

    kind = OneRoundParameters

    def init(self) -> OneRoundState:
        """Zero."""
        return OneRoundState(0, np.zeros(self.plan.problem.dimension))

    def request(self, state: OneRoundState, noise: NoiseSource) -> Question | None:
        """Everybody's moment."""
        if state.round == 1:
            return None
        p, d = self.parameters, self.plan.problem.dimension
        everybody = np.arange(p.cohort_size, dtype=np.int64)
        return Question(0, everybody, SecondMoment(d + 1, p.label_scale), reduction=p.reduction(d))

    def update(self, state: OneRoundState, answers: Answers | Sums, noise: NoiseSource) -> Update[OneRoundState]:
        """Release and solve."""
        p, d = self.parameters, self.plan.problem.dimension
        mechanism = p.moment(d)
        sums = summed(answers, p.reduction(d))
        moment = mechanism.release(sums, p.moment_norm**2, noise.stream("release", 0)).mean
        values, basis = np.linalg.eigh(moment[:d, :d])
        least = math.sqrt(2 * (d + 1)) * p.moment_scale + p.ridge  # the noise's spectral norm, for many dimensions
        along = basis.T @ moment[:d, d] / (p.label_scale * p.label_bound)
        solved = p.target * (basis @ (along / (np.maximum(values, 0.0) + least)))
        model = self.plan.problem.domain.project(solved)
        diagnostics = {"answered": sums.answered}
        public = {"moment": moment[np.triu_indices(d + 1)].tolist()} if d <= MAX_COLUMNS else {}
        return Update(OneRoundState(1, model), (mechanism.entry(),), public, diagnostics)

    def model(self, state: OneRoundState) -> Vector:
        """Zero, then the solution."""
        return state.model


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The least squares of a released moment, without the ridge that its noise asks for, and how far off they are.

    The population's θ solves (S + λ) θ = b. Of the moment M that is released, b̃ - (S̃ + λ) θ is noise of a known law,
    linear in that of M, and a mean over users of a (y - aᵀθ). Its variance along v is at most max (vᵀa)² times the mean
    square of the residuals, which follows from M, too. Everything here is a function of released and public numbers.
    """

    point: Vector  # θ̃, (d,)
    inverse: Matrix  # (S̃ + λ)⁻¹, (d, d)
    noise: float  # standard deviation, at most, of b̃ - (S̃ + λ) θ along any direction, from noise
    residual: float  # mean square of the residuals, at most
    doubt: float  # δ
    longest: float  # ‖b̃ - (S̃ + λ) θ‖, at most
    feature_norm: float  # R
    users: int

    @classmethod
    def of(cls, moment: Matrix, p: OneRoundParameters, free: Matrix | None = None) -> "Solved | None":
        """Solve the noisy moment (d + 1, d + 1) of (a, c y); None where noise hides a direction of a.

        `free` (k, d) are directions in which θ is held at zero, as no item says anything of it there: public ones.
        """
        basis = _beside(len(moment) - 1, free)
        d, s, c = basis.shape[1], p.moment_scale, p.label_scale
        bent = basis.T @ moment[:-1, :-1] @ basis + p.ridge * np.eye(d)
        spectral, values = (math.sqrt(2 * d) + FAR) * s, np.linalg.eigvalsh(bent)
        if not values[0] >= spectral * (1 + 1 / MAX_DOUBT):
            return None
        inverse = basis @ np.linalg.inv(bent) @ basis.T
        point = inverse @ moment[:-1, -1] / c
        residual = min(_residual(moment, at, p) for at in (point, 0 * point))
        own = p.feature_norm**2 * residual / p.cohort_size
        most, length = float(chdtri(d, LONG)), float(np.linalg.norm(point))
        # How long θ is follows from how far it may be from θ̃, and that from how long it is: the least that agrees.
        reach, gain = length, math.sqrt(most) / float(values[0])
        for _ in range(200):
            reach = length + gain * math.sqrt(own + _noise(s, c, reach) ** 2)
        if not reach < 1e6 * (length + 1):
            return None
        noise = _noise(s, c, reach)
        longest = math.sqrt(most * (own + noise**2))
        doubt = spectral / float(values[0] - spectral)
        return cls(point, inverse, noise, residual, doubt, longest, p.feature_norm, p.cohort_size)

    def along(self, direction: Vector) -> Vector:
        """v = (S̃ + λ)⁻¹ ℓ, of whose largest product with an item's features `reach` wants to know."""
        found: Vector = self.inverse @ direction
        return found

    def reach(self, along: Vector, farthest: float) -> float:
        """How far ℓᵀθ is from ℓᵀθ̃ at most, with 95 %: for v = `along`, and max |vᵀa| over all items there can be."""
        length = float(np.linalg.norm(along))
        noise = (1 + self.doubt) * length * self.noise
        sampling = (farthest + self.doubt * length * self.feature_norm) * math.sqrt(self.residual / self.users)
        return SURE * math.hypot(noise, sampling) + self.doubt * length * self.longest


def _beside(dimension: int, free: Matrix | None) -> Matrix:
    """Return an orthonormal basis (d, d - k) of all directions at right angles to k free ones."""
    if free is None or not len(free):
        return np.eye(dimension)
    whole, _ = np.linalg.qr(free.T, mode="complete")
    basis: Matrix = whole[:, np.linalg.matrix_rank(free) :]
    return basis


def _noise(scale: float, label_scale: float, length: float) -> float:
    """Of b̃ - S̃ θ along a unit vector, for a θ of such a length at most: s √(½ (2 ‖θ‖² + c⁻²))."""
    return scale * math.sqrt(0.5 * (2 * length**2 + label_scale**-2))


def _residual(moment: Matrix, point: Vector, p: OneRoundParameters) -> float:
    """The mean square of y - aᵀθ at the best θ, at most: what it is here, with the ridge, and the noise's norm."""
    ends = np.append(-point, 1 / p.label_scale)
    far = (math.sqrt(2 * len(moment)) + FAR) * p.moment_scale
    square = float(ends @ ends)
    return max(0.0, float(ends @ moment @ ends)) + far * square + p.ridge * float(point @ point)


@dataclass(frozen=True, slots=True)
class OneRoundOptions:
    """Planning options."""

    rounds: int | None = None  # 1, or left out


def plan(problem: Problem, privacy: Privacy, options: OneRoundOptions) -> Calibrated:
    """Return the one plan for these numbers; Infeasible where noise would leave nothing of the signal."""
    _require(problem, options)
    users, d = problem.users, problem.dimension
    mu = gdp.mu_for(privacy.epsilon, search.left_of_delta(NAME, privacy, gaussians=packed(d + 1) + 1) * (1 - 1e-9))
    resolution = users * mu / math.sqrt(d)
    if resolution < MIN_RESOLUTION:
        condition = f"n={users:,} users give one moment a resolution of nμ/√d = {resolution:.3g} < {MIN_RESOLUTION:g}"
        raise Infeasible.too_few(NAME, condition, math.ceil(users * MIN_RESOLUTION / resolution))
    adjacency: Adjacency = privacy.adjacency or "replace-one"
    norm, label = problem.feature_norm or 1.0, problem.beliefs.label_bound or 1.0
    longest = norm * math.hypot(1.0, LABEL_WEIGHT)
    sizes = {"dimension": d + 1, "users": users}
    noise = MomentMean.for_mu(**sizes, mu=mu * (1 - 1e-8), adjacency=adjacency, presence=False)
    curvature = problem.link_curvature or 1.0
    numbers = OneRoundParameters(
        cohort_size=users,
        rounds=1,
        adjacency=adjacency,
        moment_scale=noise.scale * longest**2,
        moment_norm=longest,
        label_scale=LABEL_WEIGHT * norm / label,
        feature_norm=norm,
        label_bound=label,
        target=problem.start / norm / curvature,
        ridge=problem.ridge / curvature,
        mu=mu,
    )
    risk = min(1.0, (HALF / resolution) ** POWER) * 0.5 * spec.loss_scale(problem)
    return Calibrated(numbers, risk, adjacency=adjacency)


def verify(plan: RunPlan) -> None:
    """Everybody once with divisor n, and docs/privacy/free-presence.md#p2 for features and label."""
    p = plan.parameters_of(OneRoundParameters)
    search.require(
        NAME,
        (f"a cohort of all {plan.problem.users} users", p.cohort_size == plan.problem.users, p.cohort_size),
        ("one round", p.rounds == 1, p.rounds),
        ("one prediction an item", plan.problem.outputs == 1, plan.problem.outputs),
        ("positive scales", min(p.label_scale, p.label_bound, p.moment_norm, p.target) > 0, p.label_scale),
    )


def pairs(p: OneRoundParameters, problem: Problem, adjacency: Adjacency) -> tuple[DominatingPair, ...]:
    """Of the one release, by its scale."""
    d, numbers = problem.dimension + 1, packed(problem.dimension + 1) + 1
    far = sensitivity_recount.unit_moment(d, p.cohort_size, adjacency) * p.moment_norm**2
    mu = sensitivity_recount.mu(far, p.moment_scale, numbers)
    return (DominatingPair.gaussian(mu, total_variation(gaussians=numbers)),)


def _require(problem: Problem, options: OneRoundOptions) -> None:
    """Infeasible for more than one round, and for losses whose slope at zero is not in proportion to the label."""
    if options.rounds not in (None, 1):
        raise Infeasible(NAME, f"rounds={options.rounds} is not one", "one round")
    if problem.outputs != 1:
        raise Infeasible(NAME, f"an item has {problem.outputs} predictions, not one", "a label of two classes")
    known, norm = problem.beliefs, problem.feature_norm
    squares = known.label_bound is not None and norm is not None and problem.link_curvature is not None
    # A Huber loss is one of squares up to its threshold: at zero, where that is no smaller than any label.
    squares = squares and problem.start >= 0.999 * (norm or 0) * (problem.link_curvature or 0) * (
        known.label_bound or 0
    )
    if norm is None or not problem.link_curvature or not (known.sigmoid or squares):
        raise Infeasible(NAME, "the loss is neither of squares nor logistic", "loss least_squares or logistic")
    if problem.dimension > LARGEST_DIMENSION:
        condition = f"d={problem.dimension} features make {packed(problem.dimension):,} numbers of a second moment"
        raise Infeasible(NAME, condition, f"d <= {LARGEST_DIMENSION}")


def _rule(_plan: RunPlan, allowed: PolicyInputs) -> Decision:
    if allowed.budget.max_rounds is not None:
        return Decision(True, "no more of the rounds that are allowed would leave less, and it needs one")
    taken = (allowed.budget.rounds or math.inf) <= MAX_ROUNDS
    return Decision(taken, ONE if taken else "")


SPEC = AlgorithmSpec(
    name=NAME,
    summary="One round: a private second moment of features and label, and the ridge that its noise asks for",
    origin=ours(WANG_2018, note="AdaSSP for users, with one release and a ridge by public numbers"),
    guarantees=Guarantees(THEOREM, pairs, adjacency=("replace-one", "zero-out"), one_server=None),
    options=OneRoundOptions,
    parameters=OneRoundParameters,
    planner=plan,
    verifier=verify,
    maker=OneRoundLeastSquares,
    factor=Factor(known=1.0, unknown=2.0),  # it predicts a bound
    noise_ignores_domain=True,
    no_black_boxes=NoBlackBoxes(
        "it asks for the second moment of a user's features and labels, which no gradient tells"
    ),
    policy=Policy(rule=_rule, fewer_rounds=(1,)),
)
