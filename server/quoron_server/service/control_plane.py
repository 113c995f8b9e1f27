"""The control plane over gRPC: one table of commands (`Commands`), a run's events, and its model. A token is needed.

Auditors may read; operators may call every command. A stream ends soon after its token was removed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import grpc
from pydantic import ConfigDict, ValidationError, create_model

from quoron_privacy.errors import ConfigError, LedgerUnavailable, QuoronError, UsageError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc, values_pb2
from quoron_server.serial import dumps
from quoron_server.service import event_log, security, tokens
from quoron_server.service.client_plane import ConnectionLimiter, RateLimit, Refused
from quoron_server.service.records import UnknownRun, outside, retried_once
from quoron_server.service.scheduler import Counts, RunScheduler

LATE = 1.0  # seconds before a call is refused, when there are more than a hundred a second
MAX_TRUSTED = 5.0  # seconds for which a quiet stream goes without asking again who watches
_LOOK = 1.0  # seconds between two polls of what a run awaits
_NO_TOKEN = "Expected a token. Make one: `quoron admin tokens NAME --role ROLE`."
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_LONGEST = 64  # characters of a population's name or a run's, as in a specification
UNREADABLE = "The coordinator cannot read its tokens now. Its log says why."
_log = logging.getLogger("quoron")
Context = Any  # grpc.aio.ServicerContext
Document = dict[str, Any]
T = TypeVar("T")


class TokenGate(grpc.aio.ServerInterceptor):
    """Turns callers without a token away before their message is read: what they send takes no memory.

    The health service stays open to probes.
    """

    def __init__(self, token_file: Path, open_to_all: frozenset[str], counts: Counts) -> None:
        """`open_to_all`: names of services that ask for no token."""
        self._tokens, self._open, self._counts = token_file, open_to_all, counts
        self._rate_limit = RateLimit(burst=100, seconds=0.01)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the handler of a call: the service's own, or one that refuses."""
        if str(handler_call_details.method).split("/")[1] in self._open:
            return await continuation(handler_call_details)
        try:
            _token(self._tokens, handler_call_details.invocation_metadata)
        except Refused as refused:
            return self._refusing(refused.code, refused.words)
        return await continuation(handler_call_details)

    def _refusing(self, code: grpc.StatusCode, why: str) -> Any:
        """A handler of any kind of call that reads nothing. When many are refused, each gets the refusal late."""

        async def refuse(_requests: Any, context: Context) -> None:
            _log.info("refused %s: a call without a token of ours", context.peer())
            self._counts.refuse_call(code, why)
            if self._rate_limit.wait("", asyncio.get_running_loop().time()):
                await asyncio.sleep(LATE)
            await context.abort(code, why)

        return grpc.stream_stream_rpc_method_handler(refuse)


