"""A network projects what an obvious simulation of every client gives; what rounds cost."""

import math
from pathlib import Path

import numpy as np
import pytest

import quoron
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.data import Synthetic
from quoron.engine.inline import InlineEngine
from quoron.engine.network import DEADLINE, PRESETS, SERVER, Counts, Link, Network, Times
from quoron.planning.plans import Plan
from quoron.planning.projection import of_candidates
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import AverageGradient, Question, Status
from quoron_privacy.errors import ConfigError
from quoron_server.rounds import PAUSE
from small_run import TOML


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(TOML)
    return tmp_path


def simulated(network: Network, counts: Counts, draws: np.random.Generator, rounds: int) -> tuple[float, float]:
    """Mean seconds of a round, every client drawn one by one, and the mean's standard error."""
    down, up = (8 * size / counts.asked for size in (counts.wire_down, counts.wire_up))
    seconds = []
    for _ in range(rounds):
        kinds = draws.choice(len(network.links), counts.asked, p=network.shares)
        answers = np.zeros(counts.asked)
        for number, link in enumerate(network.links):
            own = kinds == number
            moved = np.exp(np.log(link.spread) / 1.2815515655446004 * draws.standard_normal(own.sum()))
            moved *= down / link.down + up / link.up
            answers[own] = link.rtt + link.jitter * draws.standard_exponential(own.sum()) + moved + counts.computing
            answers[own] = np.where(draws.random(own.sum()) < link.dropout, np.inf, answers[own])
        seconds.append(min(answers.max(), network.deadline))
    apart = counts.asked / network.server + counts.aggregating
    return float(np.mean(seconds)) + apart, float(np.std(seconds)) / math.sqrt(rounds)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("rtt=80ms,up=1Mbps,down=10Mbps", 40),
        ("rtt=80ms,jitter=30ms,up=1Mbps,down=10Mbps", 40),
        ("rtt=80ms,jitter=30ms,deadline=9s,up=1Mbps", 400),
        ("rtt=80ms,dropout=1%,deadline=9s,up=1Mbps,server=50answers/s", 40),
        ("rtt=80ms,jitter=30ms,dropout=3%,deadline=200ms,up=1Mbps", 1),
        ("rtt=80ms,up=1Mbps,spread=4", 1),
        ("rtt=80ms,up=1Mbps,spread=4,deadline=300ms", 40),
        ("phones:0.7+datacentre:0.3,up=1Mbps", 2),
        ("phones:0.7+datacentre:0.3,up=1Mbps", 40),
    ],
)
def test_the_projection_is_the_mean_of_a_simulation_of_every_client(text: str, asked: int) -> None:
    network = Network.parse(f"{text},ends=early")
    counts = Counts(asked, 300 * asked, 4000 * asked, computing=0.01, aggregating=0.005)
    mean, error = simulated(network, counts, np.random.default_rng(3), 1500)
    # Within five and a half standard errors but for a chance below 1e-6.
    assert network.project(counts).total == pytest.approx(mean, abs=5.5 * error + 1e-9)


@pytest.mark.parametrize("asked", [1, 2, 49, 50, 10**4, 10**7])
@pytest.mark.parametrize("jitter", [1e-6, 0.03, 2.0])
def test_the_slowest_of_alike_clients_is_that_of_the_harmonic_number(asked: int, jitter: float) -> None:
    network = Network((Link(rtt=0.08, jitter=jitter),), deadline=1e6, server=math.inf, ends="early")
    harmonic = math.fsum(1 / i for i in range(1, min(asked, 10**4) + 1))
    if asked > 10**4:
        harmonic = math.log(asked) + 0.5772156649015329 + 1 / (2 * asked)
    assert network.project(Counts(asked, 0, 0)).total == pytest.approx(0.08 + jitter * harmonic, rel=1e-6)


def test_work_that_does_not_fit_into_the_rest_costs_whole_rests() -> None:
    times = Network(deadline=5.0).project(Counts(100, 10_000, 10_000, aggregating=0.6))
    assert times.total == pytest.approx((1 + 2 * PAUSE) * 5)


