"""A ClientApp whose answers say nothing but what was asked: no exception text, one version, the same replies for all.

    app = make_app(answer, announced=announced, ended=ended)

Flower sends the text of a client's exception to the server word for word. So all code that runs on the data runs inside
`silent`, which turns any exception into a refusal of fixed words; the owner's log has the rest.

What the owner of a node decides, by the SuperNode's `--node-config` or the environment of its ClientApps.

| node config        | environment              | meaning                                           |
| ------------------ | ------------------------ | ------------------------------------------------- |
| `data`             | QUORON_DATA             | this user's items, a file                         |
| `state`            | QUORON_STATE            | durable record of what was answered; keep it      |
| `limit`            | QUORON_LIMIT            | most ε and δ over all runs, ever; default "1,1e-5" |
| `accept`           | QUORON_ACCEPT           | trust models to take part in; "central-broadcast,local" |
| `simulation-seed`  | QUORON_SIMULATION_SEED  | take part in simulations: made-up data only       |
| `new-state`        | QUORON_NEW_STATE        | "true", once: an older state is all that is left  |
| `one-user`         | QUORON_ONE_USER         | "true": all rows are one user's, whosever they are |
| `user`             | QUORON_USER             | of a silo: the column that says whose each row is  |
| `users`            | QUORON_USERS            | of a silo: its fixed number of users               |
| `separator`        | QUORON_SEPARATOR        | what separates cells, if the header does not say   |
| `decimal`          | QUORON_DECIMAL          | "," for numbers such as 3,14                       |
| `encoding`         | QUORON_ENCODING         | of text, if not UTF-8                              |
| `quoting`          | QUORON_QUOTING          | "none" where quotes are letters                    |

No message and no run config changes any of it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from quoron_client.data.formats import Dialect
from quoron_client.federation.client_state import ClientState
from quoron_client.federation.config import PUBLIC_PARTICIPATION, Limits, Owner, read_limit
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
from quoron_privacy.errors import ConfigError

KEPT = ("state", "limit", "accept", "new-state")  # what only a record can hold to
_WORDS = {"true": True, "1": True, "false": False, "0": False}


def read_owner(node_config: Mapping[str, Any], environment: Mapping[str, str]) -> Owner:
    """Return the owner's decisions. ConfigError names the key that is missing or wrong."""
    given = _Given(node_config, environment)
    data, alone, column = Path(given.text("data")), given.switch("one-user"), given.found("user")
    people = people_of(node_config, environment)
    silo: dict[str, Any] = {} if column is None else {"user_column": str(column), "people": people}
    return Owner(data=data, dialect=_dialect(given), one_user=alone, **silo, **_limits(given))


def people_of(node_config: Mapping[str, Any], environment: Mapping[str, str]) -> int:
    """For how many persons a node answers, as its owner says: 1 of one user. ConfigError if a silo's does not say."""
    given = _Given(node_config, environment)
    column, people = given.found("user"), given.whole("users", "a whole number")
    if (column is None) != (people is None) or people == 0:
        raise ConfigError(
            "Expected user and users together in the --node-config of a silo, the column that says whose each row is "
            "and for how many it answers, got one. It is not counted in the data: the server hears of it first."
        )
    return 1 if people is None else people


def read_limits(node_config: Mapping[str, Any], environment: Mapping[str, str]) -> Limits | None:
    """As `read_owner`, of a node whose data are its own code's business; None if none of `KEPT` is said."""
    given = _Given(node_config, environment)
    return Limits(**_limits(given)) if any(given.found(key) is not None for key in KEPT) else None


def opened(owner: Limits, *, settled: bool) -> ClientState:
    """Return the owner's record, in which runs are agreed to when announced, unless that is `settled`. LedgerError as
    `ClientState`."""
    epsilon, delta = owner.lifetime_epsilon, owner.lifetime_delta
    return ClientState(owner.record, epsilon=epsilon, delta=delta, new_record=owner.new_record, settled=settled)


