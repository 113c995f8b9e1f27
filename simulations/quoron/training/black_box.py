"""What all doors for black boxes share: the plug-in for Flower, `quoron.train_rows`, torch and JAX."""

import numpy as np
from numpy.typing import NDArray

from quoron.sections import Method
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import ConfigError, positive
from quoron_server.black_box import UNKNOWN_CLIP
from quoron_server.problem import Problem

Vector = NDArray[np.float64]


ONE_PASS = "one-pass-dp-sgd"


def problem_of(method: Method, *, users: int, dimension: int, door: str) -> Problem:
    """The problem of a black box: its bound on gradients is the clip, and nothing is said of convexity."""
    if method.radius is None or isinstance(method.smoothness, str):
        raise ConfigError(
            f"Expected method=Method(radius=...) for {door}, and a smoothness that is a number or none, got "
            f"radius={method.radius} and smoothness={method.smoothness!r}."
        )
    if method.clip_norm is not None:
        positive(clip_norm=method.clip_norm)
    return Problem(
        users=users,
        items_per_user=1 if method.items_per_user is None else method.items_per_user,
        dimension=dimension,
        domain=L2Ball(method.radius),
        lipschitz=UNKNOWN_CLIP if method.clip_norm is None else method.clip_norm,
        smoothness=method.smoothness,
    )


def origin_of(start: NDArray[np.float64] | None, dimension: int) -> Vector:
    """Where training starts, shape (d,): zero unless told. ConfigError for another shape or numbers not finite."""
    try:
        origin = np.zeros(dimension) if start is None else np.array(start, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"Expected start to be {dimension} finite numbers, got something else.") from None
    if origin.shape != (dimension,) or not np.isfinite(origin).all():
        raise ConfigError(f"Expected start to be {dimension} finite numbers, got shape {origin.shape}. Flatten it.")
    return origin
