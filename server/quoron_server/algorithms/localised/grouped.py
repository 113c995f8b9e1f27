"""Phased SGD over items, with noise for all items of a user: group privacy without a factor from group privacy.

    phase s uses k_s places of every user
        for t = 1..T_s:  x ← Proj(x - (η_s/b_s) Σ_{the next b_s places that have an item} ∇f(x; z))
        x_s = Proj(average of the last iterates + N(0, σ_s² I))

All steps of a phase that hold an item of one user together move every later iterate by at most Δ_s = 2Lη_s k_s/b_s. So
a run is √(Σ (Δ_s/σ_s)²)-GDP: a user pays for the root of Σ k_s² and not for m = Σ k_s, √3 less noise with many halving
phases, √S with S equal ones. Places are public, items beyond m are never used, gradients are never clipped, absences do
not look at the iterates.

Source: Feldman, Koren & Talwar (2020), Algorithm 2, over items. Statement and proof: docs/privacy/group-privacy.md.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithm import Vector
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import PhaseModel, excess_risks, step_grid, suffix_shares
from quoron_server.algorithms.localised.phased import GroupedParameters, Phase, PlacedMean, Shape, Share, shapes
from quoron_server.algorithms.references import FELDMAN_2020, theirs
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.spec import ITERATES, AlgorithmSpec, Calibrated, Factor, Guarantees, Policy
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

NAME = "group-phased-sgd"
LARGEST_ROUNDS = 1024
_ROUNDING = 1 + 1e-6  # of sums and iterates, far above T·B·2⁻⁵³, as in phased SGD


@dataclass(frozen=True, slots=True)
class GroupedOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # exactly
    phases: int | None = None
    step_size: float | None = None


Inputs = PlanInputs[GroupedOptions]


_Tried = tuple[tuple[Phase, ...], tuple[Share, ...]]  # laid out over users and places


def _check(inputs: Inputs) -> None:
    """Raise Infeasible for losses that are not convex and smooth."""
    search.require_smooth(NAME, inputs.problem)
    if inputs.problem.smoothness is None:
        raise Infeasible(NAME, "items' losses are not smooth", "a smooth loss, such as logistic or huber")


def _missing(inputs: Inputs) -> Infeasible:
    condition = f"n={inputs.problem.users:,} users of m={inputs.problem.items_per_user:,} items do not fill the rounds"
    return Infeasible(NAME, f"{condition} and phases", "fewer rounds or phases")


def _chosen(inputs: Inputs, found: Candidate[_Tried]) -> Calibrated:
    phases, shares = found.of
    mus = tuple(
        GaussianNoise(phase.sensitivity, phase.release_scale).effective_mu(inputs.problem.dimension) for phase in phases
    )
    return Calibrated(GroupedParameters(phases, shares, mus, math.hypot(*mus) * (1 + 2.0**-50)), found.risk)


def _shift(problem: Problem, share: Share) -> float:
    """Δ_s/η_s = 2L k_s/b_s: how far all of one user's items in a phase move its iterates, per unit of step size."""
    return 2 * problem.lipschitz / share.cohort_size * _ROUNDING


def _candidates(inputs: Inputs) -> Iterator[Candidate[_Tried]]:
    """The best step and suffix of every number of rounds with every shape; a shape's totals are predicted together."""
    problem, options = inputs.problem, inputs.options
    items = replace(problem, user_smoothness=None)  # steps are of single items: β is theirs
    totals = inputs.rounds(round_grid(min(problem.users, LARGEST_ROUNDS)))
    suffixes = np.array(suffix_shares(problem))
    for shape in shapes((options.phases,) if options.phases else (1, 2, 3, 5), (1.0, 2.0, 4.0)):
        fitting = [(total, shares) for total in totals if (shares := _shares(problem, shape, total))]
        if not fitting:
            continue
        fixed = [options.step_size] if options.step_size else None
        steps = np.array([fixed or step_grid(items, total) for total, _ in fitting])
        noise = _noise(problem, inputs.privacy, len(shape.shares))
        scales = [math.hypot(*(_shift(problem, share) for share in shares)) * noise for _, shares in fitting]
        phases = [
            _phase(problem, share, steps / shape.shrink**index, suffixes, np.array(scales))
            for index, share in enumerate(zip(*(shares for _, shares in fitting), strict=True))
        ]
        risks = np.broadcast_to(excess_risks(items, phases), (*steps.shape, len(suffixes)))
        for place, (total, shares) in enumerate(fitting):
            best: tuple[Any, ...] = (place, *np.unravel_index(np.argmin(risks[place]), risks[place].shape))
            models = (phase.at(best, risks.shape) for phase in phases)
            shifts = (_shift(problem, share) for share in shares)
            yield Candidate(float(risks[best]), (total,), (tuple(map(Phase.of, models, shifts)), shares))


def _phase(problem: Problem, shares: Sequence[Share], steps: Vector, suffixes: Vector, scales: Vector) -> PhaseModel:
    """One phase of W candidates: shapes (W, 1, 1), (W, K, 1) of `steps` (W, K), and (W, 1, S) of suffixes."""
    rounds = np.array([share.rounds for share in shares], np.float64)[:, None, None]
    variances = [
        problem.deviation**2 / (share.cohort_size * share.places) + problem.beliefs.heterogeneity**2 / share.cohort_size
        for share in shares
    ]
    return PhaseModel(
        rounds=rounds,
        step_size=steps[:, :, None],
        suffix=np.maximum(1, np.rint(rounds * suffixes)),
        step_variance=np.array(variances)[:, None, None],
        release_scale=(scales[:, None] * steps)[:, :, None],
    )


