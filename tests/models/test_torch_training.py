"""`quoron.torch.train`: an unmodified module, what is refused, and what one user can move."""

import logging
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import quoron.torch
from flower.plugged import Killed
from quoron.torch.computing import ModuleRows
from quoron.torch.modules import TorchModule
from quoron.training import lifetime
from quoron.training.items import items_of
from quoron.training.trained import TrainedRows
from quoron_privacy.errors import ConfigError, DataError, LedgerError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.wording import SEEDED, sentence
from said import said

USERS, ITEMS = 12, 5
CROSS = nn.functional.cross_entropy


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
    given |= {
        "delta": 1e-3,
        "clip_norm": 0.5,
        "radius": 5.0,
        "algorithm": "dp-sgd-wor",
        "simulation_seed": 5,
        "out": out,
    }
    given |= {"options": {"rounds": 3, "rate": 0.5, "step_size": 0.5}} | changed
    if given.get("offsets") is not None:
        given["user"] = None
    return quoron.torch.train(network() if module is None else module, given.pop("data"), **said(**given))


def test_a_module_is_trained_in_a_copy_and_says_what_is_promised(tmp_path: Path) -> None:
    module = network()
    before = [weight.clone() for weight in module.parameters()]
    found = trained(tmp_path / "run", module)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    flat = torch.cat([weight.flatten() for weight in found.model.parameters()]).detach().numpy()
    np.testing.assert_allclose(flat, found.weights, rtol=1e-6)
    assert sentence(found.guarantee).startswith(SEEDED)
    assert not sentence(trained(tmp_path / "secret", module, simulation_seed=None).guarantee).startswith(SEEDED)


def test_without_noise_worth_naming_it_learns(tmp_path: Path) -> None:
    """Many users and a large clip: the loss on the same made-up data falls by half."""
    draw = np.random.default_rng(0)
    owners, x = np.repeat(np.arange(400), 4), torch.tensor(draw.normal(size=(1600, 4)).astype(np.float32))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    options = {"rounds": 20, "rate": 1.0, "step_size": 1.0}
    local = quoron.torch.LocalSGD(epochs=2, batch_size=2, step_size=0.3)
    found = trained(
        tmp_path / "run",
        data=(x, y),
        user=owners,
        options=options,
        local=local,
        radius=50.0,
        clip_norm=1.0,
        epsilon=15.0,
    )
    assert CROSS(found.model(x), y) < 0.5 * CROSS(network()(x), y)


def test_data_of_every_kind_is_the_same_data(tmp_path: Path) -> None:
    (x, y), owners = people()
    shuffle = np.random.default_rng(4).permutation(len(owners))
    base = trained(tmp_path / "base").weights
    frame = pd.DataFrame(x.numpy(), columns=list("abcd")).assign(y=y.numpy(), who=[f"u{o:02}" for o in owners])

    class Listed(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(owners)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return x[index], int(y[index])

    same = {
        "arrays": {"data": (x.numpy().astype(np.float64), y.numpy()), "user": owners},
        "offsets": {"offsets": np.arange(0, len(owners) + 1, ITEMS)},
        "frame": {"data": frame, "user": "who", "features": list("abcd"), "label": "y"},
        "dataset": {"data": Listed(), "user": owners},
        "hugging face": {"data": datasets.Dataset.from_pandas(frame), "user": "who", "features": list("abcd")}
        | {"label": "y"},
        "arrays in a column": {
            "data": datasets.Dataset.from_dict({"x": x.numpy(), "y": y.numpy(), "who": frame["who"]}),
            "user": "who",
            "features": ["x"],
            "label": "y",
        },
        "lists in a frame": {
            "data": pd.DataFrame({"x": list(x.numpy()), "y": y.numpy(), "who": frame["who"]}),
            "user": "who",
            "features": ["x"],
            "label": "y",
        },
    }
    for name, how in same.items():
        np.testing.assert_array_equal(trained(tmp_path / name, **how).weights, base)
    # items in another order are the same items, up to the rounding of a user's sum
    mixed = trained(tmp_path / "mixed", data=(x[shuffle], y[shuffle]), user=owners[shuffle]).weights
    np.testing.assert_allclose(mixed, base, atol=0.5)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"user": None}, "either user or offsets"),
        ({"user": np.arange(3)}, "one user for each of 60 items"),
        ({"user": np.full(60, np.nan)}, "a user for every item"),
        ({"offsets": np.array([0, 3])}, "offsets that ascend"),
        ({"features": ["a"]}, "with a table only"),
        ({"data": (torch.zeros(3), torch.zeros(4))}, "one length"),
        ({"data": pd.DataFrame({"a": [1.0]}), "user": "who", "features": ["a"]}, "the columns who"),
        ({"data": datasets.Dataset.from_dict({"a": [1.0]}), "user": "who", "features": ["a"]}, "the columns who"),
        (
            {"data": datasets.Dataset.from_dict({"a": [[1.0], [1.0, 2.0]], "who": [0, 1]}), "user": "who"}
            | {"features": ["a"]},
            "one shape in the column a",
        ),
        ({"data": pd.DataFrame({"a": ["x"], "who": [0]}), "user": "who", "features": ["a"]}, "Encode"),
    ],
)
def test_data_that_do_not_fit_together_are_refused_by_name(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        trained(tmp_path / "run", **changed)
    assert not (tmp_path / "run").exists()


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


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, None),
        ({"loss": lambda out, y: out}, "loss of one number"),
        ({"loss": lambda out, y: out.view(7, 9)}, "take an item by itself"),
    ],
)
def test_a_loss_is_one_number_of_an_item(changed: dict[str, Any], words: str | None, tmp_path: Path) -> None:
    if words is None:
        np.testing.assert_array_equal(trained(tmp_path / "a", **changed).weights, trained(tmp_path / "b").weights)
    else:
        with pytest.raises(ConfigError, match=words):
            trained(tmp_path / "run", **changed)


