"""What items of held-out users say of a model of some framework, one user after the other, as numbers of each user."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.training.black_box import Vector
from quoron.training.items import Items
from quoron.training.rows import HoldOut, Rows, Users
from quoron_privacy.errors import ConfigError

Parts = tuple[Any, ...]


def figures_of(items: Items, held: HoldOut, model_at: Callable[[Vector], Any], parts_of: Callable[..., Parts]) -> Rows:
    """Means over each user's items of held.figures(model, *parts), as `HoldOut` takes them of rows.

    `model_at` makes the model of a point (d,), `parts_of` what it takes of arrays of items (m, ...). A user is shown to
    it alone, and what it says of others does not depend on it. Where it raises for a user's items, or says something of
    another shape, that user is one without items: an error would tell of them, and so would a warning.
    """

    def figures(users: Users, point: Vector) -> Any:
        model, rows = model_at(point), np.full((len(users), len(held.names)), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever one is of, it is of private items
            for place, user in enumerate(users):
                own = slice(items.offsets[user], items.offsets[user + 1])
                if own.stop > own.start:
                    try:
                        rows[place] = _said(held, model, parts_of(*(part[own] for part in items.parts))).mean(axis=0)
                    except Exception:  # as an error
                        continue
        return rows

    return figures


def require_figures(items: Items, held: HoldOut, model: Any, parts_of: Callable[..., Parts]) -> None:
    """ConfigError, by items of nobody, for figures that say something else of items than their names."""
    try:
        said = _said(held, model, parts_of(*items.blank(2)))
    except Exception as error:
        raise ConfigError(
            f"Expected figures(model, *parts) of HoldOut to take some items at once; on two of zeros it raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if said.shape != (2, len(held.names)):
        raise ConfigError(
            f"Expected figures of HoldOut to return {len(held.names)} numbers an item, one for each name, got shape "
            f"{said.shape} for two items."
        )


def _said(held: HoldOut, model: Any, parts: Parts) -> NDArray[np.float64]:
    """Numbers of items (m, F), in [0, 1]."""
    found = held.figures(model, *parts)
    rows = np.asarray(found.detach().cpu() if hasattr(found, "detach") else found, np.float64)
    return np.asarray(np.clip(rows[:, None] if rows.ndim == 1 else rows, 0.0, 1.0))