def _noise(problem: Problem, privacy: Privacy, releases: int) -> float:
    """σ_s/η_s, per unit of Δ/η, at which all releases cost the guarantee together."""
    left = search.left_of_delta(NAME, privacy, gaussians=releases * problem.dimension)
    mu = mu_for(privacy.epsilon, left * (1 - 1e-9)) * (1 - 1e-9)
    # the grid of each release costs a little of its own: leave that aside for all of them
    grid = GaussianNoise(1.0, 1.0).effective_mu(problem.dimension) - 1.0
    if mu <= releases * grid:
        raise Infeasible(NAME, f"epsilon={privacy.epsilon:g} is below the resolution of the noise", "a larger epsilon")
    return (1 + 1e-9) / (mu - releases * grid)


def _shares(problem: Problem, shape: Shape, total: int) -> tuple[Share, ...] | None:
    """Whole numbers of places for a shape's phases; None where they do not fit."""
    made, first = [], 0
    for places, rounds in zip(_parts(shape, problem.items_per_user), _parts(shape, total), strict=True):
        if min(places, rounds) < 1 or problem.users < rounds:
            return None
        made.append(Share(first, places, rounds, problem.users // rounds))
        first += places
    return tuple(made)


def _parts(shape: Shape, whole: int) -> list[int]:
    """`whole` in the shape's shares, rounded down; the first has what the others leave."""
    later = [int(share * whole) for share in shape.shares[1:]]
    return [whole - sum(later), *later]


def verify(plan: RunPlan) -> None:
    """Contraction for items, disjoint places, each phase's sensitivity from its integers, and a μ that gives (ε, δ)."""
    p = plan.parameters_of(GroupedParameters)
    problem = plan.problem
    search.require_smooth(NAME, problem)
    if not len(p.phases) == len(p.shares) == len(p.mus) >= 1:
        raise VerificationError(f"Expected phases with their shares and mus, got {p}.")
    _check_places(problem, p)
    for phase, share in zip(p.phases, p.shares, strict=True):
        if not (phase.step_size > 0 and 1 <= phase.suffix <= phase.rounds == share.rounds):
            raise VerificationError(f"Expected positive steps and 1 <= suffix <= rounds in every phase, got {phase}.")
        if problem.smoothness is None or not phase.step_size * problem.smoothness <= 2:
            raise VerificationError(f"Expected step_size * smoothness of an item <= 2 in every phase, got {phase}.")
        needed = 2 * problem.lipschitz / share.cohort_size * phase.step_size * _ROUNDING
        if phase.noise is None or not phase.sensitivity >= needed * (1 - 1e-12):
            raise VerificationError(f"Expected noise for a sensitivity >= {needed} in every phase, got {phase}.")
    for claimed, mu in zip(p.mus, recounted_mus(p, problem), strict=True):
        search.require_least(NAME, "mu of a phase", claimed, mu)


def pairs(p: GroupedParameters, problem: Problem, adjacency: Adjacency) -> tuple[DominatingPair, ...]:
    """Of all releases: a user is in every one of them."""
    mus = recounted_mus(p, problem)
    lack = total_variation(gaussians=len(mus) * problem.dimension)
    return (DominatingPair.gaussian(sensitivity_recount.together(*mus), lack),)


def recounted_mus(p: GroupedParameters, problem: Problem) -> list[float]:
    """GDP of each phase's release, by its scale."""
    mus = []
    for phase, share in zip(p.phases, p.shares, strict=True):
        far = 2 * problem.lipschitz / share.cohort_size * phase.step_size * (1 + 1e-6)
        mus.append(sensitivity_recount.mu(far, phase.release_scale, problem.dimension))
    return mus


def _check_places(problem: Problem, p: GroupedParameters) -> None:
    """Every place is in one phase at most."""
    place = 0
    for share in p.shares:
        whole = min(share.places, share.rounds, share.cohort_size) >= 1
        if not whole or share.rounds * share.cohort_size > problem.users:
            raise VerificationError(f"Expected places and whole cohorts in every phase, got {share}.")
        apart, place = share.first_place >= place, share.first_place + share.places
        if not apart or place > problem.items_per_user:
            raise VerificationError(
                f"Expected phases on different places of users with {problem.items_per_user} places each, got {share}."
            )


SPEC = AlgorithmSpec(
    name=NAME,
    summary="Phased SGD over items; each phase uses other places of all users",
    origin=theirs(
        FELDMAN_2020.at("Algorithm 2"), note="over items, noise for all items of a user; their text was not at hand"
    ),
    guarantees=Guarantees(
        "docs/privacy/group-privacy.md",
        pairs,
        trust_models=("central-release",),
        one_server="its iterates have no noise within a phase, and the coordinator would see them: take "
        "accelerated-srgd or tracking-srgd",
    ),
    options=GroupedOptions,
    parameters=GroupedParameters,
    planner=Planner(NAME, _candidates, _chosen, _missing, near=1.0, check=_check),
    verifier=verify,
    maker=PlacedMean,
    factor=Factor(known=3.5, unknown=11.0),
    no_black_boxes=ITERATES,
    policy=Policy(many_passes=True),
)