def test_a_plan_projects_what_the_run_then_counts(small: Path) -> None:
    text = "rtt=80ms,up=1Mbps,down=10Mbps,compute=1000items/s,ends=early"
    planned = quoron.plan("small.toml", settings=[{"run": {"network": text}}])
    assert planned.network is not None
    run = quoron.simulate("small.toml", settings=[{"run": {"network": text}}], out=small / "run").summary
    assert run.network is not None
    expected = {**run.network["seconds"], "aggregating": 0.0}  # which nothing has measured yet
    expected["total"] -= run.network["seconds"]["aggregating"]
    assert planned.network.seconds == pytest.approx(expected, rel=0.01)
    assert planned.network.messages == run.network["messages"]
    assert planned.network.bytes_up == pytest.approx(run.wire_up, rel=0.01)
    assert planned.as_json()["network"]["seconds"]["waiting"] == pytest.approx(8 * 0.08)


def test_who_drops_out_is_drawn_anew_in_every_round_and_by_public_seed_alone() -> None:
    users, chunk = np.arange(4000), 1 << 14
    population = Synthetic(family="logistic", users=4000, dimension=2, items_per_user=2, domain=L2Ball(1.0))
    task = AverageGradient(np.zeros((1, 2)), (1.0,))

    def missing(round_: int, **options: int) -> np.ndarray:
        engine = InlineEngine(population, dropout=0.25, **options)
        return engine.ask(Question(round_, users, task)).status == Status.MISSING

    first = missing(0, seed=5)
    assert np.array_equal(first, missing(0, seed=5, chunk_bytes=chunk))
    assert not np.array_equal(first, missing(1, seed=5))
    assert not np.array_equal(first, missing(0, seed=6))
    # Binomial(4000, 1/4) is within 180 of 1,000 but for a chance below 1e-9.
    assert abs(first.sum() - 1000) < 180
    assert not InlineEngine(population, seed=5).ask(Question(0, users, task)).status.any()


def test_a_wrong_network_is_refused_with_its_key(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulate", "small.toml", "--set", "run.network=rtt=80"]) == 2
    assert "Expected the network's rtt to be a time such as 80ms" in capsys.readouterr().err
    assert invoke(["simulate", "small.toml", "--set", "run.network=80ms"]) == 2
    assert not (small / "runs").exists()


THREE = ",".join(PRESETS)


@pytest.fixture(scope="module")
def planned() -> Plan:
    config = configs.parse(TOML, "small", ["algorithm.name='auto'", "algorithm.options={}", f"run.network='{THREE}'"])
    return quoron.plan(config)


def test_answers_that_cannot_be_in_time_have_no_seconds(planned: Plan) -> None:
    (chosen, *_) = [each for each in planned.candidates if each.plan is not None]
    slow = {"slow": Network.parse("up=10bps,deadline=2s"), "phones": Network.parse("phones")}
    (priced,) = of_candidates([chosen], slow)
    assert priced.seconds["slow"] is None
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
    assert (
        invoke(
            ["simulate", str(tmp_path / "small.toml"), "--set", f"run.network={THREE}", "--out", str(tmp_path / "run")]
        )
        == 2
    )
    assert f"Expected one network for a run, got '{THREE}'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


pytestmark = pytest.mark.usefixtures("planned_once")


def test_a_run_is_projected_round_by_round(small: Path) -> None:
    text = "rtt=80ms,up=1Mbps,down=10Mbps,compute=1000items/s,ends=early"
    result = quoron.simulate("small.toml", settings=[{"run": {"network": text}}], out=small / "run")
    rows = RunFolder(small / "run").rounds()
    shown = result.summary.network
    assert shown is not None
    assert shown["network"] == text
    assert len(rows) == 8
    for row in rows:
        parts = [row[f"network.{part}"] for part in Times().as_json() if part != "total"]
        assert row["network.total"] == pytest.approx(sum(parts))
        assert row["network.waiting"] == pytest.approx(0.08)
        assert row["network.computing"] == pytest.approx(5 / 1000)
        assert row["network.upload"] == pytest.approx(8 * row["wire_up"] / row["messages"] / 1e6)
        assert row["network.serving"] == pytest.approx(row["messages"] / SERVER)
        assert row["wire_messages"] == 2 * row["messages"]
    assert shown["seconds"]["total"] == pytest.approx(sum(row["network.total"] for row in rows))
    assert (shown["bytes_up"], shown["bytes_down"]) == (result.summary.wire_up, result.summary.wire_down)
    assert result.summary.wire_up == sum(row["wire_up"] for row in rows) > result.summary.bytes_up
    assert "Projected time by round" in (small / "run" / "report.html").read_text()
    assert any(label.startswith("projected time") for label, _ in result.summary.costs())
