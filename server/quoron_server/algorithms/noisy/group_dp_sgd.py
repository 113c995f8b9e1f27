"""Plans of `group-dp-sgd` and `group-dp-sgd-zero-out`: DP-SGD on items, calibrated for all items of one user at once.

The noise is that of the exact mixture of Gaussians (group-privacy#g2), not of m times an item's ε. The mean's noise is
about C √T / (n μ) whatever the rate: that of descent on full batches of users, with a clip on items in place of
averages.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy

from quoron_privacy.accounts import item_sampling, moved
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import checks
from quoron_server.algorithms.averaged_sgd import PhaseModel
from quoron_server.algorithms.forecast import UNMEASURED
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, Chosen, NoBlackBoxes, Promises
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.noisy.group_method import GroupSGD, GroupSGDParameters
from quoron_server.algorithms.references import ABADI_2016, CHARLES_2024, theirs
from quoron_server.algorithms.search import Candidate, best, round_grid
from quoron_server.plan import Cost, Privacy, RunPlan
from quoron_server.problem import Problem

RATES = (0.3, 0.1, 0.03, 0.01)
LARGEST_ROUNDS = 1024
CUT = 1e-9  # expected share of users' rounds in which chosen places are cut; privacy is better for it
_ROUNDING = 1 + 1e-9  # of the sums and quotients between the clip and the noise


@dataclass(frozen=True, slots=True)
class GroupDPSGDOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    rate: float | None = None  # q: chance of each item in each round
    step_size: float | None = None
    clip_norm: float | None = None  # of an item's gradient; from public knowledge, never tuned on protected data


def _plan(name: str, adjacency: Adjacency, problem: Problem, privacy: Privacy, options: GroupDPSGDOptions) -> Chosen:
    clip = options.clip_norm or min(problem.lipschitz, problem.start)
    n, m = problem.users, problem.items_per_user
    rates = [options.rate] if options.rate else [rate for rate in RATES if rate * n * m >= 2]
    if not all(0 < rate <= 1 for rate in rates) or not rates:
        raise Infeasible(name, f"rate={options.rate} of n·m={n * m:,} items is no share of them", "a rate in (0, 1]")
    rounds = [options.rounds] if options.rounds else round_grid(LARGEST_ROUNDS, smallest=4)
    mu = mu_for(privacy.epsilon, privacy.delta)
    ends = 2 if adjacency == "replace-one" else 1
    # the noise of a mean hardly depends on the rate: rank by that of all items, then by the fewest answers
    wanted = [(rate, total, ends * m * math.sqrt(total) / mu * rate) for rate in rates for total in rounds]
    found = best(_candidates(problem, options, clip, wanted))
    assert found is not None
    rate, phase = found.of
    delta = checks.left_of_delta(name, privacy, gaussians=phase.rounds * problem.dimension)
    z = item_sampling.multiplier(rate, m, phase.rounds, privacy.epsilon, delta, adjacency)
    [exact] = _candidates(problem, options, clip, [(rate, phase.rounds, z)])
    _, phase = exact.of
    asked = max(1, round(n * -math.expm1(m * math.log1p(-rate)))) if rate < 1 else n
    expected = math.ceil(rate * n * m / asked)
    width = min(m, int(scipy.stats.binom.isf(CUT, m, rate)) + 1)
    messages, row = phase.rounds * asked, 8 * problem.dimension
    cost = Cost(phase.rounds, messages, messages * expected, messages * (row + 8 * width), messages * row)
    numbers = GroupSGDParameters(
        items=m,
        rate=rate,
        width=width,
        cohort_size=asked,
        expected=expected,
        rounds=phase.rounds,
        step_size=phase.step_size,
        suffix=phase.suffix,
        clip_norm=clip,
        sensitivity=_sensitivity(problem, rate, clip, asked, adjacency) * m,
        noise_scale=_scale(problem, rate, clip, asked, z, adjacency),
        multiplier=z,
    )
    return Chosen(numbers, exact.risk, cost)


def _sensitivity(problem: Problem, rate: float, clip: float, asked: int, adjacency: Adjacency) -> float:
    """Of one round's mean, for each chosen place."""
    divisor = rate * problem.users * problem.items_per_user
    return mean_sensitivity(clip, asked, adjacency) * (asked / divisor) * _ROUNDING