class Commands:
    """A coordinator's commands, each by its name and with its keyword arguments; those with `by` are operators'."""

    def __init__(self, scheduler: RunScheduler) -> None:
        self._scheduler = scheduler

    async def submit(self, *, specification: str, by: str) -> Document:
        """Take a run on; its name."""
        return {"run": await self._scheduler.submit(specification, by=by)}

    async def runs(self) -> Document:
        """Return every run and its state."""
        return {"runs": await self._scheduler.runs()}

    async def cancel(self, *, run: str, by: str) -> Document:
        """End a run without a model; its state."""
        return await self._scheduler.cancel(run, by=by)

    async def plan(self, *, run: str) -> Document:
        """Return the plan of a run."""
        return await self._scheduler.records.plan(run)

    async def ledger(self, *, run: str = "") -> Document:
        """Return what a run has spent and released, or the population's lifetime ledger."""
        return await self._scheduler.records.ledger(run)

    async def limit(
        self,
        *,
        group: str,
        epsilon: float,
        delta: float,
        gaussian_share: float = 0.0,
        exceeded: bool = False,
        by: str,
    ) -> Document:
        """From now on refuse runs that would bring the group beyond (ε, δ); `exceeded`: also below what is counted."""
        numbers = {"epsilon": epsilon, "delta": delta, "gaussian_share": gaussian_share}
        _check_name("population", group)
        limit = await retried_once(
            lambda: self._scheduler.population.limit(group, exceeded=exceeded, by=by, **numbers),
        )
        event_log.note("limited", group=group, by=by, limit=limit.words())
        return {"group": limit.group, "limit": limit.words()}

    async def charge(
        self,
        *,
        run: str,
        group: str,
        epsilon: float,
        delta: float,
        mu: float = 0.0,
        lost: float = 0.0,
        variation: float = 0.0,
        adjacency: str = "replace-one",
        note: str = "",
        spent: bool = False,
        by: str,
    ) -> Document:
        """Enter what another tool spends on a group's users, or has `spent`, as `PopulationLedger`; `mu` 0: none."""
        promise: Document = {"epsilon": epsilon, "delta": delta, "mu": mu or None, "lost": lost, "variation": variation}
        promise |= {"adjacency": adjacency, "statement": note, "spent": spent}
        _check_name("population", group)
        _check_name("run", run)
        population = self._scheduler.population
        charge = await retried_once(lambda: population.charge(run, group, elsewhere=True, by=by, **promise))
        event_log.note("charged", run=run, by=by, group=group, charge=charge.words())
        return {"run": charge.run, "group": charge.group, "charged": charge.words()}

    async def backup(self, *, by: str) -> Document:
        """Copy the database beside itself: what it holds does not leave the coordinator's machine."""
        done = await self._scheduler.records.back_up()
        event_log.note("copied", by=by, file=done["file"])
        return done

    async def users(self, *, after: int = 0) -> Document:
        """Return a page of the roster: users from number `after` on."""
        return await self._scheduler.users.page(after)

    async def standing(self, *, group: str) -> Document:
        """Return how many users of a group are active, away and retired."""
        return await self._scheduler.users.standing(group)

    async def change_user(self, *, action: str, user: str, by: str) -> Document:
        """Retire a user, or set it back."""
        done = await self._scheduler.users.change(action, user)
        event_log.note("user", action=action, by=by, said=done["said"])
        return await self._scheduler.after(done)

    async def forget_user(self, *, user: str, sure: bool, by: str) -> Document:
        """Erase who a user was, if `sure`: what was erased, or of whom it would be."""
        done = await self._scheduler.users.forget(user, sure=sure)
        if sure:
            event_log.note("user", action="forget", by=by, said=f"User {done['user']} is forgotten.")
        return await self._scheduler.after(done)

    async def drawn(self, *, run: str) -> Document:
        """Return how a run's members were drawn."""
        return await self._scheduler.users.drawn(run)


COMMANDS: dict[str, Callable[..., Awaitable[Document]]] = {
    name: command for name, command in vars(Commands).items() if not name.startswith("_")
}


def _check_name(what: str, name: str) -> None:
    if not 1 <= len(name) <= _LONGEST:
        raise ConfigError(f"Expected a {what}'s name of 1 to {_LONGEST} characters, got {len(name)}.")


def _arguments(name: str, text: str) -> Document:
    """Read a command's keyword arguments. ConfigError for one too many or too few, or a value of another kind."""
    parameters = {key: p for key, p in signature(COMMANDS[name]).parameters.items() if key not in ("self", "by")}
    fields: Any = {key: (p.annotation, ... if p.default is p.empty else p.default) for key, p in parameters.items()}
    try:
        read: Document = create_model(name, __config__=_STRICT, **fields).model_validate_json(text or "{}").model_dump()
        return read
    except ValidationError:
        raise ConfigError(
            f"Expected {', '.join(parameters) or 'no arguments'} with {name}, got {text[:200]!r}. Use the same version "
            "of quoron on both sides."
        ) from None


