"""Features of a model that bends: polynomials of the numeric columns of a row, and products of two columns.

    >>> from quoron_client.data.features import Categorical, Numeric
    >>> found = Terms.of((Numeric("age", 0, 100), Categorical("ward", ("A", "B"))), curves=2, pairs=1)
    >>> found.names
    ('age', 'age^2', 'ward=A', 'ward=B', 'age*ward=A', 'age*ward=B')

A number is brought from its declared range to v in [-1, 1]. `age^k` is the Legendre polynomial P_k(v), at most 1 in
absolute value: P_1 is v itself, so a linear model is a special case, and polynomials of different degrees are
orthogonal where values spread evenly over the range. With `pairs` = c two columns are multiplied: degrees k and l of
numbers where k l <= c, a category's 0/1 counting as degree 1, so simple shapes come first (a hyperbolic cross). All of
it is a public function of one row and of the declaration: what a user's row can change is bounded as before.

Source of the polynomials: the recurrence (k + 1) P_{k+1} = (2k + 1) v P_k - k P_{k-1} of Bonnet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.data.features import Feature, Hashed
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.shipped import njit

MAX_TERMS = 5000  # a second moment of more is of no use to anybody


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The features that columns become, but for the intercept."""

    places: NDArray[np.int64]  # (m, 4): column and degree of either factor; -1 and 0 where there is one alone
    names: tuple[str, ...]  # (m,)
    most: int  # what the squares of a row's features add up to, at most

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, features: tuple[Feature, ...], *, curves: int, pairs: int) -> "Terms":
        """Return the terms of features with numbers up to degree `curves`; ConfigError for more than MAX_TERMS."""
        firsts = list(accumulate((each.width for each in features), initial=0))
        factors = [_factors(each, first, curves) for each, first in zip(features, firsts, strict=False)]
        made = [((place, degree, -1, 0), name) for group in factors for place, degree, name in group]
        most = sum(curves if each.is_number else 1 for each in features)
        for one, other in combinations(range(len(features)), 2):
            if not pairs or not _multiply(features[one], features[other]):
                continue
            both = [(a, b) for a, b in product(factors[one], factors[other]) if a[1] * b[1] <= pairs]
            made += [((a[0], a[1], b[0], b[1]), f"{a[2]}*{b[2]}") for a, b in both]
            most += len({(a[1], b[1]) for a, b in both})  # of the values of a category a row has one
            if len(made) > MAX_TERMS:
                raise ConfigError(
                    f"Expected at most {MAX_TERMS:,} features of curves={curves} and pairs={pairs}, got more. Lower "
                    "them, or leave columns out."
                )
        places = np.array([place for place, _ in made], np.int64).reshape(-1, 4)
        return cls(places, tuple(name for _, name in made), most)


def _factors(feature: Feature, first: int, curves: int) -> list[tuple[int, int, str]]:
    """Return column, degree and name of what a feature is alone."""
    if not feature.is_number:
        return [(first + place, 1, name) for place, name in enumerate(feature.names)]
    return [(first, degree, feature.column if degree == 1 else f"{feature.column}^{degree}") for degree in range(1, curves + 1)]


def _multiply(one: Feature, other: Feature) -> bool:
    """Return whether a product of both says more: not of buckets of many words, nor of a number and its intervals."""
    hashed = isinstance(one, Hashed) or isinstance(other, Hashed)
    return not hashed and not (one.column == other.column and (one.is_number or other.is_number))


@njit(cache=True, nogil=True, error_model="numpy")
def expand(base: Any, places: Any, scale: float, features: Any) -> None:
    """Write the terms of rows (N, p) of numbers in [-1, 1] and of 0/1 into the first m columns, times `scale`."""
    columns, degrees = base.shape[1], 1
    for term in range(len(places)):
        degrees = max(degrees, places[term, 1], places[term, 3])
    powers = np.empty((columns, degrees + 1))
    for i in range(len(base)):
        for j in range(columns):
            value = min(max(np.float64(base[i, j]), -1.0), 1.0)
            powers[j, 0], powers[j, 1] = 1.0, value
            for k in range(1, degrees):
                powers[j, k + 1] = ((2 * k + 1) * value * powers[j, k] - k * powers[j, k - 1]) / (k + 1)
        for term in range(len(places)):
            made = powers[places[term, 0], places[term, 1]]
            if places[term, 2] >= 0:
                made *= powers[places[term, 2], places[term, 3]]
            features[i, term] = np.float32(made * scale)


def base_width(features: Sequence[Feature]) -> int:
    """Return the number of columns that rows have before they are expanded."""
    return sum(each.width for each in features)
