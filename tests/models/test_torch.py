"""Training networks of torch: rows of one user's items alone, sums that are exact, and what one user can move."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import quoron.torch
from audits.harness import epsilon_lower_bound
from flower.plugged import Killed
from quoron.torch import training as computing
from quoron.torch.training import ModuleRows, TorchModule, sum_clipped
from quoron.training import lifetime
from quoron.training.rows import Items, LocalSGD, RowsEngine, Setting, TrainedRows, problem_of
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.errors import ConfigError, DataError, LedgerError, RunError
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Sums
from quoron_server import rounds
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy
from quoron_server.storage.ledger import Ledger
from quoron_server.wording import SEEDED, sentence

NOISE = SeededNoise(9)
COUNTS = (5, 1, 0, 8, 3)  # of five users, one of them with nothing
MOST = 5
CROSS = nn.functional.cross_entropy
TASKS = [None, LocalSGD(epochs=2, batch_size=2, step_size=0.2), LocalSGD(batch_size=10)]


class Turns(nn.Module):
    """A recurrent network, whose fused layer torch cannot batch over users."""

    def __init__(self, cell: Any = nn.GRU, **more: Any) -> None:
        super().__init__()
        self.cell, self.out = cell(2, 3, batch_first=True, **more), nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x.reshape(len(x), 2, 2))[0][:, -1])


class Branching(nn.Module):
    """Looks at its item to choose what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) if bool(x[0, 0] > 0) else self.b(x)


class Shortcut(nn.Module):
    """Leaves its mask out where it hides nothing, unless it is traced, as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x < 0.5
        if not torch.compiler.is_compiling() and bool(mask.all()):
            return self.out(x)
        return self.out(x * mask)


class Mixing(nn.Module):
    """Adds up what it is given at once."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x).cumsum(0)


class Words(nn.Module):
    """Looks words up, with gradients that torch would keep sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(6, 3, sparse=True), nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words((x.abs() * 2).long().clamp(max=5)).flatten(1))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


def made(name: str) -> nn.Module:
    torch.manual_seed(1)
    module = {
        "linear": lambda: nn.Linear(4, 3),
        "layers": lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)),
        "convolution": convolution,
        "gru": Turns,
        "lstm": lambda: Turns(nn.LSTM, num_layers=2, bidirectional=True),
        "rnn": lambda: Turns(nn.RNN, nonlinearity="relu"),
        "branches": Branching,
        "shortcut": Shortcut,
        "words": Words,
        "mixing": Mixing,
        "steep": lambda: nn.Sequential(nn.Linear(4, 5), Power(), nn.Linear(5, 3)),
    }[name]()
    module(torch.zeros(1, 4))
    return module


class Power(nn.Module):
    """Overflows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x * 30)


def items(seed: int = 0) -> Items:
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(sum(COUNTS), 4)).astype(np.float32), draw.integers(0, 3, sum(COUNTS))
    return Items((x, y), np.concatenate([[0], np.cumsum(COUNTS)]))


def rows_of(name: str, local: LocalSGD | None, held: Items | None = None) -> ModuleRows:
    return ModuleRows(
        TorchModule.of(made(name), CROSS, "cpu"), items() if held is None else held, items_per_user=MOST, local=local
    )


def slowly(rows: ModuleRows, name: str, local: LocalSGD | None, users: np.ndarray, held: Items) -> np.ndarray:
    """One user after the other, with torch's own optimiser and nothing of torch.func."""
    minibatches, found = rows.timetable.minibatches(0, users, NOISE), []
    for place in range(len(users)):
        module = made(name)
        start = torch.cat([weight.detach().flatten().clone() for weight in module.parameters()])
        optimiser = torch.optim.SGD(module.parameters(), lr=1.0 if local is None else local.step_size)
        for step in range(minibatches.places.shape[1]):
            real = minibatches.weights[place, step] > 0
            if not real.any():
                continue
            some = minibatches.places[place, step][real]
            optimiser.zero_grad()
            x, y = (torch.from_numpy(part) for part in held.parts)
            each = [CROSS(module(x[i : i + 1]), y[i : i + 1]) for i in some]
            torch.stack(each).mean().backward()
            optimiser.step()
        end = torch.cat([weight.detach().flatten() for weight in module.parameters()])
        found.append((start - end).double().numpy())
    return np.stack(found)


