"""A silo that lies, dies, repeats itself or sends what nobody asked for costs its own people, and nobody else."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from cover import by_default
from federation.crowd import (
    BOXED,
    FEW,
    Peer,
    Without,
    carried_out,
    complete,
    coordinator,
    from_items,
    inline_model,
    no_deadline_is_waited_for,
    specification,
)
from federation.silos import HonestSilos, Lie, Lying, clients_of, scripted, silo_config, write_silos
from one_answer import answer_from_wire
from quoron_client.protocol import wire
from quoron_client.protocol.questions import Answers, Question, Status
from quoron_privacy.errors import ConfigError, WireError
from quoron_privacy.means.clipping import ClippedSum
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.algorithms.whitened.parameters import PARTS
from quoron_server.specification import RunSpecification, make_plan

SIZES, LIAR = (7, 12, 1), 7  # the silo of users 7 to 18
THEIRS = range(7, 19)
SECONDS = 30.0


def wanted(name: str = "dp-sgd-poisson", **changes: object) -> RunSpecification:
    return specification(name, silos=SIZES, **changes)


def model_where(gone: Mapping[int, int], folder: Path, spec: RunSpecification, **rounds: object) -> np.ndarray:
    return inline_model(spec, folder, engine=Without(from_items(sum(SIZES)), gone, **rounds))


def model_with(answering: HonestSilos, folder: Path, spec: RunSpecification) -> np.ndarray:
    async def scene() -> np.ndarray:
        async with coordinator(folder, max_users_per_client=20) as running, scripted(running.listen, SIZES) as peers:
            working = [asyncio.create_task(peer.work(answering)) for peer in peers]
            await running.scheduler.submit(spec.as_text())
            model = await complete(running)
            await asyncio.gather(*working)
            return model

    return carried_out(scene(), within=60)


def lying(lie: Lie) -> Lying:
    honest = HonestSilos.of(SIZES)
    return Lying(honest.people, honest.engine, liar=LIAR, lie=lie)


def with_values(change: Callable[[np.ndarray], np.ndarray]) -> Lie:
    def lie(answer: pb.Answer) -> pb.Answer:
        rows = wire.array_from_wire(answer.values, "float64")
        answer.values.CopyFrom(wire.array_to_wire(change(rows)))
        return answer

    return lie


def with_statuses(change: Callable[[bytes], bytes]) -> Lie:
    def lie(answer: pb.Answer) -> pb.Answer:
        answer.statuses = change(answer.statuses)
        return answer

    return lie


def with_sums(**fields: object) -> Lie:
    def lie(answer: pb.Answer) -> pb.Answer:
        length = answer.sums.total.shape[0]
        for name, value in fields.items():
            if isinstance(value, int):
                setattr(answer.sums, name, value)
            else:
                getattr(answer.sums, name).CopyFrom(wire.array_to_wire(np.asarray(value(length))))
        return answer

    return lie


LIES = {
    "one row too many": with_values(lambda rows: np.vstack([rows, rows[:1]])),
    "one row too few": with_values(lambda rows: rows[:-1]),
    "longer rows": with_values(lambda rows: np.hstack([rows, rows])),
    "flat": with_values(lambda rows: rows.ravel()),
    "float32": with_values(lambda rows: rows.astype(np.float32)),
    "one status too many": with_statuses(lambda said: said + b"\0"),
    "no status": with_statuses(lambda _: b""),
    "unknown statuses": with_statuses(lambda said: b"\7" * len(said)),
    "sums that were not asked for": lambda answer: wire.sums_to_wire(
        answer.run,
        answer.round,
        answer.digest,
        wire.reduction_from_wire(pb.Reduction(clipped=pb.ClippedSum(norm=1.0, divisor=20))).of(
            np.ones((3, 3)), np.ones(3, bool)
        ),
    ),
}
SUMS = {
    "more persons than were asked": with_sums(answered=13),
    "a longer total than so many rows have": with_sums(total=lambda d: np.full(d, 2**60)),
    "another length": with_sums(total=lambda d: np.zeros(d + 1, np.int64)),
    "not integers": with_sums(total=lambda d: np.zeros(d)),
    "more clipped than answered": with_sums(clipped=2**40),
    "cells that no rows have": with_sums(cells=lambda _: np.full(4, -1, np.int64)),
    "rows in place of sums": lambda answer: pb.Answer(run=answer.run, round=answer.round, digest=answer.digest),
}


@pytest.mark.parametrize(
    "lie", by_default(LIES, [lie for lie in LIES if lie not in ("flat", "float32", "no status", "one row too many")])
)
def test_a_silo_that_lies_about_all_of_its_rows_is_its_people_rejected_and_nobody_else(
    lie: str, tmp_path: Path
) -> None:
    model = model_with(lying(LIES[lie]), tmp_path, wanted())
    gone = dict.fromkeys(THEIRS, Status.REJECTED)
    np.testing.assert_array_equal(model, model_where(gone, tmp_path, wanted()))


@pytest.mark.parametrize(
    "lie",
    by_default(SUMS, [lie for lie in SUMS if lie not in ("another length", "rows in place of sums", "not integers")]),
)
def test_a_silo_whose_sum_cannot_be_is_its_people_rejected_and_nobody_else(lie: str, tmp_path: Path) -> None:
    spec = wanted(silo_sums=True)
    model = model_with(lying(SUMS[lie]), tmp_path, spec)
    gone = dict.fromkeys(THEIRS, Status.REJECTED)
    np.testing.assert_array_equal(model, model_where(gone, tmp_path, spec))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_row_that_cannot_be_is_one_person_rejected_and_not_the_silo(value: float, tmp_path: Path) -> None:
    spec = wanted("sgd")  # asks everybody, in an order of its own

    def change(rows: np.ndarray) -> np.ndarray:
        rows[0] = value
        return rows

    honest = lying(with_values(change))
    model = model_with(honest, tmp_path, spec)
    firsts = {number: users[0] for user, number, users in honest.asked if user == LIAR}

    class Engine(Without):
        def ask(self, question: Question) -> Answers:
            self.gone = {firsts[question.round]: Status.REJECTED} if question.round in firsts else {}
            return Without.ask(self, question)

    np.testing.assert_array_equal(model, inline_model(spec, tmp_path, engine=Engine(from_items(20), {})))


async def test_a_silo_that_dies_in_mid_run_is_its_people_away_until_it_comes_back(tmp_path: Path) -> None:
    spec, dies, returns = wanted(seconds=SECONDS), 1, 3
    gone = dict.fromkeys(THEIRS, Status.MISSING)
    honest = HonestSilos.of(SIZES)
    async with coordinator(tmp_path, max_users_per_client=20) as running, scripted(running.listen, SIZES) as peers:
        others = [asyncio.create_task(peer.work(honest)) for peer in peers if peer.user != LIAR]
        silo_peer = next(peer for peer in peers if peer.user == LIAR)

        def answering(user: int, message: pb.Question) -> pb.Answer | None:
            if message.round >= dies:
                silo_peer.call.cancel()
                return None
            return honest(user, message)

        working = asyncio.create_task(silo_peer.work(answering))
        await running.scheduler.submit(spec.as_text())
        await asyncio.wait({working})  # its call was cancelled
        await no_deadline_is_waited_for(running, [LIAR], SECONDS, rounds=returns - dies)
        async for event in (await running.scheduler.feed("trial")).watch():
            if event["kind"] == "round" and event["round"] == returns - 1:
                break
        await silo_peer.hello()
        others.append(asyncio.create_task(silo_peer.work(honest)))
        model = await complete(running)
        await asyncio.gather(*others)
        found = model
    np.testing.assert_array_equal(found, model_where(gone, tmp_path, spec, rounds=[1, 2]))


async def test_a_client_says_how_many_it_answers_for_once_and_no_more_than_it_may(tmp_path: Path) -> None:
    said = []
    async with (
        coordinator(tmp_path, max_users_per_client=20) as running,
        grpc.aio.insecure_channel(running.listen) as channel,
    ):
        peer = Peer(channel, "a", people=12)
        assert await peer.enrol() == 0
        assert await peer.enrol() == 0
        for people, name in ((11, "a"), (13, "a"), (0, "a"), (21, "b"), (2**40, "b")):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await Peer(channel, name, people=people).enrol()
            assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            said.append(error.value.details())
        assert await Peer(channel, "b").enrol() == 12
    grown = said
    assert all("Expected 12 people" in each for each in grown[:3])
    assert all("max_users_per_client" in each for each in grown[3:])


ROWS = st.integers(2, 6).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(st.sampled_from([0.0, -1.5, 1e308, np.nan, np.inf]), min_size=3 * k, max_size=3 * k),
        st.lists(st.integers(0, 255), min_size=k, max_size=k),
    )
)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_what_becomes_of_a_row_is_what_becomes_of_it_from_a_client_of_its_own(made: tuple) -> None:
    k, numbers, statuses = made
    rows = np.array(numbers).reshape(k, 3)
    whole = pb.Answer(values=wire.array_to_wire(rows), statuses=bytes(statuses))
    found = wire.rows_from_wire(whole, (3,), k)
    for row, status, values, become in zip(rows, statuses, found.values, found.status, strict=True):
        alone = pb.Answer(status=status, values=wire.array_to_wire(row))
        expected, kind = answer_from_wire(alone, (3,))
        np.testing.assert_array_equal(values, expected)
        assert become == kind


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_of_a_silo_raise(data: bytes) -> None:
    try:
        answer = pb.Answer.FromString(data)
    except DecodeError:
        answer = pb.Answer(statuses=data)
    assert isinstance(wire.rows_from_wire(answer, (3,), 4), Answers | None)
    wire.sums_from_wire(answer, 3, 4, ClippedSum(1.0, 4))
    for bits in (data, data[:1]):
        try:
            assert len(wire.persons_of(bits, people=8))
        except WireError:
            continue


@pytest.mark.parametrize("people", [1, 7, 8, 9, 300])
def test_persons_of_a_silo_are_told_by_as_many_bytes_whoever_is_asked(people: int) -> None:
    rng, lengths = np.random.default_rng(people), set()
    for _ in range(20):
        asked = np.flatnonzero(rng.random(people) < 0.5) if people > 1 else np.zeros(1, np.int64)
        if len(asked):
            bits = wire.bits_of(asked, people=people)
            lengths.add(len(bits))
            np.testing.assert_array_equal(wire.persons_of(bits, people=people), asked)
    assert len(lengths) == 1
    for beyond in {people} if people % 8 else set():
        bits = bytearray(-(-people // 8))
        bits[beyond // 8] |= 1 << beyond % 8
        with pytest.raises(WireError, match="persons below"):
            wire.persons_of(bytes(bits), people=people)


KINDS = {"dp-sgd-poisson", "phased-sgd", "local-model", "dp-ftrl", "whitened-tracking"}  # kinds of questions
SUMMED = {"one-round-least-squares", "whitened-tracking", "dp-sgd-poisson"}  # of every kind of sum


def planned(name: str, *, sums: bool = False) -> RunSpecification:
    users, options = FEW[name]
    if sums and name == "whitened-tracking":  # whose first message is ten
        options = {"rounds": int(str(options["rounds"])) + PARTS}
    return specification(name, silos=(7, users - 8, 1), silo_sums=sums, options=options)


def plannable(name: str, *, sums: bool) -> bool:
    """Whether it is an algorithm for silos: neither one of hidden cohorts of a fixed size, nor sums of single reads."""
    try:
        make_plan(planned(name, sums=sums))
    except ConfigError:
        return False
    return True


SMALL = [name for name, (users, _) in FEW.items() if users <= 100 and name not in BOXED]
WITH_ROWS = [name for name in SMALL if plannable(name, sums=False)]
WITH_SUMS = [name for name in SMALL if plannable(name, sums=True)]


async def of_silos(wanted: RunSpecification, folder: Path) -> np.ndarray:
    async with coordinator(folder, max_users_per_client=100) as running:
        configs = [silo_config(path, running.listen) for path in write_silos(folder, wanted.silos)]
        async with clients_of(configs, running):
            await running.scheduler.submit(wanted.as_text())
            return await complete(running)


@pytest.mark.parametrize("name", by_default(WITH_ROWS, KINDS))
def test_three_silos_give_the_bits_of_their_people_in_one_process(name: str, tmp_path: Path) -> None:
    wanted = planned(name)
    model = carried_out(of_silos(wanted, tmp_path))
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, from_items(wanted.problem.users)))


@pytest.mark.parametrize("name", by_default(WITH_SUMS, SUMMED))
def test_three_silos_that_send_sums_give_the_same_bits(name: str, tmp_path: Path) -> None:
    wanted = planned(name, sums=True)
    model = carried_out(of_silos(wanted, tmp_path))
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, from_items(wanted.problem.users)))
