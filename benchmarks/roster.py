"""What a hundred thousand enrolled users cost a coordinator: to start, to begin a run, and in every round.

    python benchmarks/roster.py [--users 100000] [--cohort 100] [--rounds 100]

Beside the same with as few users as a round asks. A start is `quoron serve`, a process, until it listens. Rounds are
of a coordinator's own objects over SQLite in this process: all enrolled users are members and connected, by objects
that answer at once, so that what a round takes is the coordinator's. Targets: a start below 3 s, a round below 50 ms.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from crowd import started

from federation import specification, vector
from quoron_client.protocol import wire
from quoron_client.protocol.questions import Status
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import ServeConfig, Transport, tokens
from quoron_server.service.scheduler import RunScheduler
from quoron_server.service.sessions import Sessions
from quoron_server.specification import RunSpecification
from quoron_server.storage.database import Database
from quoron_server.storage.registry import USERS, Registry

DIMENSION = 10


class Instant:
    """A client that is here, agrees to everything and answers at once."""

    def __init__(self, user: int, sessions: Sessions) -> None:
        self.user, self._sessions = user, sessions

    def send(self, message: pb.ServerMessage, body: wire.Body | None = None) -> int:
        """What a client does with it."""
        kind = message.WhichOneof("kind")
        if kind == "run":
            self._sessions.runs[message.run.run].present.add(self.user)
            self._sessions.runs[message.run.run].agreed.add(self.user)
        elif kind == "question":
            asked, values = message.question, vector(self.user, DIMENSION)
            answer = wire.answer_to_wire(asked.run, asked.round, asked.digest, values, Status.ANSWERED)
            asyncio.get_running_loop().call_soon(self._sessions.answer, self.user, answer)
        return 0 if body is None else len(body.data)

    def over(self, run: str) -> None:
        """Nothing is in parts."""

    def end(self, why: str, code: object = None) -> None:
        """Nobody hangs up."""
        raise AssertionError(why)


def filled(folder: Path, users: int) -> str:
    """A store with so many users, as if they had enrolled."""
    url = f"sqlite:///{folder}/coordinator.sqlite"
    with Database(url) as database:
        Registry(database)
        rows = [
            {"user": user, "fingerprint": f"somebody-{user:064d}", "group": "everyone", "enrolled_at": "before"}
            for user in range(users)
        ]
        with database.transaction() as execute:
            USERS.insert(execute, *rows)
    return url


def wanted(users: int, cohort: int, rounds: int) -> RunSpecification:
    """A run over everybody that asks some in each round."""
    changes = {"options": {"rounds": rounds, "rate": cohort / users}, "allow_large_delta": True}
    return specification(users, rounds, DIMENSION).model_copy(update=changes)


async def rounds_of(url: str, users: int, cohort: int, rounds: int) -> dict[str, float]:
    """Seconds until the first round is asked, and of each round."""
    with Database(url) as database:
        sessions = Sessions()
        scheduler = RunScheduler(database, sessions, ServeConfig(Transport(insecure=True), allow_simulation=True))
        await scheduler.start()
        for user in range(users):
            sessions.enter(Instant(user, sessions))
        began = time.perf_counter()
        await scheduler.submit(wanted(users, cohort, rounds).as_text())
        times, used = list[float](), list[float]()
        async for event in (await scheduler.feed("load")).watch():
            times.append(time.perf_counter())
            used.append(time.process_time())
            assert event["kind"] != "ended" or event["how"] == "complete", event
        before = time.perf_counter()
        await scheduler.users.page(0)
        page = time.perf_counter() - before
        await scheduler.stop()
    steps, work = 1000 * np.diff(times[:rounds]), 1000 * np.diff(used[:rounds])
    return {
        "submission to the first round, s": times[0] - began,
        "a round, median, ms": float(np.median(steps)),
        "a round, nine of ten below, ms": float(np.quantile(steps, 0.9)),
        "of a processor, median, ms": float(np.median(work)),
        "a page of the roster, ms": 1000 * page,
    }


def measured(users: int, cohort: int, rounds: int) -> dict[str, float]:
    """Everything of one roster."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tokens.add(folder / "tokens.json", name="benchmark", role="operator")
        url = filled(folder, users)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        coordinator, _, _, seconds = started(folder)
        coordinator.terminate()
        coordinator.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"start, s": seconds, "start and end, of a processor, s": used} | asyncio.run(
            rounds_of(url, users, cohort, rounds)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    few, many = (measured(users, given.cohort, given.rounds) for users in (given.cohort, given.users))
    print(f"{'':34s} {given.cohort:>12,} {given.users:>12,} users")
    for name in few:
        print(f"{name:34s} {few[name]:12.2f} {many[name]:12.2f}")
    print(f"peak of this process, MiB {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


if __name__ == "__main__":
    sys.exit(main())
