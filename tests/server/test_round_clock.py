"""Times at which rounds open show nothing of who answered."""

import math

from hypothesis import given
from hypothesis import strategies as st

from quoron_server.rounds import PAUSE, opening

times = st.floats(0, 1e6)
lengths = st.floats(0.1, 1e5)


def test_the_first_round_opens_at_once() -> None:
    assert opening(-math.inf, 12.5, 60.0) == 12.5


@given(times, lengths, st.floats(0, PAUSE))
def test_work_that_fits_into_the_rest_never_shows(opened: float, seconds: float, work: float) -> None:
    due = opened + (1 + PAUSE) * seconds
    assert opening(due, opened + seconds + 0.99 * work * seconds, seconds) == due


@given(times, lengths, st.floats(0, 100))
def test_longer_work_shows_in_whole_rests_only(due: float, seconds: float, late: float) -> None:
    opens = opening(due, due + late * seconds, seconds)
    whole = (opens - due) / (PAUSE * seconds)
    assert opens >= due + late * seconds - 1e-9 * (1 + due + late * seconds)
    assert abs(whole - round(whole)) < 1e-4 * (1 + due / seconds)
    assert opens - (due + late * seconds) <= PAUSE * seconds * (1 + 1e-9) + 1e-9 * (1 + due)
