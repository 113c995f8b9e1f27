"""`whitened-tracking` with losses that bend little or nowhere: a hinge by its envelope, a narrow Huber loss."""

from dataclasses import replace

import numpy as np
from scipy import optimize

from problems import problem_of
from quoron_client import ItemBatch, answer, average_loss, make_loss
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, AverageGradient
from quoron_client.protocol.smoothing import Moreau
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan

INFO = ALGORITHMS["whitened-tracking"]


def table(signs: bool, users=1500, items=3) -> ItemBatch:
    rng = np.random.default_rng(1)
    rows = rng.uniform(-1, 1, (users * items, 4)) * np.linspace(0.3, 1, 4) / 2
    rows[:, -1] = 0.5
    scores = rows @ [1.0, -0.8, 0.6, 0.2]
    labels = np.clip(scores + 0.3 * rng.standard_t(2, len(scores)), -1, 1)
    labels = np.where(scores + 0.2 * rng.normal(size=len(scores)) > 0, 1.0, -1.0) if signs else labels
    return ItemBatch(rows, labels, np.arange(users + 1) * items)


def plan_of(batch: ItemBatch, loss, label_bound=None, **options) -> RunPlan:
    problem = problem_of(
        users=batch.users,
        items_per_user=3,
        dimension=4,
        domain=L2Ball(100.0),
        lipschitz=loss.lipschitz(L2Ball(100.0), 4),
        smoothness=loss.smoothness,
        start_gradient=loss.start_gradient,
        feature_norm=1.0,
        link_curvature=loss.curvature,
        label_bound=label_bound,
        intercept=True,
    )
    return INFO.plan(problem, Privacy(4.0, 1e-6), INFO.options(**options))


def left(batch: ItemBatch, plan: RunPlan, loss) -> float:
    """Share of the start's excess risk that a run leaves; also sees to what is asked."""
    made, noise = INFO.make(plan), SeededNoise(3)
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        if isinstance(question.task, AverageGradient):
            width = plan.parameters.smoothing
            assert question.task.smoothing == (Moreau(width) if width else None)
        found = answer(loss, batch, question.task)
        state = made.update(state, Answers.checked(found.values, found.status, largest=1e9), noise).state

    def risk(model):
        return float(average_loss(loss, batch, model).mean())

    best = optimize.minimize(risk, np.zeros(4), method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-4}).fun
    return (risk(made.model(state)) - best) / (risk(np.zeros(4)) - best)


def test_most_residuals_beyond_the_width_of_a_huber_loss_do_not_stop_it():
    """Steps that go by its bound alone leave a third and more."""
    batch, loss = table(signs=False), make_loss("huber", threshold=0.03)
    assert left(batch, plan_of(batch, loss, label_bound=1.0), loss) < 0.1


def test_an_envelope_of_at_most_one_leaves_the_gradient_at_the_start_as_it_is():
    batch, loss = table(signs=True), make_loss("hinge")
    start = AverageGradient(np.zeros((1, 4)), (1.0,))
    for width in (0.05, 1.0):
        smooth = answer(loss, batch, replace(start, smoothing=Moreau(width))).values
        np.testing.assert_array_equal(smooth, answer(loss, batch, start).values)
