"""The inline engine: same bits for any chunk, and nothing a user holds or sends raises or moves another's row."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from quoron.populations import Outliers, PublicKnowledge, Synthetic
from quoron.simulation.inline import InlineEngine
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Logistic, Loss
from quoron_client.protocol.domains import Domain, L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.local_sgd import LocalSGD
from quoron_client.protocol.moments import SecondMoment
from quoron_client.protocol.questions import Question, Status
from quoron_client.protocol.smoothing import Convolution
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.norm_counts import NormCountSum

D = 3
POINT = np.array([[0.3, -0.2, 0.1]])


def crowd(**changes):
    arguments = {"users": 500, "items_per_user": 4, "dimension": D, "domain": L2Ball(2.0), "seed": 3}
    return Synthetic("logistic", **(arguments | changes))


def gradients(cohort, points=POINT, weights=(1.0,)):
    return Question(0, np.asarray(cohort, np.int64), AverageGradient(points, weights))


def passes(cohort):
    cohort = np.asarray(cohort, np.int64)
    starts = np.random.default_rng(0).uniform(-0.5, 0.5, (len(cohort), D))
    return Question(0, cohort, LocalSGD(starts, 0.5, L2Ball(2.0)))


def centred(cohort):
    task = AverageGradient(POINT, (1.0,), centre=np.array([0.2, 0.0, -0.1]), reference_items=6)
    return Question(0, np.asarray(cohort, np.int64), task)


def convolved(cohort, number=0):
    return Question(number, np.asarray(cohort, np.int64), AverageGradient(POINT, (1.0,), smoothing=Convolution(1.0, 5)))


def moments(cohort):
    return Question(0, np.asarray(cohort, np.int64), SecondMoment(D))


ASK = pytest.mark.parametrize("ask", [gradients, centred, convolved, moments, passes])


def same(left, right):
    np.testing.assert_array_equal(left.values, right.values)
    np.testing.assert_array_equal(left.status, right.status)


@ASK
@pytest.mark.parametrize("outliers", [Outliers(), Outliers(0.4, "nan"), Outliers(0.4, "shifted")])
def test_chunk_size_changes_no_bit(ask, outliers):
    population = crowd(unequal_items=True, outliers=outliers)
    question = ask(np.random.default_rng(1).permutation(500)[:301])
    whole = InlineEngine(population).ask(question)
    for chunk_bytes in (1, 200, 3_000):
        same(InlineEngine(population, chunk_bytes=chunk_bytes).ask(question), whole)


@pytest.mark.parametrize("reduction", [ClippedSum(0.1, 301, np.full(D, 0.01)), NormCountSum(0.1, 301)])
@pytest.mark.parametrize("outliers", [Outliers(), Outliers(0.4, "huge"), Outliers(0.4, "missing")])
def test_sums_are_those_of_the_answers_whatever_the_chunk(outliers, reduction):
    population = crowd(unequal_items=True, outliers=outliers)
    for cohort in (np.random.default_rng(1).permutation(500)[:301], np.zeros(0, np.int64)):
        question = gradients(cohort)
        rows = InlineEngine(population).ask(question)
        whole = reduction.of(rows.values, rows.answered)
        for chunk_bytes in (1, 3_000, 1 << 20):
            engine = InlineEngine(population, chunk_bytes=chunk_bytes)
            found = engine.ask(replace(question, reduction=reduction))
            np.testing.assert_array_equal(found.total, whole.total)
            np.testing.assert_array_equal(found.cells, whole.cells)
            assert (found.clipped, found.answered) == (whole.clipped, whole.answered)


def test_gradients_match_a_slow_reference():
    population, question = crowd(unequal_items=True), gradients([5, 499, 7])
    found = InlineEngine(population).ask(question)
    for row, user in enumerate([5, 499, 7]):
        batch = population.items(np.array([user]))
        features = batch.features.astype(np.float64)
        slopes = -batch.labels / (1 + np.exp(batch.labels * (features @ POINT[0])))
        np.testing.assert_allclose(found.values[row], (slopes[:, None] * features).mean(axis=0), rtol=1e-12)
    assert found.answered.all()


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("huge", Status.REJECTED), ("nan", Status.REJECTED), ("inf", Status.REJECTED),
        ("missing", Status.MISSING), ("zero", Status.ANSWERED),
    ],
)  # fmt: skip
@ASK
@pytest.mark.parametrize("fraction", [0.3, 1.0])
def test_faults_become_rows_of_zeros_and_move_nobody_else(kind, status, ask, fraction):
    faulty, honest = crowd(outliers=Outliers(fraction, kind)), crowd()
    question = ask(np.arange(100))
    found, expected = InlineEngine(faulty).ask(question), InlineEngine(honest).ask(question)
    bad = faulty.corruption(question.cohort) != 0
    assert bad.all() if fraction == 1 else 10 < bad.sum() < 60  # 30 expected; false alarm < 1e-6
    assert found.values.shape == expected.values.shape
    assert (found.status[bad] == status).all()
    assert (found.values[bad] == 0).all()
    np.testing.assert_array_equal(found.values[~bad], expected.values[~bad])


@dataclass(frozen=True)
class Holding:
    """A population of given items, however bad."""

    batches: tuple[tuple[np.ndarray, np.ndarray], ...]
    domain: Domain = L2Ball(2.0)  # noqa: RUF009
    loss: Loss = Logistic()  # noqa: RUF009
    knowledge: PublicKnowledge = PublicKnowledge()  # noqa: RUF009
    dimension: int = D
    items_per_user: int = 2

    @property
    def users(self):
        return len(self.batches)

    def items(self, users):
        chosen = [self.batches[u] for u in users]
        offsets = np.cumsum([0, *(len(labels) for _, labels in chosen)])
        return ItemBatch(np.concatenate([f for f, _ in chosen]), np.concatenate([y for _, y in chosen]), offsets)

    def corruption(self, users):
        return np.zeros(len(users), np.uint8)


def test_what_a_user_holds_never_raises_nor_touches_another_row():
    good = (np.full((2, D), 0.3, np.float32), np.ones(2))
    long = (np.full((2, D), 1e30, np.float32), np.ones(2))
    spoilt = [np.float32([[0.1, value, 0.1]]) for value in (np.nan, np.inf, -np.inf)]
    bad = [(rows, np.ones(1)) for rows in spoilt] + [(np.zeros((1, D), np.float32), np.array([np.nan]))]
    none = (np.zeros((0, D), np.float32), np.zeros(0))
    population = Holding((good, *bad, none, long, good))
    for ask in (gradients, centred, moments, passes):
        question = ask(np.arange(8))
        if ask is passes:
            question = replace(question, task=replace(question.task, starts=np.zeros((8, D))))
        for chunk_bytes in (1, 1 << 20):
            found = InlineEngine(population, chunk_bytes=chunk_bytes).ask(question)
            expected = [0, 2, 2, 2, 2, 1, 0, 0]
            assert found.status.tolist() == expected
            assert (found.values[np.array(expected) != 0] == 0).all()
            np.testing.assert_array_equal(found.values[0], found.values[7])
            assert np.abs(found.values[6]).max() <= 4.0


def test_points_of_a_convolution_are_new_every_round_and_the_same_again_for_the_same():
    engine = InlineEngine(crowd())
    first, again, later = (engine.ask(convolved(np.arange(50), number)).values for number in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.all(np.any(first != later, axis=1))
    # A user's draws follow the user, wherever it stands in the cohort.
    np.testing.assert_array_equal(engine.ask(convolved(np.arange(50)[::-1], 3)).values, first[::-1])


KINDS = pytest.mark.parametrize("kind", ["shifted", "huge", "nan", "inf", "missing", "zero"])


@KINDS
@ASK
def test_users_kept_in_memory_answer_as_those_made_when_asked(ask, kind):
    cohort = np.random.default_rng(1).permutation(500)[:301]
    made, kept = (
        InlineEngine(crowd(unequal_items=True, outliers=Outliers(0.3, kind), in_memory=kept), dropout=0.1)
        for kept in (False, True)
    )
    same(kept.ask(ask(cohort)), made.ask(ask(cohort)))
    assert kept.item_gradients == made.item_gradients


@KINDS
@pytest.mark.parametrize("centre", [None, np.array([0.02, -0.01, 0.3])])
def test_sums_made_with_the_gradients_are_those_of_the_rows(kind, centre):
    cohort = np.random.default_rng(1).permutation(500)[:301]
    reduction = ClippedSum(0.2, 301, centre)
    task = AverageGradient(np.vstack([POINT, 2 * POINT]), (1.0, -0.8), user_smoothness=0.05)
    question = Question(2, cohort, task, reduction=reduction)
    for kept in (False, True):
        engine = InlineEngine(crowd(unequal_items=True, outliers=Outliers(0.3, kind), in_memory=kept), dropout=0.1)
        rows = engine.rows(question)
        expected = reduction.of(rows.values, rows.answered)
        for chunk_bytes in (300, 1 << 20):
            engine = InlineEngine(engine.population, dropout=0.1, chunk_bytes=chunk_bytes)
            for _ in range(2):  # what is remembered of a round changes nothing in the next
                found = engine.ask(question)
                np.testing.assert_array_equal(found.total, expected.total)
                np.testing.assert_array_equal(found.cells, expected.cells)
                assert (found.clipped, found.answered) == (expected.clipped, expected.answered)
