"""The inline engine: same bits for any chunk or block, and nothing a user holds or sends moves another's row."""

import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from problems import problem_of
from quoron.cli.app import invoke
from quoron.data import Outliers, PublicKnowledge, Synthetic, TablePopulation, from_table
from quoron.engine import inline
from quoron.engine.choice import ShardedEngine
from quoron.engine.inline import InlineEngine
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Logistic, Loss
from quoron_client.protocol.domains import Domain, L2Ball
from quoron_client.protocol.questions import (
    Answers,
    AverageGradient,
    LocalSGD,
    MomentAndGradient,
    Question,
    RangeReport,
    SecondMoment,
    Status,
    VectorReport,
)
from quoron_client.protocol.smoothing import Convolution
from quoron_privacy.means import free_counts
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.free_counts import NormCountSum
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import packed
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan
from worker_here import WorkerHere

D = 3
POINT = np.array([[0.3, -0.2, 0.1]])


def crowd(**changes):
    arguments = {"users": 500, "items_per_user": 4, "dimension": D, "domain": L2Ball(2.0), "seed": 3}
    return Synthetic(family="logistic", **(arguments | changes))


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
    question = ask(np.random.default_rng(1).permutation(500)[:101])
    whole = InlineEngine(population).ask(question)
    for chunk_bytes in (1, 200, 3_000):
        same(InlineEngine(population, chunk_bytes=chunk_bytes).ask(question), whole)


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
    first, inline, later = (engine.ask(convolved(np.arange(50), number)).values for number in (3, 3, 4))
    np.testing.assert_array_equal(first, inline)
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


REDUCTIONS = [
    pytest.param(ClippedSum(0.2, 301, None), marks=pytest.mark.slow),
    ClippedSum(0.2, 301, np.array([0.02, -0.01, 0.3])),
    NormCountSum(0.1, 301, np.eye(D)),
]


@KINDS
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_sums_are_those_of_the_rows_whatever_the_chunk(kind, reduction):
    task = AverageGradient(np.vstack([POINT, 2 * POINT]), (1.0, -0.8), user_smoothness=0.05)
    for kept in (False, True):
        alone = InlineEngine(crowd(unequal_items=True, outliers=Outliers(0.3, kind), in_memory=kept), dropout=0.1)
        for cohort in (np.random.default_rng(1).permutation(500)[:301], np.zeros(0, np.int64)):
            question = Question(2, cohort, task, reduction=reduction)
            rows = alone.rows(question)
            expected = reduction.of(rows.values, rows.answered)
            for chunk_bytes in (300, 1 << 20):
                engine = InlineEngine(alone.population, dropout=0.1, chunk_bytes=chunk_bytes)
                for _ in range(2):  # what is remembered of a round changes nothing in the next
                    found = engine.ask(question)
                    np.testing.assert_array_equal(found.total, expected.total)
                    np.testing.assert_array_equal(found.cells, expected.cells)
                    assert (found.clipped, found.answered) == (expected.clipped, expected.answered)


USERS, WIDTH = 3000, 4
COHORT = np.arange(100, 2100)
GRADIENT = AverageGradient(np.full((1, WIDTH), 0.1), (1.0,))
VECTOR = VectorReport(GRADIENT, 2.0, 1e-5, 0.5, np.full(WIDTH, 0.05))
RANGE = RangeReport(GRADIENT, 2.0, 8, 0.5, np.array([1.0, -1.0, 1.0, 1.0]), COHORT % WIDTH)
TASKS = {"vector": VECTOR, "range": RANGE}
every_task = pytest.mark.parametrize("kind", list(TASKS))


def reporting(**given):
    return Synthetic(
        family="logistic", users=USERS, items_per_user=3, dimension=WIDTH, domain=L2Ball(3.0), seed=4, **given
    )


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


def ask(population, task, seed=5, **options):
    return InlineEngine(population, seed=seed, **options).ask(Question(3, COHORT, task))


@every_task
@pytest.mark.parametrize("chunk_bytes", [1, 9_000, 1 << 26])
def test_the_same_seed_gives_the_same_reports_whatever_the_chunk(kind, chunk_bytes):
    whole, chunked = ask(reporting(), TASKS[kind]), ask(reporting(), TASKS[kind], chunk_bytes=chunk_bytes)
    np.testing.assert_array_equal(whole.values, chunked.values)
    np.testing.assert_array_equal(whole.status, chunked.status)