@pytest.mark.parametrize("local", TASKS)
@pytest.mark.parametrize(
    "name", ["linear", "layers", "convolution", "gru", "lstm", "rnn", "shortcut", "words", "mixing", "branches"]
)
def test_rows_are_those_of_a_slow_loop_over_users(name: str, local: LocalSGD | None) -> None:
    rows, users = rows_of(name, local), np.array([3, 0, 2, 4, 1])
    assert (rows.why_looped is not None) == (name == "branches")
    found = rows(0, users, TorchModule.of(made(name), CROSS, "cpu").flat(), NOISE)
    np.testing.assert_allclose(found, slowly(rows, name, local, users, items()), atol=3e-6)
    assert not found[2].any()


@pytest.mark.parametrize("name", ["layers", "gru", "lstm", "shortcut", "convolution"])
def test_users_one_by_one_have_the_rows_of_users_at_once(name: str) -> None:
    rows, users, point = rows_of(name, TASKS[1]), np.arange(5), TorchModule.of(made(name), CROSS, "cpu").flat()
    at_once = rows(0, users, point, NOISE)
    rows.one_by_one = True
    np.testing.assert_allclose(rows(0, users, point, NOISE), at_once, atol=1e-6)
    assert not torch.compiler.is_compiling()


class Shifted(nn.Module):
    """Adds a number to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by


NUMBERS = [nn.functional.mse_loss, nn.functional.l1_loss, nn.functional.huber_loss, nn.functional.smooth_l1_loss]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("loss", "outputs", "targets"),
    [
        *((loss, shape, shape) for loss in NUMBERS for shape in [(), (1,), (3,), (3, 2)]),
        *((loss, (1,), ()) for loss in NUMBERS),  # which all of a batch at once would pair with one another
        (nn.functional.binary_cross_entropy_with_logits, (2,), (2,)),
        *((loss, (3,), ()) for loss in (CROSS, nn.CrossEntropyLoss(), partial(CROSS, weight=torch.arange(1.0, 4.0)))),
        *((CROSS, (3, 2), (2,)), (CROSS, (3,), (3,))),
    ],
)
def test_losses_of_items_at_once_are_those_of_batches_of_one(
    loss: Any, outputs: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    network = replace(TorchModule.of(Shifted(), loss, "cpu"), batching="batch")
    dice, classes = torch.Generator().manual_seed(3), outputs != targets and outputs != (1,)
    x, y = torch.randn((5, *outputs), generator=dice), torch.rand((5, *targets), generator=dice)
    y = (3 * y).long() if classes else y
    alone = torch.stack([loss(x[i : i + 1] + 1, y[i : i + 1]).reshape(()) for i in range(5)])
    torch.testing.assert_close(network.item_losses(network.weights(), (x, y)), alone)


def test_a_schedule_takes_each_item_once_a_pass_and_never_one_of_another_user() -> None:
    for local in TASKS:
        rows = rows_of("linear", local)
        minibatches = rows.timetable.minibatches(2, np.arange(5), NOISE)
        for user, (count, first) in enumerate(zip(COUNTS, items().offsets, strict=False)):
            taken = minibatches.places[user][minibatches.weights[user] > 0]
            passes = 1 if local is None else local.epochs
            assert len(taken) == passes * min(count, MOST)
            assert set(np.bincount(taken - first)[np.bincount(taken - first) > 0]) <= {passes}
            assert ((taken >= first) & (taken < first + count)).all()
            if count:
                assert ((minibatches.places[user] >= first) & (minibatches.places[user] < first + count)).all()
        sums = minibatches.weights.sum(axis=-1)
        assert np.all(np.isclose(sums, 1) | (sums == 0))


@pytest.mark.parametrize("local", TASKS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30, -1e38])
@pytest.mark.parametrize("name", ["layers", "steep", "gru", "convolution", "branches"])
def test_rows_of_others_are_the_same_bits_whatever_one_user_holds(
    name: str, local: LocalSGD | None, bad: float
) -> None:
    users, point = np.array([0, 3, 1, 4, 2]), TorchModule.of(made(name), CROSS, "cpu").flat()
    honest = rows_of(name, local)(0, users, point, NOISE)
    held = items()
    held.parts[0][held.offsets[3] : held.offsets[4]] = bad
    other = rows_of(name, local, held)(0, users, point, NOISE)
    np.testing.assert_array_equal(honest[users != 3], other[users != 3])


@pytest.mark.parametrize("name", ["layers", "convolution"])
def test_no_cipher_is_keyed_that_nobody_draws_from(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, point = rows_of(name, None), TorchModule.of(made(name), CROSS, "cpu").flat()
    asked: list[tuple[Any, ...]] = []
    stream = SeededNoise.stream
    monkeypatch.setattr(SeededNoise, "stream", lambda self, *labels: asked.append(labels) or stream(self, *labels))
    rows(0, np.arange(5), point, NOISE)
    assert asked == [("items", 0, 3)]  # of the only user with more items than take part


class Noisy(nn.Linear):
    """Draws in every mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.rand_like(x))


