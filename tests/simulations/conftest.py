"""Commands and simulations plan before they run: the same few plans, test after test."""

import pytest


@pytest.fixture(autouse=True)
def _planned(planned_once: None) -> None:
    """Every test here takes a plan for the same numbers from an earlier one; planners are tested elsewhere."""
