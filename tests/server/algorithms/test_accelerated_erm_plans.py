"""Plans of accelerated ERM: what is refused, what a second look at a plan catches, predictions, the strong schedule."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM
from problems import changed
from quoron_privacy.accounts import subsampling
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.robust import subsampled_test
from quoron_privacy.robust.smooth_test import ladder_mus
from quoron_server.algorithms import ALGORITHMS, acsa
from quoron_server.algorithms import accelerated_erm as search
from quoron_server.algorithms.accelerated_erm import Inputs, release_chance
from quoron_server.plan import Privacy

INFO = ALGORITHMS["accelerated-erm"]
UNKNOWN = changed(PROBLEM, curvature="unknown", typical_curvature=None)


def planned(options=(), problem=PROBLEM, privacy=PRIVACY):
    return INFO.plan(problem, privacy, INFO.options(**dict(options)), "calibrated", 7)


def test_too_few_users_are_refused_with_a_number_that_suffices():
    few, strict = replace(PROBLEM, users=200), Privacy(0.5, 1e-6)
    with pytest.raises(Infeasible, match=r"200 users are too few .* needs n >= ") as refusal:
        planned({}, few, strict)
    needed = int(refusal.value.needs.split()[-1].replace(",", ""))
    plan = planned({}, replace(PROBLEM, users=needed), strict)
    assert plan.guessed_excess_risk < 0.2


def test_a_declared_share_of_hostile_users_is_allowed_for_and_costs_noise():
    clean, hostile = planned({"rounds": 6}), planned({"rounds": 6}, changed(PROBLEM, hostile_share=0.02))
    INFO.verify(hostile)
    phase = hostile.parameters.phases[0]
    assert release_chance(phase.accounting, 0.02) > 0.99
    assert release_chance(clean.parameters.phases[0].accounting, 0.02) < 0.5
    assert phase.noise_scale > clean.parameters.phases[0].noise_scale
    with pytest.raises(Infeasible, match=r"hostile_share=0\.3"):
        planned({"rounds": 6}, changed(PROBLEM, hostile_share=0.3))


class TestForgivingTests:
    """Lowering the core leaves the chances at a lower score what they were at the top, within the same promise."""

    def test_of_smooth_tests(self):
        plan, lower = (
            subsampled_test.calibrate(1.0, 1e-6, users=5000, cohort_size=2000, releases=10, forgiven=forgiven)
            for forgiven in (0, 60)
        )
        subsampled_test.verify_subsampled(lower, 1.0, 1e-6)
        assert lower.test.chance(2000**2 - 60 * 2000) >= 0.999
        usual = [float(ladder_mus(each.mean, 1, 1.0)[-1]) for each in (plan, lower)]
        assert 1 < lower.noise_multiplier / plan.noise_multiplier < 1.1 * usual[1] / usual[0]

    def test_too_much_is_refused(self):
        asked = {"users": 5000, "cohort_size": 2000, "releases": 10}
        with pytest.raises(Infeasible, match="900 of 2,000"):
            subsampled_test.calibrate(1.0, 1e-6, **asked, forgiven=900)


def tampered(plan, **numbers):
    phases = tuple(replace(phase, **numbers) for phase in plan.parameters.phases)
    return replace(plan, parameters=replace(plan.parameters, phases=phases))


EXAMPLES = {
    "lottery": {"rounds": 6, "phases": 2, "cohort": 300},
    "everybody": {"rounds": 9, "phases": 1, "cohort": 2400},
}


@cache
def example(name):
    return planned(EXAMPLES[name])


class TestVerify:
    """A plan that was tampered with is refused."""

    @pytest.mark.parametrize("name", EXAMPLES)
    @pytest.mark.parametrize(
        "numbers",
        [
            {"first": 100, "users": 2400},  # phases that share users, or leave the population
            {"first": 2399},
            {"stages": ()},
            {"stages": (4, 0)},
            {"stages": (40,)},  # more releases than accounted for
            {"cohort_size": 1},
            {"cohort_size": 299},
            {"strength": 0.0},
            {"smoothness": 1e-9},
            {"regularisation": -0.1},
            {"radius": math.nan},
        ],
        ids=str,
    )
    def test_nonsense_is_refused(self, name, numbers):
        plan = example(name)
        with pytest.raises((VerificationError, ConfigError, Infeasible)):
            INFO.make(tampered(plan, **numbers))

    def test_amplification_by_the_test_being_outside_the_sampling_is_refused(self):
        """Conditional amplification as printed: the Gaussian alone is amplified, and tests come for nothing."""
        privacy, problem = Privacy(1.0, 1e-5), replace(PROBLEM, users=20_000)
        plan = planned({"rounds": 30, "phases": 1, "cohort": 2000}, problem, privacy)
        phase = plan.parameters.phases[0]
        account = phase.accounting
        each = subsampling.wor_round_mu(account.rate, 30, 1.0, 1e-5)
        shift = account.mean.shifts_at(account.test.scores[-1:]).item()
        printed = replace(account, noise_multiplier=shift / each)
        assert printed.noise_multiplier < 0.99 * account.noise_multiplier
        with pytest.raises(VerificationError, match="certified delta"):
            INFO.make(tampered(plan, accounting=printed, noise_scale=2 * phase.noise_scale))

    def test_amplification_by_users_who_are_not_there_is_refused(self):
        for users in (300, 1199, 2400):
            with pytest.raises((VerificationError, ConfigError)):
                INFO.make(tampered(example("lottery"), users=users))


@pytest.mark.parametrize(("users", "cohort", "rounds"), [(2400, 2400, 6), (20_000, 2000, 40), (100_000, 100_000, 20)])
def test_estimated_noise_is_near_the_calibrated(users, cohort, rounds):
    privacy = Privacy(2.0, 1e-5)
    problem = replace(PROBLEM, users=users)
    options = INFO.options(rounds=rounds, phases=1, stages=1, cohort=cohort)
    phase = INFO.plan(problem, privacy, options, "calibrated", 7).parameters.phases[0]
    scene = Inputs("accelerated-erm", problem, privacy, options, None)
    [estimate] = scene.noise([search.PhaseSizes(users, cohort, phase.rounds, phase.regularisation)])
    assert 0.7 < estimate * scene.radius / phase.noise_scale < 1.5


def risk_by_stages(scene, phases, sigmas):
    """One candidate's bound, phase by phase and stage by stage."""
    problem, steep = scene.problem, scene.problem.lipschitz
    total, away, reach = 0.0, problem.radius**2, problem.radius
    for (phase, stages, shape), sigma in zip(phases, sigmas, strict=True):
        pull, mu = phase.pull + problem.ridge, shape.strength
        total += phase.pull * away / 2 + 2 * problem.user_deviation**2 / (pull * phase.users)
        unseen = (phase.users - phase.cohort) / (phase.users - 1)
        variance = problem.dimension * sigma**2 + unseen * problem.user_deviation**2 / phase.cohort
        gap, distance = steep * min(steep / (2 * mu), reach), min(steep / mu, reach) ** 2
        for length in stages:
            gap = min(gap, acsa.stage_bound(length, distance, variance, mu, shape.smoothness))
            distance = 2 * gap / mu
        sampled = phase.pull * away / 2 + 4 * problem.radius * problem.user_deviation / math.sqrt(phase.users)
        away, reach = 2 * gap / pull, 2 * problem.radius
    return total + min(steep * math.sqrt(away), gap + sampled) + scene.bias


