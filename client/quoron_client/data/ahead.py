"""What is made before it is wanted: a table is read while its rows become items."""

import threading
from collections.abc import Generator, Iterator
from queue import Queue
from typing import Any, TypeVar

T = TypeVar("T")
AHEAD = 2  # steps


def ahead(source: Iterator[T]) -> Generator[T]:
    """The same things, made by another thread a few steps before they are wanted; its error comes where it arose."""
    made: Queue[tuple[bool, Any]] = Queue(AHEAD)
    stopped = threading.Event()

    def work() -> None:
        try:
            for each in source:
                made.put((True, each))
                if stopped.is_set():
                    return
            made.put((False, None))
        except BaseException as error:
            made.put((False, error))

    thread = threading.Thread(target=work, daemon=True, name="quoron-ahead")
    thread.start()
    try:
        while True:
            more, each = made.get()
            if not more:
                if each is not None:
                    raise each
                return
            yield each
    finally:
        stopped.set()
        while thread.is_alive():  # it may wait for room
            while not made.empty():
                made.get()
            thread.join(0.01)
