"""Ways to write prefix sums as B C: one factorisation a file, all with the same few numbers and functions.

>>> for name in FACTORISATIONS:
...     print(f"{name:13} {factorise(name, 128).max_error:.2f}")
blt           2.61
sqrt-toeplitz 2.61
banded        3.17
tree          7.48
independent   11.31
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from quoron_privacy.errors import ConfigError
from quoron_privacy.prefix.banded import banded
from quoron_privacy.prefix.blt import blt
from quoron_privacy.prefix.factorisation import Factorisation
from quoron_privacy.prefix.independent import independent
from quoron_privacy.prefix.sqrt_toeplitz import sqrt_toeplitz
from quoron_privacy.prefix.tree import tree
from quoron_privacy.validate import count

LONGEST = 1 << 20  # rounds; the error budget of docs/privacy/prefix-noise.md is checked up to here

FACTORISATIONS: Mapping[str, Callable[[int], Factorisation]] = MappingProxyType(
    {"blt": blt, "sqrt-toeplitz": sqrt_toeplitz, "banded": banded, "tree": tree, "independent": independent}
)


@lru_cache(maxsize=32)
def factorise(name: str, rounds: int, separation: int | None = None) -> Factorisation:
    """The factorisation `name` of prefix sums over `rounds` rounds; ConfigError if there is none.

    `separation` is after how many rounds users may come back; None: they do not.
    """
    if name not in FACTORISATIONS:
        raise ConfigError(f"Expected factorisation in {sorted(FACTORISATIONS)}, got factorisation={name!r}.")
    count(rounds=rounds)
    if rounds > LONGEST:
        raise ConfigError(f"Expected rounds <= {LONGEST}, got rounds={rounds}. Use larger cohorts.")
    if separation is not None and name == "banded":
        return banded(rounds, separation)
    return FACTORISATIONS[name](rounds)
