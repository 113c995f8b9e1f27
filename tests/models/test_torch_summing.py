"""Sums made on a device: the same integers in every order and block, and no row longer than its clip, exactly."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron.sections import Method
from quoron.torch import summing
from quoron.torch.computing import ModuleRows
from quoron.torch.modules import TorchModule
from quoron.torch.summing import sum_clipped
from quoron.training.black_box import problem_of
from quoron.training.items import Items
from quoron.training.rows import RowsEngine, Setting
from quoron.training.timetable import LocalSGD
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.release import Sums
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy

LARGEST = 1e9
HARD = (0.0, -0.0, 5e-324, 1e-310, 1e-160, 0.3, 1.0, -7.0, 1e8, 1e9, 1.1e9, 1e300, np.inf, -np.inf, np.nan)
numbers = st.one_of(st.sampled_from(HARD), st.floats(-10, 10), st.floats())


def equal(one: Sums, other: Sums) -> None:
    np.testing.assert_array_equal(one.total, other.total)
    np.testing.assert_array_equal(one.cells, other.cells)
    assert (one.clipped, one.answered) == (other.clipped, other.answered)


def processor(rows: np.ndarray, reduction: ClippedSum) -> Sums:
    """The slow reference, with the engine's rule for who has answered."""
    with np.errstate(invalid="ignore"):
        answered = (np.abs(rows) <= LARGEST).all(axis=1)
    return reduction.of(np.where(answered[:, None], rows, 0.0), answered)


def exact_square(integers: np.ndarray) -> int:
    return sum(int(number) ** 2 for number in integers)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(numbers, min_size=3, max_size=3),
    st.sampled_from([1e-3, 0.7, 1.0, 1e5]),
    st.sampled_from([1, 50, 10**6]),
    st.booleans(),
)
def test_a_row_adds_an_integer_vector_of_at_most_its_clip(
    row: list[float], norm: float, divisor: int, centred: bool
) -> None:
    reduction = ClippedSum(norm, divisor, np.array([0.1, -3.0, 1e7]) if centred else None)
    rows = np.array([row])
    found, theirs = sum_clipped(torch.from_numpy(rows), reduction, LARGEST), processor(rows, reduction)
    unit = 2**reduction.bits
    q, within, here, soft = found.cells.tolist()
    left = unit - q if here else 0
    assert exact_square(found.total) <= left**2 <= unit**2
    assert 0 <= soft**2 <= min(unit**2, (unit - left) * (unit + 3 * left)) * here
    assert within == (3 * q >= unit) * here
    assert here == theirs.cells[2]
    assert abs(q - theirs.cells[0]) <= 64 * 2.0 ** (reduction.bits - 52)
    assert (found.clipped, found.answered) == (theirs.clipped, theirs.answered)
    assert np.abs(found.total - theirs.total).max() <= 8 * 2.0 ** (reduction.bits - 52)


def many(k: int = 40, d: int = 300, kind: Any = np.float64) -> np.ndarray:
    draw = np.random.default_rng(3)
    rows = draw.normal(size=(k, d)) * 10.0 ** draw.uniform(-6, 6, size=(k, 1))
    rows[3], rows[4, 5], rows[7, 0] = 0.0, np.nan, 2e9
    return rows.astype(kind)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_sums_are_the_same_bits_in_every_order_chunk_and_block(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, reduction = torch.from_numpy(many(kind=kind)), ClippedSum(2.0, 25)
    whole = sum_clipped(rows, reduction, LARGEST)
    assert whole.answered == 38
    equal(sum_clipped(rows.flip(0), reduction, LARGEST), whole)
    equal(sum_clipped(rows[:17], reduction, LARGEST) + sum_clipped(rows[17:], reduction, LARGEST), whole)
    monkeypatch.setattr(summing, "BLOCK", 1)
    equal(sum_clipped(rows, reduction, LARGEST), whole)


def test_long_rows_keep_within_their_clip_and_a_twin_without_slack_does_not() -> None:
    reduction = ClippedSum(1.0, 50)

    def twin(row: torch.Tensor) -> np.ndarray:
        """Clipped in float32, as frameworks do."""
        clipped = row.float() * (1.0 / row.float().norm())
        return np.asarray((clipped.double() * 2.0**reduction.bits).to(torch.int64))

    broken = 0
    for seed in range(20):
        row = torch.from_numpy(np.random.default_rng(seed).normal(size=5000) * 10)
        assert exact_square(sum_clipped(row[None], reduction, LARGEST).total) <= 4**reduction.bits
        broken += exact_square(twin(row)) > 4**reduction.bits
    assert broken


COUNTS = (5, 1, 0, 8, 3)


def items() -> Items:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(sum(COUNTS), 4)).astype(np.float32)
    return Items((x, draw.integers(0, 3, sum(COUNTS))), np.concatenate([[0], np.cumsum(COUNTS)]))


