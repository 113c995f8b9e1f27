"""`whitened-tracking` with several classes: contrasts, the softmax loss's law, what is learnt and what is planned."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from problems import problem_of
from quoron_client import ItemBatch, answer, average_loss
from quoron_client.losses import Softmax
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.whitened import method
from quoron_server.algorithms.whitened.estimates import GradientModel
from quoron_server.algorithms.whitened.parameters import Contrasts, CurvatureModel
from quoron_server.plan import Privacy, RunPlan

INFO = ALGORITHMS["whitened-tracking"]
PRIVACY = Privacy(4.0, 1e-6)


def table(users=800, features=4, classes=3, items=4) -> ItemBatch:
    """Users of items, the last feature of which is always the same, and the last class of which is rarer."""
    rng = np.random.default_rng(1)
    rows = rng.uniform(-1, 1, (users * items, features)) * np.linspace(0.3, 1, features) / np.sqrt(features)
    rows[:, -1] = 1 / np.sqrt(features)
    scores = rows @ rng.normal(size=(features, classes)) * 6 - np.eye(classes)[-1]
    labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(float)
    return ItemBatch(rows, labels, np.arange(users + 1) * items)


def plan_of(batch: ItemBatch, classes=3, ridge=0.0, items=4, **options) -> RunPlan:
    loss, d = Softmax(classes=classes, ridge=ridge), classes * batch.dimension
    problem = problem_of(
        users=batch.users,
        items_per_user=items,
        dimension=d,
        domain=L2Ball(100.0),
        lipschitz=loss.lipschitz(L2Ball(100.0), d),
        smoothness=loss.smoothness,
        start_gradient=loss.start_gradient,
        feature_norm=1.0,
        link_curvature=loss.curvature,
        ridge=ridge,
        outputs=classes,
        sigmoid=True,
        intercept=True,
    )
    return INFO.plan(problem, PRIVACY, INFO.options(**options))


def learnt(batch: ItemBatch, plan: RunPlan) -> np.ndarray:
    return INFO.make(plan).model(ended(batch, plan))


def ended(batch: ItemBatch, plan: RunPlan):
    known = Softmax(classes=plan.problem.outputs, ridge=plan.problem.ridge)
    made, noise = INFO.make(plan), SeededNoise(3)
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        found = answer(known, batch, question.task)
        state = made.update(state, Answers.checked(found.values, found.status, largest=1e9), noise).state
    return state


@pytest.mark.parametrize(("classes", "ridge"), [(2, 0.0), (3, 0.0), (3, 0.05)])
def test_most_of_what_there_is_to_learn_of_classes_is_learnt(classes, ridge):
    batch, known = table(classes=classes), Softmax(classes=classes, ridge=ridge)

    def risk(model):
        return float(average_loss(known, batch, model).mean())

    start = np.zeros(classes * batch.dimension)
    best = optimize.minimize(risk, start, method="L-BFGS-B").fun
    model = learnt(batch, plan_of(batch, classes, ridge))
    assert (risk(model) - best) / (risk(start) - best) < 0.1
    np.testing.assert_allclose(model.reshape(classes, -1).sum(axis=0), 0, atol=1e-9)  # nothing along all classes


@pytest.mark.parametrize("ridge", [0.0, 0.001])
def test_steps_among_many_classes_do_not_overshoot(ridge):
    """Between ten classes some directions bend more than twice as much as their mean: whole steps end at 0.3 to 0.6."""
    rng, classes = np.random.default_rng(0), 10
    rows = np.hstack([rng.normal(size=(6000, 9)) / 13, np.full((6000, 1), 1 / 3)])
    scores = rows[:, :9] @ rng.normal(size=(9, classes)) * 11
    labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(float)
    batch, known = ItemBatch(rows, labels, np.arange(3001) * 2), Softmax(classes=classes, ridge=ridge)

    def risk(model):
        return float(average_loss(known, batch, model).mean())

    def slope(model):
        whole = known.slope(rows @ model.reshape(classes, -1).T, labels).T @ rows / len(rows)
        return whole.ravel() + ridge * model

    start = np.zeros(classes * 10)
    best = optimize.minimize(risk, start, jac=slope, method="L-BFGS-B").fun
    assert (risk(learnt(batch, plan_of(batch, classes, ridge))) - best) / (risk(start) - best) < 0.1


def clusters(apart: float, classes=6, users=1500) -> ItemBatch:
    """Users of one row near the middle of their class."""
    rng, labels = np.random.default_rng(2), np.arange(users) % classes
    rows = 0.1 * (rng.normal(size=(users, 16)) + apart * rng.normal(size=(classes, 16))[labels])
    rows /= np.maximum(np.linalg.norm(rows, axis=1), 1.0)[:, None]
    rows[:, -1] = 0.1
    return ItemBatch(rows, labels.astype(float), np.arange(users + 1))


@pytest.mark.parametrize("ridge", [0.0, 1e-5])
def test_who_is_told_wrong_counts_alike_where_classes_are_told_nearly_surely_and_more_is_learnt(ridge, monkeypatch):
    batch, known = clusters(0.9, users=800), Softmax(classes=6, ridge=ridge)
    plan = plan_of(batch, 6, ridge, items=1)
    state = ended(batch, plan)
    assert state.alike
    start = int(np.argmax(state.radii == state.radii[-1]))
    assert 2 <= start < 8
    np.testing.assert_array_equal(state.radii[start:], method.ALIKE * state.start_length)
    assert not state.centre.any()
    monkeypatch.setattr(method, "SURE", 0.0)
    without = ended(batch, plan)
    np.testing.assert_array_equal(state.points[: start + 1], without.points[: start + 1])
    risks = [average_loss(known, batch, INFO.make(plan).model(each)).mean() for each in (state, without)]
    assert risks[0] < risks[1]


def test_classes_that_are_far_from_even_are_stepped_among_as_before(monkeypatch):
    batch = clusters(1.2, users=4200)
    kept = np.flatnonzero((batch.labels == 0) | (np.arange(4200) % 10 == 0))  # one class is ten times the others
    batch = ItemBatch(batch.features[kept], batch.labels[kept], np.arange(len(kept) + 1))
    state = ended(batch, plan_of(batch, 6, items=1))
    assert not state.alike
    monkeypatch.setattr(method, "EVEN", 0.0)
    assert ended(batch, plan_of(batch, 6, items=1)).alike


class TestContrasts:
    @pytest.mark.parametrize("classes", [2, 3, 7])
    def test_they_are_orthonormal_and_sum_to_nothing(self, classes):
        contrasts = Contrasts(1, classes).matrix()
        np.testing.assert_allclose(contrasts.T @ contrasts, np.eye(classes - 1), atol=1e-15)
        np.testing.assert_allclose(contrasts.sum(axis=0), 0, atol=1e-15)

    def test_the_length_of_a_gradient_is_kept_and_that_of_no_other_grows(self):
        rng, own = np.random.default_rng(1), Contrasts(3, 4)
        gradients = rng.normal(size=(50, 4, 3))
        lengths = np.linalg.norm(own.of(gradients.reshape(50, -1)), axis=1)
        assert (lengths <= np.linalg.norm(gradients, axis=(1, 2)) * (1 + 1e-12)).all()
        gradients -= gradients.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(
            np.linalg.norm(own.of(gradients.reshape(50, -1)), axis=1), np.linalg.norm(gradients, axis=(1, 2))
        )

    def test_a_point_s_gradient_is_the_contrast_of_the_model_s(self):
        rng, own, transform = np.random.default_rng(2), Contrasts(3, 4), np.random.default_rng(3).normal(size=(3, 3))
        gradient, step = rng.normal(size=12), rng.normal(size=9)
        along = (own.of(gradient[None, :]).reshape(3, 3) @ transform).ravel()  # Qᵀ G L
        assert along @ step == pytest.approx(gradient @ own.model(transform, step))


class TestLaw:
    def test_of_two_classes_it_is_that_of_the_logistic_loss(self):
        """Their margin is √2 times the contrast, whose square is in every curvature."""
        softmax, logistic = CurvatureModel(0.5, True, 2), CurvatureModel(0.25, True)
        for length in (0.0, 0.5, 2.0):
            point = np.array([length, 0.0])
            wide = np.sqrt(2) * point
            assert softmax.at(point)[0][0] == pytest.approx(2 * logistic.at(wide)[0][0], rel=0.1)
            np.testing.assert_allclose(softmax.gradient(point), np.sqrt(2) * logistic.gradient(wide), rtol=0.1)

    def test_at_even_chances_every_contrast_has_the_curvature_of_one_over_the_number_of_classes(self):
        levels, _ = CurvatureModel(1 / 5, True, 5).at(np.zeros(8))
        np.testing.assert_allclose(levels, 1 / 5)

    @pytest.mark.parametrize("intercept", [False, True])
    def test_the_gradient_is_that_of_gaussian_features_with_labels_that_tell_nothing(self, intercept):
        """Stein's identity, by 400,000 draws: errors above 0.01 are past nine deviations."""
        rng = np.random.default_rng(5)
        point, contrasts = 1.5 * rng.normal(size=(2, 3)), Contrasts(1, 3).matrix()
        features = rng.standard_normal((400_000, 3))
        if intercept:
            features[:, -1] = 1.0
        chances = Softmax(classes=3).chances(features @ point.T @ contrasts.T)
        expected = (chances @ contrasts).T @ features / len(features)
        np.testing.assert_allclose(
            CurvatureModel(1 / 3, True, 3, intercept).gradient(point.ravel()).reshape(2, 3), expected, atol=0.02
        )

    @pytest.mark.parametrize("intercept", [False, True])
    def test_passes_lead_to_the_point_that_has_a_gradient_and_no_farther_than_they_may(self, intercept):
        rng, law = np.random.default_rng(7), CurvatureModel(1 / 4, True, 4, intercept)
        point, pull = rng.normal(size=(3, 5)), np.diag(rng.uniform(0.01, 0.1, 5))
        for pulled in (0 * pull, pull):
            wanted = (law.gradient(point.ravel()).reshape(3, 5) + point @ pulled).ravel()
            off = [np.linalg.norm(point)]
            near = np.zeros(15)
            for _ in range(6):
                near = law.approached(wanted, 1e-9, 100.0, near, pulled)
                off.append(np.linalg.norm(near - point.ravel()))
            assert (np.diff(off) < 0).all()
            assert off[-1] < 0.1 * off[0]
        short = law.approached(100 * rng.normal(size=15), 1e-9, 3.0, np.zeros(15), 0 * pull)
        assert np.linalg.norm(short) == pytest.approx(3.0)


def test_a_step_goes_by_the_hessian_that_rounds_have_taught():
    """Of a quadratic whose curvature is 2.5 times what is known, seen without noise along every direction."""
    rng, law, basis = np.random.default_rng(1), CurvatureModel(1.0, False, 3), np.eye(2)
    hessian = np.diag([2.5, 1.0, 1.0, 0.4])
    points = np.vstack([np.zeros(4), 0.3 * np.eye(4)])
    points[1:] += 0.01 * rng.normal(size=(4, 4))
    flat = np.full(5, 1e-12)
    model = GradientModel.of(points, points @ hessian, flat, np.zeros(5), law=replace(law, outputs=1))
    fall = rng.normal(size=(2, 2))
    step, variances = model.step(fall, np.ones((2, 2)), basis)
    np.testing.assert_allclose(step.ravel(), np.linalg.solve(hessian, fall.ravel()), rtol=1e-3)
    np.testing.assert_allclose(variances.ravel(), np.diag(hessian) ** -2.0, rtol=1e-3)
