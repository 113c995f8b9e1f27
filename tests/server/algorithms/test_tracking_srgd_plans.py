"""Plans of the recommended method: what is refused, what is spent, what options do, what a run costs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.scenes import PRIVACY, PROBLEM, Quadratic, make_plan
from one_epoch_reference import drive
from problems import changed
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.tracking.method import PILOT, mechanisms
from quoron_server.plan import Privacy
from quoron_server.problem import Problem
from quoron_server.wording import sentence
from server.algorithms.tracking_reference import small_plan

NAME = "tracking-srgd"
INFO = ALGORITHMS[NAME]
BOTH = ("recursive", "independent")

COMMON = {
    "1 % less noise of lengths": lambda p: replace(p, length_scale=0.99 * p.length_scale),
    "1 % less noise of second moments": lambda p: replace(p, moment_scale=0.99 * p.moment_scale),
    "1 % less noise in the warm-up": lambda p: replace(p, warmup_scale=0.99 * p.warmup_scale),
    "1 % less noise in the main rounds": lambda p: replace(p, main_scale=0.99 * p.main_scale),
    "the other adjacency": lambda p: replace(p, adjacency="zero-out"),
    "a smaller divisor of lengths": lambda p: replace(p, length_divisor=p.length_divisor - 1),
    "a smaller divisor of second moments": lambda p: replace(p, moment_divisor=p.moment_divisor - 1),
    "a smaller divisor of the warm-up": lambda p: replace(p, warmup_divisor=p.warmup_divisor - 1),
    "a smaller divisor of the main rounds": lambda p: replace(p, main_divisor=p.main_divisor - 1),
    "a longer feature norm": lambda p: replace(p, feature_norm=1.01 * p.feature_norm),
    "a smaller claim": lambda p: replace(p, mu=0.999 * p.mu),
    "a larger claim than was promised": lambda p: replace(p, mu=1.001 * p.mu),
    "no claim": lambda p: replace(p, mu=float("nan")),
    "a larger pilot than there are users": lambda p: replace(p, moment_cohort=p.moment_cohort + PROBLEM.users),
    "more warm-up rounds than there are users for": lambda p: replace(p, warmup_rounds=p.warmup_rounds + 1000),
    "larger main cohorts than there are users for": lambda p: replace(p, main_cohort=p.main_cohort + PROBLEM.users),
}
RECURSIVE = {
    "more main rounds than the column norm counts": lambda p: replace(p, main_rounds=20, main_cohort=20),
    "another factorisation": lambda p: replace(p, factorisation="tree"),
    "no factorisation": lambda p: replace(p, factorisation="-"),
    "independent gradients with correlated noise": lambda p: replace(p, variant="independent"),
}
INDEPENDENT = {
    "a factorisation": lambda p: replace(p, factorisation="blt"),
    "recursive gradients with independent noise": lambda p: replace(p, variant="recursive", factorisation="blt"),
}
BROKEN = [(variant, name, change) for variant in BOTH for name, change in COMMON.items()]
BROKEN += [("recursive", *item) for item in RECURSIVE.items()] + [
    ("independent", *item) for item in INDEPENDENT.items()
]


def plan_of(problem=PROBLEM, privacy=PRIVACY, **options):
    return INFO.plan(problem, privacy, INFO.options(**options), "calibrated", 7)


@pytest.fixture(scope="module")
def plans():
    return {variant: plan_of(variant=variant, rounds=16) for variant in BOTH}


@pytest.mark.parametrize(("variant", "change"), [(v, c) for v, _, c in BROKEN], ids=[f"{v}: {n}" for v, n, _ in BROKEN])
def test_a_broken_plan_is_refused_before_it_runs(plans, variant, change):
    plan = plans[variant]
    INFO.verify(plan)
    with pytest.raises(VerificationError):
        INFO.make(replace(plan, parameters=change(plan.parameters)))


OVERLAPPING = {
    "a negative warm-up cohort, which puts main users into the pilot": lambda p: replace(p, warmup_cohort=-20),
    "a negative pilot": lambda p: replace(p, moment_cohort=-100),
    "empty main cohorts": lambda p: replace(p, main_cohort=0),
    "a negative number of warm-up rounds": lambda p: replace(p, warmup_rounds=-1),
    "a variant that there is not": lambda p: replace(p, variant="both", factorisation="-"),
}


@pytest.mark.parametrize("name", list(OVERLAPPING))
def test_cohorts_that_are_none_are_refused(name):
    plan = small_plan()
    with pytest.raises(VerificationError):
        INFO.make(replace(plan, parameters=OVERLAPPING[name](plan.parameters)))


@pytest.mark.parametrize(
    "options",
    [
        {"first_radius": -1.0},
        {"first_radius": float("nan")},
        {"first_radius": 1e-200},
        {"attendance": 0.01},  # a divisor may be wrong by a factor 64 at most
        {"reference_items": -3},
        {"variant": "both"},
    ],
    ids=str,
)
def test_options_that_no_run_could_obey_are_refused_by_the_planner(options):
    with pytest.raises((ConfigError, Infeasible), match=next(iter(options))):
        plan_of(**options)


@pytest.mark.parametrize("variant", BOTH)
def test_the_plan_spends_what_was_asked_for_on_every_cohort(plans, variant):
    p = plans[variant].parameters
    made = mechanisms(p, PROBLEM.features, PROBLEM.dimension)
    assert delta_for(p.mu, PRIVACY.epsilon) == pytest.approx(PRIVACY.delta, rel=1e-3)
    for mechanism in (made.length, made.moment, made.warmup, made.main):
        assert mechanism.effective_mu == pytest.approx(p.mu, rel=1e-6)


def test_zero_out_halves_the_noise_of_gradients_but_for_five_per_cent_and_a_quarter_off_the_pilots():
    one = plan_of(rounds=16)
    other = plan_of(privacy=replace(PRIVACY, adjacency="zero-out"), rounds=16)
    INFO.verify(other)
    p, q = one.parameters, other.parameters
    assert q.warmup_scale * q.warmup_divisor / (p.warmup_scale * p.warmup_divisor) == pytest.approx(0.527, rel=1e-3)
    assert q.moment_scale * q.moment_divisor / (p.moment_scale * p.moment_divisor) == pytest.approx(0.745, rel=1e-3)
    assert other.predicted_excess_risk < one.predicted_excess_risk
    with pytest.raises(VerificationError, match="adjacency"):
        INFO.verify(replace(one, parameters=q))


@given(
    rounds=st.integers(10, 40),
    variant=st.sampled_from(BOTH),
    attendance=st.sampled_from([0.5, 0.9, 1.0]),
    share=st.sampled_from([None, 0.05, 0.3]),
    first=st.sampled_from([None, 0.3]),
)
@settings(derandomize=True, deadline=None, max_examples=30)
def test_options_are_obeyed(rounds, variant, attendance, share, first):
    problem = replace(PROBLEM, users=40_000)
    plan = plan_of(
        problem, rounds=rounds, variant=variant, attendance=attendance, pilot_share=share, first_radius=first
    )
    INFO.verify(plan)
    p = plan.parameters
    assert p.rounds == plan.cost.rounds == rounds
    assert p.variant == variant
    assert (p.factorisation == "-") == (variant == "independent")
    assert p.asked == plan.cost.messages <= problem.users
    for cohort, divisor in (
        (p.length_cohort, p.length_divisor),
        (p.moment_cohort, p.moment_divisor),
        (p.warmup_cohort, p.warmup_divisor),
        (p.main_cohort, p.main_divisor),
    ):
        assert divisor == int(attendance * cohort)
    if share:
        assert sum(p.cohorts()[:PILOT]) == pytest.approx(share * problem.users, abs=PILOT)
    assert p.first_radius == pytest.approx(first or problem.lipschitz * 3**0.5)  # √p / (R √φ₂) times
    assert p.spread <= p.first_radius
    assert p.reference_items == problem.items_per_user
    assert f"attendance of {attendance:g}" in sentence(plan.guarantee) or attendance == 1.0


def test_the_cost_counts_both_points_of_a_difference_and_the_pilots_matrices():
    class Counting(Quadratic):
        down = up = gradients = 0

        def ask(self, question):
            down, up = question.payload(PROBLEM.dimension)
            self.down, self.up = self.down + down, self.up + up
            self.gradients += len(question.cohort) * question.task.gradients_per_user * PROBLEM.items_per_user
            return super().ask(question)

    for variant in BOTH:
        plan, engine = plan_of(variant=variant, rounds=16), Counting()
        drive(INFO.make(plan), engine, SeededNoise(1))
        cost = plan.cost
        assert (engine.down, engine.up, engine.gradients) == (cost.bytes_down, cost.bytes_up, cost.gradient_evaluations)
        assert cost.messages == sum(len(cohort) for cohort in engine.asked)


def test_client_weights_and_hostile_users_reach_the_plan():
    assert plan_of(reference_items=9).parameters.reference_items == 9
    assert plan_of(changed(PROBLEM, hostile_share=0.2)).parameters.beyond == pytest.approx(0.4)


TEN_THOUSAND = Problem(
    users=10_000,
    items_per_user=50,
    dimension=200,
    domain=L2Ball(20.0),
    lipschitz=1.0,
    smoothness=0.25,
    feature_norm=1.0,
    link_curvature=0.25,
)


def test_ten_thousand_users_in_two_hundred_dimensions_are_infeasible_and_the_error_says_how_many_would_do():
    with pytest.raises(Infeasible, match=r"no better than the .* of not training; needs n >= ([\d,]+)") as refused:
        plan_of(TEN_THOUSAND, Privacy(1.0, 1e-6))
    users = int(str(refused.value).split("n >= ")[1].split(" ")[0].replace(",", ""))
    assert users > 10_000
    enough = plan_of(replace(TEN_THOUSAND, users=users), Privacy(1.0, 1e-6))
    assert enough.guessed_excess_risk < 0.5 * 0.4 * 0.25 * 1.5**2  # what predictions of 1.5 lose by not training


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"link_curvature": None}, "not smooth"),
        ({"feature_norm": None}, "not smooth"),
        ({"convex": False}, "not smooth"),
        ({"dimension": 301}, "301"),
    ],
)
def test_a_problem_without_a_public_metric_is_infeasible(change, reason):
    with pytest.raises(Infeasible, match=reason):
        plan_of(replace(PROBLEM, **change))


@pytest.mark.parametrize(
    "options", [{"attendance": 0.0}, {"attendance": 1.5}, {"pilot_share": 0.0}, {"pilot_share": 1.0}]
)
def test_shares_that_are_none_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        plan_of(**options)


def test_an_unknown_factorisation_is_refused():
    with pytest.raises(ConfigError, match="Expected factorisation"):
        plan_of(factorisation="best")


def test_one_pass_reaches_the_solution_of_a_quadratic_within_a_few_times_the_prediction():
    # The true Hessian is 0.2 I, as the pilot measures; the optimum is the mean of the centres.
    engine, risks = Quadratic(), []
    best = engine.centres.mean(axis=0)
    for seed in range(5):
        algorithm = INFO.make(make_plan(NAME))
        model = algorithm.model(drive(algorithm, engine, SeededNoise(seed))[-1])
        risks.append(0.1 * float(np.sum((model - best) ** 2)))
    assert np.mean(risks) < 4 * make_plan(NAME).predicted_excess_risk
