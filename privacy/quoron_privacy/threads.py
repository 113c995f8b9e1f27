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
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numba

_CONFIG: Any = numba.config
_SMALL = 1 << 19  # numbers that one thread reads in a few times what it takes to wake another


def at_once(works: Iterable[Callable[[], object]], threads: int) -> None:
    """Carry out all of them on this thread and `threads` - 1 others, whoever is free taking the next.

    On a busy machine, where no other thread gets a turn, this one does everything and waits for nobody.
    """
    left = deque(works)

    def run() -> None:
        while True:
            try:
                work = left.popleft()
            except IndexError:
                return
            work()

    others = [_pool().submit(run) for _ in range(min(threads, len(left)) - 1)]
    run()
    for other in others:
        if not other.cancel():
            other.result()


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
def _pool() -> ThreadPoolExecutor:
    """Threads that stay: to start one takes as long as the gradients of a thousand users."""
    return ThreadPoolExecutor(all_threads(), thread_name_prefix="quoron-compute")
