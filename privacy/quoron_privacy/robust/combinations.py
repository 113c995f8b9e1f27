"""Which tests, aggregates and ways of asking users are proved together, and which are not; algorithms ask at plan time.

    >>> theorem_for("lottery", "weighted-mean", "without-replacement", kappa=1)
    'docs/privacy/subsampled-lottery.md#o4'

A combination that is not in `SOUND` is refused with the reason, whether it is known to be wrong or only unproved.
Statements and proofs: docs/privacy/outlier-mean.md, docs/privacy/subsampled-lottery.md.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from quoron_privacy.errors import ConfigError

Test = Literal["lottery", "laplace", "above-threshold", "none"]
Aggregate = Literal["weighted-mean", "random-inclusion", "clipped-mean"]
Sampling = Literal[
    "one-release",  # every user takes part in one release of the run: phases on disjoint users
    "everybody",  # all n users in each of T releases
    "public-schedule",  # batches fixed in advance, each user in at most r of them (shuffled epochs)
    "without-replacement",  # a fresh uniform K-subset each time, kept secret
    "poisson",
]
Combination = tuple[Test, Aggregate, Sampling]

_ONE = "docs/privacy/outlier-mean.md#o{}"
_MANY = "docs/privacy/subsampled-lottery.md#o{}"
_CLIPPED = "docs/privacy/subsampling.md#k{}"

SOUND: Mapping[Combination, str] = MappingProxyType(
    {
        ("lottery", "weighted-mean", "one-release"): _ONE.format(3),
        ("lottery", "random-inclusion", "one-release"): _ONE.format(3),
        ("laplace", "weighted-mean", "one-release"): _ONE.format(5),
        ("laplace", "random-inclusion", "one-release"): _ONE.format(5),
        ("lottery", "weighted-mean", "everybody"): _MANY.format(4),
        ("lottery", "random-inclusion", "everybody"): _MANY.format(4),
        ("lottery", "weighted-mean", "public-schedule"): _MANY.format(4),
        ("lottery", "random-inclusion", "public-schedule"): _MANY.format(4),
        ("lottery", "weighted-mean", "without-replacement"): _MANY.format(4),
        ("lottery", "random-inclusion", "without-replacement"): _MANY.format(4),
        ("above-threshold", "weighted-mean", "everybody"): _MANY.format(6),
        ("above-threshold", "weighted-mean", "public-schedule"): _MANY.format(6),
        ("none", "clipped-mean", "everybody"): _CLIPPED.format(1),
        ("none", "clipped-mean", "without-replacement"): _CLIPPED.format(1),
        ("none", "clipped-mean", "poisson"): _CLIPPED.format(3),
    }
)


class UnsoundCombination(ConfigError):
    """A test, an aggregate and a way of asking for which no guarantee is proved."""


def theorem_for(test: Test, aggregate: Aggregate, sampling: Sampling, *, kappa: int = 2) -> str:
    """Return the file and theorem that prove this combination.

    Raises UnsoundCombination with the reason when there is none, ConfigError for an unknown name.
    """
    for name, value, known in (
        ("test", test, get_args(Test)),
        ("aggregate", aggregate, get_args(Aggregate)),
        ("sampling", sampling, get_args(Sampling)),
        ("kappa", kappa, (1, 2)),
    ):
        if value not in known:
            raise ConfigError(f"Expected {name} to be one of {', '.join(map(str, known))}, got {name}={value!r}.")
    found = SOUND.get((test, aggregate, sampling))
    if found is not None and not (aggregate == "random-inclusion" and kappa == 1):
        return found
    raise UnsoundCombination(
        f"Expected a proved combination, got test={test}, aggregate={aggregate}, sampling={sampling}, kappa={kappa}: "
        f"{_reason(test, aggregate, sampling, kappa)}."
    )


def _reason(test: str, aggregate: str, sampling: str, kappa: int) -> str:
    if aggregate == "clipped-mean" and sampling != "poisson":
        return "clipped means are proved without a test, for everybody, without-replacement or poisson; use lottery"
    if test == "none" and aggregate != "clipped-mean":
        return "without a test one user moves the mean by any distance; use lottery"
    if sampling == "poisson":
        return "tests need a cohort of fixed size; use without-replacement, or clipped means without a test"
    if aggregate == "random-inclusion" and kappa == 1:
        return "random inclusion is proved for kappa=2 only"
    if test == "laplace":
        return "the Laplace test is proved for one release only; use lottery"
    if sampling == "one-release":
        return "a single release has no use for a series; use lottery"
    if sampling == "without-replacement":
        return (
            "given that a threshold shared by all steps has been passed the cohort is no longer uniform, so sampling "
            "does not amplify; use lottery, or above-threshold with everybody or public-schedule"
        )
    return "above-threshold is proved for the weighted mean only"
