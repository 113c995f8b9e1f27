"""Speaking to a coordinator's control plane, as an operator or an auditor.

with Control("127.0.0.1:7444", token="quoron_…", insecure=True) as control:
    control.submit(specification)
    for event in control.watch("summer"): ...

And following a run through restarts of its coordinator: every event once, over whatever connection it came, in words.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol import check_plaintext, wire
from quoron_client.protocol.wire import GONE_AFTER
from quoron_privacy.errors import (
    BelowMinCohort,
    ConfigError,
    IdentityError,
    LedgerUnavailable,
    QuoronError,
    RunError,
    Unreachable,
    printable,
)
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc

TIMEOUT = 30.0  # seconds for one call, and ten times as many for one that is slow
SLOW = ("submit", "cancel", "plan", "backup", "drawn")
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # a model or a ledger is as long as it is
    *wire.KEEPALIVE,  # who watches learns of a connection that is gone
    ("grpc.http2.max_pings_without_data", 0),
)
_KINDS: dict[grpc.StatusCode, type[QuoronError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: ConfigError,
    grpc.StatusCode.NOT_FOUND: ConfigError,
    grpc.StatusCode.UNAUTHENTICATED: IdentityError,
    grpc.StatusCode.PERMISSION_DENIED: IdentityError,
    grpc.StatusCode.UNAVAILABLE: LedgerUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unreachable,
}


class Control(AbstractContextManager["Control"]):
    """One connection to a control plane. Every method raises the coordinator's own words as a QuoronError."""

    def __init__(
        self,
        coordinator: str,
        token: str,
        authority: Path | None = None,
        insecure: bool = False,
    ) -> None:
        """To HOST:PORT, whose certificate the `authority` signed; or in plaintext, on this machine."""
        self.name, self._where = f"the coordinator {coordinator}", coordinator
        self._metadata = (("authorization", f"Bearer {token}"),)
        check_plaintext(coordinator, insecure=insecure)
        self._channel = _channel(coordinator, authority, plaintext=insecure)
        self._stub = federation_pb2_grpc.ControlPlaneStub(self._channel)

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Carry out a command of `quoron_server.service.control_plane.Commands`, with its keyword arguments."""
        request = pb.CallRequest(command=command, arguments=json.dumps(arguments))
        return dict(json.loads(self._called(self._stub.Call, request, slow=command in SLOW).json))

    def submit(self, specification: str) -> str:
        """Submit a run; its name."""
        return str(self.call("submit", specification=specification)["run"])

    def runs(self) -> list[dict[str, Any]]:
        """Return every run and its state."""
        return list(self.call("runs")["runs"])

    def watch(self, run: str) -> Iterator[dict[str, Any]]:
        """Yield the public events of a run from the first to the end."""
        with self._refusals_raised():
            for document in self._stub.Watch(pb.RunReference(run=run), metadata=self._metadata):
                yield json.loads(document.json)

    def model(self, run: str) -> NDArray[np.float64]:
        """Return the released model of a complete run, shape (d,)."""
        array = self._called(self._stub.Model, pb.RunReference(run=run))
        model: NDArray[np.float64] = wire.array_from_wire(array, "float64")
        return model

    def backup(self, out: Path | None = None) -> tuple[str, str]:
        """Copy the coordinator's SQLite file beside it: the copy's name and SHA-256. ConfigError for another place."""
        if out is not None:
            raise ConfigError(
                f"Expected no file with {self.name}, which copies beside its database, got {out}. Omit it."
            )
        reply = self.call("backup")
        return str(reply["file"]), str(reply["sha256"])

    def users(self) -> Iterator[dict[str, Any]]:
        """Yield the roster: every user, in order."""
        after, more = 0, True
        while more:
            page = self.call("users", after=after)
            yield from page["users"]
            more = page["more"]
            after = page["users"][-1]["user"] + 1 if page["users"] else 0

    def _called(self, call: Any, request: Any, *, slow: bool = False) -> Any:
        with self._refusals_raised():
            return call(request, metadata=self._metadata, timeout=10 * TIMEOUT if slow else TIMEOUT)

    @contextmanager
    def _refusals_raised(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), str(error.details())
            if code == grpc.StatusCode.CANCELLED or (code == grpc.StatusCode.UNAVAILABLE and "ledger" not in details):
                raise Unreachable(
                    f"Cannot reach a coordinator at {self._where}. Check the address, that `quoron serve` runs, and "
                    "that its certificate is of the authority given and names this host."
                ) from None
            if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise ConfigError(
                    f"Expected a message as short as the coordinator at {self._where} takes, got a longer one. Use the "
                    "same version of quoron on both sides."
                ) from None
            raise _KINDS.get(code, RunError)(details) from None


def _channel(coordinator: str, authority: Path | None, *, plaintext: bool) -> grpc.Channel:
    if (authority is None) is not plaintext:
        raise ConfigError(
            "Expected the authority that signed the coordinator's certificate (--authority of `quoron login`, or "
            "QUORON_AUTHORITY), or --insecure for a coordinator on this machine that was started so, got "
            f"{'both' if plaintext else 'neither'}."
        )
    if authority is None:
        return grpc.insecure_channel(coordinator, options=_OPTIONS)
    try:
        roots = authority.read_bytes()
    except OSError as error:
        raise IdentityError(f"Expected a readable {authority}, got: {error.strerror}.") from None
    return grpc.secure_channel(coordinator, grpc.ssl_channel_credentials(roots), options=_OPTIONS)


LONGEST = 10.0  # seconds between two tries
_MAX_NAMES = 20  # names in one line


class Paused(RunError):
    """A run was left as it is: its coordinator may not go on with it, or its operator has to decide."""

    exit_code = 4


class TimedOut(Unreachable):
    """Nobody answers, for longer than was to be waited."""

    exit_code = 5


def followed(
    watch: Callable[[], Iterator[dict[str, Any]]],
    *,
    timeout: float,
    report: Callable[[str], None] = lambda why: None,
    check: Callable[[], None] = lambda: None,
    pauses: float = 1.0,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[dict[str, Any]]:
    """Yield the events of a run to the one of kind "ended" or "paused", by `Control.watch`, through every absence.

    A coordinator has `timeout` seconds to be there, at the beginning as after it has left, which `report` gets;
    TimedOut afterwards. What else may have failed is the caller's to `check`. `pauses` (seconds) is the first.
    """
    last, gone = -1, -1.0  # round, and since when the coordinator has not answered
    last_awaited: dict[str, Any] = {}  # what was awaited
    pause = pauses
    while True:
        try:
            for event in watch():
                pause, gone = pauses, -1.0
                kind = event.get("kind")
                if kind == "round":
                    if event["round"] <= last:
                        continue
                    last = event["round"]
                elif kind == "awaits":
                    if (awaited := event | {"left": None}) == last_awaited:
                        continue
                    last_awaited = awaited
                yield event
                if kind in ("ended", "paused"):
                    return
            raise Unreachable("The coordinator has left.")  # it ends a stream without an end when it leaves
        except (Unreachable, LedgerUnavailable) as error:
            check()
            now = clock()
            if gone < 0:
                gone = now
                if timeout:
                    report(f"the coordinator does not answer, trying again for {timeout:g} s: {error}")
            if now - gone + pause > timeout:
                raise TimedOut(str(error)) from None
        sleep(pause)
        pause = min(2 * pause, LONGEST)


def check_end(run: str, event: dict[str, Any]) -> None:
    """Paused, BelowMinCohort or RunError unless the last event of a run says that it is complete."""
    if event.get("kind") == "paused":
        raise Paused(f"Run {run} is paused, with nothing lost: {event.get('error')}")
    if event.get("how") == "below-min-cohort":
        raise BelowMinCohort(f"Run {run} has ended below its minimum cohort: {event.get('error')}")
    if event.get("how") != "complete":
        raise RunError(f"Run {run} has ended without a model: {event.get('error') or event.get('how')}.")


def words(event: dict[str, Any]) -> str:
    """Return an event of `watch` as a line for people, whatever the coordinator put into it."""
    return printable(" ".join(_words(event).split()))


def _words(event: dict[str, Any]) -> str:
    if event["kind"] == "paused":
        return "paused" + (f": {event['error']}" if event.get("error") else "")
    if event["kind"] == "ended":
        return f"{event['how']}" + (f": {event['error']}" if event.get("error") else "")
    if event["kind"] == "awaits":
        return _awaited(event)
    public = event["public"]
    line = _round(event | public, event["messages"])
    if "min_cohort" in public:
        line += f", minimum cohort {public['min_cohort']}"
    if public.get("halted"):
        line += ", halted"
    if missing := public.get("missing"):
        line += f"; missing: {', '.join(missing[:_MAX_NAMES])}" + (" and others" if len(missing) > _MAX_NAMES else "")
    return line


def _round(event: dict[str, Any], asked: int) -> str:
    """Which round, whom it asks, and how many messages came where that is public; what they hold is not known."""
    line = f"round {event['round'] + 1} of at most {event['rounds']}: {asked} users asked"
    return line + (f", {event['answered']} messages came" if "answered" in event else "")


def _awaited(event: dict[str, Any]) -> str:
    """Return what a run waits for."""
    if event["what"] == "ledger":
        return f"paused: {event['error']}"
    if event["what"] == "users":
        there = f"awaits users: {event['active']} of {event['needed']} are active in population {event['group']}"
        return f"{there} ({event['away']} away, {event['retired']} retired); {_min_cohort(event['min_cohort'])}"
    left, connected = f"{event['left']} s left", f"{event['connected']} connected in the last {GONE_AFTER} s"
    if event["what"] == "clients":
        return f"awaits clients that come back after the coordinator's start, {left}; {connected}"
    if event["what"] == "willing":
        counts = f"{event['willing']} of {event['members']} members have agreed, {event['needed']} are needed"
        return f"awaits clients that agree to take part, {left}: {counts}; {connected}"
    return f"{_round(event, event['asked'])}, {_min_cohort(event['min_cohort'])}, {left}; {connected}"


def _min_cohort(share: float | None) -> str:
    return "no minimum cohort is declared" if share is None else f"minimum cohort {share:g} of those asked"
