"""`whitened-tracking`: plans that are refused; what it learns, and from whom."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from problems import problem_of
from quoron_client import ItemBatch, answer, average_loss, make_loss
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.whitened import method
from quoron_server.algorithms.whitened.estimates import tail_power
from quoron_server.algorithms.whitened.method import WhitenedTracking
from quoron_server.algorithms.whitened.parameters import CurvatureModel
from quoron_server.plan import Privacy, RunPlan

NAME = "whitened-tracking"
INFO = ALGORITHMS[NAME]
PRIVACY = Privacy(4.0, 1e-6)


def table(users=400, features=4, items=5, seed=1, loss="logistic"):
    """Users of items, the last feature of which is always the same."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, (users * items, features)) * np.linspace(0.3, 1, features) / np.sqrt(features)
    rows[:, -1] = 1 / np.sqrt(features)
    scores = rows @ rng.normal(size=features) * 5
    labels = np.where(rng.random(len(scores)) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    if loss != "logistic":
        labels = np.clip(scores / 5 + rng.normal(size=len(scores)) / 5, -1, 1)
    return ItemBatch(rows, labels, np.arange(users + 1) * items)


def plan_of(batch, loss="logistic", privacy=PRIVACY, ridge=0.0, **options) -> RunPlan:
    known = make_loss(loss, ridge=ridge)
    problem = problem_of(
        users=batch.users,
        items_per_user=5,
        dimension=batch.dimension,
        domain=L2Ball(30.0),
        lipschitz=known.lipschitz(L2Ball(30.0), batch.dimension),
        smoothness=known.smoothness,
        start_gradient=known.start_gradient,
        feature_norm=1.0,
        link_curvature=known.curvature,
        ridge=ridge,
        sigmoid=loss == "logistic",
        label_bound=None if loss == "logistic" else 1.0,
        intercept=True,
    )
    return INFO.plan(problem, privacy, INFO.options(**options))


def left(batch, plan: RunPlan, loss="logistic", seed=3, tamper=None) -> float:
    """Share of the start's excess risk that a run leaves."""
    known, model, _ = run(batch, plan, loss, seed, tamper)

    def risk(model):
        return float(average_loss(known, batch, model).mean())

    start = np.zeros(batch.dimension)
    best = optimize.minimize(risk, start, method="BFGS", options={"gtol": 1e-9}).fun
    return (risk(model) - best) / (risk(start) - best)


def run(batch, plan: RunPlan, loss="logistic", seed=3, tamper=None):
    """The loss, the model and what is told at the end."""
    known, made, noise = make_loss(loss, ridge=plan.problem.ridge), INFO.make(plan), SeededNoise(seed)
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        found = answer(known, batch, question.task)
        values, status = found.values, found.status
        if tamper is not None:
            tamper(values, status)
        update = made.update(state, Answers.checked(values, status, largest=1e9), noise)
        state = update.state
    return known, made.model(state), update.public


def test_a_row_without_a_category_is_predicted_like_others_where_all_categories_are_columns():
    """Nobody varies along what such columns sum to: looks may widen it, and a model could have any size there."""
    rng, users, items = np.random.default_rng(0), 1500, 3
    ward, others = rng.integers(0, 3, users * items), rng.uniform(-1, 1, (users * items, 3)) / 4
    rows = np.column_stack([np.eye(3)[ward], others, np.ones(users * items)]) / np.sqrt(7)
    scores = 8 * rows[:, 3] - 6 * rows[:, 4] + 2 * rows[:, 0] + 0.5
    labels = np.where(rng.random(len(scores)) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    batch = ItemBatch(rows, labels, np.arange(users + 1) * items)
    plan, nobody = plan_of(batch), np.array([0, 0, 0, 0, 0, 0, 1.0]) / np.sqrt(7)
    off = [abs((nobody - rows.mean(axis=0)) @ run(batch, plan, seed=seed)[1]) for seed in range(1, 7)]
    assert max(off) < 3.0  # 20 in every second run where what nobody tells of is widened, and kept


def test_a_ridge_is_part_of_what_is_minimised():
    batch = table(users=2000)
    assert left(batch, plan_of(batch, ridge=0.05)) < 0.05


def test_a_column_that_few_users_have_is_whitened_by_all_of_their_length():
    """A moment clipped at a typical length would be a fifth of what it is, and steps that go by it never settle."""
    rng, users = np.random.default_rng(0), 4000
    has = rng.random(users) < 0.1
    labels = np.where(rng.random(users) < 1 / (1 + np.exp(2.0 - 2.0 * has)), 1.0, -1.0)
    batch = ItemBatch(np.column_stack([2.0 * has - 1, np.ones(users)]) / np.sqrt(2), labels, np.arange(users + 1))
    assert max(left(batch, plan_of(batch), seed=seed) for seed in range(2)) < 0.05


def test_columns_that_are_a_thousand_times_narrower_than_another_are_learnt_beside_it():
    """By two second moments alone 79 % is left."""
    rng, users = np.random.default_rng(4), 4_000
    rows = np.column_stack([rng.standard_normal((users, 3)) / 8, np.full(users, 0.5)])
    scores, widths = rows @ [8.0, 12.0, -8.0, 0.0], np.array([1.0, 1e-3, 1e-3, 1.0])
    labels = np.where(rng.random(users) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    batch, narrow = (ItemBatch(rows * width, labels, np.arange(users + 1)) for width in (np.ones(4), widths))
    plan = plan_of(narrow)
    plan = replace(plan, problem=replace(plan.problem, domain=L2Ball(1e6)))
    loss, model, _ = run(narrow, plan)

    def risk(model):
        return float(average_loss(loss, batch, model).mean())

    start, best = risk(np.zeros(4)), optimize.minimize(risk, np.zeros(4), method="BFGS").fun
    assert risk(model * widths) - best < 0.03 * (start - best)


def test_a_column_that_is_mostly_zero_is_learnt_although_it_bends_less_than_a_gaussian_would():
    """By the slope of Gaussian predictions alone 0.28, 0.20 and 0.14 % are left."""
    rng, users = np.random.default_rng(0), 20_000
    column = rng.standard_normal((users, 4)) * (rng.random((users, 4)) < 0.05)
    labels = np.where(rng.random(users) < 1 / (1 + np.exp(0.3 - 3.0 * column[:, 0])), 1.0, -1.0)
    rows = np.column_stack([np.clip(column, -4, 4) / 4, np.ones(users)]) / np.sqrt(5)
    batch = ItemBatch(rows, labels, np.arange(users + 1))
    plan = plan_of(batch, privacy=replace(PRIVACY, epsilon=8.0))
    assert max(left(batch, plan, seed=seed) for seed in range(3, 6)) < 0.0013


def test_the_few_who_hold_a_rare_column_are_not_clipped_to_what_all_others_are():
    """Their share does not fall as the radius grows: by half the usual target 8 % are left, whatever epsilon is."""
    rng, users = np.random.default_rng(1), 8000
    has = rng.random(users) < 0.02
    labels = np.where(rng.random(users) < 1 / (1 + np.exp(0.5 - 2.0 * has)), 1.0, -1.0)
    batch = ItemBatch(np.column_stack([has, np.ones(users)]) / np.sqrt(2), labels, np.arange(users + 1))
    plan = plan_of(batch, privacy=replace(PRIVACY, epsilon=8.0))
    assert np.median([left(batch, plan, seed=seed) for seed in range(3, 9)]) < 0.05


def test_a_tail_is_as_steep_as_shares_fall_and_what_is_expected_where_they_say_nothing():
    radii = np.array([1.0, 1.5, 2.0, 3.0])
    for power in (1.0, 3.0, 6.0):
        assert tail_power(radii, 0.1 * radii**-power, 1e-6, 1.0) == pytest.approx(power, abs=0.6)
    assert tail_power(radii, np.full(4, 0.002), 1e-5, 1.0) < 0.6
    noisy = tail_power(radii, np.full(4, -0.001), 0.1, 1.0)  # noise alone: shares are no less than its deviation
    assert 0 < noisy < tail_power(radii[:1], np.array([0.1]), 1e-6, 1.0) == 4.0
    assert tail_power(radii, np.array([0.9, 0.9, 0.002, 0.002]), 1e-5, 0.01) < tail_power(
        radii[:1], radii[:1], 1.0, 9.0
    )


def test_users_who_hold_no_row_that_can_be_used_do_not_spoil_the_metric():
    """Of two in five no length is known; as the least that there is they made steps so long that nothing was learnt."""
    batch = table(users=4000, items=1, features=8, loss="least_squares")
    batch.features[::5], batch.features[1::5] = 0.0, 0.0
    batch.labels[::5], batch.labels[1::5] = 0.0, 0.0
    assert left(batch, plan_of(batch, "least_squares", Privacy(8.0, 1e-6)), "least_squares") < 0.002


@pytest.mark.parametrize(("scale", "heard"), [(1.0, True), (0.1, True), (1e-5, False)])
def test_columns_that_cannot_be_told_from_noise_are_said_and_have_no_bound_of_what_was_released(scale, heard):
    batch = table(users=4000)
    columns = np.append(np.full(batch.dimension - 1, scale), 1.0)
    batch = ItemBatch(batch.features * columns, batch.labels, batch.offsets)
    _, _, told = run(batch, plan_of(batch))
    assert (told["heard"], told["left"] is not None) == (heard, heard and told["accepted"])


@pytest.mark.parametrize(("items", "level"), [(1, 0.0), (2, 1.0), (5, -0.5)])
def test_what_clipping_takes_is_foreseen_as_users_made_row_by_row_have_it(items, level):
    """A slow reference: 2·10⁵ users of Gaussian rows in all columns, clipped to ten radii around their mean."""
    rng, users, x = np.random.default_rng(5), 200_000, np.array([1.2, -0.9, 0.4, level])
    counts, gradients = rng.integers(1, 2 * items, users), np.zeros((users, 4))
    for row in range(2 * items - 1):
        features = np.column_stack([rng.standard_normal((users, 3)), np.ones(users)])
        chances = 1 / (1 + np.exp(-features @ x))
        labels = rng.random(users) < chances
        gradients += ((chances - labels) * (row < counts) / counts)[:, None] * features
    gradients -= gradients.mean(axis=0)
    lengths = np.linalg.norm(gradients, axis=1)
    for beyond in (0.05, 0.2, 0.5):
        radius = 1.5 * np.quantile(lengths, 1 - beyond)
        moved = (gradients * np.minimum(1, radius / lengths)[:, None]).mean(axis=0)
        found = CurvatureModel(0.25, sigmoid=True, intercept=True).clipped(x, beyond, items)
        assert found == pytest.approx(moved, abs=8 * radius * np.sqrt(beyond) / np.sqrt(20_000) / 3)
        assert found[:3] @ x[:3] < 0  # towards a longer model


@given(beyond=st.floats(-1.0, 2.0), items=st.integers(1, 10**6), length=st.floats(0.0, 1e3), constant=st.booleans())
def test_what_clipping_takes_is_finite_and_no_longer_than_a_gradient(beyond, items, length, constant):
    x = np.append(length * np.array([0.6, 0.8]), 2.0)
    found = CurvatureModel(0.25, sigmoid=True, intercept=constant).clipped(x, beyond, items)
    assert found.shape == x.shape
    assert np.linalg.norm(found) <= 1.0
    if beyond <= 0 or (length == 0 and constant):
        assert not found.any()


def test_models_are_shorter_where_what_clipping_takes_is_given_back(monkeypatch):
    """Users whose labels surprise answer to less than they are. At the same noise, the mean of ten runs leaves less."""
    rng, users = np.random.default_rng(0), 1000
    rows = np.column_stack([rng.standard_normal((users, 4)) / 4, np.ones(users)]) / np.sqrt(5)
    scores = rows @ np.array([18.0, -12.0, 6.0, 6.0, 0.0])
    labels = np.where(rng.random(users) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    batch = ItemBatch(rows, labels, np.arange(users + 1))
    plan = plan_of(batch)
    given_back = np.mean([left(batch, plan, seed=seed) for seed in range(10)])
    monkeypatch.setattr(CurvatureModel, "clipped", lambda self, x, beyond, items: np.zeros(len(x)))
    assert given_back < 0.8 * np.mean([left(batch, plan, seed=seed) for seed in range(10)])


@pytest.mark.parametrize(("loss", "robust"), [("least_squares", False), ("logistic", True)])
def test_nothing_is_given_back_for_numbers_or_in_fear_of_adversarial_users(loss, robust, monkeypatch):
    batch = table(loss=loss)
    plan = plan_of(batch, loss, robust=robust)
    monkeypatch.setattr(CurvatureModel, "clipped", None)
    assert np.isfinite(run(batch, plan, loss)[1]).all()


def test_labels_that_fill_little_of_their_declared_range_are_voted_on_by_how_far_losses_change():
    """With a bound from the declared range the noise of the vote would be 60 times what there is to learn."""
    batch = table(users=2000, loss="least_squares")
    small = ItemBatch(batch.features, batch.labels / 3000, batch.offsets)
    plan = plan_of(small, "least_squares")
    assert max(left(small, plan, "least_squares", seed=seed) for seed in range(8)) < 0.1


def test_amounts_that_few_users_tell_of_are_learnt_the_better_the_more_users_there_are(monkeypatch):
    """Who holds a rare column is far out, and bends more than looks and first rounds, which clip them, have told."""

    def most(users: int) -> float:
        rng = np.random.default_rng(0)
        columns = rng.standard_normal((users, 5)) * (rng.random((users, 5)) < 0.1)
        amounts = np.exp(2.5 * columns.sum(axis=1) + rng.standard_normal(users))
        rows = np.column_stack([np.clip(columns, -4, 4) / 4, np.ones(users)]) / np.sqrt(6)
        batch = ItemBatch(rows, np.clip((amounts - 1) / 7, -1, 1), np.arange(users + 1))
        plan = plan_of(batch, "least_squares", privacy=replace(PRIVACY, epsilon=1.0))
        plan = replace(plan, problem=replace(plan.problem, domain=L2Ball(1e6)))
        return max(left(batch, plan, "least_squares", seed=seed) for seed in range(2))

    few, many = most(20_000), most(100_000)
    assert many < few / 4 < 0.01
    monkeypatch.setattr(WhitenedTracking, "_pace", lambda self, state, found, variance: 1.0)
    monkeypatch.setattr(method, "LEVEL_ALONE", 1000)  # after a first step of the labels' level alone they do
    assert most(20_000) > 0.5  # steps in full never settle


def test_labels_ten_spreads_off_the_middle_of_their_range_cost_about_what_labels_around_it_do():
    """A constant coefficient that is shrunk as slopes are comes near its labels' mean too late: 12 times as much."""
    batch = table(users=1000, features=30, loss="least_squares")
    labels = 0.05 * batch.labels / batch.labels.std()

    def excess(moved: float) -> float:
        own = ItemBatch(batch.features, labels + moved, batch.offsets)
        plan = plan_of(own, "least_squares", Privacy(1.0, 1e-6))
        best = np.linalg.lstsq(own.features, own.labels, rcond=None)[0]
        models = [run(own, plan, "least_squares", seed)[1] for seed in range(6)]
        return float(np.mean([np.mean((own.features @ (model - best)) ** 2) for model in models]))

    assert excess(0.5) < 3 * excess(0.0)


class TestPlans:
    def test_more_than_a_few_declared_hostile_users_make_it_clip_more(self):
        plan = plan_of(table())
        few, more = (replace(plan.problem.beliefs, hostile_share=share) for share in (0.02, 0.03))
        assert INFO.plan(replace(plan.problem, beliefs=few), PRIVACY).parameters == plan.parameters
        wary = INFO.plan(replace(plan.problem, beliefs=more), PRIVACY)
        assert (wary.parameters.robust, plan.parameters.robust) == (True, False)
        rare = INFO.make(wary)._target(0.0), INFO.make(plan)._target(0.0)
        assert rare == (0.15, 0.0)
