"""Gradient descent with outlier removal: every step a mean of all users' gradients without those far from the others.

    x_0 = 0
    for t = 0 .. T-1:                                  all n users; no sampling, no phases        (Asi & Liu 2024)
        q_u     = ∇F_u(x_t)
        S       = #{(u, v) : ‖q_u - q_v‖ <= τ};   a private test of S decides whether the step is released
        g_t     = r + (mean of q_u - r, outliers weighing nothing) + N(0, σ² I);      r = the last released gradient
        x_{t+1} = Proj(x_t - η g_t),   or x_t where nothing is released
    model: mean of the last w iterates

Users are asked as planned in any case, and everything sent out is a function of releases: trust model
`central-broadcast`.

Rounds, step, radius and test are chosen together by predicted risk. Noise and its re-check are those of
`accelerated-erm` with one phase that asks everybody.

Source: Asi & Liu (2024), as Lowy, Liu & Asi (2024), Algorithm 2, has its step; what differs from print, and the proof:
docs/privacy/outlier-gd.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.special import chdtrc, chdtri

from quoron_client.protocol.questions import Answers
from quoron_client.protocol.smoothing import moreau
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust.outlier_mean import LARGEST_COHORT
from quoron_privacy.robust.subsampled_test import SubsampledTest
from quoron_server.algorithm import Vector
from quoron_server.algorithms import search
from quoron_server.algorithms.accelerated_erm import (
    FARTHER,
    ReleasedGradients,
    account,
    count_slack,
    released_gradient,
    smooth_test_noise,
    verify_privacy,
)
from quoron_server.algorithms.averaged_sgd import PhaseModel, best_phases, smoothed, smoothings
from quoron_server.algorithms.descent import Descent, Estimate, State
from quoron_server.algorithms.references import ASI_LIU_2024, LOWY_2024, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.spec import (
    AlgorithmSpec,
    Calibrated,
    Factor,
    Guarantees,
    NoBlackBoxes,
    Policy,
    known_worth,
    statistical_floor,
)
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import Rounds, gradients

NAME = "outlier-gd"
THEOREM = "docs/privacy/outlier-gd.md#statement"
ROUNDS = tuple(round_grid(512))  # that are tried
OUTLIER_FRACTIONS = (1e-4, 1e-3, 1e-2)  # shares of pairs that may lie beyond τ, each with a test that forgives as much
WIDER = 1.2  # users' spread on the way, over that at the optimum, at least
SLACKS = (0.005, 0.01, 0.02, 0.03)  # what tests forgive in addition, of the average count: the most that costs little
TRIED = 6  # candidates that are calibrated, at most


@dataclass(frozen=True, slots=True)
class OutlierGDParameters(ReleasedGradients, Parameters):
    """Public numbers of one run."""

    rests_on = (Assumption(Kind.ABSENT_IS_OUTLIER),)
    cohort_size: int  # n: all of them in every round
    rounds: int  # T
    step_size: float  # η
    suffix: int  # w: iterates averaged
    radius: float  # τ
    forgiven: float  # share of pairs of honest users beyond τ that the test forgives
    accounting: SubsampledTest
    noise_scale: float  # σ per coordinate, rounding included
    smoothing: float  # λ of the Moreau envelope; 0 without

    @property
    def users(self) -> int:
        """Whom cohorts are drawn from: themselves."""
        return self.cohort_size

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return tested steps on everybody."""
        return (self.asked(gradients(problem, smoothing=moreau(self.smoothing))),)


@dataclass(frozen=True, slots=True, eq=False)
class OutlierGDState(State):
    """Everything between two rounds; all of it a function of releases."""

    gradient: Vector  # r


class OutlierGD(Descent[OutlierGDParameters, OutlierGDState]):
    """Algorithm object for a plan with OutlierGDParameters."""

    kind = OutlierGDParameters

    def init(self) -> OutlierGDState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return OutlierGDState(0, zero, zero, zero)

    def estimate(self, state: OutlierGDState, answers: Answers, noise: NoiseSource) -> Estimate:
        """Return the noisy mean without outliers where its test passes."""
        step = released_gradient(self.parameters, answers, state.gradient, noise, state.round)
        remembered = {} if step.gradient is None else {"gradient": step.gradient}
        return replace(step, public={"released": step.gradient is not None}, remembered=remembered)


@dataclass(frozen=True, slots=True)
class OutlierGDOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    step_size: float | None = None
    radius: float | None = None  # τ, from public knowledge
    smoothing: float | None = search.within(0.0, 1e9)  # λ of the Moreau envelope, if slopes jump; 0 is none
    suffix: int | None = None  # iterates averaged


Inputs = PlanInputs[OutlierGDOptions]


_Tried = tuple[float, float, float, PhaseModel]  # τ, the share of pairs beyond it that the test forgives, λ, steps


def _missing(inputs: Inputs) -> Infeasible:
    problem, radius = inputs.problem, inputs.options.radius
    condition = f"n={problem.users:,} users are too few for its tests{inputs.promised}"
    if radius is not None and (share := outlier_fraction(problem, radius)) > 0.001:
        condition += f", with {100 * share:.2g} % of pairs beyond radius={radius:g}"
    return Infeasible.too_few(NAME, condition, problem.users + 1)


