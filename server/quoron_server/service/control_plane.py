"""The control plane over gRPC: submit, watch, cancel; plan, model, ledger, limits, charges, users. A token is needed.

| role     | may                                          |
| -------- | -------------------------------------------- |
| auditor  | list, watch, plan, model, ledger, users      |
| operator | all of it, and submit, cancel, limit, charge |
|          | and change users                             |

A stream ends soon after its token was removed.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np

from quoron_privacy.errors import ConfigError, LedgerUnavailable, QuoronError, UsageError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc, values_pb2
from quoron_server.service import journal, security, tokens
from quoron_server.service.client_plane import Doorkeeper, RateLimit
from quoron_server.service.manager import Counts, Manager
from quoron_server.service.records import UnknownRun, outside

LATE = 1.0  # seconds before a call is refused, when there are more than a hundred a second
MOST_TRUSTED = 5.0  # seconds for which a quiet stream goes without asking again who watches
_LOOK = 1.0  # seconds between two looks at what a run awaits
_NO_TOKEN = "Expected a token. Make one: `quoron admin tokens NAME --role ROLE`."
UNREADABLE = "The coordinator cannot read its tokens now. Its log says why."
_log = logging.getLogger("quoron")
Context = Any  # grpc.aio.ServicerContext
T = TypeVar("T")


class TokenGate(grpc.aio.ServerInterceptor):
    """Turns callers without a token away before their message is read: what they send takes no memory.

    The health service stays open to probes.
    """

    def __init__(self, token_file: Path, open_to_all: frozenset[str], counts: Counts | None = None) -> None:
        """`open_to_all`: names of services that ask for no token."""
        self._tokens, self._open, self._counts = token_file, open_to_all, counts
        self._rate_limit = RateLimit(burst=100, seconds=0.01)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler of a call: the service's own, or one that refuses."""
        if str(handler_call_details.method).split("/")[1] in self._open:
            return await continuation(handler_call_details)
        token = security.bearer(tuple(handler_call_details.invocation_metadata))
        try:
            found = None if token is None else tokens.find(self._tokens, token)
        except ConfigError as error:  # where the file is, is nothing for those who have not shown a token
            _log.error("nobody can be let in: %s", error)
            return self._refusing(grpc.StatusCode.UNAVAILABLE, UNREADABLE)
        if (why := _refusal(found)) is not None:
            return self._refusing(grpc.StatusCode.UNAUTHENTICATED, why)
        return await continuation(handler_call_details)

    def _refusing(self, code: grpc.StatusCode, why: str) -> Any:
        """A handler of any kind of call that reads nothing. When many are refused, each is told so late."""

        async def refuse(_requests: Any, context: Context) -> None:
            _log.info("refused %s: a call without a token of ours", context.peer())
            if self._counts is not None:
                self._counts.refuse_call(code, why)
            if self._rate_limit.wait("", asyncio.get_running_loop().time()):
                await asyncio.sleep(LATE)
            await context.abort(code, why)

        return grpc.stream_stream_rpc_method_handler(refuse)