class ControlPlane(federation_pb2_grpc.ControlPlaneServicer):
    """What operators and auditors call."""

    def __init__(self, scheduler: RunScheduler, token_file: Path, limiter: ConnectionLimiter | None = None) -> None:
        """With a `limiter` those who have brought no token of ours make way for those who have."""
        self._scheduler, self._tokens, self._limiter = scheduler, token_file, limiter
        self._commands = Commands(scheduler)

    async def Call(self, request: pb.CallRequest, context: Context) -> pb.Document:
        """Carry out a command."""
        command = COMMANDS.get(request.command)
        operators = command is not None and "by" in signature(command).parameters
        by = await self._require(context, operator=operators)

        async def carried_out() -> Document:
            if command is None:
                raise ConfigError(f"Expected a command of {', '.join(COMMANDS)}, got {request.command[:200]!r}.")
            given = _arguments(request.command, request.arguments)
            return await command(self._commands, **given, **({"by": by} if operators else {}))

        return _document(await _or_abort(carried_out(), context))

    async def Watch(self, request: pb.RunReference, context: Context) -> AsyncIterator[pb.Document]:
        """Public events from the first to the end, and what the run awaits meanwhile."""
        await self._require(context)
        feed = await _or_abort(self._scheduler.feed(request.run), context)
        events, shown = feed.watch(), {"kind": "awaits"}
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                await asyncio.wait({coming}, timeout=0)
                while not coming.done():
                    awaited = await self._scheduler.awaited(request.run)
                    if awaited is not None and _named(awaited) != _named(shown):
                        shown = awaited
                        yield _document(awaited)
                    await asyncio.wait({coming}, timeout=min(_LOOK, MAX_TRUSTED))
                    await self._require(context)
            finally:
                coming.cancel()
            event = coming.result()
            if event is None:
                return
            yield _document(event)

    async def Model(self, request: pb.RunReference, context: Context) -> values_pb2.Array:
        """Return the released model of a complete run."""
        await self._require(context)
        model = await _or_abort(self._scheduler.records.model(request.run), context)
        return values_pb2.Array(dtype="float64", shape=model.shape, data=model.astype("<f8").tobytes())

    async def _require(self, context: Context, *, operator: bool = False) -> str:
        """Return the name of the caller; end the call here if it may not."""
        try:
            token = _token(self._tokens, context.invocation_metadata())
        except Refused as refused:
            await context.abort(refused.code, refused.words)
            raise
        if self._limiter is not None:
            self._limiter.admit(context.peer(), token.sha256)
        if operator and token.role != "operator":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "Expected a token with role operator, got auditor.")
        return token.name


def _token(file: Path, metadata: Iterable[Any]) -> tokens.Token:
    """Return the good token of a call's metadata. Raises Refused."""
    bearer = security.bearer(tuple(metadata))
    try:
        token = None if bearer is None else tokens.find(file, bearer)
    except ConfigError as error:  # where the file is, is nothing for those who have not shown a token
        _log.error("no call can be accepted: %s", error)
        raise Refused(grpc.StatusCode.UNAVAILABLE, UNREADABLE) from None
    if token is None:
        raise Refused(grpc.StatusCode.UNAUTHENTICATED, _NO_TOKEN)
    if (why := token.refusal()) is not None:
        raise Refused(grpc.StatusCode.UNAUTHENTICATED, why)
    return token


def _named(awaited: dict[str, Any]) -> dict[str, Any]:
    """Return what makes it another thing to await: not the time to which it is rounded, nor who comes and goes."""
    return {key: value for key, value in awaited.items() if key not in ("ends", "left", "connected")}


async def _or_abort(call: Awaitable[T], context: Context) -> T:
    """Return the result, or the error's own words under a fitting status."""
    try:
        return await call
    except QuoronError as error:
        kinds = (
            (UnknownRun, grpc.StatusCode.NOT_FOUND),
            (UsageError, grpc.StatusCode.INVALID_ARGUMENT),
            (LedgerUnavailable, grpc.StatusCode.UNAVAILABLE),
        )
        code = next((code for kind, code in kinds if isinstance(error, kind)), grpc.StatusCode.FAILED_PRECONDITION)
        words = outside(error)
        if words != str(error):
            _log.warning("a call could not be answered: %s", error)
        await context.abort(code, words)
        raise
    except Exception:
        _log.exception("a call could not be answered")
        await context.abort(grpc.StatusCode.INTERNAL, "The coordinator could not answer. Its log says why.")
        raise


def _document(value: Any) -> pb.Document:
    return pb.Document(json=dumps(value))
