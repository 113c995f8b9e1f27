"""Any of our programs, which kills itself without warning at a moment of its work.

    python tests/dying.py '{"at": "commit", "when": "before", "round": 3}' quoron serve --listen ...

A moment is a call of one of the `PLACES`: before or after it, from a round on, and the how manieth such call. What
comes after it is a module whose `main` is carried out, and its arguments.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from quoron_server.plan import ESTIMATES, PLANNED, PREFACE


def _stage(given: tuple[Any, ...], stage: int) -> int:
    return 0 if given[1] == stage else -sys.maxsize


PLACES = {
    "charge": "quoron_server.storage.lifetime_ledger:PopulationLedger.charge",
    "release": "quoron_server.storage.lifetime_ledger:PopulationLedger.release",
    "end": "quoron_server.storage.lifetime_ledger:PopulationLedger.end",
    "add_run": "quoron_server.storage.registry:Registry.add_run",
    "fix_members": "quoron_server.storage.registry:Registry.fix_members",
    "set_state": "quoron_server.storage.registry:Registry.set_state",
    "settle": "quoron_server.federation:RunStore.settle",
    "begin": "quoron_server.storage.ledger:Ledger.begin",
    "quality": "quoron_server.storage.ledger:Ledger.commit",  # of that stage
    "bounds": "quoron_server.storage.ledger:Ledger.commit",
    "plan": "quoron_server.storage.ledger:Ledger.commit",
    "spend": "quoron_server.storage.ledger:Ledger.spend",
    "commit": "quoron_server.storage.ledger:Ledger.commit",
    "finish": "quoron_server.storage.ledger:Ledger.finish",
    "ask": "quoron.engine.inline:InlineEngine.ask",
    "_ask": "quoron_server.service.sessions:Sessions._ask",
    "answer": "quoron_server.service.sessions:Sessions.answer",
    "push": "quoron_server.flower.exchange:_push",
    "read": "quoron_server.flower.engine:Users.read",
    "keep": "quoron_client.federation.client_state:ClientState.keep",
    "encode": "quoron_client.data.fused:_Shape.encode",
    "write_json": "quoron.run_folder:RunFolder.write_json",
    "search": "quoron.training.tuning:TableSearch.perform",
    "replace": "os:replace",
    "leave": "quoron_client.federation.client_state:ClientState.leave",
    "farewell": "quoron_client.federation.client_state:Erasure.write",
    "erase": "quoron_client.durable:erase",
    "revoke_key": "quoron_server.service.certificates:revoke_key",
    "forget": "quoron_server.storage.registry:Registry.forget",
    "fold": "quoron_server.storage.store:Store.checkpoint",
}
ROUNDS: dict[str, Callable[[tuple[Any, ...]], int]] = {  # of a call that belongs to one
    "quality": lambda given: _stage(given, PREFACE),
    "bounds": lambda given: _stage(given, ESTIMATES),
    "plan": lambda given: _stage(given, PLANNED),
    "spend": lambda given: given[1].round,
    "commit": lambda given: given[1],
    "ask": lambda given: given[1].round,
    "_ask": lambda given: given[2].question.round,
    "answer": lambda given: given[2].round,
    "read": lambda given: given[2].asked.round,
    "keep": lambda given: given[2],
}


@dataclass(frozen=True, slots=True)
class Moment:
    """When to die."""

    at: str
    when: str  # "before" or "after"
    round: int = -1
    left: int = 1

    def as_text(self) -> str:
        return json.dumps(asdict(self))


def words(moment: Moment, *command: object) -> list[str]:
    """The command line of a program that dies at that moment."""
    return [sys.executable, str(Path(__file__)), moment.as_text(), *map(str, command)]


def die(moment: Moment) -> None:
    """From now on this process dies at that moment."""
    module, _, path = PLACES[moment.at].partition(":")
    *owners, name = path.split(".")
    owner: Any = import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    original, seen = getattr(owner, name), 0

    def dying(*given: Any, **named: Any) -> Any:
        nonlocal seen
        counts = moment.at not in ROUNDS or ROUNDS[moment.at](given) >= moment.round
        seen += counts
        last = counts and seen == moment.left
        if last and moment.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*given, **named)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


if __name__ == "__main__":
    die(Moment(**json.loads(sys.argv[1])))
    sys.argv = sys.argv[2:]
    sys.exit(import_module(f"{sys.argv[0]}.__main__" if sys.argv[0] == "quoron" else sys.argv[0]).main())
