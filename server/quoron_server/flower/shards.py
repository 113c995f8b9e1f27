"""A simulated population spread over nodes: user u lives on the node of partition u mod N.

    fleet = Shards.found(grid, run="spring", seconds=600)

For made-up data only: a node here answers for many users, and says itself which partition of how many it is.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from quoron_client.protocol.flower_records import Values, answers_from_record, question_values
from quoron_client.protocol.questions import Answers, Question
from quoron_client.protocol.wire import task_name
from quoron_privacy.errors import RunError
from quoron_server.flower.engine import Part
from quoron_server.flower.exchange import Letter, Told, nodes, untold
from quoron_server.flower.hellos import Hellos

_HELLO_SECONDS = 120.0
_TRIES = 3  # hellos to a node
_PAUSE = 0.2  # seconds between two looks for nodes


@dataclass(frozen=True, slots=True)
class Shards:
    """The node of each partition."""

    run: str
    nodes: tuple[int, ...]

    @classmethod
    def found(
        cls, grid: Grid, *, run: str, seconds: float, partitions: int | None = None, told: Told = untold
    ) -> "Shards":
        """Wait until a node of every partition has said hello; of as many as the nodes themselves say, or `partitions`.

        RunError if some has not within `seconds`, or nodes disagree on how many there are. `told` hears of each.
        """
        ends, greeted = time.monotonic() + seconds, _Greeted(Hellos(grid, told=told))
        while (complete := greeted.complete(partitions)) is None:
            left = ends - time.monotonic()
            if left < 0 or greeted.hopeless:
                wanted = "every partition" if partitions is None else f"{partitions} partitions"
                raise RunError(
                    f"Expected nodes of {wanted} within {seconds:g} seconds, got {len(greeted.places)} that answer and "
                    f"{len(greeted.tries) - len(greeted.places)} that do not. Start the missing SuperNodes, each with "
                    "this version of quoron, a partition-id, and one num-partitions for all."
                    f"{greeted.hellos.said()}"
                )
            greeted.ask(grid, min(_HELLO_SECONDS, max(1.0, left)))
        return cls(run, complete)

    def parts(self, question: Question, seconds: int) -> Iterator[tuple[Part, Letter]]:
        """One message for each node that holds somebody of the cohort."""
        homes = question.cohort % len(self.nodes)
        order = np.argsort(homes, kind="stable")
        ends = np.searchsorted(homes[order], np.arange(len(self.nodes) + 1))
        action, rows = task_name(question.task), np.split(order, ends[1:-1])
        holding = [(node, own) for node, own in zip(self.nodes, rows, strict=True) if len(own)]
        values = question_values(question, [own for _, own in holding], run=self.run, seconds=seconds)
        for (node, own), each in zip(holding, values, strict=True):
            yield Part(own), Letter(node, action, each)

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers | None:
        """The rows of a node; None if it refuses, or sends anything else."""
        return answers_from_record(reply, len(part.rows), shape)


@dataclass(slots=True)
class _Greeted:
    """What nodes said when they were asked where they are."""

    hellos: Hellos
    places: dict[int, tuple[int, int]] = field(default_factory=dict)  # partition and number of partitions of a node
    tries: dict[int, int] = field(default_factory=dict)  # how often each was asked

    @property
    def hopeless(self) -> bool:
        """Whether all that are there fail whenever they are asked."""
        return bool(self.tries) and not self.places and min(self.tries.values()) >= _TRIES

    def ask(self, grid: Grid, seconds: float) -> None:
        """Say hello to every node that has not answered one."""
        fresh = sorted(node for node in nodes(grid) if node not in self.places and self.tries.get(node, 0) < _TRIES)
        for node in fresh:
            self.tries[node] = self.tries.get(node, 0) + 1
        for node, values in sorted(self.hellos.say(fresh, seconds).items()):
            place = _place(values)
            if place is not None:
                self.places[node] = place
        if any(node not in self.places for node in fresh) or not fresh:
            time.sleep(_PAUSE)

    def complete(self, partitions: int | None) -> tuple[int, ...] | None:
        """The node of each partition, once there is one for each."""
        counts = {of for _, of in self.places.values()}
        if len(counts) > 1:
            raise RunError(
                "Expected nodes that agree on num-partitions in their --node-config, got "
                f"{' and '.join(map(str, sorted(counts)))}."
            )
        if not counts or partitions not in (None, *counts):
            return None
        homes = {place: node for node, (place, _) in sorted(self.places.items(), reverse=True)}
        return tuple(homes[each] for each in sorted(homes)) if len(homes) == min(counts) else None


def _place(values: Values) -> tuple[int, int] | None:
    """Partition of a node, and how many there are, if it says so."""
    place, of = values.get("partition"), values.get("partitions")
    return (place, of) if isinstance(place, int) and isinstance(of, int) and 0 <= place < of else None
