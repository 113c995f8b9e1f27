"""What items of held-out users say of a model of a framework, one user after the other."""

import warnings

import numpy as np
import pytest

from quoron.training.figures import figures_of, require_figures
from quoron.training.items import Items
from quoron.training.rows import HoldOut
from quoron_privacy.errors import ConfigError

ITEMS = Items((np.arange(5.0), np.array([1, 0, 1, 1, 0])), np.array([0, 2, 2, 5]))


def test_a_user_is_the_mean_of_its_items_held_to_the_ends_and_none_without_any():
    held = HoldOut(0.5, lambda model, x, y: np.column_stack([x * model, y]), ("x", "y"))
    found = figures_of(ITEMS, held, lambda point: float(point[0]), lambda *parts: parts)
    np.testing.assert_allclose(found(np.array([2, 1, 0]), np.array([0.1])), [[0.3, 2 / 3], [np.nan] * 2, [0.05, 0.5]])
    np.testing.assert_allclose(found(np.array([2]), np.array([10.0])), [[1.0, 2 / 3]])


@pytest.mark.parametrize("bad", ["raises", "shape"])
def test_an_error_of_one_users_items_is_told_to_nobody_and_moves_no_other_user(bad):
    def figures(model, x, y):
        if 3.0 in x:
            if bad == "raises":
                raise RuntimeError(f"{x}")
            return np.zeros((len(x), 7))
        return y

    found = figures_of(ITEMS, HoldOut(0.5, figures, ("y",)), lambda point: None, lambda *parts: parts)
    np.testing.assert_array_equal(found(np.arange(3), np.zeros(1)), [[0.5], [np.nan], [np.nan]])


def test_a_warning_of_one_users_items_is_shown_to_nobody():
    def figures(model, x, y):
        if 3.0 in x:
            warnings.warn(f"{x}", stacklevel=1)
        return y

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        found = figures_of(ITEMS, HoldOut(0.5, figures, ("y",)), lambda point: None, lambda *parts: parts)
        np.testing.assert_allclose(found(np.arange(3), np.zeros(1)), [[0.5], [np.nan], [2 / 3]])
    assert not shown


@pytest.mark.parametrize(
    ("figures", "words"),
    [(lambda model, x, y: 1 / 0, "ZeroDivisionError"), (lambda model, x, y: y.mean(), r"got shape \(\)")],
)
def test_figures_that_are_none_are_refused_by_items_of_nobody(figures, words):
    with pytest.raises(ConfigError, match=words):
        require_figures(ITEMS, HoldOut(0.5, figures, ("y",)), None, lambda *parts: parts)
    require_figures(ITEMS, HoldOut(0.5, lambda model, x, y: y, ("y",)), None, lambda *parts: parts)
