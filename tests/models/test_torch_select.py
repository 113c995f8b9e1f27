"""`quoron.select` over networks of torch: rows are gradients that torch makes, and models of any size are compared."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import quoron
from quoron import Effort, Keep, Method, Privacy, Trial
from quoron.training import lifetime

USERS = 3000
Candidate = dict[str, Any]


def items() -> tuple[torch.Tensor, torch.Tensor]:
    """One item a user: whether a point lies within a circle, which no line tells."""
    made = torch.Generator().manual_seed(0)
    points = torch.rand(USERS, 2, generator=made) * 2 - 1
    return points, (points.norm(dim=1) < 0.8).float()


def network(setting: Candidate) -> nn.Module:
    torch.manual_seed(1)  # a start is public
    if not (width := setting["width"]):
        return nn.Linear(2, 1)
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))


def numbers(setting: Candidate) -> int:
    return sum(each.numel() for each in network(setting).parameters())


def method(setting: Candidate) -> Method:
    return Method("dp-ftrl", {"rounds": 60, "inverse_step": 1 / setting["step"]}, clip_norm=0.5, radius=50.0)


def trial(setting: Candidate, at: Trial) -> tuple[float, np.ndarray]:
    x, y = items()
    net = network(setting)
    start = parameters_to_vector(net.parameters()).detach().double().numpy()
    shapes = {name: each.shape for name, each in net.named_parameters()}

    def named(vector: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = torch.split(vector, [shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def loss(vector: torch.Tensor, point: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        said = functional_call(net, named(vector), (point[None],))[0, 0]
        return nn.functional.binary_cross_entropy_with_logits(said, label)

    def rows(users: np.ndarray, point: np.ndarray) -> torch.Tensor:
        own = torch.as_tensor(users)
        return vmap(grad(loss), in_dims=(None, 0, 0))(torch.as_tensor(point).float(), x[own], y[own])

    weights = at.train(rows, start=start)
    vector_to_parameters(torch.as_tensor(weights).float(), net.parameters())
    held = torch.as_tensor(at.held_out)
    with torch.no_grad():
        right = (net(x[held])[:, 0] > 0) == (y[held] > 0.5)
    return at.score(right.numpy()), weights


SETTINGS = [{"width": width, "step": step} for width in (0, 8) for step in (0.02, 20.0)]


def selected(folder: Path, privacy: Privacy, tried: Any = trial, **more: Any) -> quoron.Selected:
    keep = Keep(folder / "run", ledger=folder / "lifetime.sqlite")
    asked = {"users": USERS, "dimensions": numbers, "methods": method, "effort": Effort(trials=12.0), "keep": keep}
    return quoron.select(SETTINGS, tried, privacy=privacy, **asked, **more)


def test_networks_of_any_width_are_compared_for_one_charge(tmp_path: Path) -> None:
    chosen = selected(tmp_path, Privacy(8.0, 1e-5), data=[each.numpy() for each in items()])
    assert chosen.model.shape == (numbers(chosen.candidate),)
    assert "a row depends on the items of its own user" in chosen.statement
    with lifetime.opened(tmp_path / "lifetime.sqlite") as ledger:
        assert [each.epsilon for each in ledger.charges("everyone")] == [8.0]
    assert not (tmp_path / "run" / "private").exists()


def test_and_what_can_tell_is_chosen(tmp_path: Path) -> None:
    found = selected(tmp_path, Privacy(15.0, 1e-5, simulation_seed=0))
    assert found.candidate == {"width": 8, "step": 20.0}
    assert found.score > 0.7  # half of the square lies within the circle: whoever sees no shape is right of half


def test_a_network_that_diverges_is_the_worst_and_stops_nothing(tmp_path: Path) -> None:
    def broken(setting: Candidate, at: Trial) -> tuple[float, np.ndarray]:
        score, weights = trial(setting, at)
        return (float("nan"), np.full_like(weights, np.inf)) if setting["step"] == 20.0 else (score, weights)

    assert selected(tmp_path, Privacy(8.0, 1e-5, simulation_seed=0), broken).candidate["step"] == 0.02
