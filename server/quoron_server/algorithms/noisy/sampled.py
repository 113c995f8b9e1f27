"""How cohorts are drawn, and what a promise of runs on such cohorts rests on."""

from typing import Literal

from quoron_privacy.release import Adjacency
from quoron_server.parameters import Assumption, Kind

# Users join by coins of their own in the last two: against users who are left out, and who are replaced.
Sampling = Literal["disjoint", "without-replacement", "poisson", "poisson-replaced"]
COINS: tuple[Sampling, ...] = ("poisson", "poisson-replaced")
SECRET = (Assumption(Kind.SECRET_COHORTS),)  # of users asked by coins of their own
SECRET_AND_FORGOTTEN = (*SECRET, Assumption(Kind.FORGETFUL_CLIENTS))  # of uniform cohorts of a fixed size


def assumptions_of(sampling: Sampling, users: int, cohort: int) -> tuple[Assumption, ...]:
    """Secret cohorts, unless they are everybody; and that clients forget, where draws tie them."""
    if cohort == users:
        return ()
    return SECRET_AND_FORGOTTEN if sampling == "without-replacement" else SECRET


def adjacency_of(sampling: Sampling) -> Adjacency:
    """What is promised of cohorts that are drawn so."""
    return "zero-out" if sampling == "poisson" else "replace-one"


def answer_mu(sampling: Sampling, mu: float) -> float:
    """GDP of a round whose cohort is known: of a user who is replaced by coins, from its row to none and on."""
    return 2 * mu if sampling == "poisson-replaced" else mu
