"""Two runs with a real record: who is absent in the second tells nothing of whom the first had drawn; a twin does.

Exact: one person is drawn by a coin of ½ and, if drawn, answers its bit with randomised response; who is there in the
second run is told, as with public attendance. So no false alarms.
"""

from collections.abc import Callable
from itertools import product
from math import exp, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flower.test_answering_limits import values
from quoron_client.federation.record import Agreement, Record
from quoron_client.flower import answering
from quoron_client.protocol.flower_records import Values, values_of

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


def by_node(folder: Path) -> Presence:
    """The same of a node of Flower, by what its ClientApp replies: it hears of every run before anybody is asked."""
    return lambda drawn: _second(folder, drawn, announced=True)


def by_first_question(folder: Path) -> Presence:
    """The broken twin: a node that agrees with its first question, so that only whoever is drawn is charged."""
    return lambda drawn: _second(folder, drawn, announced=drawn)


def _second(folder: Path, drawn: bool, *, announced: bool) -> bool:
    """Whether the node takes part in the second run."""
    config = {"record": str(folder / f"{drawn}-{announced}.sqlite")}
    config |= {"lifetime-epsilon": AMPLIFIED + SECOND / 2, "lifetime-delta": 1.0}
    first, second = ({"run": name, "epsilon": e, "delta": 0.0} for name, e in (("one", AMPLIFIED), ("two", SECOND)))
    if announced:
        assert "agreed" in _said(_heard(first), config)
    assert ("answer" in _said(values(**first), config)) == announced
    _said({"run": "one", "how": "complete"}, config)
    return "agreed" in _said(_heard(second), config)


def _said(sent: Values, config: dict[str, Any]) -> Values:
    context: Any = SimpleNamespace(node_config=config)
    return values_of(answering._reply(sent, context, lambda model: model))


def _heard(run: dict[str, Any]) -> Values:
    return {name: value for name, value in values(**run).items() if name != "question"}


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


MADE = [(by_record, True), (by_node, True), (by_answers, False), (by_first_question, False)]


@pytest.mark.parametrize(("made", "sound"), MADE)
def test_two_runs_lose_no_more_than_both_promise(made: Callable[[Path], Presence], sound: bool, tmp_path: Path) -> None:
    found = loss(made(tmp_path))
    assert (found <= AMPLIFIED + SECOND) == sound
    assert sound or found == pytest.approx(DRAWN)
