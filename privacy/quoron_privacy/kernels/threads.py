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
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, partial
from threading import local
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

    parts = [_helpers().submit(run) for _ in range(others)]
    try:
        run()
    finally:
        begun = [part for part in parts if not part.cancel()]
        wait(begun)
    for part in begun:
        part.result()  # or its error


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


@cache
def _helpers() -> ThreadPoolExecutor:
    """Threads that stay: to start one takes as long as the gradients of a thousand users."""
    return ThreadPoolExecutor(all_threads(), thread_name_prefix="quoron-compute")
