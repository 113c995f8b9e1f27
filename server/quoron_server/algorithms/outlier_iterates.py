"""Phased local SGD with outlier-iterate removal: Lowy, Liu & Asi (2024), Algorithm 1, with a test and noise of our own.

    x_0 = 0
    for phase i:   C chains side by side, each of N_i users one after another, all on fresh users
        a user takes one local pass of SGD from the iterate that it gets, and hands its last one on
        y_j = mean of the iterates along chain j
        S = #{(j, j') : ‖y_j - y_j'‖ <= τ_i}
        x_i = Proj(weighted mean of the y_j that lie close to most + N(0, σ_i² I))   if the test of S releases
        x_i = x_{i-1}                                                                otherwise

Privacy asks nothing of the losses: it holds for arbitrary vectors y_j, so clients may clip, and losses may be rough or
not convex. A chain in which anybody is silent, late or sends nonsense is an isolated point for the phase. Clients see
iterates without noise (exposure `model`), unless every chain is one user long: then nobody does (`broadcast`).

Changed from print, with proofs in docs/privacy/outlier-iterates.md: lottery and weighted mean in place of Laplace test
and random inclusion (both of which remain as options), our ramp, exact calibration, projected releases, free sizes.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quoron_client.questions import Answers, LocalSGD, Question
from quoron_protos.errors import VerificationError
from quoron_server.accounting.combinations import theorem_for
from quoron_server.accounting.lottery import OneShot
from quoron_server.algorithm import Release, Update, Vector
from quoron_server.algorithms import _outlier_iterate_plans as planning
from quoron_server.algorithms._info import AlgorithmInfo
from quoron_server.algorithms._outlier_iterate_plans import NAME, OutlierIterateParameters, Phase
from quoron_server.algorithms._outlier_iterate_releases import certify
from quoron_server.mechanisms.gaussian import GaussianNoise
from quoron_server.mechanisms.laplace_test import LaplaceTest
from quoron_server.mechanisms.lottery import LotteryTest
from quoron_server.mechanisms.outlier_mean import Observation
from quoron_server.noise import NoiseSource
from quoron_server.plan import Constants, Cost, Guarantee, Plan, Privacy
from quoron_server.problem import Problem
from quoron_server.slots import partition

THEOREM = "docs/privacy/outlier-iterates.md#statement"
RELEASED, HALTED = 1, 0


@dataclass(frozen=True, slots=True, eq=False)
class OutlierIterateState:
    """Everything between two rounds."""

    round: int
    released: Vector  # x_{i-1}
    iterates: Vector  # (C, d), where each chain stands
    averages: Vector  # (C, d), the phase's averages so far
    whole: NDArray[np.bool_]  # (C,), chains that nobody has broken in this phase
    statuses: NDArray[np.int64]  # per finished phase, RELEASED or HALTED


class OutlierIterates:
    """Algorithm object for a plan with OutlierIterateParameters."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parameters: OutlierIterateParameters = plan.parameters
        self._ends = np.cumsum([phase.users for phase in self.parameters.phases])
        self._largest = plan.problem.domain.norm_bound(plan.problem.dimension) * (1 + 1e-9)

    def init(self) -> OutlierIterateState:
        """Start at zero."""
        return self._begin(0, np.zeros(self.plan.problem.dimension), np.zeros(0, np.int64))

    def request(self, state: OutlierIterateState, noise: NoiseSource) -> Question | None:
        """One local pass of the next user of every chain, broken or not: nobody sees from the schedule which are."""
        del noise
        if state.round == self._ends[-1]:
            return None
        chains, problem = self.parameters.cohort_size, self.plan.problem
        first = state.round * chains
        cohort = partition(seed=self.plan.seed, users=problem.users)[first : first + chains]
        step = self.parameters.phases[self._index(state)].step_size
        return Question(state.round, cohort, LocalSGD(state.iterates, step, problem.domain))

    def update(self, state: OutlierIterateState, answers: Answers, noise: NoiseSource) -> Update[OutlierIterateState]:
        """Hand the iterates on; at the end of a phase, its release."""
        index = self._index(state)
        phase, left = self.parameters.phases[index], int(self._ends[index]) - state.round
        # A local pass ends in the domain; what does not is nonsense, told by its own row alone.
        sane = (np.abs(answers.values) <= self._largest).all(axis=(1, 2))
        whole = state.whole & answers.answered & sane
        values = np.where(whole[:, None, None], answers.values, 0.0)
        moved = replace(
            state,
            round=state.round + 1,
            iterates=np.where(whole[:, None], self.plan.problem.domain.project(values[:, 0]), state.released),
            averages=state.averages + values[:, 1] / phase.averaged if left <= phase.averaged else state.averages,
            whole=whole,
        )
        told = {"broken_chains": int(np.sum(~whole))}
        if left > 1:
            return Update(moved, (), {"phase": index}, told)
        passed, released, seen = self._release(moved, phase, noise, index)
        ended = self._begin(moved.round, released, np.append(state.statuses, RELEASED if passed else HALTED))
        mean = phase.release.mean
        entry = Release(
            "outlier-mean",
            {"phase": float(index), "scale": phase.release_scale, "radius": phase.radius, "core": float(mean.core)},
        )
        private: dict[str, float] = {
            "removed_chains": int(np.sum(seen.weights == 0)),
            "weight": float(seen.weights.mean()) / (mean.ramp_high - mean.ramp_low),
            "score": seen.score / mean.cohort_size**2,
        }
        return Update(ended, (entry,), {"phase": index, "halted": not passed}, told | private)

    def model(self, state: OutlierIterateState) -> Vector:
        """The last release."""
        return state.released

    def iterate(self, state: OutlierIterateState) -> Vector:
        """The mean of the points of the next question."""
        mean: Vector = state.iterates.mean(axis=0)
        return mean

    def _index(self, state: OutlierIterateState) -> int:
        return int(np.searchsorted(self._ends, state.round, side="right"))

    def _begin(self, round_: int, start: Vector, statuses: NDArray[np.int64]) -> OutlierIterateState:
        chains = self.parameters.cohort_size
        return OutlierIterateState(
            round=round_,
            released=start,
            iterates=np.tile(start, (chains, 1)),
            averages=np.zeros((chains, len(start))),
            whole=np.ones(chains, np.bool_),
            statuses=statuses,
        )

    def _release(
        self, state: OutlierIterateState, phase: Phase, noise: NoiseSource, index: int
    ) -> tuple[bool, Vector, Observation]:
        """Whether the phase releases, the next phase's start, and what the test saw."""
        mechanism, domain = phase.mechanism(), self.plan.problem.domain
        seen = mechanism.observe(state.averages, state.whole, reference=state.released)
        if not _test(phase).decide(seen.score, noise.stream("test", index)):
            return False, state.released, seen
        weights = seen.weights
        if phase.release.mean.kind == "random":
            weights = mechanism.include(weights, noise.stream("inclusion", index))
        shift = mechanism.aggregate(state.averages, weights, reference=state.released)
        gaussian = GaussianNoise(phase.release.mean.sensitivity * phase.radius, phase.release_scale)
        return True, domain.project(state.released + gaussian.release(shift, noise.stream("release", index))), seen


