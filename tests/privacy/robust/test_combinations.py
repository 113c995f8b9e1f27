import itertools
from typing import get_args

import pytest

from quoron_privacy.errors import ConfigError
from quoron_privacy.robust.combinations import SOUND, Aggregate, Sampling, Test, UnsoundCombination, theorem_for

EVERY = list(itertools.product(get_args(Test), get_args(Aggregate), get_args(Sampling)))


@pytest.mark.parametrize("combination", EVERY, ids="/".join)
def test_every_combination_is_proved_or_refused_with_a_reason(combination):
    if combination in SOUND:
        assert theorem_for(*combination).startswith("docs/privacy/")
    else:
        with pytest.raises(UnsoundCombination, match=r": .*\.$") as error:
            theorem_for(*combination)
        for part in combination:
            assert part in str(error.value)


@pytest.mark.parametrize(
    ("combination", "reason"),
    [
        (("none", "weighted-mean", "everybody"), "without a test"),
        (("laplace", "weighted-mean", "without-replacement"), "one release only"),
        (("lottery", "weighted-mean", "with-replacement"), "drawn M times"),
        (("lottery", "weighted-mean", "poisson"), "fixed size"),
        (("lottery", "weighted-mean", "visible-cohorts"), "membership"),
        (("lottery", "printed-ramp", "one-release"), "odd C"),
        (("above-threshold", "weighted-mean", "without-replacement"), "no longer uniform"),
        (("above-threshold", "random-inclusion", "everybody"), "weighted mean only"),
    ],
)
def test_unsound_combinations_say_why(combination, reason):
    with pytest.raises(UnsoundCombination, match=reason):
        theorem_for(*combination)


def test_random_inclusion_with_a_radius_of_tau_is_refused():
    assert theorem_for("lottery", "weighted-mean", "one-release", kappa=1)
    with pytest.raises(UnsoundCombination, match="kappa=2 only"):
        theorem_for("lottery", "random-inclusion", "one-release", kappa=1)


def test_unknown_names_are_not_silently_accepted():
    with pytest.raises(ConfigError, match="got test='votes'"):
        theorem_for("votes", "weighted-mean", "everybody")
    with pytest.raises(ConfigError, match="kappa=3"):
        theorem_for("lottery", "weighted-mean", "everybody", kappa=3)
    with pytest.raises(TypeError):
        SOUND["lottery", "weighted-mean", "poisson"] = "wishful"