@pytest.mark.parametrize("problem", [PROBLEM, UNKNOWN, replace(UNKNOWN, smoothness=None, user_smoothness=None)])
def test_a_familys_risks_are_those_of_each_candidate(problem):
    smoothing = 0.3 if problem.smoothness is None else None
    scene = Inputs("accelerated-erm", problem, PRIVACY, INFO.options(), smoothing)
    tried = list(search.grids(scene))[::7]
    assert {len(grid.phases) for grid in tried} >= {1, 2}
    for grid, estimates in zip(tried, search.estimated(scene, tried), strict=True):
        radius = scene.radius
        sigmas = scene.noise(grid.phases) * radius
        assert estimates.tolist() == search.predicted(scene, grid, sigmas).tolist()
        for place, step in enumerate(grid.steps):
            alone = replace(grid, steps=(step,))
            assert search.predicted(scene, alone, sigmas) == pytest.approx(estimates[place], rel=1e-9)
            phases = list(grid.at(place))
            assert [sum(stages) for _, stages, _ in phases] == [phase.rounds for phase in grid.phases]
            assert {len(stages) for _, stages, _ in phases} == {step.stages}
            if scene.curvature is None and np.isfinite(sigmas).all():
                assert estimates[place] == pytest.approx(risk_by_stages(scene, phases, sigmas), rel=1e-9)
