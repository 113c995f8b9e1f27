"""The lottery test: whether a cohort's aggregate is released is one draw, whose chance rises with the score by rungs.

    >>> from quoron_server.noise import SeededNoise
    >>> test = LotteryTest(cohort_size=10, core=8, table=(1e-6, 1.0))
    >>> test.rung(79), test.rung(80), test.rung(100), test.decide(100, SeededNoise(1).stream("test", 0))
    (None, 0, 1, True)

A rung is as high as one user can move the integer score, so neighbouring cohorts stand on the same rung or on adjacent
ones; below C · core nothing is ever released. One uniform integer decides: there is no noise to round.

Source: in place of the Laplace tests of Lowy, Liu & Asi (2024), Algorithms 1 and 2. Theorem 3:
docs/privacy/outlier-mean.md.
"""

from dataclasses import dataclass

from quoron_protos.errors import ConfigError
from quoron_server._validate import count
from quoron_server.algorithm import Release
from quoron_server.noise import RandomStream

TICKETS = 2**63


@dataclass(frozen=True, slots=True)
class LotteryTest:
    """Release with probability table[rung], with the last chance from the last rung on, and never below rung 0.

    Formal guarantee: (ε, δ) with the ladder conditions of Theorem 3, which `accounting.lottery` enforces on `table`.
    Each chance is used as ⌊2⁶³ chance⌋ / 2⁶³: exactly, where it is a multiple of 2⁻⁶³ as the accountant's are.
    """

    cohort_size: int  # C
    core: int  # k: nothing is released when the score is below C·k
    table: tuple[float, ...]  # π_0, π_1, ...

    def __post_init__(self) -> None:
        count(cohort_size=self.cohort_size, core=self.core)
        if self.cohort_size < 2 or self.core > self.cohort_size:
            raise ConfigError(
                f"Expected core <= cohort_size and cohort_size >= 2, got {self.core}, {self.cohort_size}."
            )
        if not self.table or not all(0 < chance <= 1 for chance in self.table):
            raise ConfigError(f"Expected at least one chance, each in (0, 1], got {self.table}.")

    def rung(self, score: int) -> int | None:
        """⌊(S - C·k) / (2(C - 1))⌋, at most the last one in the table; None when S < C·k."""
        above = score - self.cohort_size * self.core
        return None if above < 0 else min(above // (2 * (self.cohort_size - 1)), len(self.table) - 1)

    def tickets(self, score: int) -> int:
        """How many of the 2⁶³ equally likely draws release at this score."""
        rung = self.rung(score)
        return 0 if rung is None else int(self.table[rung] * TICKETS)

    def decide(self, score: int, stream: RandomStream) -> bool:
        """Whether to release a cohort of score S (a Python integer). One draw, whatever the score."""
        return int(stream.uniform_below(TICKETS, 1)[0]) < self.tickets(score)

    def entry(self) -> Release:
        """The ledger entry of one decision, whichever way it went."""
        return Release("lottery-test", {"cohort_size": self.cohort_size, "core": self.core, "rungs": len(self.table)})
