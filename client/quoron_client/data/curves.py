"""Features of a model that bends: polynomials of the numeric columns of a row, and products of two columns.

    >>> from quoron_client.data.features import Categorical, Numeric
    >>> found = Terms.of((Numeric("age", 0, 100), Categorical("ward", ("A", "B"))), curves=2, pairs=1)
    >>> found.names
    ('age', 'age^2', 'ward=A', 'ward=B', 'age*ward=A', 'age*ward=B')

A number is brought from its declared range to v in [-1, 1]. `age^k` is the Legendre polynomial P_k(v), at most 1 in
absolute value. P_1 is v itself, so a linear model is a special case. Polynomials of different degrees are orthogonal
where values spread evenly over the range. With `pairs` = c two columns are multiplied: degrees k and l of
numbers where k l <= c, a category's 0/1 counting as degree 1, so simple shapes come first (a hyperbolic cross). All of
it is a public function of one row and of the declaration: what a user's row can change is bounded as before.

Source of the polynomials: the recurrence (k + 1) P_{k+1} = (2k + 1) v P_k - k P_{k-1} of Bonnet.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from quoron_client.data.features import Feature, Hashed
from quoron_privacy.errors import ConfigError

MAX_TERMS = 5000  # a second moment of more is of no use to anybody
MAX_DEGREE = 8
Place = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The features that columns become, but for the intercept."""

    places: NDArray[np.int64]  # (m, 4): column and degree of either factor; -1 and 0 where there is one alone
    names: tuple[str, ...]  # (m,)
    owners: tuple[tuple[int, ...], ...]  # (m,): the features that each is made of, by their places
    most: int  # what the squares of a row's features add up to, at most

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, features: tuple[Feature, ...], *, curves: int, pairs: int) -> "Terms":
        """Return the terms of features with numbers up to degree `curves`; ConfigError for more than MAX_TERMS."""
        made = list(islice(_made(features, curves, pairs), MAX_TERMS + 1))  # there may be billions
        if len(made) > MAX_TERMS:
            raise ConfigError(
                f"Expected at most {MAX_TERMS:,} features of curves={curves} and pairs={pairs}, got more. Lower them, "
                "or leave columns out."
            )
        places, names, owners = zip(*made, strict=True) if made else ((), (), ())
        most = len({(of, place[1], place[3]) for place, _, of in made})  # of the values of a category a row has one
        return cls(np.array(places, np.int64).reshape(-1, 4), names, owners, most)


def _made(features: tuple[Feature, ...], curves: int, pairs: int) -> Iterator[tuple[Place, str, tuple[int, ...]]]:
    """Yield place, name and owners of every term."""
    factors, first = [], 0
    for one, feature in enumerate(features):
        factors.append(_factors(feature, first, curves))
        yield from (((a[0], a[1], -1, 0), a[2], (one,)) for a in factors[-1])
        first += feature.width
    for one, other in combinations(range(len(features)), 2) if pairs else ():
        if _multiply(features[one], features[other]):
            both = ((a, b) for a in factors[one] for b in factors[other] if a[1] * b[1] <= pairs)
            yield from (((a[0], a[1], b[0], b[1]), f"{a[2]}*{b[2]}", (one, other)) for a, b in both)


def _factors(feature: Feature, first: int, curves: int) -> list[tuple[int, int, str]]:
    """Return column, degree and name of what a feature is alone."""
    if not feature.is_number:
        return [(first + place, 1, name) for place, name in enumerate(feature.names)]
    name = feature.names[0]
    return [(first, degree, name if degree == 1 else f"{name}^{degree}") for degree in range(1, curves + 1)]


def _multiply(one: Feature, other: Feature) -> bool:
    """Return whether a product of both says more: not of buckets of many words, nor of a number and its intervals."""
    hashed = isinstance(one, Hashed) or isinstance(other, Hashed)
    return not hashed and not (one.column == other.column and (one.is_number or other.is_number))
