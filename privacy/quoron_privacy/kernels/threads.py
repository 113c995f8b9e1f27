"""Works that are carried out at once, on threads that stay.

    >>> done = []
    >>> at_once([lambda: done.append(1), lambda: done.append(2)], threads=2)
    >>> sorted(done)
    [1, 2]

Compiled loops release the interpreter lock, so plain threads share what they do. Where floats are added, each piece has
a sum of its own, and these are added in the pieces' order: the bits depend neither on threads nor on who was free.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import cache, partial
from queue import SimpleQueue
from threading import Lock, Thread, local
from typing import Any

import numba

_CONFIG: Any = numba.config
_SMALL = 1 << 19  # numbers that one thread reads in a few times what it takes to wake another
_here = local()  # whether this thread is one of several that are at work already


def at_once(works: Iterable[Callable[[], object]], threads: int) -> None:
    """Carry out all `works` on this thread and `threads` - 1 others; a thread that is free takes the next.

    On a busy machine, where no other thread gets a turn, this one does everything and waits for nobody. What a work
    itself asks for at once, its own thread does alone: the others have works of their own. When one fails no other is
    begun, and its error is raised when all that had begun are over.
    """
    left = deque(works)
    others = min(threads, len(left)) - 1
    if others <= 0 or getattr(_here, "at_work", False):
        for work in left:
            work()
        return

    def run() -> None:
        _here.at_work = True
        try:
            while True:
                try:
                    work = left.popleft()
                except IndexError:
                    return
                work()
        except BaseException:
            left.clear()
            raise
        finally:
            _here.at_work = False

    parts, waiting = [_Part(run) for _ in range(others)], _helpers()
    for part in parts:
        waiting.put(part)
    try:
        run()
    finally:
        for part in parts:
            part.wait()
    for part in parts:
        part.tell()


def in_pieces(loop: Callable[[int, int], object], rows: int, width: int, piece: int) -> None:
    """loop(first, last) for all pieces of so many `rows` of `width` numbers: on all threads, if there are enough rows.

    The pieces begin at multiples of `piece`, whatever there is of rows and threads.
    """
    firsts = range(0, rows, piece)
    works = [partial(loop, first, min(first + piece, rows)) for first in firsts]
    at_once(works, all_threads() if rows * width >= _SMALL else 1)


def all_threads() -> int:
    """As many as compiled loops are given: NUMBA_NUM_THREADS, by default one a processor."""
    return int(_CONFIG.NUMBA_NUM_THREADS)


class _Part:
    """What another thread is asked to do, and does unless it is over before."""

    __slots__ = ("_done", "_error", "_run", "_taken")

    def __init__(self, run: Callable[[], None]) -> None:
        self._run, self._taken, self._done = run, Lock(), Lock()
        self._error: BaseException | None = None
        self._done.acquire()

    def begin(self) -> None:
        """On the other thread."""
        if self._taken.acquire(blocking=False):
            try:
                self._run()
            except BaseException as error:  # it is the caller's
                self._error = error
            finally:
                self._done.release()

    def wait(self) -> None:
        """Until it is over, if it has begun; else it never will."""
        if not self._taken.acquire(blocking=False):
            self._done.acquire()

    def tell(self) -> None:
        """Raise what it raised."""
        if self._error is not None:
            raise self._error


@cache
def _helpers() -> "SimpleQueue[_Part]":
    """Threads that stay, by what they wait for: to start one takes as long as the gradients of a thousand users.

    They end with the process: a call waits for whoever has begun.
    """
    waiting: SimpleQueue[_Part] = SimpleQueue()

    def help_out() -> None:
        while True:
            waiting.get().begin()

    for number in range(all_threads()):
        Thread(target=help_out, name=f"quoron-compute-{number}", daemon=True).start()
    return waiting
