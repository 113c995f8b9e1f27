"""What both doors for black boxes share: the plug-in for Flower and `quoron.train_rows`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import ConfigError, positive
from quoron_server.black_box import UNKNOWN_CLIP
from quoron_server.plan import Guarantee, Plan
from quoron_server.problem import Problem

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A released model and what was promised for it."""

    model: Vector  # (d,)
    plan: Plan

    @property
    def guarantee(self) -> Guarantee:
        """ε, δ, adjacency, exposure and assumptions; `sentence()` says it in words."""
        return self.plan.guarantee


def problem_of(
    *,
    users: int,
    items_per_user: int,
    dimension: int,
    radius: float,
    clip_norm: float | None,
    smoothness: float | None,
) -> Problem:
    """The problem of a black box: its bound on gradients is the clip, and nothing is said of convexity."""
    if clip_norm is not None:
        positive(clip_norm=clip_norm)
    return Problem(
        users=users,
        items_per_user=items_per_user,
        dimension=dimension,
        domain=L2Ball(radius),
        lipschitz=UNKNOWN_CLIP if clip_norm is None else clip_norm,
        smoothness=smoothness,
    )


def origin_of(start: NDArray[np.float64] | None, dimension: int) -> Vector:
    """Where training starts, shape (d,): zero unless told. ConfigError for another shape or numbers not finite."""
    origin = np.zeros(dimension) if start is None else np.array(start, dtype=np.float64)
    if origin.shape != (dimension,) or not np.isfinite(origin).all():
        raise ConfigError(f"Expected start to be {dimension} finite numbers, got shape {origin.shape}. Flatten it.")
    return origin
