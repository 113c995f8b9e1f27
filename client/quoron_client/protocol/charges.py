"""What a run costs its user over a lifetime: as a client counts it, and as a coordinator says it of the runs it saw."""

from hashlib import blake2b
from math import exp

MOST_PEOPLE = 1 << 20  # of one silo, each of whom is charged
MOST_TOLD = 500  # runs, the latest, that a coordinator reports to a client that enrols
UNASKED = "unasked"  # how a run has ended that had not begun: nobody was asked in it, and nobody is charged for it


def run_mark(run: str) -> int:
    """Return 64 bits by which a run is known to those parties alone that know its name."""
    return int.from_bytes(blake2b(run.encode(), digest_size=8, person=b"quoron-run").digest(), "little")


def replace_one(epsilon: float, delta: float, *, adjacency: str, trust_model: str) -> tuple[float, float]:
    """Replace-one (ε, δ) of a promise, so that those of all runs add up (docs/privacy/lifetime.md, 4).

    Local reports are replace-one by themselves, and a client's record holds them to what was announced.

    >>> replace_one(1.0, 0.0, adjacency="zero-out", trust_model="central-broadcast")
    (2.0, 0.0)
    """
    if adjacency != "zero-out" or trust_model == "local":
        return epsilon, delta
    return 2 * epsilon, min(1.0, (1 + exp(min(epsilon, 700.0))) * delta)