def test_a_module_that_draws_takes_its_dice_from_the_run_and_leaves_torch_s_own_alone() -> None:
    module, users, point = TorchModule.of(Noisy(4, 3), CROSS, "cpu"), np.arange(5), np.ones(15)
    before = torch.get_rng_state()
    rows = ModuleRows(module, items(), items_per_user=MOST, local=None)
    first = rows(0, users, point, NOISE)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    np.testing.assert_array_equal(rows(0, users, point, NOISE), first)


def test_whom_torch_batches_is_not_decided_by_data() -> None:
    held = items()
    held.parts[0][:] = np.nan
    assert rows_of("layers", None, held).why_looped is None
    assert rows_of("branches", None, held).why_looped is not None


def planned(dimension: int) -> tuple[Any, Any]:
    """A problem, and the plan of one round of step one."""
    method = {"radius": 1e6, "items_per_user": MOST, "clip_norm": 1.0}
    problem = problem_of(method, users=5, dimension=dimension)
    options = {"rounds": 1, "step_size": 1.0}
    given: dict[str, Any] = {"problem": problem, "options": options, "privacy": Privacy(2.0, 1e-3), "clip_norm": 1.0}
    return problem, Setting(algorithm="one-pass-dp-sgd", **given).plan(0)


PROBLEM, PLAN = planned(15)
ALGORITHM = ALGORITHMS[PLAN.algorithm].make(PLAN)


def summed(compute: Any, seed: int = 7) -> np.ndarray:
    """The model after one round of step one, with the same noise."""
    noise, algorithm, state = SeededNoise(seed), ALGORITHM, ALGORITHM.init()
    question = algorithm.request(state, noise)
    answers = RowsEngine(compute, PROBLEM, np.zeros(15), noise, 2).ask(question)
    return algorithm.update(state, answers, noise).state.iterate


@cache
def honest(local: LocalSGD | None) -> np.ndarray:
    return summed(rows_of("linear", local))


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=25)
@given(st.lists(numbers, min_size=4, max_size=4), st.integers(0, 2))
def test_one_user_moves_a_released_sum_by_at_most_what_the_plan_says(held: list[float], label: int) -> None:
    changed = items()
    changed.parts[0][changed.offsets[3] : changed.offsets[4]] = held
    changed.parts[1][changed.offsets[3] : changed.offsets[4]] = label
    for local in TASKS[:2]:
        moved = honest(local) - summed(rows_of("linear", local, changed))
        assert np.linalg.norm(moved) <= PLAN.parameters.sensitivity * (1 + 1e-9)


def test_users_drop_out_by_dice_of_their_own() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    ones = Items((np.ones((16, 4), np.float32), np.zeros(16, np.int64)), np.arange(0, 17, 2))
    rows = ModuleRows(TorchModule.of(module, CROSS, "cpu"), ones, items_per_user=2, local=None)
    point, users = TorchModule.of(module, CROSS, "cpu").flat(), np.arange(8)
    found = rows(0, users, point, NOISE)
    assert len(np.unique(found.round(5), axis=0)) > 4  # the same for all with probability below 1e-9
    np.testing.assert_array_equal(found, rows(0, users, point, NOISE))
    assert not np.array_equal(found, rows(1, users, point, NOISE))


def drawn(own: float, *, per_example: bool = False, leaks: bool = False) -> Any:
    """One coordinate of released means; twins: a clip of examples instead of users, statistics of all users."""
    held = Items((np.zeros((20, 4), np.float32), np.zeros(20, np.int64)), np.arange(0, 21, 4))
    held.parts[0][8:12] = own
    network = TorchModule.of(made("linear"), lambda out, y: out.sum(), "cpu")
    compute = ModuleRows(network, held, items_per_user=4, local=None)
    users = np.arange(5)
    rows = compute(0, users, network.flat(), NOISE)[:, [0]]
    if leaks:
        rows = rows + rows.mean(axis=0)
    lengths = np.abs(rows)
    clipped = rows / np.maximum(lengths, 1.0)
    if per_example:  # each of four items has norm one: a user's sum has four
        clipped = 4 * clipped
    if leaks:
        clipped = np.where(lengths > 0, rows / np.maximum(lengths, 1e-30), 0.0)
    mean = clipped.sum(axis=0) / 5
    noise = PLAN.parameters.noise
    return lambda draws: noise.release(np.full(draws, mean[0]), SeededNoise(11 + (own > 0)).stream("release"))


