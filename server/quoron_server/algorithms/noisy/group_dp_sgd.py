"""Item-level DP-SGD whose noise protects all items of a user, and its plans: group privacy by secret coins on items.

    in round t every place 1 .. m of every user is chosen by a secret coin of its own with chance q
    s_u = Σ_{chosen places of u that have an item} clip_C(∇f(x_t; z))        computed by the client
    g_t = (1/(q n m)) (Σ_u clip_{C · chosen places of u}(s_u) + N(0, z² C² I));   x_{t+1} = Proj(x_t - η g_t)
    model = uniform average of the last `suffix` iterates

Only users with a chosen place are asked, and each is sent its own places alone. A place without an item adds zero, the
divisor is fixed. Everything sent out is private: trust model `central-broadcast`. The noise is that of the exact
mixture of Gaussians, not of m times an item's ε; the mean's noise is about C √T / (n μ) whatever the rate.

Proof: docs/privacy/group-privacy.md#g2.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, PlacedGradient, Question
from quoron_privacy.accounts import sensitivity_recount, subsampling
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import Infeasible, RunError, VerificationError
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithm import OfPlan, Update
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import PhaseModel
from quoron_server.algorithms.info import UNMEASURED, AlgorithmInfo, Choosing, Chosen, NoBlackBoxes, Promises
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.noisy.method import NoisyState
from quoron_server.algorithms.optimisers import SGD
from quoron_server.algorithms.references import ABADI_2016, CHARLES_2024, theirs
from quoron_server.algorithms.search import Candidate, best, round_grid
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds

RATES = (0.3, 0.1, 0.03, 0.01)
LARGEST_ROUNDS = 1024
CUT = 1e-9  # expected share of users' rounds in which chosen places are cut; privacy is better for it
_ROUNDING = 1 + 1e-9  # of the sums and quotients between the clip and the noise


@dataclass(frozen=True, slots=True)
class GroupSGDParameters(Parameters):
    """Public numbers of one run."""

    items: int  # m: places of a user, a cap; items beyond it are never used
    rate: float  # q, of each place in each round
    width: int  # places of one user that a round uses at most; more at once are cut, which is next to never
    cohort_size: int  # users asked in a round, as expected
    expected: int  # items of an asked user, as expected
    rounds: int  # T
    step_size: float  # η
    suffix: int  # iterates averaged
    clip_norm: float  # C, on an item's gradient
    sensitivity: float  # of one round's mean, ℓ2, if all m places of a user were chosen
    noise_scale: float  # of one round's mean
    multiplier: float  # z, of the sum in units of C

    @property
    def noise(self) -> GaussianNoise:
        """Of one round's mean."""
        return GaussianNoise(self.sensitivity, self.noise_scale)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """A noisy mean in every round, of gradients at the places that are chosen."""
        noise, places = self.noise, np.arange(self.width, dtype=np.int64)[None, :]
        task = PlacedGradient(np.zeros((1, problem.dimension)), places, 1.0, self.clip_norm, self.expected)
        release = RoundRelease(noise, noise.entry(), noise.effective_mu(problem.dimension))
        return (Rounds(self.rounds, self.cohort_size, task, (release,), often=self.rounds),)

    @property
    def poisson_sampling(self) -> bool:
        """A user with a chosen place is asked."""
        return True

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret items, and as coins for items are coins for users, too, secret cohorts."""
        del problem
        return (Assumption(Kind.SECRET_ITEMS), Assumption(Kind.SECRET_COHORTS)) if self.rate < 1 else ()


class GroupSGD(OfPlan[GroupSGDParameters]):
    """Algorithm object for a plan with GroupSGDParameters."""

    kind = GroupSGDParameters

    def init(self) -> NoisyState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return NoisyState(0, zero, zero, self.parameters.clip_norm, SGD.start(len(zero)))

    def request(self, state: NoisyState, noise: NoiseSource) -> Question | None:
        """Clipped gradients of each user's chosen items at the current iterate."""
        p = self.parameters
        if state.round == p.rounds:
            return None
        cohort, places = self._chosen(state.round, noise)
        task = PlacedGradient(state.iterate[None, :], places, 1.0, p.clip_norm, p.expected)
        return Question(state.round, cohort, task, planned=p.cohort_size, drawn=True)

    def update(self, state: NoisyState, answers: Answers, noise: NoiseSource) -> Update[NoisyState]:
        """One noisy step. A user's sum is clipped to what its chosen places may add, whatever it sends."""
        p = self.parameters
        cohort, places = self._chosen(state.round, noise)  # by the same coins again
        if len(cohort) != len(answers.answered):
            raise RunError(
                f"Expected answers of the {len(cohort):,} users that this noise draws in round {state.round}, got "
                f"{len(answers.answered):,}. Update with the noise of the request."
            )
        chosen, total, clipped = np.sum(places >= 0, axis=1), np.zeros_like(state.iterate), 0
        for many in range(1, p.width + 1):
            alike = answers.answered & (chosen == many)
            mean, cut = clipped_mean(answers.values, alike, many * p.clip_norm, p.cohort_size)
            total, clipped = total + mean, clipped + cut
        mean = total * (p.cohort_size / (p.rate * self.plan.problem.users * p.items))
        gradient = p.noise.release(mean, noise.stream("release", state.round))
        iterate = self.plan.problem.domain.project(state.iterate - p.step_size * gradient)
        averaged = p.rounds - state.round <= p.suffix
        running = state.running + iterate / p.suffix if averaged else state.running
        moved = replace(state, round=state.round + 1, iterate=iterate, running=running)
        answered = int(np.sum(answers.answered))
        return Update(moved, (p.noise.entry(),), {}, {"answered": answered, "too_long": clipped})

    def _chosen(self, round_: int, noise: NoiseSource) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Users with a chosen place (k,), ascending, and their places (k, width), -1 beyond the last."""
        p = self.parameters
        stream = noise.stream("cohort", round_)  # which places is secret: it is what amplification rests on
        users, places = np.divmod(stream.poisson_subset(self.plan.problem.users * p.items, p.rate), p.items)
        cohort, first, counts = np.unique(users, return_index=True, return_counts=True)
        order = np.arange(len(users)) - np.repeat(first, counts)
        kept = order < p.width
        rows = np.full((len(cohort), p.width), -1, np.int64)
        rows[np.repeat(np.arange(len(cohort)), counts)[kept], order[kept]] = places[kept]
        return cohort.astype(np.int64), rows


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
    delta = search.left_of_delta(name, privacy, gaussians=phase.rounds * problem.dimension)
    z = subsampling.multiplier(rate, m, phase.rounds, privacy.epsilon, delta, adjacency)
    [exact] = _candidates(problem, options, clip, [(rate, phase.rounds, z)])
    _, phase = exact.of
    asked = max(1, round(n * -math.expm1(m * math.log1p(-rate)))) if rate < 1 else n
    expected = math.ceil(rate * n * m / asked)
    width = min(m, int(scipy.stats.binom.isf(CUT, m, rate)) + 1)
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
    return Chosen(numbers, exact.risk)


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
    once = sensitivity_recount.rows(p.clip_norm, p.cohort_size, "zero-out") * (p.cohort_size / divisor) * _ROUNDING
    ends = 2 if adjacency == "replace-one" else 1
    search.require_least(plan.algorithm, "sensitivity", p.sensitivity, ends * p.items * once)
    z = 1 / sensitivity_recount.mu(once, p.noise_scale, problem.dimension)
    if not z >= p.multiplier * (1 - 1e-9):
        raise VerificationError(f"Expected multiplier <= {z}, got {p.multiplier}: too little noise for the claim.")


def _pairs(p: GroupSGDParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """Of all rounds, by a place's share of the mean and the noise on it."""
    divisor = p.rate * problem.users * p.items
    once = sensitivity_recount.rows(p.clip_norm, p.cohort_size, "zero-out") * p.cohort_size / divisor * (1 + 1e-9)
    z = 1 / sensitivity_recount.mu(once, p.noise_scale, problem.dimension)
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
            one_server="its guarantee is amplification by secret samples, and two servers see whom they ask: take "
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