class ControlPlane(federation_pb2_grpc.ControlPlaneServicer):
    """What operators and auditors call."""

    def __init__(self, manager: Manager, token_file: Path, doorkeeper: Doorkeeper | None = None) -> None:
        """With a `doorkeeper` those who have brought no token of ours make way for those who have."""
        self._manager, self._tokens, self._doorkeeper = manager, token_file, doorkeeper

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.RunReference:
        """Take a run on."""
        by = await self._require(context, operator=True)
        return pb.RunReference(run=await _told(self._manager.submit(request.specification, by=by), context))

    async def List(self, request: pb.ListRequest, context: Context) -> pb.Document:
        """Every run and its state."""
        await self._require(context)
        return _document({"runs": await _told(self._manager.runs(), context)})

    async def Watch(self, request: pb.RunReference, context: Context) -> AsyncIterator[pb.Document]:
        """Public events from the first to the end, and what the run awaits meanwhile."""
        await self._require(context)
        feed = await _told(self._manager.feed(request.run), context)
        events, shown = feed.watch(), {"kind": "awaits"}
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                await asyncio.wait({coming}, timeout=0)
                while not coming.done():
                    awaited = await self._manager.awaited(request.run)
                    if awaited is not None and _named(awaited) != _named(shown):
                        shown = awaited
                        yield _document(awaited)
                    await asyncio.wait({coming}, timeout=min(_LOOK, MOST_TRUSTED))
                    await self._require(context)
            finally:
                coming.cancel()
            event = coming.result()
            if event is None:
                return
            yield _document(event)

    async def Cancel(self, request: pb.RunReference, context: Context) -> pb.Document:
        """End a run without a model."""
        by = await self._require(context, operator=True)
        return _document(await _told(self._manager.cancel(request.run, by=by), context))

    async def ContinueRestored(self, request: pb.RunReference, context: Context) -> pb.Document:
        """Let a run go on that is held because the books were restored, as one more copy."""
        by = await self._require(context, operator=True)
        return _document(await _told(self._manager.continue_restored(request.run, by=by), context))

    async def Plan(self, request: pb.RunReference, context: Context) -> pb.Document:
        """The plan of a run."""
        await self._require(context)
        return _document(await _told(self._manager.records.plan(request.run), context))

    async def Model(self, request: pb.RunReference, context: Context) -> values_pb2.Array:
        """The released model of a complete run."""
        await self._require(context)
        model = await _told(self._manager.records.model(request.run), context)
        return values_pb2.Array(dtype="float64", shape=model.shape, data=model.astype("<f8").tobytes())

    async def Ledger(self, request: pb.LedgerRequest, context: Context) -> pb.Document:
        """What a run has spent and released, or the population's lifetime ledger."""
        await self._require(context)
        return _document(await _told(self._manager.records.ledger(request.run), context))

    async def Limit(self, request: pb.LimitRequest, context: Context) -> pb.Document:
        """What no run may bring a group's users beyond, from now on."""
        by = await self._require(context, operator=True)
        numbers = {"epsilon": request.epsilon, "delta": request.delta, "gaussian_share": request.gaussian_share}
        limited = self._manager.accounts.limit(request.group, exceeded=request.exceeded, by=by, **numbers)
        limit = await _told(limited, context)
        return _document({"group": limit.group, "limit": limit.words()})

    async def Charge(self, request: pb.ChargeRequest, context: Context) -> pb.Document:
        """What another tool spends on a group's users, on the chain."""
        by = await self._require(context, operator=True)
        charged = self._manager.accounts.charge(
            request.run,
            request.group,
            epsilon=request.epsilon,
            delta=request.delta,
            mu=request.mu or None,
            lost=request.lost,
            variation=request.variation,
            adjacency=request.adjacency,
            statement=request.note,
            spent=request.spent,
            by=by,
        )
        charge = await _told(charged, context)
        return _document({"run": charge.run, "group": charge.group, "charged": charge.words()})

    async def Backup(self, request: pb.BackupRequest, context: Context) -> pb.Document:
        """A copy of the books, on the coordinator's own machine."""
        by = await self._require(context, operator=True)
        done = await _told(self._manager.records.back_up(with_secrets=request.with_secrets), context)
        journal.copied(by, done["file"], secrets=request.with_secrets)
        return _document(done)

    async def Users(self, request: pb.UsersRequest, context: Context) -> pb.Document:
        """A page of the roster."""
        await self._require(context)
        page = self._manager.users.page(group=request.group, state=request.state, after=request.after)
        return _document(await _told(page, context))

    async def ChangeUser(self, request: pb.ChangeUserRequest, context: Context) -> pb.Document:
        """What an operator says of a user; or the new key that its old one has signed."""
        by = await self._require(context, operator=True)
        if request.action in ("forget", "would-forget"):
            changed = self._manager.users.forget(request.user, sure=request.action == "forget")
        elif request.rotation:
            changed = self._manager.users.rotate(request.user, request.rotation)
        else:
            changed = self._manager.users.change(request.action, request.user, request.by)
        told = await _told(self._manager.after(await _told(changed, context)), context)
        if request.action != "would-forget":
            journal.user(request.action or "rotate", by, told.get("said") or f"User {told['user']} is forgotten.")
        return _document(told)

    async def Drawn(self, request: pb.RunReference, context: Context) -> pb.Document:
        """How a run's members were drawn."""
        await self._require(context)
        return _document(await _told(self._manager.users.drawn(request.run), context))

    async def _require(self, context: Context, *, operator: bool = False) -> str:
        """The name of whoever calls; the call ends here if it may not."""
        token = security.bearer(tuple(context.invocation_metadata()))
        try:
            found = None if token is None else tokens.find(self._tokens, token)
        except ConfigError as error:  # where the file is, is nothing for those who have not shown a token
            _log.error("nobody can be let in: %s", error)
            await context.abort(grpc.StatusCode.UNAVAILABLE, UNREADABLE)
            raise
        if (why := _refusal(found)) is not None or found is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, why or _NO_TOKEN)
            raise PermissionError(why)
        if self._doorkeeper is not None:
            self._doorkeeper.admit(context.peer(), found.sha256)
        if operator and found.role != "operator":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "Expected a token with role operator, got auditor.")
        return found.name


def _refusal(found: tokens.Token | None) -> str | None:
    """Why a call is turned away for its token; None for one that is let in."""
    return _NO_TOKEN if found is None else found.refusal()


def _named(awaited: dict[str, Any]) -> dict[str, Any]:
    """What makes it another thing to await: not the time to which it is rounded, nor who comes and goes."""
    return {key: value for key, value in awaited.items() if key not in ("ends", "left", "connected")}


async def _told(call: Awaitable[T], context: Context) -> T:
    """The result, or the error's own words under a fitting status."""
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
    return pb.Document(json=json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return str(value)