def audited(**twin: bool) -> float:
    return epsilon_lower_bound(drawn(1e3, **twin), drawn(-1e3, **twin), delta=1e-3, draws=400_000)


def test_rows_of_torch_cost_at_most_the_claimed_epsilon() -> None:
    assert 0.5 < audited() <= 2.0


@pytest.mark.parametrize("twin", ["per_example", "leaks"])
def test_the_audit_catches_the_broken_twin(twin: str) -> None:
    assert audited(**{twin: True}) > 2.0


LARGEST = 1e9
HARD = (0.0, -0.0, 5e-324, 1e-310, 1e-160, 0.3, 1.0, -7.0, 1e8, 1e9, 1.1e9, 1e300, np.inf, -np.inf, np.nan)
entries = st.one_of(st.sampled_from(HARD), st.floats(-10, 10), st.floats())


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
    st.lists(entries, min_size=3, max_size=3),
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
    monkeypatch.setattr(computing, "BLOCK", 1)
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


ACTIVATIONS = (torch.nn.SiLU, torch.nn.ReLU, torch.nn.Hardtanh, torch.nn.Softsign, Power)


def device_rows(held: Items, local: LocalSGD | None, activation: type = torch.nn.SiLU) -> tuple[ModuleRows, np.ndarray]:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), activation(), torch.nn.Linear(5, 3))
    network = TorchModule.of(module, torch.nn.functional.cross_entropy, "cpu")
    compute = ModuleRows(network, held, items_per_user=5, local=local)
    compute.summed = sum_clipped
    return compute, network.flat()


@pytest.mark.parametrize("local", [None, LocalSGD(batch_size=2)])
def test_an_engine_that_sums_on_the_device_answers_as_one_that_brings_rows(local: LocalSGD | None) -> None:
    compute, start = device_rows(items(), local)
    d, noise = len(start), SeededNoise(4)
    problem = problem_of({"radius": 9.0, "items_per_user": 5, "clip_norm": 1.0}, users=5, dimension=d)
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


