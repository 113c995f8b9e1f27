"""Rows of torch: those of a slow loop over users, of one user's items alone, and the same in any chunk."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from audits.harness import epsilon_lower_bound
from quoron.sections import Method
from quoron.torch.computing import ModuleRows
from quoron.torch.modules import TorchModule
from quoron.training.black_box import problem_of
from quoron.training.items import Items
from quoron.training.rows import RowsEngine, Setting
from quoron.training.timetable import LocalSGD
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy

NOISE = SeededNoise(9)
COUNTS = (5, 1, 0, 8, 3)  # of five users, one of them with nothing
MOST = 5
CROSS = nn.functional.cross_entropy
TASKS = [None, LocalSGD(epochs=2, batch_size=2, step_size=0.2), LocalSGD(batch_size=10)]


class Turns(nn.Module):
    """A recurrent network, which torch cannot batch over users."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x.reshape(len(x), 2, 2))[0][:, -1])


class Branching(nn.Module):
    """Looks at its item to choose what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) if bool(x[0, 0] > 0) else self.b(x)


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
        "branches": Branching,
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
@pytest.mark.parametrize("name", ["linear", "layers", "convolution", "gru", "branches"])
def test_rows_are_those_of_a_slow_loop_over_users(name: str, local: LocalSGD | None) -> None:
    rows, users = rows_of(name, local), np.array([3, 0, 2, 4, 1])
    assert (rows.why_looped is not None) == (name in ("gru", "branches"))
    found = rows(0, users, TorchModule.of(made(name), CROSS, "cpu").flat(), NOISE)
    np.testing.assert_allclose(found, slowly(rows, name, local, users, items()), atol=3e-6)
    assert not found[2].any()


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
@pytest.mark.parametrize("name", ["layers", "steep", "gru"])
def test_rows_of_others_are_the_same_bits_whatever_one_user_holds(
    name: str, local: LocalSGD | None, bad: float
) -> None:
    users, point = np.array([0, 3, 1, 4, 2]), TorchModule.of(made(name), CROSS, "cpu").flat()
    honest = rows_of(name, local)(0, users, point, NOISE)
    held = items()
    held.parts[0][held.offsets[3] : held.offsets[4]] = bad
    other = rows_of(name, local, held)(0, users, point, NOISE)
    np.testing.assert_array_equal(honest[users != 3], other[users != 3])


def test_whom_torch_batches_is_not_decided_by_data() -> None:
    held = items()
    held.parts[0][:] = np.nan
    assert rows_of("layers", None, held).why_looped is None
    assert rows_of("branches", None, held).why_looped is not None


PROBLEM = problem_of(Method(radius=1e6, items_per_user=MOST, clip_norm=1.0), users=5, dimension=15, door="train_rows")
PLAN = Setting(
    problem=PROBLEM,
    algorithm="one-pass-dp-sgd",
    options={"rounds": 1, "step_size": 1.0},
    privacy=Privacy(2.0, 1e-3),
    clip_norm=1.0,
).plan(0)


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