def test_what_torch_cannot_batch_is_computed_user_by_user_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) if bool(x.sum() > -1e9) else x

    with caplog.at_level(logging.WARNING, logger="quoron"):
        alone = trained(tmp_path / "alone", Branches())
    assert "computed one by one" in caplog.text
    np.testing.assert_allclose(alone.weights, trained(tmp_path / "together").weights, atol=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("local", [None, quoron.torch.LocalSGD(batch_size=2)])
def test_compiled_rows_are_the_rows(local: Any) -> None:
    data, owners = people()
    held = items_of(data, user=owners, offsets=None, features=None, label=None)
    net = TorchModule.of(network(), CROSS, "cpu")
    rows = [
        ModuleRows(net, held, items_per_user=ITEMS, local=local, compiled=compiled)(
            0, np.arange(USERS), net.flat(), SeededNoise(1)
        )
        for compiled in (True, False)
    ]
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


@pytest.mark.parametrize("local", [None, quoron.torch.LocalSGD(batch_size=2)])
def test_a_killed_run_goes_on_to_the_same_bits_with_dropout(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, real = trained(tmp_path / "whole", network(nn.Dropout(0.5)), local=local).weights, ModuleRows.__call__
    for dies_at in (0, 1, 2):

        def dying(self: ModuleRows, round_: int, *more: Any, dies_at: int = dies_at) -> np.ndarray:
            if round_ == dies_at:
                raise Killed
            return real(self, round_, *more)

        monkeypatch.setattr(ModuleRows, "__call__", dying)
        with pytest.raises(Killed):
            trained(tmp_path / f"{dies_at}", network(nn.Dropout(0.5)), local=local)
        monkeypatch.setattr(ModuleRows, "__call__", real)
        again = trained(tmp_path / f"{dies_at}", network(nn.Dropout(0.5)), local=local).weights
        np.testing.assert_array_equal(again, whole)


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
    more: dict[str, Any] = {"radius": 1e-3, "simulation_seed": seed}
    whole, real = trained(tmp_path / "whole", Own(1), **more), ModuleRows.__call__

    def dying(self: ModuleRows, round_: int, *given: Any) -> np.ndarray:
        if round_ == 1:
            raise Killed
        return real(self, round_, *given)

    monkeypatch.setattr(ModuleRows, "__call__", dying)
    with pytest.raises(Killed):
        trained(tmp_path / "run", Own(1), **more)
    monkeypatch.setattr(ModuleRows, "__call__", real)
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


def test_held_out_users_tell_how_good_the_module_is_and_nobody_trains_on_them(tmp_path: Path) -> None:
    """Seeded. Each of 400 users weighs one; the interval holds what all of them say of the module."""
    draw = np.random.default_rng(0)
    owners, x = np.repeat(np.arange(400), 4), torch.tensor(draw.normal(size=(1600, 4)).astype(np.float32))
    y = (x[:, 0] > 0).long()
    asked: list[int] = []

    def figures(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert not module.training
        asked.append(len(y))
        return (module(x).argmax(1) == y).float()

    held = quoron.HoldOut(0.25, figures, ("accuracy",))
    options = {"rounds": 20, "rate": 1.0, "step_size": 1.0}
    more: dict[str, Any] = {"data": (x, y), "user": owners, "options": options, "radius": 50.0, "epsilon": 15.0}
    found = trained(tmp_path / "run", hold_out=held, **more)
    assert found.plan.problem.users == 300
    assert asked == [2] + [4] * 100
    accuracy = found.evaluation.figure("accuracy")
    assert accuracy.low <= (found.model(x).argmax(1) == y).float().mean() <= accuracy.high
    assert trained(tmp_path / "run", hold_out=held, **more).evaluation == found.evaluation
    with pytest.raises(ConfigError, match=r"one for each name, got shape \(2, 2\)"):
        trained(tmp_path / "no", hold_out=quoron.HoldOut(0.25, lambda module, x, y: module(x)[:, :2], ("a",)), **more)
    assert not (tmp_path / "no").exists()