def _scale(problem: Problem, rate: float, clip: float, asked: int, z: float, adjacency: Adjacency) -> float:
    """σ of one round's mean: z times what a place can add, and room for the grid of the noise."""
    ends = 2 if adjacency == "replace-one" else 1
    once = _sensitivity(problem, rate, clip, asked, adjacency) / ends
    return GaussianNoise.for_mu(sensitivity=once, mu=1 / z, dimension=problem.dimension).scale


def _candidates(
    problem: Problem, options: GroupDPSGDOptions, clip: float, wanted: list[tuple[float, int, float]]
) -> list[Candidate[tuple[float, PhaseModel]]]:
    """The best step and suffix for each (rate, number of rounds, z)."""
    n, m = problem.users, problem.items_per_user
    rates, rounds, _ = zip(*wanted, strict=True)
    between = problem.beliefs.heterogeneity**2
    square = problem.deviation**2 + between + problem.start**2  # coins weigh whole gradients, not their deviations
    variances = []
    for rate, _, z in wanted:
        sampling = (1 - rate) * square / (rate * n * m)
        variances.append(sampling + problem.dimension * (z * clip / (rate * n * m)) ** 2)
    return noisy.sampled(problem, rates, rounds, np.array(variances), step_size=options.step_size)


def _verify(adjacency: Adjacency, plan: RunPlan) -> None:
    """A place's sensitivity, the noise in its units, and the mixture's ε of all rounds within the promise."""
    p = plan.parameters_of(GroupSGDParameters)
    problem = plan.problem
    if not (1 <= p.width <= p.items and 0 < p.rate <= 1 and p.rounds >= 1 and p.cohort_size >= 1):
        raise VerificationError(f"Expected rounds, a rate in (0, 1] and a width of 1 to {p.items} places, got {p}.")
    divisor = p.rate * problem.users * p.items
    once = moved.rows(p.clip_norm, p.cohort_size, "zero-out") * (p.cohort_size / divisor) * _ROUNDING
    ends = 2 if adjacency == "replace-one" else 1
    if not p.sensitivity >= ends * p.items * once * (1 - 1e-12):
        raise VerificationError(f"Expected sensitivity >= {ends * p.items * once}, got {p.sensitivity}.")
    z = 1 / moved.mu(once, p.noise_scale, problem.dimension)
    if not z >= p.multiplier * (1 - 1e-9):
        raise VerificationError(f"Expected multiplier <= {z}, got {p.multiplier}: too little noise for the claim.")


def _pairs(p: GroupSGDParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """Of all rounds, by a place's share of the mean and the noise on it."""
    divisor = p.rate * problem.users * p.items
    once = moved.rows(p.clip_norm, p.cohort_size, "zero-out") * p.cohort_size / divisor * (1 + 1e-9)
    z = 1 / moved.mu(once, p.noise_scale, problem.dimension)
    lack = total_variation(gaussians=p.rounds * problem.dimension)
    return (Pair.items(p.rate, p.items, p.rounds, z, adjacency).lacking(lack),)


def _info(name: str, adjacency: Adjacency, summary: str) -> AlgorithmInfo:
    return AlgorithmInfo(
        name=name,
        summary=summary,
        origin=theirs(
            ABADI_2016.at("Algorithm 1"),
            CHARLES_2024.at(),
            note="over items, with noise for all items of a user; the text of Charles et al. was not at hand",
        ),
        promises=Promises(
            ("central-broadcast",),
            (adjacency,),
            "docs/privacy/group-privacy.md#sampled-items",
            _pairs,
            one_server="its promise is amplification by secret samples, and two servers see whom they ask: take "
            "recentred-sgd or tracking-srgd",
        ),
        options=GroupDPSGDOptions,
        parameters=GroupSGDParameters,
        planner=partial(_plan, name, adjacency),
        verifier=partial(_verify, adjacency),
        maker=GroupSGD,
        factor=UNMEASURED,
        noise_ignores_domain=True,
        no_black_boxes=NoBlackBoxes("its clients clip each item's gradient on its own"),
        choosing=Choosing(named_only=True, many_passes=True, curve_step=8),
    )


REPLACE_ONE = _info(
    "group-dp-sgd", "replace-one", "DP-SGD on secretly chosen items, noise for all of a user's items at once"
)
ZERO_OUT = _info("group-dp-sgd-zero-out", "zero-out", "The same, against a user's absence")
