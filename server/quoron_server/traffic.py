"""How many bytes the messages of a round have, and room for its answers: public, from the question alone."""

import os
import tempfile
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Question, Status, Task
from quoron_privacy.errors import RunError
from quoron_server.algorithm import names_of

HELD = 1 << 28  # bytes of answers that are held in memory
SCRATCH = "QUORON_SCRATCH"
SQLITE = "sqlite:///"  # what stands before the path of a database that is a file

GRPC = 5  # bytes before each of its messages
_DIGEST = bytes(16)


def fits(rows: int, shape: tuple[int, ...]) -> bool:
    """Return whether so many answers are held in memory."""
    return 8 * rows * prod(shape) <= HELD


def room_for(rows: int, shape: tuple[int, ...], folder: Path) -> NDArray[np.float64]:
    """Zeros of shape (rows, *shape). RunError where there is no room on disk.

    In memory, or where they are too long for it in a file without a name: second moments alone are that long. The file
    is its owner's alone, lies in `spill_folder`, and is gone with the round, or with the process. Room on disk is taken
    before anybody is asked.

        values = room_for(users, (d,), spill_folder("sqlite:////srv/coordinator.sqlite"))
    """
    size = 8 * rows * prod(shape)
    if fits(rows, shape):
        return np.zeros((rows, *shape))
    try:
        with tempfile.TemporaryFile(prefix="quoron-", dir=folder) as file:
            reserve = getattr(os, "posix_fallocate", None)  # macOS has none
            if reserve is None:
                file.truncate(size)
            else:
                reserve(file.fileno(), 0, size)  # what is written later finds its place
            return np.memmap(file, np.float64, "r+", shape=(rows, *shape))
    except OSError as error:
        raise RunError(
            f"Expected room for the answers of a round ({size:,} bytes) in {folder}, got too little: {error.strerror}. "
            f"Set {SCRATCH} to a folder on a disk with room, and go on with the run."
        ) from None


def spill_folder(database: str | None = None) -> Path:
    """Where such files lie: QUORON_SCRATCH, else beside a database in a file, else where large temporary files do."""
    if given := os.environ.get(SCRATCH):
        return Path(given)
    if database is not None and database.startswith(SQLITE):
        return Path(database.removeprefix(SQLITE)).resolve().parent
    return Path("/var/tmp") if os.access("/var/tmp", os.W_OK) else Path(tempfile.gettempdir())


def free_disk(folder: Path) -> int:
    """Return bytes that may be written there; 0 where there is no such folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def encoded(question: Question, dimension: int) -> tuple[int, int]:
    """Protobuf bytes of all planned (questions, answers) of a run without a name, from the user in the first slot.

    A secret cohort may be empty and must not show it: then user 0 stands for those planned, for no byte depends on who.
    """
    from quoron_client.protocol import wire  # it brings protobuf, which planning needs not

    if not question.messages:
        return 0, 0
    user = int(question.cohort[0]) if len(question.cohort) else 0
    down = question.messages * wire.question_to_wire(question, 0, run="", user=user, seconds=0).ByteSize()
    if (own := _own(question.task)) is not None:
        down += sum(_optional(int(number)) for number in own)
        down -= question.messages * _optional(int(own[0]))
    values = np.zeros(question.task.answer_shape(dimension))
    answer = wire.answer_to_wire("", question.round, _DIGEST, values, Status.ANSWERED)
    return down, question.messages * answer.ByteSize()


class Sizes:
    """`encoded` of a run's questions, which is counted again only where it can have changed: not for other numbers.

    A message's bytes depend on what is in it only by the shapes of arrays and by plain values; a question about ten
    million parameters is not written out in every round just to be measured.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._last: tuple[Any, tuple[int, int]] = None, (0, 0)

    def of(self, question: Question) -> tuple[int, int]:
        """Return bytes of all planned (questions, answers)."""
        if _own(question.task) is not None:
            return encoded(question, self._dimension)
        one = question.task.part(slice(0, 1))
        outline = question.messages, _optional(question.round), _outline(one)
        if outline != self._last[0]:
            self._last = outline, encoded(question, self._dimension)
        return self._last[1]


def _own(task: Task) -> NDArray[np.int64] | None:
    """Return the numbers (k,) where each user is sent one of its own: a question takes the bytes that they take."""
    own = None if task.own is None else getattr(task, task.own)
    return own if own is not None and own.ndim == 1 else None


def _outline(value: Any) -> Any:
    """Return what of a task decides how many bytes it takes: arrays by type and shape, all else as it is."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape
    names = names_of(type(value))
    return value if names is None else (type(value), *[_outline(getattr(value, name)) for name in names])


def _varint(value: int) -> int:
    """Return bytes of an unsigned integer."""
    return max(1, ceil(value.bit_length() / 7))


def _optional(value: int) -> int:
    """Return bytes of an integer field, which is left out when zero."""
    return 1 + _varint(value) if value else 0
