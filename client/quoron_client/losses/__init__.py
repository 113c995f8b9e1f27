"""Losses with certified constants, modules by what a label is.

    >>> make_loss("huber", threshold=0.5, feature_norm=2.0).smoothness
    4.0

A loss is a frozen object: public bounds in, constants and compiled scalar functions out.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

from quoron_client.losses._base import Classification, Loss, Regression
from quoron_client.losses.standard import (
    Absolute,
    Hinge,
    Huber,
    LeastSquares,
    Linear,
    Logistic,
    Quadratic,
    SmoothedHinge,
    Softmax,
)
from quoron_privacy.errors import ConfigError

__all__ = [
    "LOSSES",
    "Absolute",
    "Classification",
    "Hinge",
    "Huber",
    "LeastSquares",
    "Linear",
    "Logistic",
    "Loss",
    "Quadratic",
    "Regression",
    "SmoothedHinge",
    "Softmax",
    "loss_family",
    "make_loss",
]

LOSSES: Mapping[str, type[Loss]] = MappingProxyType(
    {
        loss.name: loss
        for loss in (Logistic, LeastSquares, Huber, SmoothedHinge, Hinge, Absolute, Linear, Quadratic, Softmax)
    }
)


def loss_family(name: str) -> type[Loss]:
    """Return the losses called `name`, to be called with their bounds. Raises `ConfigError` for an unknown name."""
    if name not in LOSSES:
        raise ConfigError(f"Expected loss to be one of {', '.join(LOSSES)}, got loss={name!r}.")
    return LOSSES[name]


def make_loss(name: str, **bounds: float) -> Loss:
    """Return the loss called `name` with these public bounds; bounds left out keep their defaults.

    Raises `ConfigError` for an unknown name or bound, and for a bound out of range.
    """
    family = loss_family(name)
    known = [field.name for field in fields(family)]
    for bound in bounds:
        if bound not in known:
            raise ConfigError(f"Expected the bounds of loss {name} to be among {', '.join(known)}, got {bound!r}.")
    for field in fields(family):
        if field.default is MISSING and field.name not in bounds:
            raise ConfigError(f"Expected {field.name} of loss {name}, got none.")
    given: dict[str, Any] = dict(bounds)
    return family(**given)
