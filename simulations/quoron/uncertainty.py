"""Where a model's coefficients lie, with 95 %, by what its run released; or why nobody can say.

    intervals, why_not = of(model, plan, events)

Both noise and sampling of users are in them. A method whose releases tell no such thing is refused by name. What is
proved, and for which methods nothing is: docs/privacy/uncertainty.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quoron.model import Intervals, Model
from quoron_server.algorithms.one_round.method import MOST_COLUMNS, OneRoundParameters, Solved
from quoron_server.plan import RunPlan

INSTEAD = "one-round-least-squares releases what tells it, of a label that is a number"


def of(model: Model, plan: RunPlan, events: Sequence[Mapping[str, Any]]) -> tuple[Intervals | None, str | None]:
    """(intervals, None), in the order of the model's table and in its units, or (None, "no interval: ...")."""
    found = _of(model, plan, events)
    return (None, f"no interval: {found}") if isinstance(found, str) else (found, None)


def _of(model: Model, plan: RunPlan, events: Sequence[Mapping[str, Any]]) -> Intervals | str:
    p, name = plan.parameters, plan.algorithm
    if model.encoding.normalize:
        return "rows were divided by their own length, so there are no coefficients in the columns' units"
    if name == "whitened-tracking":
        return (
            f"{name} clips users' gradients at a radius that it learns, and how far that moves the model is not "
            f"released; {INSTEAD}"
        )
    if not isinstance(p, OneRoundParameters):
        return f"{name} releases no second moment of features and label; {INSTEAD}"
    if model.loss.name != "least_squares":
        return f"one step from zero, which {name} takes, is not the best model of a {model.loss.name} loss"
    packed = events[-1].get("public", {}).get("moment") if events else None
    if packed is None:
        return f"the moment of more than {MOST_COLUMNS} columns is not kept"
    d = len(model.weights)
    upper = np.zeros((d + 1, d + 1))
    upper[np.triu_indices(d + 1)] = packed
    free = _free(model)
    solved = Solved.of(upper + np.triu(upper, 1).T, p, free)
    if solved is None:
        return "some direction of the columns cannot be told from noise; it takes more users, or fewer columns"
    return _in_units(model, solved, free)


def _in_units(model: Model, solved: Solved, free: Any) -> Intervals:
    """Every coefficient is a linear function of the weights, and a constant; None of one that no row determines."""
    zero = _coefficients(replace(model, weights=np.zeros_like(model.weights)))
    each = np.stack([_coefficients(replace(model, weights=row)) - zero for row in np.eye(len(model.weights))], axis=1)
    found: list[tuple[float, float] | None] = []
    for direction, constant in zip(each, zero.tolist(), strict=True):
        if np.abs(free @ direction).max(initial=0.0) > 1e-9 * np.abs(direction).max():
            found.append(None)
            continue
        along = solved.along(direction)
        farthest = float(max(-model.least(sign * along[None]).item() for sign in (1.0, -1.0)))
        middle, half = float(constant + direction @ solved.point), solved.reach(along, farthest)
        found.append((middle - half, middle + half))
    return tuple(found)


def _free(model: Model) -> Any:
    """Directions in which no row tells anything, (k, d): every row has one value of each column of categories.

    So a number added to all values of one and taken off the constant, or off another such column, changes nothing.
    """
    width, place, blocks = len(model.weights), 0, []
    for feature in model.encoding.features:
        if not feature.is_number:
            blocks.append(np.isin(np.arange(width), np.arange(place, place + feature.width)).astype(float))
        place += feature.width
    if model.encoding.intercept:
        blocks.append(np.eye(width)[place])
    return np.array([block - blocks[-1] for block in blocks[:-1]]).reshape(-1, width)


def _coefficients(model: Model) -> Any:
    return np.append(model.coef_, model.intercept_)