class Mixed(torch.nn.Module):
    """Layers of two precisions."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3, dtype=kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)).to(self.last.weight.dtype)).float()


@pytest.mark.parametrize("local", [None, LocalSGD(batch_size=2)])
@pytest.mark.parametrize("cached", [1, 80, 1 << 19])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_of_the_processor_are_those_of_its_rows(
    local: LocalSGD | None, cached: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "CACHED", cached)
    torch.manual_seed(1)
    network = TorchModule.of(Mixed(kind), torch.nn.functional.cross_entropy, "cpu")
    compute, start = ModuleRows(network, items(), items_per_user=5, local=local), network.flat()
    problem = problem_of({"radius": 9.0, "items_per_user": 5, "clip_norm": 1.0}, users=5, dimension=len(start))
    point = np.zeros((1, len(start)))
    question = Question(0, np.arange(5), AverageGradient(point, (1.0,)), reduction=ClippedSum(0.05, 5))
    theirs = RowsEngine(compute, problem, start, SeededNoise(4), 5).ask(question)
    ours = RowsEngine(compute, problem, start, SeededNoise(4), 5, summing=compute.sums).ask(question)
    assert isinstance(ours, Sums)
    assert isinstance(theirs, Sums)
    np.testing.assert_array_equal(ours.total, theirs.total)
    np.testing.assert_array_equal(ours.cells, theirs.cells)
    assert (ours.clipped, ours.answered) == (theirs.clipped, theirs.answered)


DEVICE_PROBLEM, DEVICE_PLAN = planned(43)


def released(held: Items, seed: int, activation: type) -> np.ndarray:
    """The model after one round of step one, with the same noise, whose sums were made on the device."""
    compute, start = device_rows(held, None, activation)
    noise, algorithm = SeededNoise(seed), ALGORITHMS[DEVICE_PLAN.algorithm].make(DEVICE_PLAN)
    question = algorithm.request(algorithm.init(), noise)
    answers = RowsEngine(compute, DEVICE_PROBLEM, start, noise, 2, summing=compute.sums).ask(question)
    return algorithm.update(algorithm.init(), answers, noise).state.iterate


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(width=32), min_size=4, max_size=4), st.booleans(), st.sampled_from(ACTIVATIONS))
def test_one_user_moves_a_sum_of_the_device_by_at_most_what_the_plan_says(
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
    assert np.linalg.norm(moved) <= DEVICE_PLAN.parameters.sensitivity * (1 + 1e-9)


USERS, ITEMS = 12, 5


@pytest.fixture(autouse=True)
def _account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lifetime.VARIABLE, str(tmp_path / "own" / "lifetime.sqlite"))


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), *(middle or (nn.Tanh(),)), nn.Linear(6, 3))


def people() -> tuple[tuple[torch.Tensor, torch.Tensor], np.ndarray]:
    draw = np.random.default_rng(2)
    owners = np.repeat(np.arange(USERS), ITEMS)
    x = torch.tensor(draw.normal(size=(len(owners), 4)).astype(np.float32))
    return (x, torch.tensor(draw.integers(0, 3, len(owners)))), owners


def trained(out: Path, module: nn.Module | None = None, **changed: Any) -> TrainedRows[Any]:
    data, owners = people()
    given: dict[str, Any] = {"data": data, "user": owners, "loss": CROSS, "items_per_user": ITEMS, "epsilon": 8.0}
    given |= {"delta": 1e-3, "clip_norm": 0.5, "radius": 5.0, "algorithm": "dp-sgd-wor", "seed": 5}
    given |= {"out": out}
    given |= {"options": {"rounds": 3, "rate": 0.5, "step_size": 0.5}} | changed
    if given.get("offsets") is not None:
        given["user"] = None
    return quoron.torch.train(network() if module is None else module, given.pop("data"), **given)


def test_a_module_is_trained_in_a_copy_and_says_what_is_promised(tmp_path: Path) -> None:
    module = network()
    before = [weight.clone() for weight in module.parameters()]
    found = trained(tmp_path / "run", module)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    flat = torch.cat([weight.flatten() for weight in found.model.parameters()]).detach().numpy()
    np.testing.assert_allclose(flat, found.weights, rtol=1e-6)
    assert sentence(found.guarantee).startswith(SEEDED)
    assert not sentence(trained(tmp_path / "secret", module, seed=None).guarantee).startswith(SEEDED)


def test_rounds_of_a_large_module_share_a_commit_unless_somebody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LARGE_STATE", 0)
    monkeypatch.setattr(rounds, "UNSEEN", np.inf)
    order: list[str] = []

    class Told(rounds.Observer):
        def round_finished(self, event: rounds.RoundEvent) -> None:
            order.append(f"{event.round} committed")

    def watch(round_: int, module: nn.Module) -> None:
        order.append(f"{round_} shown")

    commit: Any = Ledger.commit
    commits: list[int] = []

    def counting(*given: Any) -> None:
        commits.append(given[1])
        commit(*given)

    monkeypatch.setattr(Ledger, "commit", counting)
    alone = trained(tmp_path / "watched", seed=None, watch=watch, observers=[Told()])
    assert order == [f"{round_} {what}" for round_ in range(3) for what in ("shown", "committed")]
    assert commits == [-1, 0, 1, 2]
    commits.clear()
    together = trained(tmp_path / "run", seed=None, observers=[Told()])
    assert commits == [-1, 2]
    assert (together.rounds, together.statement) == (alone.rounds, alone.statement)


def test_zero_out_is_promised_with_poisson_cohorts_for_half_the_noise(tmp_path: Path) -> None:
    data, user = people()
    asked: dict[str, Any] = {
        "user": user,
        "loss": CROSS,
        "epsilon": 8.0,
        "delta": 1e-3,
        "seed": 5,
        "options": {"rounds": 4},
    }
    found = quoron.torch.train(network(), data, algorithm="dp-sgd-poisson", out=tmp_path / "run", **asked)
    plain = quoron.torch.train(network(), data, out=tmp_path / "plain", **asked)
    assert (found.guarantee.adjacency, plain.guarantee.adjacency) == ("zero-out", "replace-one")
    noise = [each.plan.parameters.noise_scale for each in (found, plain)]
    assert noise[0] == pytest.approx(noise[1] / 2, rel=1e-3)


def test_data_of_every_kind_is_the_same_data(tmp_path: Path) -> None:
    (x, y), owners = people()
    base = trained(tmp_path / "base").weights
    frame = pd.DataFrame(x.numpy(), columns=list("abcd")).assign(y=y.numpy(), who=[f"u{o:02}" for o in owners])

    class Listed(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(owners)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return x[index], int(y[index])

    class Named(Listed):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"who": f"u{owners[index]:02}", "y": int(y[index]), "input": x[index]}

    def collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
        assert len(rows) == 1  # never with another user's items
        return {"input": rows[0]["input"][None], "y": torch.tensor([rows[0]["y"]])}

    loader = torch.utils.data.DataLoader
    same = {
        "arrays": {"data": (x.numpy().astype(np.float64), y.numpy()), "user": owners},
        "offsets": {"offsets": np.arange(0, len(owners) + 1, ITEMS)},
        "frame": {"data": frame, "user": "who", "features": list("abcd"), "label": "y"},
        "dataset": {"data": Listed(), "user": owners},
        "loader": {"data": loader(Listed(), batch_size=7, shuffle=True), "user": owners},
        "mapping": {"data": {"input": x, "y": y}, "user": owners},
        "named dataset": {"data": Named(), "user": "who", "label": "y"},
        "named loader": {"data": loader(Named(), batch_size=7), "user": "who", "label": "y"},
        "collated": {"data": loader(Named(), collate_fn=collated), "user": owners},
        "hugging face": {"data": datasets.Dataset.from_pandas(frame), "user": "who", "features": list("abcd")}
        | {"label": "y"},
    }
    for name, how in same.items():
        np.testing.assert_array_equal(trained(tmp_path / name, **how).weights, base)


class Returning(nn.Module):
    """Takes its batch by name and returns its own loss, as modules of Hugging Face do; trains an adapter alone."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner = kind, network().requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.zeros(3, 2))

    def forward(self, *, input: torch.Tensor, labels: torch.Tensor) -> Any:
        lost = CROSS(self.inner(input) + input @ self.down.T @ self.up.T, labels)
        return {"number": lost, "mapping": {"loss": lost}, "object": SimpleNamespace(loss=lost), "none": (lost,)}[
            self.kind
        ]