@dataclass(frozen=True, slots=True)
class _Given:
    node_config: Mapping[str, Any]
    environment: Mapping[str, str]

    def found(self, key: str) -> Any:
        return self.node_config.get(key, self.environment.get(f"QUORON_{key.upper().replace('-', '_')}"))

    def text(self, key: str, default: str | None = None) -> str:
        value = self.found(key)
        value = default if value is None else value
        if value is None or value == "":
            raise ConfigError(f"Expected {key} in the SuperNode's --node-config, got none.")
        return str(value)

    def switch(self, key: str) -> bool:
        word = self.text(key, "false").lower()
        if word not in _WORDS:
            raise ConfigError(f"Expected {key} to be true or false, got {word!r}.")
        return _WORDS[word]

    def whole(self, key: str, what: str) -> int | None:
        word = self.text(key, "none")
        if word != "none" and not word.isdigit():
            raise ConfigError(f"Expected {what} as {key}, got {word!r}.")
        return None if word == "none" else int(word)


def _dialect(given: _Given) -> Dialect:
    said = {name: given.found(name) for name in ("separator", "decimal", "encoding", "quoting")}
    return Dialect(**{name: str(value) for name, value in said.items() if value is not None})  # type: ignore[arg-type]


def _limits(given: _Given) -> dict[str, Any]:
    accepted = tuple(given.text("accept", "central-broadcast,local").split(","))
    if PUBLIC_PARTICIPATION in accepted:
        raise ConfigError(
            f"Expected accept without {PUBLIC_PARTICIPATION} on Flower, got it: a node answers when it has computed, "
            "and its data move when that is. Leave it out; clients of `quoron serve` can accept it."
        )
    epsilon, delta = read_limit(given.text("limit", "1,1e-5"))
    return {
        "record": Path(given.text("state")),
        "lifetime_epsilon": epsilon,
        "lifetime_delta": delta,
        "accept_trust_models": accepted,
        "simulation_seed": given.whole("simulation-seed", "a seed"),
        "new_record": given.switch("new-state"),
    }


_LOG = logging.getLogger("quoron.client")
Respond = Callable[[Values, Context], RecordDict]


def make_app(
    answer: Respond,
    people: Callable[[Context], int] = lambda context: 1,
    announced: Respond | None = None,
    ended: Respond = lambda values, context: record(),
) -> ClientApp:
    """The ClientApp of a node with items of so many `people`: `query.hello`, a query for each task, whose reply
    `answer` makes, and `query.ended`; and where nodes agree to runs `query.announced`.
    """

    def action(respond: Respond) -> Callable[[Message, Context], Message]:
        return lambda message, context: silent(message, lambda values: respond(values, context))

    app = ClientApp()
    app.query(HELLO)(action(lambda values, context: hello(values, context, people(context))))
    if announced is not None:
        app.query(ANNOUNCED)(action(announced))
    for task in TASKS:
        app.query(task)(action(answer))
    app.query(ENDED)(action(ended))
    return app


def silent(message: Message, respond: Callable[[Values], RecordDict]) -> Message:
    """Return the reply to a message of this version alone; of whatever goes wrong it says nothing but that."""
    try:
        values = values_of(message.content)
        theirs = values.get("version")
        if theirs == VERSION:
            content = respond(values)
        else:
            _LOG.warning("Expected messages of quoron %s, got %r.", VERSION, theirs)
            content = record(refused=OTHER_VERSION, version=VERSION)
    except Exception:
        # Whatever it is, the server must not learn it: it may be a function of the data.
        _LOG.exception("A message could not be answered.")
        content = record(refused=FAILED)
    return Message(content, reply_to=message)


def hello(values: Values, context: Context, people: int = 1) -> RecordDict:
    """Version and place of this node, for how many it answers, and the bytes that came: so it shows whether replies
    arrive as they are made."""
    back = {"nonce": values["nonce"]} if "nonce" in values else {}
    several = {"people": people} if people > 1 else {}
    return record(version=VERSION, **back, **several, partition=int(context.node_config.get("partition-id", -1)))