def _test(phase: Phase) -> LotteryTest | LaplaceTest:
    release = phase.release
    if isinstance(release, OneShot):
        return LotteryTest(release.lottery.cohort_size, release.lottery.core, release.lottery.table)
    return LaplaceTest(release.test.cohort_size, release.test.threshold, release.test.scale)


def plan(
    problem: Problem,
    privacy: Privacy,
    options: planning.OutlierIterateOptions,
    constants: Constants,
    seed: int,
) -> Plan:
    """The plan with the least predicted excess risk. Raises Infeasible, with C_min and how many users would do."""
    del constants
    risk, parameters = planning.choose(problem, privacy, options)
    single = all(phase.users == 1 for phase in parameters.phases)
    return Plan(
        algorithm=NAME,
        problem=problem,
        guarantee=Guarantee(
            privacy.epsilon, privacy.delta, "replace-one", "broadcast" if single else "model", (), THEOREM
        ),
        cost=_cost(problem, parameters),
        parameters=parameters,
        predicted_excess_risk=risk,
        seed=seed,
    )


def _cost(problem: Problem, parameters: OutlierIterateParameters) -> Cost:
    rounds = sum(phase.users for phase in parameters.phases)
    messages = rounds * parameters.cohort_size
    payload = 8 * messages * problem.dimension
    return Cost(rounds, messages, messages * problem.items_per_user, payload, 2 * payload)


def verify(plan: Plan) -> None:
    """Theorem 3 or 5 for every phase at the plan's own numbers, disjoint users, and what clients get to see."""
    p: OutlierIterateParameters = plan.parameters
    wish = Privacy(plan.guarantee.epsilon, plan.guarantee.delta)
    if not p.phases or plan.cost != _cost(plan.problem, p) or plan.cost.messages > plan.problem.users:
        raise VerificationError(
            f"Expected phases on disjoint users among {plan.problem.users:,} and their cost, got {plan.cost}."
        )
    single = all(phase.users == 1 for phase in p.phases)
    if plan.guarantee.exposure == "broadcast" and not single:
        raise VerificationError("Expected chains of one user under exposure 'broadcast', got longer ones.")
    for phase in p.phases:
        _verify_phase(phase, p.cohort_size, plan.problem.dimension, wish)


def _verify_phase(phase: Phase, chains: int, dimension: int, privacy: Privacy) -> None:
    mean = phase.release.mean
    if not (1 <= phase.averaged <= phase.users and phase.step_size > 0 and mean.cohort_size == chains):
        raise VerificationError(f"Expected 1 <= averaged <= users, a positive step and {chains} chains, got {phase}.")
    theorem_for(
        "lottery" if isinstance(phase.release, OneShot) else "laplace",
        "weighted-mean" if mean.kind == "weighted" else "random-inclusion",
        "one-release",
        kappa=mean.kappa,
    )
    certify(phase.release, privacy.epsilon, planning.left_of_delta(privacy, dimension))
    slack = phase.mechanism().rounding_slack(dimension)
    for shift in mean.shifts:
        moved = GaussianNoise(shift * phase.radius * (1 + slack), phase.release_scale).effective_mu(dimension)
        if not moved <= shift / phase.release.noise_multiplier * (1 + 1e-12):
            raise VerificationError(
                f"Expected release_scale >= {phase.radius * phase.release.noise_multiplier:g} and a little, "
                f"got {phase.release_scale:g}."
            )


def make(plan: Plan) -> OutlierIterates:
    """The algorithm, once the plan passes `verify`."""
    verify(plan)
    return OutlierIterates(plan)


INFO = AlgorithmInfo(
    name=NAME,
    summary="Chains of local SGD, outlier iterates removed, few private means; noise falls as 1/√m",
    paper="Lowy, Liu & Asi, Faster Algorithms for User-Level Private Stochastic Convex Optimization",
    algorithm_numbers="1",
    exposure="model",
    adjacency=("replace-one",),
    constants=("calibrated",),
    theorem=THEOREM,
    options=planning.OutlierIterateOptions,
    plan=plan,
    verify=verify,
    make=make,
    removes_outliers=True,
    answer=lambda plan: 2 * plan.problem.dimension,
    exposures=("model", "broadcast"),
)