def test_modules_that_return_their_loss_get_all_parts_and_train_what_is_not_frozen(tmp_path: Path) -> None:
    (x, y), _ = people()

    class Plain(Returning):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + x @ self.down.T @ self.up.T

    base = trained(tmp_path / "base", Plain("number"))
    assert base.plan.problem.dimension == len(base.weights) == 14
    assert all(torch.equal(*pair) for pair in zip(base.model.inner.parameters(), network().parameters(), strict=True))
    for kind in ("number", "mapping", "object"):
        more: dict[str, Any] = {"loss": None, "data": {"labels": y, "input": x}}
        found = trained(tmp_path / kind, Returning(kind), **more)
        np.testing.assert_array_equal(found.weights, base.weights)
    with pytest.raises(ConfigError, match="a loss of one number, got tuple"):
        trained(tmp_path / "none", Returning("none"), **more)
    answer = quoron.torch.answering(Returning("mapping"), {"labels": y[:3], "input": x[:3]}, items_per_user=3)
    own = quoron.torch.answering(Plain("number"), (x[:3], y[:3]), loss=CROSS, items_per_user=3)
    np.testing.assert_array_equal(answer(base.weights), own(base.weights))


def test_metrics_get_named_parts_by_name(tmp_path: Path) -> None:
    (x, y), _ = people()
    metrics = {"half": lambda module, batch: torch.full((len(batch["labels"]),), 0.5) + 0 * batch["input"][:, 0]}
    more: dict[str, Any] = {"loss": None, "data": {"labels": y, "input": x}, "holdout": 0.5, "metrics": metrics}
    assert trained(tmp_path / "run", Returning("number"), **more).evaluation.figure("half").low <= 0.5


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"user": None}, "either user or offsets"),
        ({"user": np.arange(3)}, "one user for each of 60 items"),
        ({"user": np.full(60, np.nan)}, "a user for every item"),
        ({"offsets": np.array([0, 3])}, "offsets that ascend"),
        ({"features": ["a"]}, "with a table only"),
        ({"data": (torch.zeros(3), torch.zeros(4))}, "one length"),
        ({"data": {"input": torch.zeros(3, 4)}, "label": "y"}, "an entry 'y', got input"),
        ({"data": {}}, "at least one array"),
        ({"data": torch.utils.data.DataLoader([torch.zeros(1), torch.zeros(2)])}, "one shape.*fixed length"),
        ({"data": (torch.zeros(60, 4), torch.arange(60) % 4)}, "item with the largest in part 2 of 2 they raised"),
        (
            {"data": {"input": torch.zeros(60, 4), "y": -1 + torch.arange(60) % 3}, "label": "y"},
            "item with the least in 'y' they",
        ),
        ({"data": pd.DataFrame({"a": [1.0]}), "user": "who", "features": ["a"]}, "the columns who"),
        ({"data": pd.DataFrame({"a": ["x"], "who": [0]}), "user": "who", "features": ["a"]}, "Encode"),
    ],
)
def test_data_that_do_not_fit_together_are_refused_by_name(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        trained(tmp_path / "run", **changed)
    assert not (tmp_path / "run").exists()


def test_items_have_the_precision_of_the_weights(tmp_path: Path) -> None:
    (x, y), _ = people()
    metrics = {"half": lambda module, x, y: 0.5 + 0 * module(x)[:, 0]}
    for kind in (torch.float64, torch.bfloat16):
        made = trained(tmp_path / str(kind), network().to(kind), data=(x.double(), y), holdout=0.5, metrics=metrics)
        assert {weight.dtype for weight in made.model.parameters()} == {kind}


def test_noise_that_moves_a_model_further_than_its_users_is_said_with_how_many_would_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (x, y), owners = people()
    more: dict[str, Any] = {"algorithm": None, "options": None, "clip_norm": None, "delta": 1e-6}
    trained(tmp_path / "few", **more, epsilon=1.0)
    words = next(record.getMessage() for record in caplog.records if "further than all users" in record.getMessage())
    users = int(words.split("about ")[1].split()[0])
    caplog.clear()
    again = np.tile(owners, -(-users // USERS)) + np.repeat(np.arange(-(-users // USERS)) * USERS, len(owners))
    many = (x.repeat(-(-users // USERS), 1), y.repeat(-(-users // USERS)))
    trained(tmp_path / "enough", **more, epsilon=1.0, data=many, user=again)
    assert "further than all users" not in caplog.text


class Counts(nn.Module):
    """Writes a buffer in its forward pass, in place or anew."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.anew, self.inner = anew, nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.anew:
            self.seen = self.seen + x.sum().detach()
        else:
            self.seen += x.sum().detach()
        return self.inner(x)


@pytest.mark.parametrize(
    ("middle", "words"),
    [
        (nn.BatchNorm1d(6), "BatchNorm1d as '1'.*Replace it by GroupNorm"),
        (nn.BatchNorm1d(6, track_running_stats=False), "BatchNorm1d as '1'"),
        (nn.InstanceNorm1d(6, track_running_stats=True), "InstanceNorm1d as '1'.*track_running_stats=False"),
        (Counts(anew=False), "writes '1.seen'.*GroupNorm"),
        (Counts(anew=True), "writes '1.seen'"),
    ],
)
def test_a_module_that_carries_items_from_user_to_user_is_refused_with_the_replacement(
    middle: nn.Module, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        trained(tmp_path / "run", network(middle))
    assert not (tmp_path / "run").exists()


class Own(nn.Module):
    """A module that nobody seeded, a part of it neither trained nor the same in the next process."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # in place of whatever another process would draw
            self.frozen, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
            self.register_buffer("scale", torch.rand(()).to(torch.bfloat16))
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.frozen(x)) * self.scale.float())


@pytest.mark.parametrize("seed", [5, None], ids=["simulated", "secret"])
def test_a_killed_run_goes_on_from_its_own_start_whatever_module_the_script_makes(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    more: dict[str, Any] = {"radius": 1e-3, "seed": seed}
    whole, real = trained(tmp_path / "whole", Own(1), **more), ModuleRows._pieces

    def dying(self: ModuleRows, round_: int, *given: Any) -> Any:
        if round_ == 1:
            raise Killed
        return real(self, round_, *given)

    monkeypatch.setattr(ModuleRows, "_pieces", dying)
    with pytest.raises(Killed):
        trained(tmp_path / "run", Own(1), **more)
    monkeypatch.setattr(ModuleRows, "_pieces", real)
    again = trained(tmp_path / "run", Own(2), **more)
    assert "is not the one that the run in" in caplog.text
    begun = torch.nn.utils.parameters_to_vector(Own(1).last.parameters()).detach().double().numpy()
    assert np.linalg.norm(again.weights - begun) <= 1e-3 * (1 + 1e-6)  # about the first start, not the second
    for name, own in Own(1).state_dict().items():
        if not name.startswith("last"):
            assert torch.equal(again.model.state_dict()[name], own), name
    if seed is not None:
        np.testing.assert_array_equal(again.weights, whole.weights)
    complete = trained(tmp_path / "run", Own(3), **more)
    np.testing.assert_array_equal(complete.weights, again.weights)
    with pytest.raises(LedgerError, match=r"Different here: .*problem"):
        trained(tmp_path / "run", network(), **more)
    with np.load(tmp_path / "run" / "start.npz", allow_pickle=False) as arrays:
        assert {name: arrays[name].dtype for name in arrays.files}["start"] == np.float32


def test_a_run_folder_is_loaded_into_a_module_like_the_one_that_was_trained(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", Own(1))
    state = quoron.torch.load(tmp_path / "run", Own(2)).state_dict()
    assert all(torch.equal(state[name], own) for name, own in found.model.state_dict().items())
    with pytest.raises(ConfigError, match=r"18 numbers and 3 parts .* got one of another shape, of 51 and 0"):
        quoron.torch.load(tmp_path / "run", network())
    with pytest.raises(DataError, match=r"quoron\.torch\.load"):
        quoron.load(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(RunError, match=r"summary\.json, found none"):
        quoron.torch.load(tmp_path / "run", Own(2))


def test_held_out_users_tell_how_good_the_module_is_and_nobody_trains_on_them(tmp_path: Path) -> None:
    """Seeded. Each of 400 users weighs one; the interval holds what all of them say of the module."""
    draw = np.random.default_rng(0)
    owners, x = np.repeat(np.arange(400), 4), torch.tensor(draw.normal(size=(1600, 4)).astype(np.float32))
    y = (x[:, 0] > 0).long()
    asked: list[int] = []

    def accuracy_of(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert not module.training
        asked.append(len(y))
        return (module(x).argmax(1) == y).float()

    options = {"rounds": 20, "rate": 1.0, "step_size": 1.0}
    more: dict[str, Any] = {"data": (x, y), "user": owners, "options": options, "radius": 50.0, "epsilon": 15.0}
    more |= {"holdout": 0.25, "metrics": {"accuracy": accuracy_of}}
    found = trained(tmp_path / "run", **more)
    assert found.plan.problem.users == 300
    assert asked == [2] + [4] * 100
    accuracy = found.evaluation.figure("accuracy")
    assert accuracy.low <= (found.model(x).argmax(1) == y).float().mean() <= accuracy.high
    assert trained(tmp_path / "run", **more).evaluation == found.evaluation
    often = trained(tmp_path / "often", **more, evaluate_every=5, patience=1)
    assert [done for done, _ in often.history] == [5, 10, 15][: len(often.history)]
    assert often.rounds in (10, 15, 20)
    assert isinstance(often.model, nn.Module)
    with pytest.raises(ConfigError, match=r"one number an item, got shape \(2, 2\)"):
        trained(tmp_path / "no", **more | {"metrics": {"a": lambda module, x, y: module(x)[:, :2]}})
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("factor", [1.0, 1e-2, 1e8])
def test_nothing_but_data_users_loss_and_epsilon_has_to_be_given(factor: float, tmp_path: Path) -> None:
    """Two classes a line apart: 500 users, ε = 8, what the rule chooses, whatever unit the loss has."""
    draw = np.random.default_rng(4)
    x = torch.tensor(draw.normal(size=(1_500, 4)).astype(np.float32))
    labels = (x.sum(dim=1) > 0).long()
    owners = np.repeat(np.arange(500), 3)
    made = quoron.torch.train(
        network(),
        (x, labels),
        user=owners,
        loss=lambda given, target: factor * CROSS(given, target),
        epsilon=8.0,
        seed=5,
        allow_large_delta=True,
        out=tmp_path / "run",
    )
    assert made.plan.algorithm == "dp-sgd-wor"
    assert made.plan.parameters.adaptive is None
    assert made.plan.parameters.clip_norm == 0.001
    assert made.guarantee.delta == 1e-6
    assert (made.model(x).argmax(1) == labels).float().mean() > 0.9
