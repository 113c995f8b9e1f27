"""What items of held-out users say of a model of some framework, one user after the other, as numbers of each user."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.training.black_box import Vector
from quoron.training.items import Items
from quoron.training.rows import Metric, Rows, Users
from quoron_privacy.errors import ConfigError

Parts = tuple[Any, ...]


def figures_of(
    items: Items, metrics: Mapping[str, Metric], model_at: Callable[[Vector], Any], parts_of: Callable[..., Parts]
) -> Rows:
    """Return the means over each user's items of metric(model, *parts), a column a metric.

    `model_at` makes the model of a point (d,), `parts_of` what it takes of arrays of items (m, ...). A user is shown to
    it alone, and what it says of others does not depend on it. Where it raises for a user's items, or says something of
    another shape, that user is one without items: an error would tell of them, and so would a warning.
    """

    def figures(users: Users, point: Vector) -> Any:
        model, rows = model_at(point), np.full((len(users), len(metrics)), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever one is of, it is of private items
            for place, user in enumerate(users):
                own = slice(items.offsets[user], items.offsets[user + 1])
                if own.stop > own.start:
                    try:
                        parts = parts_of(*(part[own] for part in items.parts))
                        measured = [_measured(metric, model, parts) for metric in metrics.values()]
                        rows[place] = np.stack(measured, axis=1).reshape(own.stop - own.start, -1).mean(axis=0)
                    except Exception:  # as an error
                        continue
        return rows

    return figures


def require_metrics(items: Items, metrics: Mapping[str, Metric], model: Any, parts_of: Callable[..., Parts]) -> None:
    """Raise ConfigError, by items of nobody, for a metric that does not return one number an item."""
    for name, metric in metrics.items():
        try:
            said = _measured(metric, model, parts_of(*items.blank(2)))
        except Exception as error:
            raise ConfigError(
                f"Expected the metric {name!r} to take some items at once; on two of zeros it raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if said.shape != (2,):
            raise ConfigError(
                f"Expected the metric {name!r} to return one number an item, got shape {said.shape} for two items."
            )


def _measured(metric: Metric, model: Any, parts: Parts) -> NDArray[np.float64]:
    """Return the numbers of items (m,), in [0, 1]."""
    found = metric(model, *parts)
    rows = np.asarray(found.detach().cpu() if hasattr(found, "detach") else found, np.float64)
    return np.asarray(np.clip(rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else rows, 0.0, 1.0))
