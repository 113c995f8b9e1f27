"""Works at once: each is done once, by whoever is free; a work's own works are done by its own thread."""

import threading
from functools import partial

import pytest

from quoron_privacy.kernels import threads
from quoron_privacy.kernels.threads import at_once, in_pieces


def test_work_is_done_once_by_whoever_is_free_and_its_error_is_raised():
    done = []
    at_once([partial(done.append, number) for number in range(50)], 3)
    assert sorted(done) == list(range(50))
    with pytest.raises(ZeroDivisionError):
        at_once([partial(divmod, 1, 0)] * 5, 3)


def test_an_error_of_another_thread_is_the_callers_and_the_next_call_is_as_the_first():
    mine, met = threading.get_ident(), threading.Barrier(2)

    def work():
        met.wait(60)  # so that both threads have one
        if threading.get_ident() != mine:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        at_once([work, work], 2)
    done = []
    at_once([partial(done.append, number) for number in range(9)], 2)
    assert sorted(done) == list(range(9))


@pytest.mark.parametrize("failing", [0, 5, 39])
def test_an_error_is_raised_when_nothing_is_at_work_any_more(failing):
    begun, over = [], []

    def work(number):
        begun.append(number)
        if number == failing:
            raise ZeroDivisionError
        over.append(number)

    with pytest.raises(ZeroDivisionError):
        at_once([partial(work, number) for number in range(40)], 4)
    assert sorted(begun) == sorted([*over, failing])


def test_what_a_work_asks_for_at_once_its_own_thread_does():
    seen = []

    def inner(outer):
        seen.append((outer, threading.get_ident()))

    def outer():
        at_once([partial(inner, threading.get_ident())] * 4, 4)

    at_once([outer] * 6, 3)
    assert len(seen) == 24
    assert all(asked == done for asked, done in seen)
    assert not getattr(threads._here, "at_work", False)


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 40])
def test_pieces_begin_at_multiples_and_cover_all_rows(rows):
    found = []
    in_pieces(lambda first, last: found.append((first, last)), rows, 1 << 20, 8)
    assert sorted(found) == [(first, min(first + 8, rows)) for first in range(0, rows, 8)]
