"""What a coordinator tells those who watch over it: where, in which format, and nothing that a user's answer moves."""

import asyncio
import logging
import math
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric

from federation.crowd import Answering, Honest, carried_out, coordinator, fetched, put_clock_forward, until
from federation.rehearsal import USERS, Scene
from quoron_privacy.errors import ConfigError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import metrics
from quoron_server.service.metrics import Metrics, family, text
from quoron_server.service.sessions import Sessions

ROUNDS = 2
SECONDS, PAUSE = 36_000.0, 3_600.0  # of a round, and behind it: no machine is so busy that its own work shows
ODD = 3  # the user in whom two worlds differ


def silent(user: int, question: pb.Question) -> pb.Answer | None:
    return None


def wild(user: int, question: pb.Question) -> pb.Answer | None:
    """An answer of which nothing is usable."""
    answer = Honest.of(USERS)(user, question)
    assert answer is not None
    answer.values.data = b"\xff" * len(answer.values.data)
    return answer


def leaving(user: int, question: pb.Question) -> pb.Answer | None:
    """None, of one that agrees and then says that it sits out, as with a table that lacks the columns."""
    return None


WORLDS: dict[str, Answering] = {"silent": silent, "wild": wild, "leaving": leaving}
SeenStore = tuple[list[str], list[tuple[int, str]]]


def world(folder: Path, odd: Answering, caplog: pytest.LogCaptureFixture) -> SeenStore:
    """All metrics of a run from before it to its end, and all that was logged, where one user has its own way."""
    folder.mkdir()
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.DEBUG, "quoron"):
        return carried_out(_world(Scene(folder, patch), odd)), [  # type: ignore[return-value]
            (record.levelno, re.sub(r"127\.0\.0\.1:\d+", "", record.getMessage())) for record in caplog.records
        ]


async def _world(at: Scene, odd: Answering) -> list[str]:
    told: list[str] = []
    due = 0

    async def until_due(self: Sessions, *given: object) -> float:
        nonlocal due
        due += 1
        return await original(self, *given)  # type: ignore[arg-type]

    async def scrape() -> None:
        told.append(re.sub(r"(quoron_run_idle_seconds.*) \S+", r"\1", await at.running.metrics.text()))

    original = Sessions._until_due
    at.patch.setattr(Sessions, "_until_due", until_due)
    at.patch.setattr(Sessions, "free_disk", 1 << 40)
    at.patch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))
    honest = Honest.of(USERS)
    await at.serve()
    at.running.metrics._clock, at.running.metrics._started = (lambda: 1e9), 1e9
    await at.join(lambda user, question: odd(user, question) if user == ODD else honest(user, question))
    await scrape()
    await at.submit(options={"rounds": ROUNDS}, seconds=SECONDS)
    run = at.running.scheduler._active["trial"]
    for number in range(ROUNDS):
        await at.asked()
        session = at.running.sessions.runs["trial"]
        if odd is leaving:
            await at.peers[ODD].send(consent=pb.Consent(run="trial", takes_part=False))
        await until(lambda session=session: session.open.left <= (1 if odd is silent else 0))
        await scrape()
        put_clock_forward(SECONDS)
        await until(lambda number=number: due == number + 2 or run.unpublished)
        if number + 1 < ROUNDS:
            await until(lambda number=number: due == number + 2)
            put_clock_forward(PAUSE)
            await until(lambda number=number: run.feed.rounds == number + 1)
            assert run.moved >= session.due  # told when the round is over for everybody, and not before
        await scrape()
    while not any(event["kind"] == "ended" for event in run.feed._events):
        put_clock_forward(PAUSE)
        for _ in range(20):
            await asyncio.sleep(0.001)
    await scrape()
    await at.leave()
    return told


@pytest.fixture(scope="module")
def honest_world(tmp_path_factory: pytest.TempPathFactory) -> Callable[[pytest.LogCaptureFixture], SeenStore]:
    kept: list[SeenStore] = []

    def once(caplog: pytest.LogCaptureFixture) -> SeenStore:
        if not kept:
            kept.append(world(tmp_path_factory.mktemp("honest") / "it", Honest.of(USERS), caplog))
        return kept[0]

    return once


@pytest.mark.parametrize("odd", WORLDS)
def test_no_metric_and_no_line_of_the_log_tells_how_or_whether_a_user_answers(
    odd: str, tmp_path: Path, our_logs: pytest.LogCaptureFixture, honest_world: Callable[..., SeenStore]
) -> None:
    told, logged = honest_world(our_logs)
    assert len(told) == 2 + 2 * ROUNDS
    assert len(set(told)) > 3  # something goes on
    assert "ended" in str(logged)
    rounds = [float(re.findall(r"^quoron_run_rounds_done{.*} (.*)", each, re.M)[0]) for each in told[1:-1]]
    assert rounds == [0, 1, 1, 1], "a round counts once it is published, not when it is committed"
    assert world(tmp_path / "other", WORLDS[odd], our_logs) == (told, logged)


