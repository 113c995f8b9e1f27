"""Losses with certified constants, one family a module.

    >>> make_loss("huber", threshold=0.5, feature_norm=2.0).smoothness
    4.0

A loss is a frozen object: public bounds in, constants and compiled scalar functions out.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from quoron_client.losses._base import Loss
from quoron_client.losses.absolute import Absolute
from quoron_client.losses.hinge import Hinge
from quoron_client.losses.huber import Huber
from quoron_client.losses.least_squares import LeastSquares
from quoron_client.losses.linear import Linear
from quoron_client.losses.logistic import Logistic
from quoron_client.losses.smoothed_hinge import SmoothedHinge
from quoron_protos.errors import ConfigError

__all__ = [
    "LOSSES",
    "Absolute",
    "Hinge",
    "Huber",
    "LeastSquares",
    "Linear",
    "Logistic",
    "Loss",
    "SmoothedHinge",
    "make_loss",
]

LOSSES: Mapping[str, type[Loss]] = MappingProxyType(
    {loss.name: loss for loss in (Logistic, LeastSquares, Huber, SmoothedHinge, Hinge, Absolute, Linear)}
)


def make_loss(name: str, **bounds: float) -> Loss:
    """The loss called `name` with these public bounds; bounds left out keep their defaults.

    Raises `ConfigError` for an unknown name or bound, or a bound out of range.
    """
    if name not in LOSSES:
        raise ConfigError(f"Expected loss to be one of {', '.join(LOSSES)}, got loss={name!r}.")
    known = [field.name for field in fields(LOSSES[name])]
    for bound in bounds:
        if bound not in known:
            raise ConfigError(f"Expected the bounds of loss {name} to be among {', '.join(known)}, got {bound!r}.")
    return LOSSES[name](**bounds)
