"""What (ε, δ) and μ mean for one person: how well the best test can tell whether data of theirs was what it is.

    >>> reading = Odds(1.0, 1e-6)
    >>> round(reading.right, 4), round(reading.found(0.05), 4)
    (0.7311, 0.1359)

Bounds, none of them an estimate. Statement and proof: docs/privacy/odds.md.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

ALARMS = 0.05  # false alarms at which it is told who is found
LARGEST = 10.0  # ε of which a factor of odds is told
_NORMAL = NormalDist()
_SWAPPED = {
    "replace-one": "your own data is in the table, or other data, that they know, in its place",
    "zero-out": "your data is in the table, or it was left out",
}


@dataclass(frozen=True, slots=True)
class Odds:
    """A promise, read. With `mu` all that is released is μ-GDP up to `variation`, which is nearly always less."""

    epsilon: float
    delta: float
    mu: float | None = None
    variation: float = 0.0

    def found(self, alarms: float) -> float:
        """Share of those whose data is there that any test finds, at most, at this share of false alarms (odds#od1)."""
        shift, rest = math.exp(min(self.epsilon, 700.0)), 1 - self.delta - alarms
        bounds = [1.0, shift * alarms + self.delta, 1 - max(rest, 0.0) / shift]
        if self.mu is not None:
            start = alarms + self.variation
            bounds.append((_NORMAL.cdf(_NORMAL.inv_cdf(start) + self.mu) if 0 < start < 1 else start) + self.variation)
        return min(bounds)

    @property
    def right(self) -> float:
        """Chance at most of a right guess between two tables that were as likely before (odds#od2)."""
        plain = 1 - (1 - self.delta) / (1 + math.exp(min(self.epsilon, 700.0)))
        return plain if self.mu is None else min(plain, _NORMAL.cdf(self.mu / 2) + self.variation)

    @property
    def percent(self) -> str:
        """The same, for people."""
        return percent(self.right)

    def words(self, adjacency: str) -> list[str]:
        """The same for people, in three sentences."""
        said = [
            f"Suppose somebody knows everything about everybody else, and that either {_SWAPPED[adjacency]}: one as "
            "likely as the other. Having seen all that was released, and with any computer, they guess which of the "
            f"two it is and are right {self.percent} of the time at most. Without having seen anything it is 50 %.",
            f"If they may falsely accuse {percent(ALARMS)} of those whose data is not there, they find at most "
            f"{percent(self.found(ALARMS))} of those whose data is. Pointing at random finds {percent(ALARMS)}.",
        ]
        if self.epsilon <= LARGEST:
            said.append(
                "Whatever they believed before, the odds that they give to the truth rise by a factor of more than "
                f"{rounded_up(2 * math.exp(self.epsilon))} (twice e to the ε) with a chance of "
                f"{chance(2 * self.delta)} at most."
            )
        return said


def percent(share: float) -> str:
    """A share that is a bound: rounded up, to a tenth of a per cent.

    >>> percent(0.5), percent(0.73106), percent(0.99999)
    ('50 %', '73.2 %', '100 %')
    """
    return f"{min(math.ceil(1000 * share - 1e-9) / 10, 100):g} %"


def chance(share: float) -> str:
    """A small probability that is a bound, rounded up, to three digits.

    >>> chance(2e-6), chance(1.3e-7), chance(0.02)
    ('1 in 500,000', '1 in 7,690,000', '2 %')
    """
    if share >= 0.001:
        return percent(share)
    many = (1 + 1e-9) / max(share, 1e-300)
    unit = 10.0 ** (math.floor(math.log10(many)) - 2)
    return f"1 in {math.floor(many / unit) * unit:,.0f}"


def rounded_up(value: float) -> str:
    """A number that is a bound, to three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:,.6g}"