def verify(plan: RunPlan) -> None:
    """A proved test and aggregate over everybody, its theorem by a second route, noise as accounted for."""
    p = plan.parameters_of(OutlierGDParameters)
    search.require_of(
        NAME,
        p,
        (f"4 <= cohort_size <= {plan.problem.users}", 4 <= p.cohort_size <= plan.problem.users),
        ("1 <= suffix <= rounds", 1 <= p.suffix <= p.rounds),
        ("step_size > 0", p.step_size > 0),
        ("smoothing only of a loss whose slope jumps", p.smoothing == 0 or plan.problem.smoothness is None),
        ("smoothing >= 0", p.smoothing >= 0),
    )
    verify_privacy(plan, p)


def outlier_fraction(problem: Problem, radius: float) -> float:
    """About the share of pairs of honest users whose gradients lie farther apart than τ, were they Gaussian."""
    spread, d = _spread(problem), problem.dimension
    return float(chdtrc(d, d * (radius / spread) ** 2 / 2)) if spread > 0 else 0.0


def radii(problem: Problem, wanted: float | None) -> list[tuple[float, float]]:
    """(τ, share of pairs beyond it) to try: each comes with a test that forgives that share."""
    if wanted is not None:
        return [(wanted, outlier_fraction(problem, wanted))]
    spread, d = _spread(problem), problem.dimension
    widths = (max(FARTHER, math.sqrt(float(chdtri(d, share)) / d)) for share in OUTLIER_FRACTIONS)
    tried = [width * math.sqrt(2) * spread for width in widths]
    tried = sorted({min(2 * problem.lipschitz, radius) for radius in tried})
    return [(radius, outlier_fraction(problem, radius)) for radius in tried]


def _spread(problem: Problem) -> float:
    """Of users' gradients, from the start to the optimum."""
    return max(WIDER * problem.user_deviation, problem.widest_deviation)


def _candidates(inputs: Inputs) -> Iterator[Candidate[_Tried]]:
    """Yield the best step and suffix for each number of rounds, τ and smoothing, with estimated noise.

    Of those about as good the one that forgives most comes first, in fewest rounds.
    """
    problem, privacy, options, rounds = inputs.problem, inputs.privacy, inputs.options, inputs.rounds(ROUNDS)
    cohort = min(problem.users, LARGEST_COHORT)
    if cohort < 4:
        return
    sizes, ones = np.full(len(rounds), cohort), [1.0] * len(rounds)
    for (radius, share), slack in product(radii(problem, options.radius), SLACKS):
        lost = np.full(len(rounds), count_slack(problem, cohort, share + slack))
        noise = smooth_test_noise(privacy.epsilon, privacy.delta, sizes, ones, rounds, lost)
        fit = np.isfinite(noise)
        some = [total for total, fits in zip(rounds, fit, strict=True) if fits]
        if some:
            for smoothing in smoothings(problem, options.smoothing, problem.distance, none=True):
                for risk, phase in _best(problem, options, some, noise[fit] * radius, smoothing):
                    yield Candidate(risk, (-slack, phase.rounds), (radius, share + slack, smoothing, phase))


def _best(
    problem: Problem, options: OutlierGDOptions, rounds: list[int], scales: Vector, smoothing: float
) -> list[tuple[float, PhaseModel]]:
    """(predicted excess risk, phase) of the best step and suffix for each number of rounds with its noise."""
    found = best_phases(
        smoothed(problem, smoothing), rounds, problem.dimension * scales**2, step_size=options.step_size
    )
    extra = statistical_floor(replace(problem, users=min(problem.users, LARGEST_COHORT)))
    extra += 0.5 * smoothing * problem.lipschitz**2
    return [(risk + extra, phase) for risk, phase in found]


def _chosen(inputs: Inputs, found: Candidate[_Tried]) -> Calibrated:
    """With exact noise. Infeasible where the test leaves nothing, or declared outliers fail it."""
    problem, options, (radius, share, smoothing, phase) = inputs.problem, inputs.options, found.of
    cohort = min(problem.users, LARGEST_COHORT)
    lost = count_slack(problem, cohort, share)
    accounting, scale = account(inputs, cohort, cohort, phase.rounds, lost, radius)
    given = replace(options, step_size=phase.step_size)
    [(risk, best)] = _best(problem, given, [phase.rounds], np.array([scale]), smoothing)
    p = OutlierGDParameters(
        cohort_size=cohort,
        rounds=phase.rounds,
        step_size=phase.step_size,
        suffix=min(options.suffix or best.suffix, phase.rounds),
        radius=radius,
        forgiven=share,
        accounting=accounting,
        noise_scale=scale,
        smoothing=smoothing,
    )
    return Calibrated(p, risk)


SPEC = AlgorithmSpec(
    name=NAME,
    summary="Gradient descent on all users, each step tested, outlier gradients left out",
    origin=repaired(
        ASI_LIU_2024,
        LOWY_2024.at("Algorithm 2"),
        note="the text of Asi & Liu was not at hand: the step is the one that Lowy, Liu & Asi print after it, "
        "with another ramp of weights and one draw of the test's noise",
    ),
    guarantees=Guarantees(THEOREM, one_server="its test and its filter look at single answers: take tracking-srgd"),
    options=OutlierGDOptions,
    parameters=OutlierGDParameters,
    planner=Planner(NAME, _candidates, _chosen, _missing, known_worth, max_calibrated=TRIED),
    verifier=verify,
    maker=OutlierGD,
    factor=Factor(known=8.0, unknown=21.0),
    no_black_boxes=NoBlackBoxes(
        "it has no clip; it leaves out answers that are far from the others", even_curated=False
    ),
    policy=Policy(many_passes=True, curve_step=4, removes_outliers=True),
)
