"""A run that takes a moment: a few thousand users, a few rounds; and who remembers what a comparison tells."""

from quoron.reports.terminal import Display
from quoron.simulation import comparison

TOML = """
[population]
kind = "synthetic"
family = "logistic"
users = 2_000
items_per_user = 5
dimension = 3
signal_norm = 1.0

[domain]
radius = 2.0

[privacy]
epsilon = 4.0
delta = 1e-5

[algorithm]
name = "one-pass-dp-sgd"
options = { rounds = 8 }
"""


class Watched(Display):
    """Remembers what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.runs, self.ends = 0, []

    def planned(self, runs: int) -> None:
        self.runs = runs

    def ended(self, job: comparison.Job, end: str, why: str | None) -> None:
        self.ends.append((job.named, end))
