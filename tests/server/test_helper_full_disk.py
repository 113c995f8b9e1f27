"""A disk that is full at each write of the helper: nothing is answered twice, and what waits goes on with room."""

import asyncio
import errno
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from quoron_protos.v1 import helper_pb2 as pb
from quoron_server.second_server import keys, service
from quoron_server.second_server.runs import HelpedRuns
from quoron_server.second_server.service import CoordinatorCalls
from quoron_server.storage.database import Database
from server.helper_scene import LEADER, Leader, opened, plan_of, real, request


class Disk:
    """Full at one write, counted from 0, of files and of transactions; a retry finds room."""

    def __init__(self, full_at: int) -> None:
        self.left, self.writes = full_at, 0

    def write(self) -> None:
        self.left, self.writes = self.left - 1, self.writes + 1
        if self.left == -1:
            raise OSError(errno.ENOSPC, "No space left on device")


def scenario(place: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> tuple[list[pb.Reply], HelpedRuns]:
    """Two lists of a run and its end, each asked again until it is done."""
    replaced, erased, wrote = keys.replace_whole, keys.erase, Database._counted

    def replacing(*given: Any, **more: Any) -> None:
        disk.write()
        replaced(*given, **more)

    def erasing(*given: Any, **more: Any) -> None:
        disk.write()
        erased(*given, **more)

    def counting(self: Database, *given: Any) -> Any:
        disk.write()
        return wrote(self, *given)

    def again(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except OSError:
            return work()

    with opened(place) as helped, monkeypatch.context() as patched:
        patched.setattr(keys, "replace_whole", replacing)
        patched.setattr(keys, "erase", erasing)
        patched.setattr(Database, "_counted", counting)
        leader = again(lambda: Leader(real(), helped))
        entries = [[leader.masked(user, round_)[0]] for round_, user in enumerate((0, 1))]
        made = []
        for round_, some in enumerate(entries):
            made.append(again(lambda round_=round_, some=some: leader.ask(round_, some)))
            assert helped.keys.noted("trial") == round_ + 1, "what has left is noted"
            assert helped.recall("trial", round_, LEADER).values == made[-1].values
        again(lambda: helped.close("trial", leader.consent.plan_digest, LEADER))
        assert helped.keys.read("trial") is None
        assert [each.state for each in helped.store.runs()] == ["closed"]
        return made, helped


def test_at_each_write_of_a_run_it_goes_on_with_the_same_list_and_its_keys_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = Disk(10**6)
    (tmp_path / "calm").mkdir()
    scenario(tmp_path / "calm", calm, monkeypatch)
    for full_at in range(calm.writes):
        place = tmp_path / f"{full_at}"
        place.mkdir()
        made, _ = scenario(place, Disk(full_at), monkeypatch)
        assert len(made) == 2
    assert calm.writes > 8


class Aborted(Exception):
    pass


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A call of the helper's coordinator; what it is aborted with."""
    caller = SimpleNamespace(objection=None, timely=lambda: True, identity=LEADER)
    monkeypatch.setattr(service.security, "caller", lambda *_, **__: caller)
    codes: list[grpc.StatusCode] = []

    async def abort(code: grpc.StatusCode, words: str) -> None:
        codes.append(code)
        raise Aborted(words)

    return SimpleNamespace(invocation_metadata=tuple, auth_context=dict, abort=abort, codes=codes)


def test_a_coordinator_waits_for_a_helper_whose_disk_is_full(
    tmp_path: Path, known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for one that is away: it is not refused, which would pause the run."""
    trust = SimpleNamespace(now=lambda: SimpleNamespace(authorities=()))
    counts: Counter[str] = Counter()
    given = trust, (LEADER,), counts, None
    with opened(tmp_path) as helped:
        made = CoordinatorCalls(helped, *given)  # type: ignore[arg-type]
        disk = Disk(0)
        with monkeypatch.context() as patched:
            patched.setattr(keys, "replace_whole", lambda *_, **__: disk.write())
            with pytest.raises(Aborted, match="cannot write now"):
                asyncio.run(made.Open(request(real()), known))
        consent = asyncio.run(made.Open(request(real()), known))
        assert consent.epsilon == plan_of(real()).guarantee.epsilon
    assert known.codes == [grpc.StatusCode.UNAVAILABLE]
    assert counts == {"away": 1}
