"""What is promised and how it is trained, the same for both ways. Values are those of pyproject.toml."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from network import task
from quoron.torch import LocalSGD

Config = Mapping[str, Any]


def defaults() -> dict[str, Any]:
    """The configuration that Flower would read."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    return found


def method(config: Config) -> dict[str, Any]:
    """What both `quoron.torch.train` and `quoron.flower.train_privately` are told."""
    return {
        "algorithm": str(config["algorithm"]),
        "options": {"rounds": config["rounds"], **json.loads(str(config["options"]))},
        "clip_norm": float(config["clip-norm"]),
        "radius": float(config["radius"]),
        "items_per_user": task.ITEMS,
    }


def local(config: Config) -> LocalSGD:
    """What a user does in a round."""
    return LocalSGD(epochs=1, batch_size=5, step_size=float(config["local-step"]))
