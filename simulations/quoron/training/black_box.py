"""What all that train black boxes share: the plug-in for Flower, `quoron.train_rows`, torch and JAX."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import ConfigError, positive
from quoron_server.black_box import UNKNOWN_CLIP
from quoron_server.problem import Problem
from quoron_server.rounds import Observer

Vector = NDArray[np.float64]
ONE_PASS = "one-pass-dp-sgd"


class Method(TypedDict, total=False):
    """The algorithm of a black box, and the public numbers that it is planned with."""

    algorithm: str | None  # a name from `quoron show algorithms`; None: "one-pass-dp-sgd"
    options: Mapping[str, Any] | None  # of that algorithm: `rounds`, `rate`, `step_size`, ...; the plan chooses others
    items_per_user: int | None  # for step sizes alone; of torch and JAX the most that take part, drawn in each round
    radius: Required[float]  # the model stays within this distance of its start
    smoothness: float | None  # of users' average losses, if known; for step sizes alone
    clip_norm: float | None  # rows are shortened to it. None: it follows the users, privately, for a share of ε
    chunk: int | None  # users computed at once: bounds memory; of torch and JAX 64, else a cohort, unless given


class Training(Method, total=False):
    """The arguments of every function that trains a black box."""

    epsilon: Required[float]
    delta: Required[float]  # above 1/n it is refused without allow_large_delta
    allow_large_delta: bool
    seed: int | None  # SIMULATED: of all noise, for made-up data only, as it protects nobody. None: from the system
    out: str | Path | None  # the run's folder; None: the next under runs/
    population: str | None  # whose privacy budget is charged; None: "everyone"
    ledger: str | Path | None  # the file of privacy budgets; None: QUORON_LEDGER, or the platform's place
    observers: Sequence[Observer]  # called with the public figures of every round


def algorithm_of(method: Method) -> tuple[str, dict[str, Any]]:
    """Return the name of the algorithm, and its options."""
    name = method.get("algorithm")
    return ONE_PASS if name is None else name, dict(method.get("options") or {})


def problem_of(method: Method, *, users: int, dimension: int) -> Problem:
    """Return the problem of a black box: its bound on gradients is the clip, and nothing is said of convexity."""
    items, clip_norm = method.get("items_per_user"), method.get("clip_norm")
    if clip_norm is not None:
        positive(clip_norm=clip_norm)
    return Problem(
        users=users,
        items_per_user=1 if items is None else items,
        dimension=dimension,
        domain=L2Ball(method["radius"]),
        lipschitz=UNKNOWN_CLIP if clip_norm is None else clip_norm,
        smoothness=method.get("smoothness"),
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
