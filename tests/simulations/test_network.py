"""A network is read with its units, and projects what an obvious simulation of every client gives."""

import math
from pathlib import Path

import numpy as np
import pytest

import quoron
from quoron.cli.app import invoke
from quoron.network import DEADLINE, SERVER, Counts, Network, Times, total
from quoron.populations import Synthetic
from quoron.run_folder import RunFolder
from quoron.sections import Keep
from quoron.simulation.inline import InlineEngine
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question, Status
from quoron_privacy.errors import ConfigError
from quoron_server.round_clock import PAUSE
from small_run import TOML

pytestmark = pytest.mark.usefixtures("planned_once")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(TOML)
    return tmp_path


def test_a_network_is_read_with_its_units() -> None:
    network = Network.parse(
        "rtt=80ms, jitter=0.02s,up=1Mbps,down=1.5Gbps,dropout=5%,"
        "deadline=30s,compute=2e3items/s,server=500answers/s,ends=early"
    )
    assert network == Network(0.08, 0.02, 1e6, 1.5e9, 0.05, 30.0, 2000.0, 500.0, "early")
    assert Network.parse("up=9kbps,dropout=0.25") == Network(up=9e3, dropout=0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rtt=80", "rtt to be a time such as 80ms or 0.08s, got rtt=80"),
        ("rtt=-1ms", "got rtt=-1ms"),
        ("rtt=nanms", "got rtt=nanms"),
        ("up=1MBps", "up to be a rate above 0 in bps, kbps, Mbps or Gbps"),
        ("down=0Mbps", "got down=0Mbps"),
        ("up=1e999Mbps", "got up=1e999Mbps"),
        ("dropout=100%", "dropout to be a share below 1"),
        ("dropout=5", "got dropout=5"),
        ("compute=5", "compute to be a speed above 0 such as 2000items/s"),
        ("ping=3ms", "keys rtt, jitter, up, down, dropout, deadline, compute, server, ends, got 'ping=3ms'"),
        ("rtt", "got 'rtt'"),
        ("deadline=0s", "deadline to be a time above 0 such as 60s, got deadline=0s"),
        ("ends=late", "ends to be deadline or early, got ends=late"),
        ("rtt=1ms,rtt=2ms", "each key of a network once, got rtt twice"),
        ("", "Expected a network such as"),
        (" , ", "Expected a network such as"),
    ],
)
def test_what_is_not_a_network_is_named_with_its_form(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Network.parse(text)
    assert message in str(error.value)


def simulated(network: Network, counts: Counts, draws: np.random.Generator, rounds: int) -> float:
    """Mean seconds of a round, every client drawn one by one."""
    per_user = [8 * size / counts.asked for size in (counts.wire_down, counts.wire_up)]
    seconds = []
    for _ in range(rounds):
        delay = draws.exponential(network.jitter, counts.asked) if network.jitter else np.zeros(counts.asked)
        answers = network.rtt + delay + per_user[0] / network.down + counts.computing + per_user[1] / network.up
        missing = draws.random(counts.asked) < network.dropout
        slowest = max(answers[~missing], default=0.0)
        seconds.append(network.deadline if missing.any() else slowest)
    return float(np.mean(seconds)) + counts.asked / network.server + counts.aggregating


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("rtt=80ms,up=1Mbps,down=10Mbps", 40),
        ("rtt=80ms,jitter=30ms,up=1Mbps,down=10Mbps", 40),
        ("rtt=80ms,jitter=30ms,deadline=9s,up=1Mbps", 400),
        ("rtt=80ms,dropout=1%,deadline=9s,up=1Mbps,server=50answers/s", 40),
    ],
)
def test_the_projection_is_the_mean_of_a_simulation_of_every_client(text: str, asked: int) -> None:
    network = Network.parse(f"{text},ends=early")
    counts = Counts(asked, 300 * asked, 4000 * asked, computing=0.01, aggregating=0.005)
    mean = simulated(network, counts, np.random.default_rng(3), 4000)
    # The mean of 4,000 rounds is within five standard errors, at most 5 * 4.5 s / sqrt(4000) with dropouts, and far
    # less without, of the expectation but for a chance below 1e-6.
    assert network.project(counts).total == pytest.approx(mean, abs=0.36 if network.dropout else 0.005)


def test_nothing_is_waited_for_without_a_network() -> None:
    times = Network(server=math.inf, ends="early").project(Counts(100, 10**6, 10**6))
    assert times == Times()


def test_a_round_lasts_its_deadline_and_rest_whoever_answers_and_however_fast() -> None:
    for text in (
        "deadline=5s",
        "rtt=80ms,up=1Mbps,deadline=5s",
        "rtt=80ms,dropout=30%,deadline=5s,server=900answers/s",
    ):
        times = Network.parse(text).project(Counts(100, 10_000, 10_000, computing=0.2, aggregating=0.4))
        assert times.total == pytest.approx((1 + PAUSE) * 5)


def test_work_that_does_not_fit_into_the_rest_costs_whole_rests() -> None:
    times = Network(deadline=5.0).project(Counts(100, 10_000, 10_000, aggregating=0.6))
    assert times.total == pytest.approx((1 + 2 * PAUSE) * 5)


