"""User-level DP-SGD over several passes, secretly sampled: Poisson (either adjacency) or without replacement.

Rounds are Gaussian mechanisms on secretly sampled cohorts; ε comes from exact privacy loss distributions, never from a
central limit (which may only rank candidates here). With the whole population every round it is user-level DP gradient
descent, exactly √T μ-GDP.

Statements and proofs: docs/privacy/subsampling.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.errors import VerificationError
from quoron_privacy.gaussian import mean_sensitivity
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import RATES, PhaseModel, best_phases, default_clip, require_cohorts
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, Chosen, Factor, Promises, statistical_floor
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.noisy.method import NoisySGD, NoisySGDParameters, Sampling
from quoron_server.algorithms.noisy.method import drawn as samples
from quoron_server.algorithms.noisy.plan import COUNTING, DRAWS, Draws, moves, pairs, verify_round
from quoron_server.algorithms.optimisers import OptimiserOptions
from quoron_server.algorithms.references import MCMAHAN_2018, WANG_2019, Origin, theirs
from quoron_server.algorithms.search import Candidate, best, round_grid
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

_Schemes = Mapping[Adjacency, Sampling]  # by what is promised, the usual one first

LARGEST_ROUNDS = 1024
THEOREM = "docs/privacy/subsampling.md"

_COINS: _Schemes = {"zero-out": "poisson", "replace-one": "poisson-replaced"}
_UNIFORM: _Schemes = {"replace-one": "without-replacement"}


@dataclass(frozen=True, slots=True)
class DPSGDOptions(noisy.ClipOptions, OptimiserOptions):
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    rate: float | None = None  # B / n
    step_size: float | None = None


def _plan(name: str, schemes: _Schemes, problem: Problem, privacy: Privacy, options: DPSGDOptions) -> Chosen:
    [usual, *_] = schemes
    sampling = schemes.get(privacy.adjacency or usual, schemes[usual])
    draws = DRAWS[sampling]
    clip, optimiser = options.clip_norm or default_clip(problem), options.made(options.step_size)
    require_cohorts(name, problem, 1)
    rates = [options.rate] if options.rate else [rate for rate in RATES if rate * problem.users >= 2]
    rounds = [options.rounds] if options.rounds else round_grid(LARGEST_ROUNDS, smallest=4)
    total_mu = mu_for(privacy.epsilon, privacy.delta)
    wanted = [(rate, total, draws.ranking_mu(rate, total, total_mu)) for rate in rates for total in rounds]
    found = best(_candidates(draws, problem, options, clip, wanted))
    assert found is not None
    rate, phase = found.of
    cohort = max(1, round(rate * problem.users))
    rate = cohort / problem.users
    drawn = phase.rounds * samples(problem, options.adaptive)
    delta = search.left_of_delta(name, privacy, gaussians=drawn)
    mu = draws.round_mu(draws.rate(cohort, problem.users), phase.rounds, privacy.epsilon, delta)
    [exact] = _candidates(draws, problem, options, clip, [(rate, phase.rounds, mu)])
    _, phase = exact.of
    made = noisy.clipped(name, problem, options, clip, cohort, draws.moved, mu)
    phase = replace(phase, suffix=options.averaged(phase.suffix, phase.rounds))
    chosen = noisy.chosen(sampling, cohort, phase, exact.risk, made, optimiser, theorem=f"{THEOREM}#{sampling}")
    return replace(chosen, adjacency=draws.adjacency)


def _candidates(
    draws: Draws, problem: Problem, options: DPSGDOptions, clip: float, wanted: Sequence[tuple[float, int, float]]
) -> list[Candidate[tuple[float, PhaseModel]]]:
    """The best step and suffix for each (rate, number of rounds, μ a round)."""
    rates, rounds, _ = zip(*wanted, strict=True)
    variances = []
    for rate, _, mu in wanted:
        cohort = max(1, round(rate * problem.users))
        sigma = mean_sensitivity(clip, cohort, draws.moved) / mu
        variances.append((1 - rate) * problem.user_deviation**2 / cohort + problem.dimension * sigma**2)
    floor = statistical_floor(problem)
    found = best_phases(problem, rounds, np.array(variances), step_size=options.step_size)
    return [
        Candidate(risk + floor, (rate * phase.rounds,), (rate, phase))
        for rate, (risk, phase) in zip(rates, found, strict=True)
    ]


def _verify(schemes: _Schemes, plan: RunPlan) -> None:
    """Cohorts drawn as promised, and each round's Gaussian as private as it claims; all rounds: the registry."""
    p, sampling = plan.parameters_of(NoisySGDParameters), schemes[plan.guarantee.adjacency]
    verify_round(plan, DRAWS[sampling].moved)
    if p.sampling != sampling:
        raise VerificationError(f"Expected sampling {sampling} in a plan of {plan.algorithm}, got {p.sampling}.")


def _info(name: str, schemes: _Schemes, summary: str, factor: Factor, curve_step: int, origin: Origin) -> AlgorithmInfo:
    return AlgorithmInfo(
        name=name,
        summary=summary,
        origin=origin,
        promises=Promises(("central-broadcast",), tuple(schemes), THEOREM, pairs, COUNTING, moves, one_server=None),
        options=DPSGDOptions,
        parameters=NoisySGDParameters,
        planner=partial(_plan, name, schemes),
        verifier=partial(_verify, schemes),
        maker=NoisySGD,
        factor=factor,
        noise_ignores_domain=True,
        choosing=Choosing(many_passes=True, curve_step=curve_step),
    )


POISSON = _info(
    "dp-sgd-poisson",
    _COINS,
    "Several passes, each user in each round with a secret coin",
    Factor(known=7.0, unknown=None),
    curve_step=4,
    origin=theirs(MCMAHAN_2018.at("Algorithm 1")),
)
WITHOUT_REPLACEMENT = _info(
    "dp-sgd-wor",
    _UNIFORM,
    "Several passes, a secret uniform cohort each round; rate 1 is DP gradient descent",
    Factor(known=7.0, unknown=12.0),
    curve_step=2,
    origin=theirs(MCMAHAN_2018.at("Algorithm 1"), WANG_2019.at(), note="uniform cohorts in place of coins"),
)
