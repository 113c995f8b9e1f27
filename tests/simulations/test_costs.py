"""What rounds cost: fronts as their definition says, the same table before a run, after it and on a page."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quoron
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.network import DEADLINE, PRESETS, Network
from quoron.planning.costs import Costs, fronts, of_candidates
from quoron.planning.plans import Planned
from quoron.simulation import run as runs
from quoron_privacy.errors import ConfigError
from quoron_server.round_clock import PAUSE
from small_run import TOML

THREE = ",".join(PRESETS)
FEW = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.0, 3.0]))


@given(st.lists(st.tuples(FEW, FEW), max_size=8))
def test_a_front_is_who_nobody_beats(points: list[tuple[float | None, float | None]]) -> None:
    found = fronts([{"cost": cost} for cost, _ in points], [risk for _, risk in points])
    known = [point for point in points if None not in point]
    for (cost, risk), on in zip(points, found, strict=True):
        beaten = any(o <= cost and r <= risk and (o, r) != (cost, risk) for o, r in known if None not in (cost, risk))
        assert bool(on) == (None not in (cost, risk) and not beaten)
    assert not known or any(found)


def row(**changes: object) -> Costs:
    return replace(Costs("a", 8, 80, 900, 700, {"phones": 8.4, "far": None}, False, 0.1, "0.1"), **changes)


@pytest.fixture(scope="module")
def planned() -> Planned:
    config = configs.parse(TOML, "small", ["algorithm.name='auto'", "algorithm.options={}", f"run.network='{THREE}'"])
    return quoron.plan(config)


def test_a_guess_is_on_no_front(planned: Planned) -> None:
    assert all(not each.fronts for each in planned.costs if each.risk is None)


def test_answers_that_cannot_be_in_time_have_no_seconds(planned: Planned) -> None:
    (chosen, *_) = [each for each in planned.candidates if each.plan is not None]
    slow = {"slow": Network.parse("up=10bps,deadline=2s"), "phones": Network.parse("phones")}
    (priced,) = of_candidates([chosen], slow)
    assert (priced.seconds["slow"], "slow" in priced.fronts) == (None, False)
    assert priced.seconds["phones"] > 0
    with pytest.raises(ConfigError, match="the network's deadline to be above"):
        planned.over({"slow": slow["slow"]}, everybody=True)


def test_rounds_over_secret_cohorts_are_held_whatever_the_network_says() -> None:
    options = "algorithm.options={rounds=5, rate=0.5}"
    config = configs.parse(TOML, "small", ["algorithm.name='dp-sgd-wor'", options, "run.network='phones'"])
    planned = runs.prepare(config, Path(), alternatives=False).planned
    assert planned.network is not None
    (own,) = of_candidates(planned.candidates, config.run.networks)
    assert own.held
    assert planned.network.seconds["total"] == own.seconds["phones"] == pytest.approx(5 * (1 + PAUSE) * DEADLINE)


def test_a_run_takes_one_network_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.toml").write_text(TOML)
    assert invoke(["simulate", str(tmp_path / "small.toml"), "--network", THREE, "--out", str(tmp_path / "run")]) == 2
    assert f"Expected one network for a run, got '{THREE}'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
