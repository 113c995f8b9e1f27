"""Limits hold for what was read, however it was written."""

from dataclasses import fields

import pytest

from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.options import options_of

COUNTED = [(name, key) for name in ALGORITHMS for key in ("rounds", "phases")]


@pytest.mark.parametrize("many", [10**9, 1e9, "1000000000", 0, -1.0])
def test_a_number_of_rounds_is_limited_in_every_form(many: object) -> None:
    tried = 0
    for name, key in COUNTED:
        info = ALGORITHMS[name]
        if key not in {each.name for each in fields(info.options)}:
            continue
        with pytest.raises(ConfigError, match=rf"options\.{key}"):
            options_of(info, {key: many})
        tried += 1
    assert tried > 10
