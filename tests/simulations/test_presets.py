"""Every preset is valid, says what it shows, and has a plan."""

import pytest

import quorate
from quorate.presets import Preset, preset, presets
from quorate_protos.errors import ConfigError


@pytest.mark.parametrize("each", presets(), ids=lambda each: each.name)
def test_a_preset_says_what_it_shows_and_can_be_planned(each: Preset) -> None:
    assert each.text.startswith("# ")
    assert 40 < len(each.summary) < 140
    planned = quorate.plan(each.name)
    assert planned.plan.cost.rounds >= 1
    assert planned.plan.guarantee.exposure != "none"


def test_the_quickstart_runs_the_concentration_test_at_epsilon_1() -> None:
    plan = quorate.plan("quickstart").plan
    assert (plan.algorithm, plan.guarantee.epsilon, plan.guarantee.proved) == ("filtered-sgd", 1.0, True)


def test_the_flights_say_plainly_why_the_filter_is_infeasible() -> None:
    planned = quorate.plan("flights")
    reason = next(each.reason for each in planned.candidates if each.algorithm == "filtered-sgd")
    assert reason.startswith("Infeasible: filtered-sgd: n=3,230 users")
    assert "needs n >= " in reason


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"Expected a preset \(flights, .*quickstart\) or a \.toml file, got 'quick'"):
        preset("quick")
