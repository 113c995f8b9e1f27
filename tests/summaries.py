"""A summary of a run, for tests of what is made of one."""

from collections.abc import Mapping
from typing import Any

EXAMPLE: Mapping[str, Any] = {
    "algorithm": "filtered-sgd",
    "statement": "(1, 1e-06)-differential privacy for all items of any one user at once.",
    "rounds": 24,
    "messages": 240_000,
    "bytes_up": 19_200_000,
    "bytes_down": 19_200_000,
    "gradient_evaluations": 12_000_000,
    "users_asked": 240_000,
    "users_filtered_simulation_only": 0,
    "halted": False,
    "epsilon": 1.0,
    "delta": 1e-6,
    "adjacency": "replace-one",
    "trust_model": "central-release",
    "excess_risk": 4.6e-6,
    "excess_risk_initial": 0.089,
    "predicted_excess_risk": 5e-6,
}
