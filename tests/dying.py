"""The coordinator's program, which kills itself without warning at a moment of its work.

    python -m federation.dying '{"at": "commit", "when": "before", "round": 3}' serve --listen ...

A moment is a call of one of the methods below: before or after it, from a round on, and the how manieth such call.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from quoron.__main__ import main
from quoron_server.books.books import Books
from quoron_server.books.ledger import Ledger
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.books.registry import Registry
from quoron_server.service.sessions import Sessions

Read = Callable[[tuple[Any, ...]], int]
OWNERS = (Ledger, PopulationLedger, Registry, Books, Sessions)
ROUNDS: dict[str, Read] = {  # of a call that belongs to one
    "spend": lambda given: given[1].round,
    "commit": lambda given: given[1],
    "_ask": lambda given: given[2].question.round,
    "answer": lambda given: given[2].round,
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


def die(moment: Moment) -> None:
    """From now on this process dies at that moment."""
    owner = next(kind for kind in OWNERS if hasattr(kind, moment.at))
    original, seen = getattr(owner, moment.at), 0

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

    setattr(owner, moment.at, dying)


if __name__ == "__main__":
    die(Moment(**json.loads(sys.argv[1])))
    sys.argv = ["quoron", *sys.argv[2:]]
    sys.exit(main())
