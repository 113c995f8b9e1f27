"""A ServerApp's process with all of its nodes in it: a program that a test kills and starts again.

    python tests/dying.py MOMENT flower.alone FOLDER
    cd tests && python -m flower.alone FOLDER

FOLDER holds `scene.json`; what each start asked and would have committed is added to `asked` and `attempts` there.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from federation.crowd import SEED
from flower.grids import FakeGrid
from flower.plugged import people, plugged, trained
from quoron.federation.flower_app import server_app
from quoron_client.flower.app import app as one_user
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.storage.ledger import Ledger

FIRST = 100  # number of user 0's node


@dataclass(frozen=True, slots=True)
class Scene:
    """What a start finds."""

    specification: str  # of a run through `quoron submit`; empty for a plug-in's
    training: dict[str, Any]  # of `train_privately`
    users: int
    lifetime_epsilon: float


def write(folder: Path, scene: Scene) -> None:
    (folder / "scene.json").write_text(json.dumps(asdict(scene)), encoding="utf-8")


def noted(folder: Path, name: str) -> list[tuple[Any, ...]]:
    """Lines of what the starts have noted, from the first."""
    path = folder / name
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _note(folder: Path, name: str, *line: object) -> None:
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def note_attempts(folder: Path) -> None:
    """Of each round that a start comes to commit, the digest of its state, and whether that holds noise of its own.

    A state holds whatever noise was drawn, but where a test keeps a round's step back: then it is the one before.
    """
    commit = Ledger.commit

    def noting(ledger: Ledger, number: int, state: bytes, releases: Any, event: dict[str, Any], *more: Any) -> None:
        noisy = event.get("public", {}).get("released", True)
        _note(folder, "attempts", number, noisy, hashlib.sha256(state).hexdigest())
        commit(ledger, number, state, releases, event, *more)

    Ledger.commit = noting  # type: ignore[method-assign]


def _asking(folder: Path, known: Callable[[Message], object]) -> Callable[[Message, Message], list[Message]]:
    def seen(message: Message, reply: Message) -> list[Message]:
        question = message.content["quoron"].get("question")
        if isinstance(question, bytes):
            asked = pb.Question.FromString(question)
            _note(folder, "asked", asked.round, known(message), asked.digest.hex())
        return [reply]

    return seen


def main() -> None:
    folder = Path(sys.argv[1])
    scene = Scene(**json.loads((folder / "scene.json").read_text(encoding="utf-8")))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    note_attempts(folder)
    if not scene.specification:
        grid = plugged(people(scene.users), first=FIRST)
        grid.fault = _asking(folder, lambda message: message.metadata.dst_node_id - FIRST)
        trained(grid, folder / "store", **scene.training)
        return
    own = {"limit": f"{scene.lifetime_epsilon},1", "accept": "none,central-release,central-broadcast,local"}
    configs = {
        FIRST + user: {
            "partition-id": user,
            "num-partitions": scene.users,
            "data": str(folder / f"items-{user}.parquet"),
            "state": str(folder / f"record-{user}.sqlite"),
            "simulation-seed": str(SEED),
            **own,
        }
        for user in range(scene.users)
    }
    keys = {node: f"key of {node}".encode() for node in configs}
    asking = _asking(folder, lambda message: message.metadata.dst_node_id - FIRST)
    grid = FakeGrid(one_user, configs, keys=keys, fault=asking, shuffled=scene.users < FIRST)  # one after the other
    server_app(grid, Context(1, 1, {}, RecordDict(), {"specification": scene.specification, "waiting": 60.0}))


if __name__ == "__main__":
    main()
