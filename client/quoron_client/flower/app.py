"""The ClientApp of a SuperNode that holds one user's items: `quoron_client.flower.app:app`.

What its owner decides stands in the SuperNode's own `--node-config`, or in the environment of its ClientApps, and this
code keeps to it whatever a message or a run config says. But Flower ships the code of a run to every SuperNode: whoever
may start runs can ship another app, which keeps to nothing. `quoron client`, whose code is its owner's, is stronger.

| node config        | environment              | meaning                                           |
| ------------------ | ------------------------ | ------------------------------------------------- |
| `data`             | QUORON_DATA             | this user's items, CSV or Parquet                 |
| `record`           | QUORON_RECORD           | durable record of what was answered; keep it      |
| `lifetime-epsilon` | QUORON_LIFETIME_EPSILON | most ε over all runs, ever; default 1             |
| `lifetime-delta`   | QUORON_LIFETIME_DELTA   | most δ over all runs, ever; default 1e-5          |
| `accept`           | QUORON_ACCEPT           | exposures to take part in; "broadcast,local"      |
| `simulation-seed`  | QUORON_SIMULATION_SEED  | take part in simulations: made-up data only       |
| `new-record`       | QUORON_NEW_RECORD       | "true", once: an older record is all that is left |
| `one-user`         | QUORON_ONE_USER         | "true": all rows are one user's, whosever they are |
| `items-per-user`   | QUORON_ITEMS_PER_USER   | what one person holds, if the owner knows          |

Flower starts a process for every message, so whatever must be remembered is in the record. None of them is before a
SuperNode is known: `quoron client --check` looks at the data before, and ends with an error if they look like those of
several people. Here the owner's log says so, and nothing else depends on it.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from quoron_client.federation.own_table import check_one_user
from quoron_client.federation.owner import Owner
from quoron_client.federation.record import Record
from quoron_client.federation.work import Worker
from quoron_client.flower.serving import make_app
from quoron_client.protocol.flower_records import Values, bytes_of, record
from quoron_privacy.errors import ConfigError, DataError, WireError
from quoron_protos.v1 import federation_pb2 as pb

_LOG = logging.getLogger("quoron.client")
_WORDS = {"true": True, "1": True, "false": False, "0": False}


class OneUser:
    """Answers as the native client does, by the same record."""

    def answer(self, values: Values, context: Context) -> RecordDict:
        """The answer to a question, the same again for the same question; or declined, by the owner's decisions."""
        announcement = pb.Announcement.FromString(bytes_of(values, "announcement"))
        question, user = pb.Question.FromString(bytes_of(values, "question")), values.get("user")
        if not isinstance(user, int) or question.run != announcement.run:
            raise WireError("Expected a question of the announced run to a user, got another.")
        owner = read_owner(context.node_config, os.environ)
        if question.round == 0:
            _ask(owner)
        with _opened(owner) as kept:
            worker = Worker(owner, kept)
            if not worker.consider(announcement, user).takes_part:
                return record(declined=True)
            sent = worker.reply(question)
        if sent is None:
            raise WireError("Expected a question with a name to answer to, got one without.")
        return record(answer=sent)

    def ended(self, values: Values, context: Context) -> None:
        """Erase the answers of a run that has ended; that they were given, and what was spent, stays."""
        with _opened(read_owner(context.node_config, os.environ)) as kept:
            kept.end(str(values.get("run")))


def read_owner(node_config: Mapping[str, Any], environment: Mapping[str, str]) -> Owner:
    """The owner's decisions. ConfigError names the key that is missing or wrong."""

    def given(key: str, default: str | None = None) -> str:
        value = node_config.get(key, environment.get(f"QUORON_{key.upper().replace('-', '_')}", default))
        if value is None or value == "":
            raise ConfigError(f"Expected {key} in the SuperNode's --node-config, got none.")
        return str(value)

    def number(key: str, default: str) -> float:
        try:
            return float(given(key, default))
        except ValueError:
            raise ConfigError(f"Expected a number as {key}, got {given(key, default)!r}.") from None

    def switch(key: str) -> bool:
        word = given(key, "false").lower()
        if word not in _WORDS:
            raise ConfigError(f"Expected {key} to be true or false, got {word!r}.")
        return _WORDS[word]

    items = given("items-per-user", "none")
    if items != "none" and not items.isdigit():
        raise ConfigError(f"Expected a whole number as items-per-user, got {items!r}.")
    seed = given("simulation-seed", "none")
    if seed != "none" and not seed.isdigit():
        raise ConfigError(f"Expected a seed as simulation-seed, got {seed!r}.")
    return Owner(
        data=Path(given("data")),
        record=Path(given("record")),
        lifetime_epsilon=number("lifetime-epsilon", "1"),
        lifetime_delta=number("lifetime-delta", "1e-5"),
        accept_exposures=tuple(given("accept", "broadcast,local").split(",")),
        simulation_seed=None if seed == "none" else int(seed),
        one_user=switch("one-user"),
        new_record=switch("new-record"),
        items_per_user=None if items == "none" else int(items),
    )


def _ask(owner: Owner) -> None:
    """Say in the owner's log if the data look like those of several people."""
    try:
        check_one_user(owner.data, one_user=owner.one_user, items_per_user=owner.items_per_user)
    except DataError as error:
        _LOG.error("%s", error)
    except Exception:  # the answer must not depend on it
        _LOG.exception("Whether the data are one person's could not be seen.")


def _opened(owner: Owner) -> Record:
    epsilon, delta = owner.lifetime_epsilon, owner.lifetime_delta
    return Record.open(owner.record, epsilon=epsilon, delta=delta, anew=owner.new_record)


app = make_app(OneUser())
