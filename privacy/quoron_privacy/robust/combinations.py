"""Which tests and ways of asking users are proved together, and which are not; algorithms ask at plan time.

    >>> theorem_for("lottery", "without-replacement")
    'docs/privacy/subsampled-lottery.md#o4'

A combination that is not in `SOUND` is refused with the reason, whether it is known to be wrong or only unproved. A
test is for a weighted mean without outliers; without one rows are clipped. Statements and proofs:
docs/privacy/outlier-mean.md, docs/privacy/subsampled-lottery.md.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from quoron_privacy.errors import ConfigError

Test = Literal["lottery", "above-threshold", "clip"]  # clip: none, rows are clipped
Sampling = Literal[
    "everybody",  # all n users in each of T releases
    "public-schedule",  # batches fixed in advance, each user in at most r of them (shuffled epochs)
    "without-replacement",  # a fresh uniform K-subset each time, kept secret
    "poisson",
]

_MANY = "docs/privacy/subsampled-lottery.md#o{}"
_CLIPPED = "docs/privacy/subsampling.md#k{}"

SOUND: Mapping[tuple[Test, Sampling], str] = MappingProxyType(
    {
        ("lottery", "everybody"): _MANY.format(4),
        ("lottery", "public-schedule"): _MANY.format(4),
        ("lottery", "without-replacement"): _MANY.format(4),
        ("above-threshold", "everybody"): _MANY.format(6),
        ("above-threshold", "public-schedule"): _MANY.format(6),
        ("clip", "everybody"): _CLIPPED.format(1),
        ("clip", "without-replacement"): _CLIPPED.format(1),
        ("clip", "poisson"): _CLIPPED.format(3),
    }
)


class UnsoundCombination(ConfigError):
    """A test and a way of asking for which no guarantee is proved."""


def theorem_for(test: Test, sampling: Sampling) -> str:
    """Return the file and theorem that prove this combination.

    Raises UnsoundCombination with the reason when there is none, ConfigError for an unknown name.
    """
    for name, value, known in (("test", test, get_args(Test)), ("sampling", sampling, get_args(Sampling))):
        if value not in known:
            raise ConfigError(f"Expected {name} to be one of {', '.join(known)}, got {name}={value!r}.")
    if (found := SOUND.get((test, sampling))) is not None:
        return found
    if test == "clip":
        reason = "clipped means are proved without a test, for everybody, without-replacement or poisson; use lottery"
    elif sampling == "poisson":
        reason = "tests need a cohort of fixed size; use without-replacement, or clipped means without a test"
    else:
        reason = (
            "given that a threshold shared by all steps has been passed the cohort is no longer uniform, so sampling "
            "does not amplify; use lottery, or above-threshold with everybody or public-schedule"
        )
    raise UnsoundCombination(f"Expected a proved combination, got test={test}, sampling={sampling}: {reason}.")