def test_a_worse_network_is_never_projected_to_be_faster() -> None:
    counts = Counts(1000, 300_000, 300_000, items=50)
    fair = "rtt=80ms,jitter=5ms,up=1Mbps,down=10Mbps,dropout=0.01%,compute=1000items/s,ends=early"
    good = Network.parse(fair).project(counts).total
    for worse in ("rtt=90ms", "jitter=6ms", "up=900kbps", "down=9Mbps", "dropout=0.02%", "compute=900items/s"):
        pairs = dict(pair.split("=") for pair in fair.split(","))
        pairs.update([worse.split("=")])
        slower = Network.parse(",".join(f"{key}={value}" for key, value in pairs.items()))
        assert slower.project(counts).total > good


def test_answers_that_could_not_be_in_time_are_refused_before_the_run(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["simulate", "small.toml", "--network", "up=10bps,deadline=2s"]) == 2
    assert "Expected the network's deadline to be above the" in capsys.readouterr().err
    assert not (small / "runs").exists()


def test_parts_sum_to_the_whole() -> None:
    parts = [Times(1, 2, 3, 4, 5, 6), Times(0.5), Times(serving=2.0)]
    assert total(parts) == Times(1.5, 2, 3, 4, 7, 6)
    assert total(parts).total == sum(each.total for each in parts) == sum(total(parts).as_json().values()) / 2


def test_a_run_is_projected_round_by_round(small: Path) -> None:
    text = "rtt=80ms,up=1Mbps,down=10Mbps,compute=1000items/s,ends=early"
    result = quoron.simulate("small.toml", settings=[{"run": {"network": text}}], keep=Keep(small / "run"))
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
        assert row["wire_messages"] == 3 * row["messages"]
    assert shown["seconds"]["total"] == pytest.approx(sum(row["network.total"] for row in rows))
    assert (shown["bytes_up"], shown["bytes_down"]) == (result.summary.wire_up, result.summary.wire_down)
    assert result.summary.wire_up == sum(row["wire_up"] for row in rows) > result.summary.bytes_up
    assert "Projected time by round" in (small / "run" / "report.html").read_text()
    assert any(label == "projected time" for label, _ in result.summary.rows())


@pytest.mark.usefixtures("no_pictures")
def test_bytes_on_the_wire_are_told_without_a_network_too(small: Path) -> None:
    result = quoron.simulate("small.toml", keep=Keep(small / "run"))
    assert result.summary.network is None
    assert result.summary.wire_down > result.summary.bytes_down
    assert "network.total" not in RunFolder(small / "run").rounds()[0]


@pytest.mark.usefixtures("no_pictures")
def test_a_plan_projects_what_the_run_then_counts(small: Path) -> None:
    text = "rtt=80ms,up=1Mbps,down=10Mbps,compute=1000items/s,ends=early"
    planned = quoron.plan("small.toml", settings=[{"run": {"network": text}}])
    assert planned.network is not None
    run = quoron.simulate("small.toml", settings=[{"run": {"network": text}}], keep=Keep(small / "run")).summary
    assert run.network is not None
    expected = {**run.network["seconds"], "aggregating": 0.0}  # which nothing has measured yet
    expected["total"] -= run.network["seconds"]["aggregating"]
    assert planned.network.seconds == pytest.approx(expected, rel=0.01)
    assert planned.network.messages == run.network["messages"]
    assert planned.network.bytes_up == pytest.approx(run.wire_up, rel=0.01)
    assert planned.as_json()["network"]["seconds"]["waiting"] == pytest.approx(8 * 0.08)


@pytest.mark.usefixtures("no_pictures")
def test_dropouts_are_missing_in_the_run_and_the_links_speed_changes_no_bit(small: Path) -> None:
    models = [
        quoron.simulate("small.toml", settings=[{"run": {"network": text}}], keep=Keep(small / str(number))).model
        for number, text in enumerate(["rtt=1ms", "rtt=9ms", "rtt=1ms,dropout=40%", "rtt=9ms,dropout=40%"])
    ]
    assert np.array_equal(models[0], models[1])
    assert np.array_equal(models[2], models[3])
    assert not np.array_equal(models[0], models[2])


def test_who_drops_out_is_drawn_anew_in_every_round_and_by_public_seed_alone() -> None:
    users, chunk = np.arange(4000), 1 << 14
    population = Synthetic("logistic", users=4000, dimension=2, items_per_user=2, domain=L2Ball(1.0))
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


@pytest.mark.usefixtures("no_pictures")
def test_a_resumed_run_keeps_its_network(small: Path) -> None:
    text = "rtt=80ms,dropout=5%,ends=early"
    quoron.simulate("small.toml", settings=[{"run": {"network": text}}], keep=Keep(small / "run"))
    assert RunFolder(small / "run").config().run.network == text
    again = quoron.resume(small / "run").summary.network
    assert again is not None
    assert again["seconds"]["waiting"] == pytest.approx(8 * DEADLINE, rel=0.01)


def test_a_wrong_network_is_refused_with_its_key(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulate", "small.toml", "--network", "rtt=80"]) == 2
    assert "Expected the network's rtt to be a time such as 80ms" in capsys.readouterr().err
    assert invoke(["simulate", "small.toml", "--set", "run.network=80ms"]) == 2
    assert not (small / "runs").exists()
