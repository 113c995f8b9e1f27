"""The control plane over gRPC: submit, watch, cancel; plan, model, ledger and its limits. A token says who may.

| role     | may                                  |
| -------- | ------------------------------------ |
| auditor  | list, watch, plan, model, ledger     |
| operator | all of it, and submit, cancel, limit |

A stream ends soon after its token was removed.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np

from quoron_protos.errors import LedgerUnavailable, QuoronError, UsageError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc, values_pb2
from quoron_server.service import security, tokens
from quoron_server.service.manager import Manager
from quoron_server.service.records import UnknownRun

MOST_TRUSTED = 5.0  # seconds for which a quiet stream goes without asking again who watches
_log = logging.getLogger("quoron")
Context = Any  # grpc.aio.ServicerContext
T = TypeVar("T")


class ControlPlane(federation_pb2_grpc.ControlPlaneServicer):
    """What operators and auditors call."""

    def __init__(self, manager: Manager, token_file: Path) -> None:
        self._manager, self._tokens = manager, token_file

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.RunReference:
        """Take a run on."""
        await self._require(context, operator=True)
        return pb.RunReference(run=await _told(self._manager.submit(request.specification), context))

    async def List(self, request: pb.ListRequest, context: Context) -> pb.Document:
        """Every run and its state."""
        await self._require(context)
        return _document({"runs": await _told(self._manager.records.runs(), context)})

    async def Watch(self, request: pb.RunReference, context: Context) -> AsyncIterator[pb.Document]:
        """Public events from the first to the end."""
        await self._require(context)
        feed = await _told(self._manager.feed(request.run), context)
        events = feed.watch()
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not coming.done():
                    await asyncio.wait({coming}, timeout=MOST_TRUSTED)
                    await self._require(context)
            finally:
                coming.cancel()
            event = coming.result()
            if event is None:
                return
            yield _document(event)

    async def Cancel(self, request: pb.RunReference, context: Context) -> pb.Document:
        """End a run without a model."""
        await self._require(context, operator=True)
        return _document(await _told(self._manager.cancel(request.run), context))

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
        await self._require(context, operator=True)
        numbers = {"epsilon": request.epsilon, "delta": request.delta, "gaussian_share": request.gaussian_share}
        limit = await _told(self._manager.limit(request.group, **numbers), context)
        return _document({"group": limit.group, "limit": limit.words()})

    async def _require(self, context: Context, *, operator: bool = False) -> None:
        token = security.bearer(tuple(context.invocation_metadata()))
        role = None if token is None else await _told(_role(self._tokens, token), context)
        if role is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Expected a token. Make one: `quoron tokens add`.")
        if operator and role != "operator":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "Expected a token with role operator, got auditor.")


async def _role(file: Path, token: str) -> tokens.Role | None:
    return tokens.role_of(file, token)


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
        await context.abort(code, str(error))
        raise


def _document(value: Any) -> pb.Document:
    return pb.Document(json=json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return str(value)