class Overflows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(30 * x)


ACTIVATIONS = (torch.nn.SiLU, torch.nn.ReLU, torch.nn.Hardtanh, torch.nn.Softsign, Overflows)


def rows_of(held: Items, local: LocalSGD | None, activation: type = torch.nn.SiLU) -> tuple[ModuleRows, np.ndarray]:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), activation(), torch.nn.Linear(5, 3))
    network = TorchModule.of(module, torch.nn.functional.cross_entropy, "cpu")
    return ModuleRows(network, held, items_per_user=5, local=local), network.flat()


@pytest.mark.parametrize("local", [None, LocalSGD(batch_size=2)])
def test_an_engine_that_sums_on_the_device_answers_as_one_that_brings_rows(local: LocalSGD | None) -> None:
    compute, start = rows_of(items(), local)
    d, noise = len(start), SeededNoise(4)
    problem = problem_of(Method(radius=9.0, items_per_user=5, clip_norm=1.0), users=5, dimension=d, door="train_rows")
    points = np.stack([np.zeros(d), np.full(d, 0.1)])
    for task, centre in (
        (AverageGradient(points[:1], (1.0,)), None),
        (AverageGradient(points, (1.0, -0.5), centre=np.full(d, 0.01)), np.full(d, 0.02)),
    ):
        question = Question(0, np.arange(5), task, reduction=ClippedSum(0.05, 5, centre))
        theirs = RowsEngine(compute, problem, start, noise, 2).ask(question)
        ours = RowsEngine(compute, problem, start, noise, 2, summing=compute.sums).ask(question)
        assert isinstance(ours, Sums)
        assert isinstance(theirs, Sums)
        assert np.abs(ours.total - theirs.total).max() <= 5 * 8
        np.testing.assert_array_equal(ours.cells[1:3], theirs.cells[1:3])
        assert abs(ours.cells[0] - theirs.cells[0]) <= 5 * 64  # soft shares near the clip differ by the root of that
        assert (ours.clipped, ours.answered) == (theirs.clipped, theirs.answered)
        assert ours.clipped


PROBLEM = problem_of(Method(radius=1e6, items_per_user=5, clip_norm=1.0), users=5, dimension=43, door="train_rows")
PLAN = Setting(
    problem=PROBLEM,
    algorithm="one-pass-dp-sgd",
    options={"rounds": 1, "step_size": 1.0},
    privacy=Privacy(2.0, 1e-3),
    clip_norm=1.0,
).plan(0)


def released(held: Items, seed: int, activation: type) -> np.ndarray:
    """The model after one round of step one, with the same noise, whose sums were made on the device."""
    compute, start = rows_of(held, None, activation)
    noise, algorithm = SeededNoise(seed), ALGORITHMS[PLAN.algorithm].make(PLAN)
    question = algorithm.request(algorithm.init(), noise)
    answers = RowsEngine(compute, PROBLEM, start, noise, 2, summing=compute.sums).ask(question)
    return algorithm.update(algorithm.init(), answers, noise).state.iterate


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(width=32), min_size=4, max_size=4), st.booleans(), st.sampled_from(ACTIVATIONS))
def test_one_user_moves_a_released_sum_by_at_most_what_the_plan_says(
    held: list[float], empty: bool, activation: type
) -> None:
    changed = items()
    changed.parts[0][changed.offsets[3] : changed.offsets[4]] = held
    if empty:  # all of the user's items are gone
        keep = np.ones(len(changed.parts[0]), bool)
        keep[changed.offsets[3] : changed.offsets[4]] = False
        offsets = np.concatenate([changed.offsets[:4], changed.offsets[4:] - COUNTS[3]])
        changed = Items(tuple(part[keep] for part in changed.parts), offsets)
    moved = released(items(), 7, activation) - released(changed, 7, activation)
    assert np.linalg.norm(moved) <= PLAN.parameters.sensitivity * (1 + 1e-9)
