"""Audits of gradient descent with outlier removal on worst-case neighbours, and of its broken twins.

Every run is a real object in one dimension; the statistic adds up the released gradients. The bounds are wrong with
probability at most `harness.FAILURE` = 1e-8.
"""

from dataclasses import replace

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.robust.above_threshold import AboveThreshold
from quoron_privacy.robust.outlier_mean import score_step
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.outlier_gd import method
from quoron_server.algorithms.outlier_gd.method import OutlierGD
from quoron_server.plan import Privacy

EPSILON, DELTA, USERS, ROUNDS, RUNS = 2.0, 1e-2, 600, 2, 300
PROBLEM = problem_of(
    users=USERS,
    items_per_user=1,
    dimension=1,
    domain=L2Ball(1.0),
    lipschitz=1.0,
    smoothness=1.0,
    gradient_deviation=0.02,
)
INFO = ALGORITHMS["outlier-gd"]
KINDS = {"threshold": {"test": "above-threshold"}, "lottery": {"test": "lottery"}}
every_kind = pytest.mark.parametrize("kind", KINDS)


def planned(kind):
    options = INFO.options(rounds=ROUNDS, radius=0.1, **KINDS[kind])
    return INFO.plan(PROBLEM, Privacy(EPSILON, DELTA), options, "calibrated", 5)


def draws(plan, others, own, make, start):
    def sample(runs):
        algorithm, found = make(plan), np.zeros(runs)
        answers = Answers(np.append(own, others)[:, None], np.zeros(USERS, np.uint8))
        for i in range(runs):
            noise, state = SeededNoise(start + i), algorithm.init()
            for _ in range(ROUNDS):
                update = algorithm.update(state, answers, noise)
                state = update.state
                found[i] += float(state.gradient[0]) if update.public["released"] else 0.0
        return found

    return sample


def audit(plan, others, ends, make=OutlierGD, runs=RUNS):
    worlds = (draws(plan, others, own, make, 10**7 * k) for k, own in enumerate(ends))
    return epsilon_lower_bound(*worlds, delta=DELTA, draws=runs)


def antipodal(plan):
    """Everybody in one place, the own user τ to either side of it."""
    return np.zeros(USERS - 1), (plan.parameters.radius * 0.999, -plan.parameters.radius * 0.999)


@every_kind
def test_a_run_never_exceeds_its_claimed_epsilon(kind):
    plan = planned(kind)
    INFO.verify(plan)
    assert audit(plan, *antipodal(plan)) <= EPSILON


@every_kind
def test_the_audit_catches_a_sixty_fourth_of_the_noise(kind):
    plan = planned(kind)
    less = replace(plan.parameters, noise_scale=plan.parameters.noise_scale / 64)
    assert audit(replace(plan, parameters=less), *antipodal(plan), runs=450) > EPSILON


@every_kind
def test_the_audit_catches_a_missing_test(kind, monkeypatch):
    """Two far clusters of nearly half each: the own user decides which of them has a majority."""
    monkeypatch.setattr(method, "decision", lambda *_, **__: (True, ()))
    clusters = np.repeat([0.0, 900.0], [USERS // 2 - 1, USERS // 2]), (900.0, 0.0)
    assert audit(planned(kind), *clusters, runs=400) > EPSILON


SERIES = 100  # rounds of tests


def all_pass(test, gap, *, redrawn):
    """P(no round misses), scores `gap` below the threshold in every round, integrated over the threshold's noise."""
    xi = np.linspace(-30, 30, 24_001) * test.threshold_scale
    weights = np.exp(-np.abs(xi) / test.threshold_scale)
    weights /= weights.sum()
    margin = (gap + xi) / test.score_scale
    each = np.where(margin > 0, 0.5 * np.exp(-np.abs(margin)), 1 - 0.5 * np.exp(-np.abs(margin)))
    return float((weights @ each) ** SERIES if redrawn else weights @ each**SERIES)


@pytest.mark.parametrize("redrawn", [False, True])
def test_the_audit_catches_a_threshold_that_is_redrawn_in_every_round_at_the_price_of_one(redrawn):
    """The price of one threshold with all its tests is step/b_ξ + 2 step/b_v; redrawn, it is paid in every round."""
    test = planned("threshold").parameters.accounting.test
    step = score_step(USERS) / USERS
    price = step / test.threshold_scale + 2 * step / test.score_scale
    gaps = -np.linspace(0, 12, 49) * test.threshold_scale
    ratios = [
        np.log(all_pass(test, gap, redrawn=redrawn) / all_pass(test, gap + step, redrawn=redrawn)) for gap in gaps
    ]
    assert (max(ratios) > 3 * price) if redrawn else (0.1 * price < max(ratios) <= price)


def test_a_run_draws_its_threshold_once(monkeypatch):
    drawn, draw = [], AboveThreshold.draw_limit
    monkeypatch.setattr(AboveThreshold, "draw_limit", lambda self, stream: drawn.append(1) or draw(self, stream))
    plan = planned("threshold")
    draws(plan, np.zeros(USERS - 1), 0.0, OutlierGD, 3)(5)
    assert len(drawn) == 5
