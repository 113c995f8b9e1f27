"""A ClientApp whose answers say nothing but what was asked: no exception text, one version, the same replies for all.

    app = make_app(hello, answer, ended)

Flower sends the text of a client's exception to the server word for word; so everything that runs on the data runs
inside `guarded`, which turns any exception into a refusal of fixed words, and the owner's log has the rest.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from quoron_client.protocol.flower_records import (
    ANNOUNCED,
    ENDED,
    FAILED,
    HELLO,
    OTHER_VERSION,
    VERSION,
    Values,
    record,
    values_of,
)
from quoron_client.protocol.wire import TASKS

_LOG = logging.getLogger("quoron.client")
Respond = Callable[[Values, Context], RecordDict]
_PLACE = {"partition-id": "partition", "num-partitions": "partitions"}


class Holder(Protocol):
    """Whoever holds the items behind a node."""

    def answer(self, values: Values, context: Context) -> RecordDict:
        """The reply to a question."""

    def ended(self, values: Values, context: Context) -> None:
        """A run has ended."""


def make_app(
    holder: Holder,
    refuses: Callable[[Context], str | None] = lambda context: None,
    people: Callable[[Context], int] = lambda context: 1,
    announced: Respond | None = None,
) -> ClientApp:
    """The ClientApp of a holder of so many `people`: `query.hello`, a query for each task, and `query.ended`; and where
    nodes agree to runs `query.announced`.

    On a node that `refuses` says why not, in one of the `REFUSALS`, every action says that and does nothing.
    """

    def fit(respond: Respond) -> Respond:
        def either(values: Values, context: Context) -> RecordDict:
            why = refuses(context)
            return respond(values, context) if why is None else record(refused=why)

        return either

    app = ClientApp()
    app.query(HELLO)(guarded(fit(lambda values, context: hello(values, context, people(context)))))
    if announced is not None:
        app.query(ANNOUNCED)(guarded(fit(announced)))
    for action in TASKS:
        app.query(action)(guarded(fit(holder.answer)))
    app.query(ENDED)(guarded(fit(lambda values, context: _done(holder, values, context))))
    return app


def guarded(respond: Respond) -> Callable[[Message, Context], Message]:
    """`respond` as an action of a ClientApp: for messages of this version only, and silent about what goes wrong."""

    def action(message: Message, context: Context) -> Message:
        return silent(message, lambda values: respond(values, context))

    return action


def silent(message: Message, respond: Callable[[Values], RecordDict]) -> Message:
    """The reply to a message of this version; of whatever goes wrong it says nothing but that."""
    return Message(_reply(message, respond), reply_to=message)


def _reply(message: Message, respond: Callable[[Values], RecordDict]) -> RecordDict:
    try:
        values = values_of(message.content)
        theirs = values.get("version")
        if theirs != VERSION:
            _LOG.warning("Expected messages of quoron %s, got %r.", VERSION, theirs)
            return record(refused=OTHER_VERSION, version=VERSION)
        return respond(values)
    except Exception:
        # Whatever it is, the server must not learn it: it may be a function of the data.
        _LOG.exception("A message could not be answered.")
        return record(refused=FAILED)


def hello(values: Values, context: Context, people: int = 1) -> RecordDict:
    """Version and place of this node, for how many it answers, and the bytes that came: so it shows whether replies
    arrive as they are made."""
    back = {"nonce": values["nonce"]} if "nonce" in values else {}
    place = {ours: context.node_config.get(theirs, -1) for theirs, ours in _PLACE.items()}
    several = {"people": people} if people > 1 else {}
    return record(version=VERSION, **back, **several, **{key: int(each) for key, each in place.items()})


def _done(holder: Holder, values: Values, context: Context) -> RecordDict:
    holder.ended(values, context)
    return record()
