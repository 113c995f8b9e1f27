"""What a mechanism has made public, and what counts as a neighbour: words that all mechanisms share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Adjacency = Literal["replace-one", "zero-out", "none"]
LENGTHS = ("radius", "scale", "sensitivity")  # parameters in the unit of the value itself


@dataclass(frozen=True, slots=True)
class Release:
    """One value made public by a mechanism: its ledger entry, without the value itself."""

    mechanism: str  # "gaussian", "outlier-filter", ...
    parameters: Mapping[str, float]  # scale, sensitivity, ...

    def scaled(self, radius: float) -> "Release":
        """The entry of the same value `radius` times as long: whatever is a length in it is multiplied."""
        lengths = {name: radius * value for name, value in self.parameters.items() if name in LENGTHS}
        return Release(self.mechanism, {**self.parameters, **lengths})
