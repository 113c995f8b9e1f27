"""User-level DP-SGD over several passes, secretly sampled: Poisson (zero-out) or without replacement (replace-one).

Rounds are Gaussian mechanisms on secretly sampled cohorts; ε comes from exact privacy loss distributions, never from a
central limit (which may only rank candidates here). With the whole population every round it is user-level DP gradient
descent, exactly √T μ-GDP.

Statements and proofs: docs/privacy/subsampling.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from quoron_privacy.accounts import subsampling
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.errors import VerificationError
from quoron_privacy.gaussian import mean_sensitivity
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import checks
from quoron_server.algorithms.averaged_sgd import RATES, PhaseModel, default_clip, ranking_mu, require_cohorts
from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, Chosen, Promises
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.noisy.method import NoisySGD, NoisySGDParameters, Sampling
from quoron_server.algorithms.noisy.method import drawn as samples
from quoron_server.algorithms.optimisers import OptimiserOptions
from quoron_server.algorithms.search import Candidate, best, round_grid
from quoron_server.plan import Plan, Privacy
from quoron_server.problem import Problem

LARGEST_ROUNDS = 1024
THEOREM = "docs/privacy/subsampling.md"


@dataclass(frozen=True, slots=True)
class DPSGDOptions(noisy.ClipOptions, OptimiserOptions):
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    rate: float | None = None  # B / n
    step_size: float | None = None


@dataclass(frozen=True, slots=True)
class _Scheme:
    name: str
    sampling: Sampling
    adjacency: Adjacency
    round_mu: Callable[[float, int, float, float], float]
    curve_step: int  # every so many numbers of rounds stand on the curve


_POISSON = _Scheme("dp-sgd-poisson", "poisson", "zero-out", subsampling.poisson_round_mu, 4)
_WOR = _Scheme("dp-sgd-wor", "without-replacement", "replace-one", subsampling.wor_round_mu, 2)


def _plan(scheme: _Scheme, problem: Problem, privacy: Privacy, options: DPSGDOptions) -> Chosen:
    clip, optimiser = options.clip_norm or default_clip(problem), options.made(options.step_size)
    require_cohorts(scheme.name, problem, 1)
    rates = [options.rate] if options.rate else [rate for rate in RATES if rate * problem.users >= 2]
    rounds = [options.rounds] if options.rounds else round_grid(LARGEST_ROUNDS, smallest=4)
    total_mu = mu_for(privacy.epsilon, privacy.delta)
    wanted = [(rate, total, ranking_mu(rate, total, total_mu)) for rate in rates for total in rounds]
    found = best(_candidates(scheme, problem, options, clip, wanted))
    assert found is not None
    rate, phase = found.of
    cohort = max(1, round(rate * problem.users))
    rate = cohort / problem.users
    drawn = phase.rounds * samples(problem, options.adaptive)
    delta = checks.left_of_delta(scheme.name, privacy, gaussians=drawn)
    mu = scheme.round_mu(_effective_rate(scheme, rate, problem.users), phase.rounds, privacy.epsilon, delta)
    [exact] = _candidates(scheme, problem, options, clip, [(rate, phase.rounds, mu)])
    _, phase = exact.of
    made = noisy.clipped(scheme.name, problem, options, clip, cohort, scheme.adjacency, mu)
    phase = replace(phase, suffix=options.averaged(phase.suffix, phase.rounds))
    where = f"{THEOREM}#{scheme.sampling}"
    return noisy.chosen(scheme.sampling, cohort, phase, exact.risk, made, optimiser, theorem=where)


def _candidates(
    scheme: _Scheme, problem: Problem, options: DPSGDOptions, clip: float, wanted: Sequence[tuple[float, int, float]]
) -> list[Candidate[tuple[float, PhaseModel]]]:
    """The best step and suffix for each (rate, number of rounds, μ a round)."""
    rates, rounds, _ = zip(*wanted, strict=True)
    variances = []
    for rate, _, mu in wanted:
        cohort = max(1, round(rate * problem.users))
        sigma = mean_sensitivity(clip, cohort, scheme.adjacency) / mu
        variances.append((1 - rate) * problem.user_deviation**2 / cohort + problem.dimension * sigma**2)
    return noisy.sampled(problem, rates, rounds, np.array(variances), step_size=options.step_size)


def _effective_rate(scheme: _Scheme, rate: float, users: int) -> float:
    """The chance that a user is in a round's cohort, given that one other, who is curious, knows it is not itself."""
    cohort = max(1, round(rate * users))
    return min(1.0, cohort / (users - 1)) if scheme.sampling == "without-replacement" and cohort < users else rate


def _verify(scheme: _Scheme, plan: Plan) -> None:
    """Cohorts drawn as promised, and each round's Gaussian as private as it claims; all rounds: the registry."""
    p = plan.parameters_of(NoisySGDParameters)
    noisy.verify_round(plan, scheme.adjacency)
    if p.sampling != scheme.sampling:
        raise VerificationError(f"Expected sampling {scheme.sampling} in a plan of {scheme.name}, got {p.sampling}.")


def _info(scheme: _Scheme, summary: str, factor: Factor) -> AlgorithmInfo:
    return AlgorithmInfo(
        name=scheme.name,
        summary=summary,
        paper="baseline; McMahan et al. (2018), user-level DP-SGD",
        promises=Promises(("broadcast",), (scheme.adjacency,), THEOREM),
        options=DPSGDOptions,
        parameters=NoisySGDParameters,
        planner=partial(_plan, scheme),
        verifier=partial(_verify, scheme),
        maker=NoisySGD,
        factor=factor,
        noise_ignores_domain=True,
        choosing=Choosing(many_passes=True, curve_step=scheme.curve_step),
    )


POISSON = _info(_POISSON, "Several passes, each user in each round with a secret coin", Factor(known=7.0, unknown=None))
WITHOUT_REPLACEMENT = _info(
    _WOR,
    "Several passes, a secret uniform cohort each round; rate 1 is DP gradient descent",
    Factor(known=7.0, unknown=2.0),
)