@every_task
def test_bad_and_empty_data_cannot_be_told_from_good(kind):
    spoiled = Spoiled(reporting(), nan=(150, 151), empty=(300, 301))
    found, whole = ask(spoiled, TASKS[kind]), ask(reporting(), TASKS[kind])
    assert (found.status == Status.ANSWERED).all()
    assert np.isfinite(found.values).all()
    others = ~np.isin(COHORT, (150, 151, 300, 301))
    np.testing.assert_array_equal(found.values[others], whole.values[others])
    empty = ask(Spoiled(reporting(), empty=tuple(COHORT)), TASKS[kind])
    np.testing.assert_array_equal(found.values[~others], empty.values[~others])  # of a gradient of zero
    if kind == "vector":
        assert np.abs(found.values[~others]).max() > 0.1  # noise as for everybody


MANY, COLUMNS = 150, 4
INFO = ALGORITHMS["whitened-tracking"]


@cache
def people() -> TablePopulation:
    draw = np.random.Generator(np.random.Philox(5))
    counts = draw.integers(1, 9, MANY)
    names, numbers = ("a", "b", "c"), draw.normal(size=(counts.sum(), 3))
    frame = pd.DataFrame(numbers, columns=names).assign(who=np.repeat(np.arange(MANY), counts), ill=numbers[:, 0] > 0)
    features = tuple(Numeric(name, -3, 3) for name in names)
    rules = Encoding(features, label=Signs("ill"))
    return from_table(frame, rules, user="who", loss=Logistic(), domain=L2Ball(30.0), test_fraction=0.0)


@cache
def plan() -> RunPlan:
    known = people().loss
    problem = problem_of(
        users=MANY,
        items_per_user=4,
        dimension=COLUMNS,
        domain=L2Ball(30.0),
        lipschitz=1.0,
        smoothness=known.smoothness,
        start_gradient=known.start_gradient,
        feature_norm=1.0,
        link_curvature=known.curvature,
        sigmoid=True,
        intercept=True,
    )
    return INFO.plan(problem, Privacy(8.0, 1e-5), INFO.options())


def model(engine: Any) -> Any:
    made, noise = INFO.make(plan()), SeededNoise(7)
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        state = made.update(state, engine.ask(question), noise).state
    return made.model(state)


def in_two_shards() -> ShardedEngine:
    return ShardedEngine(InlineEngine(people(), dropout=0.2), 2, WorkerHere)


FIRST = Question(0, np.random.default_rng(1).permutation(MANY), MomentAndGradient(COLUMNS, np.full(COLUMNS, 0.1)))


