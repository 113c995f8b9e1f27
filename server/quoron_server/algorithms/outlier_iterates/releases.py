"""What a phase that may lose some of its chains still reaches, and the fewest chains with which it releases.

The release itself, lowered to that score and certified, is `quoron_privacy.robust.one_release`.
"""

import math
from functools import lru_cache

from quoron_privacy.robust import one_release
from quoron_privacy.robust.one_release import Target

STRAYING = 0.02  # of honest pairs, that may lie farther apart than τ without the test noticing
_BEYOND = 2**20  # chains, where none that are counted would do


def honest_chains(chains: int, lost: float) -> int:
    """Chains that are counted on when each is lost with this chance: three standard deviations below the mean."""
    return chains - math.ceil(chains * lost + 3 * math.sqrt(chains * lost * (1 - lost)))


def expected_score(chains: int, lost: float) -> int:
    """S that a phase reaches when chains are lost with this chance and STRAYING of the honest pairs are not close."""
    return math.floor((1 - STRAYING) * max(0, honest_chains(chains, lost)) ** 2)


@lru_cache(maxsize=256)
def smallest(target: Target, lost: float) -> int:
    """C_min: the least number of chains with a release when chains are lost with this chance, however noisy."""
    return one_release.smallest(target, lambda chains: expected_score(chains, lost)) or _BEYOND
