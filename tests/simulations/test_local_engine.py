"""What a curious coordinator sees in the local model: randomised reports, one a user, and nothing else."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pytest

from problems import problem_of
from quoron.populations import Synthetic
from quoron.simulation.inline import InlineEngine
from quoron_client.compute.enforcement import bounded
from quoron_client.compute.gradients import average_gradient
from quoron_client.data.items import ItemBatch
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question, Status
from quoron_client.protocol.reports import RangeReport, VectorReport
from quoron_client.randomisers import VectorNoise
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy

USERS, D = 3000, 4
COHORT = np.arange(100, 2100)
GRADIENT = AverageGradient(np.full((1, D), 0.1), (1.0,))
VECTOR = VectorReport(GRADIENT, 2.0, 1e-5, 0.5, np.full(D, 0.05))
RANGE = RangeReport(GRADIENT, 2.0, 8, 0.5, np.array([1.0, -1.0, 1.0, 1.0]), COHORT % D)
TASKS = {"vector": VECTOR, "range": RANGE}
every_task = pytest.mark.parametrize("kind", list(TASKS))


def crowd(**given):
    return Synthetic("logistic", users=USERS, items_per_user=3, dimension=D, domain=L2Ball(3.0), seed=4, **given)


@dataclass
class Spoiled:
    """A population in which some users hold NaN, or nothing at all."""

    whole: Synthetic
    nan: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def items(self, users):
        batch = self.whole.items(users)
        owner = np.repeat(users, np.diff(batch.offsets))
        features = np.where(np.isin(owner, self.nan)[:, None], np.nan, batch.features).astype(np.float32)
        kept = ~np.isin(owner, self.empty)
        counts = np.where(np.isin(users, self.empty), 0, np.diff(batch.offsets))
        return ItemBatch(features[kept], batch.labels[kept], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


@dataclass
class Curious:
    """Passes questions on to an engine and keeps everything that comes back."""

    engine: InlineEngine
    seen: list = field(default_factory=list)

    def ask(self, question):
        answers = self.engine.ask(question)
        self.seen.append((question, answers))
        return answers

    @cached_property
    def population(self):
        return self.engine.population

    def gradients(self, question):
        """What the coordinator would like to see: the un-noised gradients of a cohort."""
        batch = bounded(self.population.items(question.cohort), self.population.loss)
        return average_gradient(self.population.loss, batch, question.task.gradient)


def ask(population, task, seed=5, **options):
    return InlineEngine(population, seed=seed, **options).ask(Question(3, COHORT, task))


@every_task
@pytest.mark.parametrize("chunk_bytes", [1, 9_000, 1 << 26])
def test_the_same_seed_gives_the_same_reports_whatever_the_chunk(kind, chunk_bytes):
    whole, chunked = ask(crowd(), TASKS[kind]), ask(crowd(), TASKS[kind], chunk_bytes=chunk_bytes)
    np.testing.assert_array_equal(whole.values, chunked.values)
    np.testing.assert_array_equal(whole.status, chunked.status)


@every_task
def test_a_users_words_are_those_of_its_number_and_round(kind):
    task = TASKS[kind]
    some = replace(task, coordinates=task.coordinates[7:9]) if kind == "range" else task
    engine = InlineEngine(crowd(), seed=5)
    alone = engine.ask(Question(3, COHORT[7:9], some)).values
    np.testing.assert_array_equal(alone, ask(crowd(), task).values[7:9])
    assert (engine.ask(Question(4, COHORT[7:9], some)).values != alone).any()


@every_task
def test_bad_and_empty_data_cannot_be_told_from_good(kind):
    spoiled = Spoiled(crowd(), nan=(150, 151), empty=(300, 301))
    found, whole = ask(spoiled, TASKS[kind]), ask(crowd(), TASKS[kind])
    assert (found.status == Status.ANSWERED).all()
    assert np.isfinite(found.values).all()
    others = ~np.isin(COHORT, (150, 151, 300, 301))
    np.testing.assert_array_equal(found.values[others], whole.values[others])
    if kind == "vector":
        assert np.abs(found.values[~others]).max() > 0.1  # noise as for everybody


def test_vector_reports_hold_noise_of_the_whole_scale_and_no_gradient():
    curious = Curious(InlineEngine(crowd(), seed=5))
    answers = curious.ask(Question(3, COHORT, VECTOR))
    differences = answers.values - curious.gradients(Question(3, COHORT, VECTOR))
    scale = VectorNoise(2.0, 1e-5, 0.5).scale(D)
    # 8,000 normals: the ratio is within 6 / √16,000 = 5 % but with chance 2e-9, all within 7 but with chance 3e-8.
    assert np.std(differences) == pytest.approx(scale, rel=0.05)
    assert np.abs(differences).max() < 7 * scale
    assert np.abs(differences).min(axis=0).max() < 0.01 * scale  # continuous: not kept away from the truth either
    assert not (differences == 0).any()


class TestAWholeRun:
    INFO = ALGORITHMS["local-model"]
    PROBLEM = problem_of(
        users=USERS,
        items_per_user=3,
        dimension=D,
        domain=L2Ball(3.0),
        lipschitz=1.0,
        smoothness=0.25,
        curvature="isotropic",
        typical_curvature=0.05,
    )

    def run(self, population, seed=5, server=1):
        plan = self.INFO.plan(self.PROBLEM, Privacy(6.0, 1e-4), self.INFO.options(rounds=5), "calibrated", 1)
        algorithm, noise = self.INFO.make(plan), SeededNoise(server)
        curious, state = Curious(InlineEngine(population, seed=seed)), algorithm.init()
        while (question := algorithm.request(state, noise)) is not None:
            state = algorithm.update(state, curious.ask(question), noise).state
        return curious, algorithm.model(state)

    def test_everything_that_arrives_is_a_noised_report_of_a_user_asked_once(self):
        curious, _ = self.run(crowd())
        asked = np.concatenate([question.cohort for question, _ in curious.seen])
        assert len(np.unique(asked)) == len(asked) == USERS
        for question, answers in curious.seen:
            assert isinstance(question.task, VectorReport)
            assert (answers.status == Status.ANSWERED).all()
            scale = VectorNoise(question.task.epsilon, question.task.delta, question.task.radius).scale(D)
            far = answers.values - curious.gradients(question)
            # 2,400 numbers, some shortened by the clip, by less than a tenth of the noise: 7 deviations are 9 %
            assert np.std(far) == pytest.approx(scale, rel=0.15)
            correlated = np.corrcoef(answers.values.ravel(), curious.gradients(question).ravel())[0, 1]
            assert abs(correlated) < 0.3  # a single report says next to nothing; un-noised it would be 1

    def test_replacing_one_users_data_changes_that_users_rows_and_what_follows_from_them_only(self):
        (before, _), (after, _) = self.run(crowd()), self.run(Spoiled(crowd(), nan=(42,)))
        position = next(t for t, (question, _) in enumerate(before.seen) if 42 in question.cohort)
        for (question, one), (_, other) in zip(before.seen[: position + 1], after.seen, strict=False):
            same = question.cohort != 42
            np.testing.assert_array_equal(one.values[same], other.values[same])