def _counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin that tells how many bytes of answers there were."""
    original = Metrics._of_doors

    def families(self: Metrics) -> Iterator[Metric]:
        yield from original(self)
        sizes = [session.open.up if session.open else 0 for session in self._scheduler.sessions.runs.values()]
        yield family("answers_bytes", "Taken.", sum(sizes))

    monkeypatch.setattr(Metrics, "_of_doors", families)


def _naming(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin that logs who has answered."""
    original = Sessions.answer

    def answer(self: Sessions, user: int, message: pb.Answer, size: int = 0) -> pb.Verdict:
        logging.getLogger("quoron").debug("user %d has answered", user)
        return original(self, user, message, size)

    monkeypatch.setattr(Sessions, "answer", answer)


@pytest.mark.parametrize("twin", [_counting, _naming])
def test_a_twin_that_counts_or_names_those_who_answer_is_caught(
    twin: Callable[[pytest.MonkeyPatch], None],
    tmp_path: Path,
    our_logs: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twin(monkeypatch)
    which = 0 if twin is _counting else 1
    one = world(tmp_path / "one", Honest.of(USERS), our_logs)[which]
    assert one != world(tmp_path / "other", silent, our_logs)[which]


def test_the_port_answers_its_three_questions_and_no_others(tmp_path: Path) -> None:
    async def scene() -> dict[str, str]:
        asked = {
            "metrics": "GET /metrics HTTP/1.1\r\nHost: hub\r\n\r\n",
            "healthz": "GET /healthz?now HTTP/1.0\r\n\r\n",
            "alarms": "GET /alarms.yml HTTP/1.1\r\n\r\n",
            "head": "HEAD /healthz HTTP/1.1\r\n\r\n",
            "other": "GET /../tokens.json HTTP/1.1\r\n\r\n",
            "post": "POST /metrics HTTP/1.1\r\n\r\n",
            "nonsense": "\x16\x03\x01\r\n\r\n",
            "long": "GET /" + "x" * metrics.LONGEST * 20,
        }
        async with coordinator(tmp_path, metrics="0") as running:
            assert running.metrics_address is not None
            assert running.metrics_address.startswith("127.0.0.1:")
            found = {name: await fetched(running.metrics_address, words) for name, words in asked.items()}
            running._serving = False
            return found | {"away": await fetched(running.metrics_address, asked["healthz"])}

    found = carried_out(scene())
    codes = {name: answer.split(" ")[1] if answer else "" for name, answer in found.items()}
    wanted = {"other": "404", "post": "405", "nonsense": "400", "long": "", "away": "503"}
    assert codes == dict.fromkeys(found, "200") | wanted
    assert found["metrics"].partition("\r\n\r\n")[2].startswith("# HELP quoron_build_info")
    assert found["healthz"].endswith("serving\n")
    assert found["alarms"].endswith(metrics.ALARMS.read_text(encoding="utf-8"))
    assert found["head"].endswith("\r\n\r\n")


async def test_whoever_asks_and_does_not_read_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[asyncio.StreamWriter] = []
    drain = asyncio.StreamWriter.drain

    async def long(self: Metrics) -> str:
        return "x" * (64 << 20)  # more than any socket takes

    async def draining(self: asyncio.StreamWriter) -> None:
        asked.append(self)
        await drain(self)

    monkeypatch.setattr(metrics, "REQUEST_TIMEOUT", 0.1)
    monkeypatch.setattr(Metrics, "text", long)
    monkeypatch.setattr(asyncio.StreamWriter, "drain", draining)
    async with coordinator(tmp_path, metrics="0") as running:
        with socket.create_connection(("127.0.0.1", int(str(running.metrics_address).rpartition(":")[2]))) as idle:
            idle.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            await until(lambda: asked and asked[0].transport.get_write_buffer_size() == 0)


async def test_the_port_is_off_unless_asked_for_and_on_loopback_unless_a_host_is_given(tmp_path: Path) -> None:
    assert metrics.place("9464") == ("127.0.0.1", 9464)
    assert metrics.place("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert metrics.place("[::1]:9464") == ("::1", 9464)
    for wrong in ("", ":9464", "hub", "hub:", "hub:99999", "hub:x", "9464 "):
        with pytest.raises(ConfigError, match="--metrics"):
            metrics.place(wrong)
    async with coordinator(tmp_path) as running:
        assert running.metrics_address is None
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="--metrics"):
        async with coordinator(tmp_path, metrics=f"127.0.0.1:{taken.getsockname()[1]}"):
            pass


@settings(max_examples=50)
@given(st.text(max_size=20), st.floats(allow_nan=False))
def test_any_name_and_number_is_written_in_the_format(name: str, number: float) -> None:
    lines = text([family("runs", "Runs.", [({"run": name}, number)])])
    assert lines.count("\n") == 3
    said = re.fullmatch(r'quoron_runs\{run="((?:[^"\\\n]|\\.)*)"\} (\S+)', lines.split("\n")[2])
    assert said is not None
    assert re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), said[1]) == name
    assert float(said[2]) == number or math.isinf(number)


@pytest.mark.programs
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
async def test_all_of_it_passes_prometheus_own_linter_and_stands_on_the_page(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        at = Scene(tmp_path, patch)
        await at.begun()
        found = await at.running.metrics.text()
        await at.leave()
    done = subprocess.run(["promtool", "check", "metrics"], input=found, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8").partition("\n## Metrics")[2]
    for name in set(re.findall(r"^# TYPE quoron_(\w+)", found, flags=re.MULTILINE)):
        assert f"quoron_{name}" in page or f"_{name.removeprefix('run_')}`" in page, name
