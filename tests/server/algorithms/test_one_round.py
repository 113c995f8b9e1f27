"""`one-round-least-squares`: the least squares of all, a ridge from public numbers, and losses that it is not for."""

import numpy as np
import pytest

from problems import problem_of
from quoron_client import ItemBatch, SecondMoment, answer, make_loss
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.one_round import Solved
from quoron_server.plan import Privacy, RunPlan

INFO = ALGORITHMS["one-round-least-squares"]


def items(users=20_000, seed=1):
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, (3 * users, 2)) / np.sqrt(2)
    labels = np.clip(rows @ [0.8, -0.5] + 0.1 * rng.normal(size=len(rows)), -1, 1)
    return ItemBatch(rows, labels, np.arange(users + 1) * 3)


def plan_of(users=20_000, privacy=Privacy(8.0, 1e-6), label_bound=1.0, feature_norm=1.0, **constants) -> RunPlan:  # noqa: B008
    loss = make_loss("least_squares", label_bound=label_bound or 1.0, feature_norm=feature_norm)
    usual = {
        "users": users,
        "items_per_user": 3,
        "dimension": 2,
        "domain": L2Ball(30.0),
        "lipschitz": loss.lipschitz(L2Ball(30.0), 2),
        "smoothness": loss.smoothness,
        "start_gradient": loss.start_gradient,
        "feature_norm": feature_norm,
        "link_curvature": loss.curvature,
        "label_bound": label_bound,
    }
    return INFO.plan(problem_of(**{**usual, **constants}), privacy)


def model_of(batch: ItemBatch, plan: RunPlan, loss="least_squares", **bounds) -> np.ndarray:
    made, noise = INFO.make(plan), SeededNoise(1)
    question = made.request(made.init(), noise)
    state = made.update(made.init(), answer(make_loss(loss, **bounds), batch, question.task), noise).state
    assert made.request(state, noise) is None
    return made.model(state)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_with_many_users_it_is_the_least_squares_of_all(adjacency):
    batch = items()
    found = model_of(batch, plan_of(privacy=Privacy(8.0, 1e-6, adjacency=adjacency)))
    best = np.linalg.lstsq(batch.features, batch.labels, rcond=None)[0]
    np.testing.assert_allclose(found, best, atol=0.01)


def test_units_of_features_and_labels_change_nothing():
    batch = items()
    scaled = ItemBatch(5 * batch.features, 7 * batch.labels, batch.offsets)
    one = model_of(batch, plan_of())
    other = model_of(scaled, plan_of(label_bound=7.0, feature_norm=5.0), label_bound=7.0, feature_norm=5.0)
    np.testing.assert_allclose(other * 5 / 7, one, rtol=1e-6)


def test_of_a_logistic_loss_it_is_one_newton_step_from_zero():
    batch = items()
    batch = ItemBatch(batch.features, np.sign(batch.labels), batch.offsets)
    plan = plan_of(link_curvature=0.25, start_gradient=0.5, label_bound=None, sigmoid=True)
    step = np.linalg.solve(batch.features.T @ batch.features / 4, batch.features.T @ batch.labels / 2)
    np.testing.assert_allclose(model_of(batch, plan, "logistic"), step, rtol=0.03)


def test_features_and_label_are_one_row_within_its_norm():
    task = INFO.make(plan_of()).request(INFO.make(plan_of()).init(), SeededNoise(1)).task
    assert isinstance(task, SecondMoment)
    longest = ItemBatch(np.array([[1.0, 0.0]]), np.array([1.0]), np.array([0, 1]))
    factor = answer(make_loss("least_squares"), longest, task).values
    assert np.linalg.norm(factor) == pytest.approx(plan_of().parameters.moment_norm)


@pytest.mark.parametrize(
    ("constants", "said"),
    [
        ({"start_gradient": 0.2}, "neither of squares nor logistic"),  # Huber of a width below the labels
        ({"label_bound": None}, "neither"),
        ({"users": 10, "privacy": Privacy(0.5, 1e-6)}, "resolution"),
        ({"dimension": 400}, "second moment"),
        ({"outputs": 2}, "predictions"),
    ],
)
def test_what_it_is_not_for_is_refused(constants, said):
    with pytest.raises(Infeasible, match=said):
        plan_of(**constants)


def solved_of(batch: ItemBatch, plan: RunPlan, seed: int) -> Solved | None:
    """What is made of the moment that a run tells."""
    made, noise, d = INFO.make(plan), SeededNoise(seed), plan.problem.dimension
    question = made.request(made.init(), noise)
    update = made.update(made.init(), answer(make_loss("least_squares"), batch, question.task), noise)
    upper = np.zeros((d + 1, d + 1))
    upper[np.triu_indices(d + 1)] = update.public["moment"]
    return Solved.of(upper + np.triu(upper, 1).T, plan.parameters)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize(("users", "epsilon"), [(20_000, 1.0), (3_000, 8.0)])
def test_intervals_cover_the_best_model_of_the_population(users, epsilon, ridge):
    """200 coefficients, of 100 tables: a true rate of 95 % is met fewer than 165 times with a chance below 1e-8."""
    plan, hits = plan_of(users, Privacy(epsilon, 1e-6), ridge=ridge), 0
    truth = np.array([0.8, -0.5]) / 3 / (1 / 3 + 2 * ridge)  # features are uniform on ±1 / √2; labels are seldom held
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = rng.uniform(-1, 1, (users, 2)) / np.sqrt(2)
        labels = rows @ [0.8, -0.5] + 0.2 * (1 + rows[:, 0]) * rng.uniform(-1, 1, users)  # of unequal variances
        solved = solved_of(ItemBatch(rows, np.clip(labels, -1, 1), np.arange(users + 1)), plan, seed)
        for place, along in enumerate(np.eye(2)):
            back = solved.along(along)
            half = solved.reach(back, float(np.abs(back).sum()) / np.sqrt(2))
            hits += abs(solved.point[place] - truth[place]) <= half
            assert half < 0.5
    assert hits >= 165
