"""The ClientApp of a SuperNode that holds one user's items, or a silo's: `quoron_client.flower.app:app`.

What its owner decides stands in the SuperNode's own `--node-config`, or in the environment of its ClientApps
(`quoron_client.flower.serving` lists it), and this code keeps to it whatever a message or a run config says. But Flower
ships the code of a run to every SuperNode: an operator who may start runs can ship another app, which keeps to nothing.
`quoron client`, whose code is its owner's, is stronger.

Flower starts a process for every message, so whatever must be remembered is in the record. None of them is before a
SuperNode is known: `quoron client --check` looks at the data before, and ends with an error if they look like those of
several people. Here the owner's log says so, and nothing else depends on it.
"""

import logging
import os

from flwr.app import Context, RecordDict

from quoron_client.federation.client_state import ClientState
from quoron_client.federation.config import Owner
from quoron_client.federation.own_table import check_one_user
from quoron_client.federation.work import Worker
from quoron_client.flower.serving import make_app, opened, people_of, read_owner
from quoron_client.protocol.flower_records import Values, bytes_of, record
from quoron_privacy.errors import DataError, WireError
from quoron_protos.v1 import federation_pb2 as pb

_LOG = logging.getLogger("quoron.client")


def announced(values: Values, context: Context) -> RecordDict:
    """Return whether this node takes part in a run. Persons with enough budget are charged now, asked or not."""
    owner = read_owner(context.node_config, os.environ)
    if owner.user_column is None:
        _ask(owner)
    with opened(owner, settled=False) as kept:
        agreed = _worker(owner, kept).consider(*_announcement(values)).takes_part
    return record(agreed=True) if agreed else record(declined=True)


def answer(values: Values, context: Context) -> RecordDict:
    """The answer to a question as the native client gives it, by the same record, the same again for the same question;
    or declined, by the owner's decisions and where the run was not announced before."""
    announcement, user = _announcement(values)
    question = pb.Question.FromString(bytes_of(values, "question"))
    if question.run != announcement.run:
        raise WireError("Expected a question of the announced run, got another.")
    owner = read_owner(context.node_config, os.environ)
    with opened(owner, settled=True) as kept:
        worker = _worker(owner, kept)
        if not worker.consider(announcement, user).takes_part:
            return record(declined=True)
        sent = worker.reply(question)
    if sent is None:
        raise WireError("Expected a question with a name to answer to, got one without.")
    return record(answer=sent)


def ended(values: Values, context: Context) -> RecordDict:
    """Erase the answers of a run that has ended; that they were given, and what was spent, stays."""
    with opened(read_owner(context.node_config, os.environ), settled=True) as kept:
        kept.end(str(values.get("run")))
    return record()


def _announcement(values: Values) -> tuple[pb.Announcement, int]:
    """Of a run, to a user."""
    user = values.get("user")
    if not isinstance(user, int):
        raise WireError("Expected the announcement of a run to a user, got another.")
    return pb.Announcement.FromString(bytes_of(values, "announcement")), user


def _worker(owner: Owner, kept: ClientState) -> Worker:
    # Never `Worker.of`, which looks at the file first: how many persons are in it decides nothing here.
    return Worker(owner, kept, owner.people or 1)


def _ask(owner: Owner) -> None:
    """Say in the owner's log if the data look like those of several people."""
    try:
        check_one_user(owner.data, one_user=owner.one_user, dialect=owner.dialect)
    except DataError as error:
        _LOG.error("%s", error)
    except Exception:  # the answer must not depend on it
        _LOG.exception("Whether the data are one person's could not be seen.")


app = make_app(
    answer, people=lambda context: people_of(context.node_config, os.environ), announced=announced, ended=ended
)
