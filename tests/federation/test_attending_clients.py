"""A client of a run that tells who answers: the same message at the same time, whatever it holds and however long it
computes. What shows is which bytes left, and whether they left before their time."""

import asyncio
import json
import threading

import numpy as np
import pandas as pd
import pytest

from federation.conversation import GRADIENT, asked, converse, terms, values
from federation.crowd import put_clock_forward
from quoron_client.federation import Record, read_terms, session, work
from quoron_client.federation.owner import PUBLIC_ATTENDANCE
from quoron_client.protocol.questions import Status
from quoron_client.protocol.wire import answer_to_wire
from quoron_privacy.errors import ConfigError, WireError
from quoron_protos.v1 import federation_pb2 as federation

SECONDS = 60.0
PUBLIC = {"attendance": "public", "seconds": SECONDS}
OWNER = {"accept_exposures": ("broadcast", PUBLIC_ATTENDANCE), "one_user": True}


def missing(data, monkeypatch):
    """The file is gone when the client comes up."""
    data.unlink()


def of_another_kind(data, monkeypatch):
    pd.DataFrame({"something": [1, 2]}).to_csv(data, index=False)


def unusable(data, monkeypatch):
    table = pd.read_csv(data)
    table["age"] = np.nan
    table.to_csv(data, index=False)


def failing(data, monkeypatch):
    def fails(*_args, **_settings):
        raise FloatingPointError("of its data")

    monkeypatch.setattr(work, "answer", fails)


def infinite(data, monkeypatch):
    real = work.answer

    def far(*args, **settings):
        found = real(*args, **settings)
        found.values[:] = np.inf
        return found

    monkeypatch.setattr(work, "answer", far)


def fine(data, monkeypatch):
    pass


FAULTS = (missing, of_another_kind, unusable, failing, infinite)


async def sent_at_its_time(fake, question=None, ready=None):
    """The answer, which comes when half a round is over, and not before, though it may be `ready`."""
    await fake.to_say.put(said(asked() if question is None else question))
    while ready is not None and not ready.is_set():
        await asyncio.sleep(0.001)
    for passed in (0.0, 0.4 * SECONDS):
        put_clock_forward(passed)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert fake.heard.empty(), "before its time"
    put_clock_forward(0.2 * SECONDS)
    return await fake.hears("answer")


def said(question):
    return federation.ServerMessage(question=question)


def readiness(monkeypatch):
    """Set once an answer was computed."""
    ready, real = threading.Event(), work.Worker.reply

    def noticed(self, message, **settings):
        found = real(self, message, **settings)
        ready.set()
        return found

    monkeypatch.setattr(work.Worker, "reply", noticed)
    return ready


def answered(data, monkeypatch, fault):
    fault(data, monkeypatch)

    async def script(fake):
        assert await fake.announce("r", terms(**PUBLIC)), "it agrees by the terms alone"
        return await sent_at_its_time(fake, ready=readiness(monkeypatch))

    return converse(data, script, **OWNER)


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_wrong_with_its_items_it_answers_at_its_time_with_zeros_of_the_same_length(
    data, monkeypatch, fault
):
    sent = answered(data, monkeypatch, fault)
    found, status = values(sent)
    assert status == Status.ANSWERED
    assert not found.any()
    assert sent.ByteSize() == asked_answer_size(data)


def asked_answer_size(data):
    """Of any answer to the question: name, digest, status and numbers are as long for all."""
    question = asked()
    return answer_to_wire("r", 0, question.digest, np.ones(GRADIENT.answer_shape(3)), Status.ANSWERED).ByteSize()


def test_one_whose_items_are_fine_answers_at_the_same_time_with_its_answer(data, monkeypatch):
    sent = answered(data, monkeypatch, fine)
    found, status = values(sent)
    assert status == Status.ANSWERED
    assert found.any()
    assert sent.ByteSize() == asked_answer_size(data)


