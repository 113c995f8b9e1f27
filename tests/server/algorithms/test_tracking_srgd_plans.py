"""Plans of the recommended method: what is refused, what is spent, what options do, what a run costs."""

from dataclasses import replace

import pytest

from contracts.scenes import PRIVACY, PROBLEM
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import QuoronError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.tracking import mechanisms

NAME = "tracking-srgd"
INFO = ALGORITHMS[NAME]

BROKEN = {
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
    "a larger claim than was guaranteed": lambda p: replace(p, mu=1.001 * p.mu),
    "no claim": lambda p: replace(p, mu=float("nan")),
    "a larger pilot than there are users": lambda p: replace(p, moment_cohort=p.moment_cohort + PROBLEM.users),
    "more warm-up rounds than there are users for": lambda p: replace(p, warmup_rounds=p.warmup_rounds + 1000),
    "larger main cohorts than there are users for": lambda p: replace(p, main_cohort=p.main_cohort + PROBLEM.users),
    "more main rounds than the column norm counts": lambda p: replace(p, main_rounds=20, main_cohort=20),
    "another factorisation": lambda p: replace(p, factorisation="tree"),
    "no factorisation": lambda p: replace(p, factorisation="-"),
}


def plan_of(problem=PROBLEM, privacy=PRIVACY, **options):
    return INFO.plan(problem, privacy, INFO.options(**options), "calibrated", 7)


@pytest.fixture(scope="module")
def plan():
    return plan_of(rounds=16)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plan_is_refused(plan, name):
    with pytest.raises(QuoronError, match=r"^Expected "):
        INFO.verify(replace(plan, parameters=BROKEN[name](plan.parameters)))


def test_the_plan_spends_what_was_asked_for_on_every_cohort(plan):
    p = plan.parameters
    made = mechanisms(p, PROBLEM.features, PROBLEM.dimension)
    assert delta_for(p.mu, PRIVACY.epsilon) == pytest.approx(PRIVACY.delta, rel=1e-3)
    for mechanism in (made.length, made.moment, made.warmup, made.main):
        assert mechanism.effective_mu == pytest.approx(p.mu, rel=1e-6)
