"""Two runs with a real record: who is absent in the second tells nothing of whom the first had drawn; a twin does.

Exact: one person is drawn by a coin of ½ and, if drawn, answers its bit with randomised response; who is there in the
second run is told, as with public attendance. So no false alarms.
"""

from collections.abc import Callable
from itertools import product
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

from quoron_client.federation.record import Agreement, Record

DRAWN, SECOND = 3.0, 0.1  # ε of a drawn answer, and of the second run
AMPLIFIED = log(1 + (exp(DRAWN) - 1) / 2)  # what the first run promises, by the coin
ANNA = np.zeros(1, np.int64)
Presence = Callable[[bool], bool]


def by_record(folder: Path) -> Presence:
    """Whether she may answer in the second run, after the first had drawn her or had not."""
    limit = AMPLIFIED + SECOND / 2  # either fits, and both do not

    def there(drawn: bool) -> bool:
        path = folder / f"{drawn}.sqlite"
        with Record.open(path, epsilon=limit, delta=1.0) as record:
            record.register(["anna"])
            assert record.agree(Agreement("first", b"t", AMPLIFIED, 0.0, 1)) is None
            if drawn:
                assert record.keep("first", 0, b"q", b"a", ANNA) == b"a"
            record.end("first")
            record.agree(Agreement("second", b"t", SECOND, 0.0, 1))
            return bool(record.may_answer("second", 0, ANNA)[0])

    return there


def by_answers(folder: Path) -> Presence:
    """The broken twin: whoever was not asked is not charged."""
    return lambda drawn: not drawn


def loss(there: Presence) -> float:
    """The largest log-likelihood ratio of what both runs tell, for her bit."""
    laws, present = [], [there(False), there(True)]
    for bit in (0, 1):
        law: dict[tuple[int, bool], float] = {}
        for drawn, said in product((False, True), (0, 1)):
            truth = exp(DRAWN) / (1 + exp(DRAWN)) if said == bit else 1 / (1 + exp(DRAWN))
            seen = said, present[drawn]
            law[seen] = law.get(seen, 0.0) + 0.5 * (truth if drawn else 0.5)
        laws.append(law)
    return max(abs(log(laws[1][seen] / laws[0][seen])) for seen in laws[0])


@pytest.mark.parametrize(("made", "sound"), [(by_record, True), (by_answers, False)])
def test_two_runs_lose_no_more_than_both_promise(made: Callable[[Path], Presence], sound: bool, tmp_path: Path) -> None:
    found = loss(made(tmp_path))
    assert (found <= AMPLIFIED + SECOND) == sound
    assert sound or found == pytest.approx(DRAWN)