def test_one_that_is_not_ready_sends_zeros_and_never_what_is_ready_later(data, monkeypatch):
    going_on, real = threading.Event(), work.Worker._compute

    def slow(self, *arguments):
        going_on.wait()
        return real(self, *arguments)

    monkeypatch.setattr(work.Worker, "_compute", slow)

    async def script(fake):
        assert await fake.announce("r", terms(**PUBLIC))
        first = await sent_at_its_time(fake)
        later = await sent_at_its_time(fake, asked(number=1))
        going_on.set()
        again = await sent_at_its_time(fake)  # the same question, as a coordinator that was started again asks it
        return first, later, again

    first, later, again = converse(data, script, **OWNER)
    for sent in (first, later):
        found, status = values(sent)
        assert status == Status.ANSWERED
        assert not found.any()
    assert again.status != 0 or again == first, "nothing but the zeros that were kept"


def test_a_question_that_is_said_before_the_consent_has_no_answer_that_leaves_when_it_is_ready(data, monkeypatch):
    """Announced in another spelling, and asked in the same breath: it would have been answered once it was computed."""
    ready, told, real = readiness(monkeypatch), threading.Event(), work.Worker.consider
    announced = json.dumps(json.loads(terms(**PUBLIC)), separators=(",", ":"))

    def slow(self, *given):
        told.wait(5)  # seconds, where the answer would come only after the consent
        return real(self, *given)

    monkeypatch.setattr(work.Worker, "consider", slow)

    async def script(fake):
        announcement = federation.Announcement(run="r", description=announced)
        await fake.to_say.put(federation.ServerMessage(run=announcement))
        await fake.to_say.put(said(asked()))
        first = await fake.hears("answer"), ready.is_set()
        told.set()
        assert (await fake.hears("consent")).takes_part
        return first, await sent_at_its_time(fake, ready=ready)

    (answer, computed), later = converse(data, script, **OWNER)
    assert (answer.status, computed) == (federation.STATUS_MISSING, False), "of no items: nothing was computed"
    assert values(later)[1] == Status.ANSWERED, "asked again, after the consent"


def test_of_a_run_that_was_forgotten_nothing_tells_whether_an_answer_was_kept(data, monkeypatch):
    """Parts are evicted by other runs, and gone after a restart; its record knows what kind of run it was."""
    ready = readiness(monkeypatch)

    async def script(fake):
        assert await fake.announce("r", terms(**PUBLIC))
        kept = await sent_at_its_time(fake, ready=ready)
        workers[0].parts.clear()
        return kept, await fake.ask(asked())

    workers, real = [], work.Worker.consider
    monkeypatch.setattr(work.Worker, "consider", lambda self, *given: workers.append(self) or real(self, *given))
    kept, again = converse(data, script, **OWNER)
    assert values(kept)[1] == Status.ANSWERED
    assert again.status == federation.STATUS_MISSING


def test_no_client_takes_part_unless_its_owner_says_so(data):
    async def script(fake):
        return await fake.announce("r", terms(**PUBLIC))

    assert not converse(data, script)
    with Record.open(data.parent / "record.sqlite", epsilon=2.0, delta=1e-5) as record:
        assert record.spent == (0.0, 0.0)


def test_one_that_would_look_at_its_file_before_it_comes_up_is_refused(data):
    async def script(fake):
        raise AssertionError("it came up")

    with pytest.raises(ConfigError, match="--one-user"):
        converse(data, script, **(OWNER | {"one_user": False}))


@pytest.mark.parametrize("changes", [{"seconds": None}, {"adjacency": "zero-out"}, {"exposure": "local"}])
def test_terms_that_cannot_be_kept_are_no_terms(changes):
    with pytest.raises(WireError, match="public attendance"):
        read_terms("r", terms(**(PUBLIC | changes)))


def test_the_audit_of_times_catches_a_client_that_answers_as_soon_as_it_is_done(data, monkeypatch):
    """It is heard though its clock stands still at the time when it was asked."""
    monkeypatch.setattr(session, "SENDS", 0.0)

    async def script(fake):
        assert await fake.announce("r", terms(**PUBLIC))
        return await fake.ask(asked())

    assert converse(data, script, **OWNER).status == federation.STATUS_ANSWERED