@pytest.fixture
def held_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven users at a time."""
    monkeypatch.setattr(inline, "MAX_BYTES", 1000)
    monkeypatch.setattr(inline, "BLOCK", 7 * 8 * (COLUMNS * (COLUMNS + 1) // 2 + COLUMNS))


@pytest.mark.parametrize("engine", [lambda: InlineEngine(people(), dropout=0.2), in_two_shards])
def test_blocks_that_are_computed_again_are_the_rows_that_would_be_held(engine: Any, request: Any) -> None:
    whole = InlineEngine(people(), dropout=0.2).ask(FIRST)
    request.getfixturevalue("held_in_blocks")
    answers = engine().ask(FIRST)
    assert isinstance(answers.values, inline.RecomputedRows)
    assert np.array_equal(answers.status, whole.status)
    assert len(set(whole.status.tolist())) == 2
    for rows in (slice(None), slice(0, 7), slice(3, 25), slice(140, 999), slice(5, 5)):
        assert np.array_equal(answers.values[rows], whole.values[rows])


@pytest.mark.parametrize("engine", [InlineEngine, lambda crowd: ShardedEngine(InlineEngine(crowd), 2, WorkerHere)])
def test_factors_have_as_many_rows_as_the_user_of_most_items_and_their_numbers(engine: Any) -> None:
    draw, d, m = np.random.Generator(np.random.Philox(6)), 6, 2
    names = [f"x{column}" for column in range(d)]
    table = pd.DataFrame(draw.integers(-1, 2, (90, d)), columns=names).assign(who=np.arange(90) // m, ill=True)
    rules = Encoding(tuple(Numeric(name, -3, 3) for name in names), label=Signs("ill"))
    crowd = from_table(table, rules, user="who", loss=Logistic(), test_fraction=0.0)
    task = MomentAndGradient(crowd.dimension, np.zeros(crowd.dimension))
    whole, short = (
        engine(crowd).ask(Question(0, np.arange(crowd.users), asked)).values
        for asked in (replace(task, rows=crowd.dimension), task)
    )
    numbers, all_numbers = packed(crowd.dimension, m), packed(crowd.dimension)
    np.testing.assert_array_equal(short[:, :numbers], whole[:, :numbers])
    np.testing.assert_array_equal(short[:, numbers:], whole[:, all_numbers:])
    assert not whole[:, numbers:all_numbers].any()


def test_threads_that_look_at_the_same_time_see_the_same_rows(held_in_blocks: None) -> None:
    rows = InlineEngine(people()).ask(FIRST).values
    looks = [slice(first, first + 20) for first in range(0, MANY, 3)] * 4
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(rows.__getitem__, looks))
    assert all(np.array_equal(one, rows[look]) for one, look in zip(seen, looks, strict=True))


def test_made_up_users_who_are_asked_often_are_kept_in_memory_and_change_no_bit(tmp_path, monkeypatch):
    sizes = ["population.users=300", "population.items_per_user=4", "population.dimension=3", "budget.rounds=8"]
    asked = {"epsilon": 8.0, "algorithm": "mean-sgd", "settings": sizes, "progress": False}
    kept = []
    made = Synthetic.items

    def items(population, users):
        kept.append(population.in_memory)
        return made(population, users)

    monkeypatch.setattr(Synthetic, "items", items)
    first = quoron.simulate("quickstart", out=tmp_path / "kept", **asked)
    assert any(kept)
    monkeypatch.setattr("quoron.simulation.problem.REMEMBERED", 0)
    kept.clear()
    again = quoron.simulate("quickstart", out=tmp_path / "made", **asked)
    assert not any(kept)
    np.testing.assert_array_equal(first.weights, again.weights)
    assert first.summary.excess_risk == again.summary.excess_risk


def test_dropouts_are_drawn_in_every_round_and_by_public_seed_alone() -> None:
    users, chunk = np.arange(4000), 1 << 14
    population = Synthetic(family="logistic", users=4000, dimension=2, items_per_user=2, domain=L2Ball(1.0))
    task = AverageGradient(np.zeros((1, 2)), (1.0,))

    def missing(round_: int, **options: int) -> np.ndarray:
        engine = InlineEngine(population, dropout=0.25, **options)
        return engine.ask(Question(round_, users, task)).status == Status.MISSING

    first = missing(0, seed=5)
    assert np.array_equal(first, missing(0, seed=5, chunk_bytes=chunk))
    assert not np.array_equal(first, missing(1, seed=5))
    assert not np.array_equal(first, missing(0, seed=6))
    # Binomial(4000, 1/4) is within 180 of 1,000 but for a chance below 1e-9.
    assert abs(first.sum() - 1000) < 180
    assert not InlineEngine(population, seed=5).ask(Question(0, users, task)).status.any()


def test_a_dropout_that_is_no_share_is_refused_with_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", "quickstart", "--set", "run.dropout=1"]) == 2
    assert "run.dropout" in capsys.readouterr().err


def test_a_run_holds_one_block_at_a_time(held_in_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[weakref.ref[Any]] = []
    most, honest = [], InlineEngine.rows

    def watched(self: InlineEngine, question: Question) -> Answers:
        most.append(sum(block() is not None for block in blocks))
        answers = honest(self, question)
        if isinstance(question.task, MomentAndGradient):
            blocks.append(weakref.ref(answers.values))
        return answers

    monkeypatch.setattr(InlineEngine, "rows", watched)
    monkeypatch.setattr(free_counts, "BLOCK", 60)
    model(InlineEngine(people()))
    assert len(blocks) > 5 * MANY / 7
    assert max(most) <= 2
