"""Three classes from a table to a model: planned, simulated, and answered by the client that a federation runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import quoron
from quoron import config as configs
from quoron.operate.submission import specify
from quoron.populations import Numeric, Outliers, from_table
from quoron.populations._objective import TrainingObjective
from quoron.sections import Keep, Method, Privacy
from quoron.simulation.inline import InlineEngine
from quoron.simulation.scene import setup
from quoron_client import Answers, L2Ball, Question, make_loss
from quoron_client.data.labels import Classes
from quoron_client.federation.owner import Owner
from quoron_client.federation.record import Record
from quoron_client.federation.work import Worker
from quoron_client.protocol.wire import answer_from_wire, question_to_wire
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.sources import SeededNoise
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.algorithms import ALGORITHMS
from quoron_server.books.ledger import Ledger
from quoron_server.problem import Wide
from quoron_server.rounds import run
from quoron_server.specification import RunSpecification, describe, make_plan

pytestmark = pytest.mark.usefixtures("planned_once")

USERS, ITEMS, SEED = 3000, 4, 7
MANY = {"soft-filtered-sgd": 30_000, "local-model": 8_000}  # users that these need
RANGES = {"a": (-1.0, 1.0), "b": (-1.0, 1.0)}
SOFTMAX = ("population.classes=[0, 1, 2]", "loss.feature_norm=2.0", "domain.radius=4.0")


def frame(users=USERS):
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (ITEMS * users, 2))
    scores = np.stack([2 * x[:, 0], 2 * x[:, 1], -x.sum(axis=1)], axis=1) + rng.gumbel(size=(len(x), 3))
    who = np.repeat([f"person-{user:05d}" for user in range(users)], ITEMS)
    return pd.DataFrame({"who": who, "a": x[:, 0], "b": x[:, 1], "kind": scores.argmax(axis=1)})


def crowd(users=40, **changes):
    options = {"loss": make_loss("softmax", classes=3, feature_norm=2.0, ridge=0.01), "domain": L2Ball(4.0)}
    features = tuple(Numeric(name, *ends) for name, ends in RANGES.items())
    return from_table(
        frame(users), user="who", label=Classes("kind", (0, 1, 2)), features=features, **options | changes
    )


@pytest.mark.parametrize(
    ("algorithm", "part", "settings"),
    [
        pytest.param("one-pass-dp-sgd", 0.6, ("algorithm.options.rounds=12",), marks=pytest.mark.slow),
        pytest.param("dp-sgd-wor", 0.6, ("algorithm.options.rounds=12",), marks=pytest.mark.slow),
        ("recentred-sgd", 0.6, ("algorithm.options.rounds=12",)),
        ("tracking-srgd", 0.1, ("algorithm.options.rounds=16",)),
        pytest.param("soft-filtered-sgd", 0.9, (), marks=pytest.mark.slow),
        ("outlier-iterates", 0.8, ("algorithm.options.rounds=16",)),
        pytest.param("local-model", 0.5, (), marks=pytest.mark.slow),
    ],
)
def test_three_classes_are_learnt(algorithm, part, settings, tmp_path):
    result = quoron.simulate(
        frame(MANY.get(algorithm, USERS)),
        user="who",
        label="kind",
        numeric=RANGES,
        privacy=Privacy(8.0, 1e-5),
        method=Method(algorithm),
        keep=Keep(tmp_path / "run"),
        settings=[*SOFTMAX, *settings, "algorithm.trust_clients=true"],
    )
    assert result.plan.problem.outputs == 3
    assert result.plan.problem.dimension == 9  # two features and an intercept, for each class
    assert result.model.shape == (9,)
    assert result.summary.excess_risk < part * result.summary.excess_risk_initial


class TestObjective:
    def test_optimum_and_risk_are_those_of_a_slow_reference(self):
        weights = np.random.default_rng(5).uniform(0, 1, 40 * ITEMS)
        people = crowd(test_fraction=0.0)
        batch = people.training
        for held in (batch, replace(batch, weights=weights)):
            objective = TrainingObjective(held, people.loss)

            def risk(x, w=objective.items.weights):
                scores = batch.features.astype(np.float64) @ x.reshape(3, 3).T
                losses = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(160), batch.labels.astype(int)]
                return np.mean(losses if w is None else w * losses) + 0.005 * x @ x  # users hold 4 items each

            slow = minimize(risk, np.zeros(9), method="BFGS", options={"gtol": 1e-9})
            best = objective.minimiser(L2Ball(50.0))
            np.testing.assert_allclose(best, slow.x, atol=1e-6)
            other = np.random.default_rng(6).standard_normal(9)
            assert objective.difference(other, best) == pytest.approx(risk(other) - risk(best), rel=1e-9)
            value, gradient, hessian = objective.expansion(other)
            nudges = 1e-5 * np.eye(9)
            numeric = [(risk(other + nudge) - risk(other - nudge)) / 2e-5 for nudge in nudges]
            assert value == pytest.approx(risk(other), rel=1e-12)
            np.testing.assert_allclose(gradient, numeric, atol=1e-9)
            bends = [
                (objective.expansion(other + nudge)[1] - objective.expansion(other - nudge)[1]) / 2e-5
                for nudge in nudges
            ]
            np.testing.assert_allclose(hessian, bends, atol=1e-8)

    def test_weights_follow_their_items_and_users_who_mislead_answer_on_another_class(self):
        people = crowd(test_fraction=0.0, outliers=Outliers(0.25, "shifted"))
        training = replace(people.training, weights=np.arange(160) / 160)
        people = replace(people, training=training)
        asked = np.array([7, 3, 30])
        batch, misled = people.items(asked), people.corruption(asked) > 0
        rows = np.concatenate([np.arange(ITEMS * user, ITEMS * user + ITEMS) for user in asked])
        np.testing.assert_array_equal(batch.weights, training.weights[rows])
        expected = (training.labels[rows] + np.repeat(misled, ITEMS)) % 3
        np.testing.assert_array_equal(batch.labels, expected)


CONFIG = """
[population]
kind = "table"
path = "mine.csv"
user = "who"
label = "kind"
classes = [0, 1, 2]
numeric = { a = [-1, 1], b = [-1, 1] }
[problem]
items_per_user = 4
[privacy]
epsilon = 15.0
delta = 0.1
[algorithm]
trust_clients = true
"""


class Workers:
    """An engine of clients as a federation runs them, each with its own file and record, called one after the other."""

    def __init__(self, folder: Path, wanted: RunSpecification) -> None:
        self.run, (self.plan) = wanted.run, make_plan(wanted)
        table, self.workers = frame(wanted.problem.users).drop(columns="who"), []
        text = json.dumps(describe(wanted, self.plan))
        for user in range(wanted.problem.users):
            path = folder / f"{user}.csv"
            table[ITEMS * user : ITEMS * (user + 1)].to_csv(path, index=False)
            owner = Owner(
                data=path, record=folder / f"{user}.sqlite", lifetime_epsilon=100.0, lifetime_delta=1.0,
                accept_exposures=("broadcast", "model", "local"), simulation_seed=SEED,
            )  # fmt: skip
            worker = Worker(owner, Record.open(owner.record, epsilon=100.0, delta=1.0))
            assert worker.consider(pb.Announcement(run=self.run, description=text), user).takes_part
            self.workers.append(worker)

    def ask(self, question: Question) -> Answers:
        """One row a user."""
        rows, shape = [], question.task.answer_shape(self.plan.problem.dimension)
        for slot, user in enumerate(question.cohort):
            message = question_to_wire(question, slot, run=self.run, user=int(user), seconds=60)
            sent = pb.Answer.FromString(self.workers[user].reply(message))
            rows.append(answer_from_wire(sent, shape))
        return Answers(np.array([values for values, _ in rows]), np.array([status for _, status in rows], np.uint8))

    def close(self) -> None:
        for worker in self.workers:
            worker.record.close()


def specified(algorithm, *settings, users=20, **changes):
    given = [*SOFTMAX[1:], f"algorithm.name={algorithm}", *settings]
    wanted, _ = specify(
        configs.parse(CONFIG, settings=given), run="trial", users=users, seconds=60, simulation_seed=SEED
    )
    return wanted.model_copy(update=changes)


@pytest.mark.parametrize(
    ("algorithm", "users", "settings"),
    [
        ("tracking-srgd", 200, ("algorithm.options.rounds=12",)),
        ("phased-sgd", 20, ("algorithm.options.cohort_size=2",)),
    ],
)
def test_clients_of_a_federation_give_the_bits_of_the_simulation(algorithm, users, settings, tmp_path):
    wanted = specified(algorithm, "privacy.quorum='none'", *settings, users=users)
    plan, models, workers = make_plan(wanted), [], Workers(tmp_path, wanted)
    population = crowd(users, test_fraction=0.0, loss=make_loss("softmax", classes=3, feature_norm=2.0))
    for number, engine in enumerate((workers, InlineEngine(population, seed=SEED))):
        noise = SeededNoise(wanted.simulation_seed)
        path = tmp_path / f"ledger-{number}.sqlite"
        with Ledger.create(path, plan="{}", config_digest="c", noise_key=noise.export_key()) as ledger:
            made = ALGORITHMS[algorithm].make(plan)
            models.append(run(made, engine, ledger, noise, simulation=True))
    workers.close()
    assert models[0].shape == (9,)
    assert models[0].any()
    assert models[0].tobytes() == models[1].tobytes()


class TestWhatIsDeclared:
    def test_a_domain_that_is_left_open_is_refused(self):
        wanted = specified("one-pass-dp-sgd")
        open_ = replace(wanted.problem, wide=Wide(L2Ball(30.0), 0.1))
        with pytest.raises(ConfigError, match="Expected a problem with one domain"):
            make_plan(wanted.model_copy(update={"problem": open_}))

    def test_the_number_of_classes_has_to_be_given(self, tmp_path):
        frame(9).to_csv(tmp_path / "mine.csv", index=False)
        undeclared = configs.parse(CONFIG.replace("classes = [0, 1, 2]", ""), settings=["loss.name=softmax"])
        with pytest.raises(ConfigError, match=r"Expected loss\.classes for the softmax loss, got none"):
            setup(undeclared, tmp_path)
