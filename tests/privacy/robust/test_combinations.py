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


def test_unknown_names_are_not_silently_accepted():
    with pytest.raises(ConfigError, match="got test='votes'"):
        theorem_for("votes", "weighted-mean", "everybody")
    with pytest.raises(ConfigError, match="kappa=3"):
        theorem_for("lottery", "weighted-mean", "everybody", kappa=3)
    with pytest.raises(TypeError):
        SOUND["lottery", "weighted-mean", "poisson"] = "wishful"
