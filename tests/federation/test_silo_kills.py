"""A silo's program that is killed in mid-run comes back with the same people, and the model has the same bits."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from federation.crowd import SEED, carried_out, coordinator, from_items, inline_model, specification, until
from federation.silos import clients_of, silo_config, write_silos
from quoron_client.federation.record import Record

pytestmark = pytest.mark.programs
SIZES, KILLED = (7, 12, 1), 1


@contextlib.contextmanager
def program(path: Path, listen: str) -> Iterator[subprocess.Popen[bytes]]:
    """A silo's own program, which is gone in the end."""
    own = ["--data", path, "--user", "who", "--record", path.with_suffix(".sqlite"), "--name", path.stem, "--insecure"]
    limits = ["--lifetime-epsilon", "inf", "--lifetime-delta", 1.0, "--accept", "broadcast"]
    words = ["client", *own, *limits, "--coordinator", listen, "--simulation-seed", SEED]
    with path.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "quoron", *map(str, words)], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_silo_that_is_killed_twice_says_what_it_would_have_said(tmp_path: Path) -> None:
    wanted = specification("dp-sgd-poisson", silos=SIZES)

    async def scene() -> np.ndarray:
        paths = write_silos(tmp_path, SIZES)
        async with coordinator(tmp_path, most_people=20) as running:
            configs = [silo_config(path, running.listen) for path in paths]
            with contextlib.ExitStack() as stack:
                async with clients_of(configs[:1], running):
                    life = stack.enter_context(program(paths[KILLED], running.listen))
                    await until(lambda: running.sessions.connected == 2)
                    async with clients_of(configs[2:], running, before=2):
                        await running.manager.submit(wanted.as_text())
                        async for event in (await running.manager.feed("trial")).watch():
                            if event["kind"] == "ended":
                                assert event["how"] == "complete", event
                            elif event["kind"] == "round" and event["round"] in (0, 2):
                                life.send_signal(signal.SIGKILL)
                                assert await asyncio.to_thread(life.wait) == -signal.SIGKILL
                                life = stack.enter_context(program(paths[KILLED], running.listen))
                        return await running.manager.records.model("trial")

    model = carried_out(scene())
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, from_items(sum(SIZES))))
    record = tmp_path / f"silo-{KILLED}.sqlite"
    with Record.open(record, epsilon=np.inf, delta=1.0) as stored:
        assert stored.people == SIZES[KILLED]
        charged = stored.charged(np.arange(SIZES[KILLED]))[:, 0]
        assert set(charged.tolist()) == {30.0}, "each person once: a zero-out promise counts twice"
