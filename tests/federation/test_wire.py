"""The wire stays what it is: golden bytes of every message, questions and answers there and back, generated code."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.local_sgd import LocalSGD
from quoron_client.protocol.moments import SecondMoment
from quoron_client.protocol.placed import PlacedGradient
from quoron_client.protocol.questions import Question, Status
from quoron_client.protocol.reports import RangeReport, VectorReport
from quoron_client.protocol.smoothing import Convolution, Moreau
from quoron_client.protocol.whitened import AverageLoss, MomentAndGradient
from quoron_client.protocol.wire import (
    DIGEST_SIZE,
    MAX_MESSAGE,
    MAX_NUMBERS,
    answer_from_wire,
    answer_to_wire,
    array_from_wire,
    array_to_wire,
    question_digest,
    question_from_wire,
    question_to_wire,
)
from quoron_privacy.errors import WireError
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1 import values_pb2 as values

ROOT = Path(__file__).parent.parent.parent
DIGEST = bytes(range(DIGEST_SIZE))
ARRAY = values.Array(dtype="float64", shape=(1, 2), data=np.array([1.0, -2.0]).tobytes())
GRADIENT = federation.AverageGradient(
    points=ARRAY, weights=(0.5,), user_smoothness=0.25, centre=ARRAY, reference_items=50,
    smoothing=federation.Smoothing(moreau=0.5),
)  # fmt: skip
BALL, DIRECTIONS = federation.Domain(ball_radius=3.0), federation.Smoothing(convolution_radius=0.5)
BOOKS = federation.Books(incarnations=["a", "b"], rows=7, head="c", then="d", charged=[2**63])
AGREED = federation.Agreed(run="r", epsilon=1.5, delta=0.5)
HELLO = federation.Hello(protocol=1, software="quoron 1")
ANSWER = federation.Answer(run="r", round=7, digest=DIGEST, status=federation.STATUS_REJECTED, values=ARRAY)

# Field numbers and types may never change: each message with every field set, and each choice of a oneof.
FOLLOWS, PART = federation.Follows(length=(6 << 20) + 4096, digest=b"\n"), federation.Part(offset=4 << 20, data=b"\1")
MESSAGES = {
    "Array": ARRAY,
    "Value": values.Value(array=ARRAY),
    "Value.real": values.Value(real=1.5),
    "Value.integer": values.Value(integer=-3),
    "Value.flag": values.Value(flag=True),
    "Value.text": values.Value(text="é"),
    "Value.absent": values.Value(absent=True),
    "Record": values.Record(type="State", fields={"x": values.Value(real=1.5)}),
    "EnrolRequest": federation.EnrolRequest(protocol=1, software="quoron 1", seen=300),
    "EnrolReply": federation.EnrolReply(user=300, agreed=[AGREED], books=BOOKS),
    "Agreed": AGREED,
    "Books": BOOKS,
    "ClientMessage": federation.ClientMessage(hello=HELLO),
    "ClientMessage.consent": federation.ClientMessage(consent=federation.Consent(run="r", takes_part=True)),
    "ClientMessage.answer": federation.ClientMessage(answer=ANSWER),
    "Hello": HELLO,
    "Consent": federation.Consent(run="r", takes_part=True),
    "ServerMessage": federation.ServerMessage(welcome=federation.Welcome(user=300)),
    "ServerMessage.run": federation.ServerMessage(run=federation.Announcement(run="r", description="{}")),
    "ServerMessage.question": federation.ServerMessage(question=federation.Question(run="r")),
    "ServerMessage.receipt": federation.ServerMessage(receipt=federation.Receipt(run="r")),
    "ServerMessage.ended": federation.ServerMessage(ended=federation.Ended(run="r")),
    "Welcome": federation.Welcome(user=300),
    "Announcement": federation.Announcement(run="r", description="{}"),
    "Question": federation.Question(run="r", round=7, digest=DIGEST, seconds=60, average_gradient=GRADIENT),
    "Question.second_moment": federation.Question(second_moment=federation.SecondMoment(dimension=2)),
    "Question.placed_gradient": federation.Question(placed_gradient=federation.PlacedGradient(divisor=3.0)),
    "Question.moment_and_gradient": federation.Question(moment_and_gradient=federation.MomentAndGradient(dimension=2)),
    "Question.average_loss": federation.Question(average_loss=federation.AverageLoss(points=ARRAY)),
    "Question.local_sgd": federation.Question(local_sgd=federation.LocalSGD(step_size=0.5)),
    "Question.range_report": federation.Question(range_report=federation.RangeReport(bins=4)),
    "Question.vector_report": federation.Question(vector_report=federation.VectorReport(radius=1.0)),
    "AverageGradient": GRADIENT,
    "PlacedGradient": federation.PlacedGradient(point=ARRAY, places=ARRAY, divisor=3.0, clip=0.5, expected=2),
    "SecondMoment": federation.SecondMoment(dimension=2, label_scale=0.5),
    "MomentAndGradient": federation.MomentAndGradient(dimension=2, point=ARRAY, centre=ARRAY),
    "AverageLoss": federation.AverageLoss(points=ARRAY),
    "LocalSGD": federation.LocalSGD(start=ARRAY, step_size=0.5, domain=BALL, smoothing=DIRECTIONS),
    "RangeReport": federation.RangeReport(
        gradient=GRADIENT, epsilon=1.0, bins=4, half_width=2.0, signs=ARRAY, coordinate=3
    ),
    "VectorReport": federation.VectorReport(gradient=GRADIENT, epsilon=1.0, delta=1e-6, radius=2.0, centre=ARRAY),
    "Domain": BALL,
    "Domain.box_half_width": federation.Domain(box_half_width=3.0),
    "Smoothing": DIRECTIONS,
    "Smoothing.moreau": federation.Smoothing(moreau=0.5),
    "Answer": ANSWER,
    "Answer.follows": federation.Answer(follows=FOLLOWS),
    "Question.follows": federation.Question(follows=FOLLOWS),
    "Follows": FOLLOWS,
    "Part": PART,
    "ClientMessage.part": federation.ClientMessage(part=PART),
    "ServerMessage.part": federation.ServerMessage(part=PART),
    "Receipt": federation.Receipt(run="r", round=7, verdict=federation.VERDICT_NOT_ASKED),
    "Ended": federation.Ended(run="r", how="complete"),
    "SubmitRequest": federation.SubmitRequest(specification="{}"),
    "RunReference": federation.RunReference(run="r"),
    "ListRequest": federation.ListRequest(),
    "LedgerRequest": federation.LedgerRequest(run="r"),
    "UsersRequest": federation.UsersRequest(group="g", state="away", after=7),
    "ChangeUserRequest": federation.ChangeUserRequest(action="replace", user="old", by="new", rotation="signed"),
    "LimitRequest": federation.LimitRequest(group="g", epsilon=1.0, delta=1e-6, gaussian_share=0.5, exceeded=True),
    "ChargeRequest": federation.ChargeRequest(
        run="r",
        group="g",
        epsilon=1.0,
        delta=1e-6,
        mu=0.5,
        variation=0.25,
        adjacency="zero-out",
        note="n",
        spent=True,
        lost=0.25,
    ),
    "BackupRequest": federation.BackupRequest(with_secrets=True),
    "Document": federation.Document(json="{}"),
}
GOLDEN: dict[str, str] = {
    "Array": "0a07666c6f61743634120201021a10000000000000f03f00000000000000c0",
    "Value": "0a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0",
    "Value.real": "11000000000000f83f",
    "Value.integer": "1805",
    "Value.flag": "2001",
    "Value.text": "2a02c3a9",
    "Value.absent": "3001",
    "Record": "0a055374617465120e0a0178120911000000000000f83f",
    "EnrolRequest": "0801120871756f726f6e203118ac02",
    "EnrolReply": (
        "08ac0212150a017211000000000000f83f19000000000000e03f1a180a01610a016210071a01632201642a080000000000000080"
    ),
    "Books": "0a01610a016210071a01632201642a080000000000000080",
    "Agreed": "0a017211000000000000f83f19000000000000e03f",
    "ClientMessage": "0a0c0801120871756f726f6e2031",
    "ClientMessage.consent": "12050a01721001",
    "ClientMessage.answer": (
        "1a3a0a017210071a10000102030405060708090a0b0c0d0e0f20022a1f0a07666c6f61743634120201021a10000000000000"
        "f03f00000000000000c0"
    ),
    "Hello": "0801120871756f726f6e2031",
    "Consent": "0a01721001",
    "ServerMessage": "0a0308ac02",
    "ServerMessage.run": "12070a017212027b7d",
    "ServerMessage.question": "1a030a0172",
    "ServerMessage.receipt": "22030a0172",
    "ServerMessage.ended": "2a030a0172",
    "Welcome": "08ac02",
    "Announcement": "0a017212027b7d",
    "Question": (
        "0a017210071a10000102030405060708090a0b0c0d0e0f203c2a620a1f0a07666c6f61743634120201021a10000000000000"
        "f03f00000000000000c01208000000000000e03f19000000000000d03f221f0a07666c6f61743634120201021a1000000000"
        "0000f03f00000000000000c02832320911000000000000e03f"
    ),
    "Question.second_moment": "32020802",
    "Question.placed_gradient": "6209190000000000000840",
    "Question.moment_and_gradient": "52020802",
    "Question.average_loss": "5a210a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0",
    "Question.local_sgd": "3a0911000000000000e03f",
    "Question.range_report": "42021804",
    "Question.vector_report": "4a0921000000000000f03f",
    "AverageGradient": (
        "0a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c01208000000000000e03f19000000000000"
        "d03f221f0a07666c6f61743634120201021a10000000000000f03f00000000000000c02832320911000000000000e03f"
    ),
    "PlacedGradient": (
        "0a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0121f0a07666c6f61743634120201021a10"
        "000000000000f03f00000000000000c019000000000000084021000000000000e03f2802"
    ),
    "SecondMoment": "080211000000000000e03f",
    "MomentAndGradient": (
        "0802121f0a07666c6f61743634120201021a10000000000000f03f00000000000000c01a1f0a07666c6f6174363412020102"
        "1a10000000000000f03f00000000000000c0"
    ),
    "AverageLoss": "0a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0",
    "LocalSGD": (
        "0a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c011000000000000e03f1a09090000000000"
        "000840220909000000000000e03f"
    ),
    "RangeReport": (
        "0a620a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c01208000000000000e03f1900000000"
        "0000d03f221f0a07666c6f61743634120201021a10000000000000f03f00000000000000c02832320911000000000000e03f"
        "11000000000000f03f18042100000000000000402a1f0a07666c6f61743634120201021a10000000000000f03f0000000000"
        "0000c03003"
    ),
    "VectorReport": (
        "0a620a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c01208000000000000e03f1900000000"
        "0000d03f221f0a07666c6f61743634120201021a10000000000000f03f00000000000000c02832320911000000000000e03f"
        "11000000000000f03f198dedb5a0f7c6b03e2100000000000000402a1f0a07666c6f61743634120201021a10000000000000"
        "f03f00000000000000c0"
    ),
    "Domain": "090000000000000840",
    "Domain.box_half_width": "110000000000000840",
    "Smoothing": "09000000000000e03f",
    "Smoothing.moreau": "11000000000000e03f",
    "Answer": (
        "0a017210071a10000102030405060708090a0b0c0d0e0f20022a1f0a07666c6f61743634120201021a10000000000000f03f"
        "00000000000000c0"
    ),
    "Answer.follows": "32080880a0800312010a",
    "Question.follows": "6a080880a0800312010a",
    "Follows": "0880a0800312010a",
    "Part": "0880808002120101",
    "ClientMessage.part": "22080880808002120101",
    "ServerMessage.part": "32080880808002120101",
    "Receipt": "0a017210071803",
    "Ended": "0a01721208636f6d706c657465",
    "SubmitRequest": "0a027b7d",
    "RunReference": "0a0172",
    "ListRequest": "",
    "LedgerRequest": "0a0172",
    "UsersRequest": "0a01671204617761791807",
    "ChangeUserRequest": "0a077265706c61636512036f6c641a036e657722067369676e6564",
    "LimitRequest": "0a016711000000000000f03f198dedb5a0f7c6b03e21000000000000e03f2801",
    "ChargeRequest": (
        "0a017212016719000000000000f03f218dedb5a0f7c6b03e29000000000000e03f31000000000000d03f3a087a"
        "65726f2d6f757442016e480151000000000000d03f"
    ),
    "BackupRequest": "0801",
    "Document": "0a027b7d",
}

POINTS = np.array([[1.0, -2.0, 3.0], [0.5, 0.0, 2.0**-40]])
PLAIN = AverageGradient(POINTS[:1], (1.0,))
FULL = AverageGradient(
    POINTS, (1.0, -0.5), user_smoothness=0.25, centre=POINTS[1], reference_items=50, smoothing=Moreau(0.5)
)
TASKS = {
    "average gradient": FULL,
    "plain gradient": PLAIN,
    "convolved gradient": AverageGradient(POINTS, (1.0, -0.5), smoothing=Convolution(0.5, 99)),
    "second moment": SecondMoment(3),
    "second moment with labels": SecondMoment(4, 0.5),
    "moment and gradient": MomentAndGradient(3, POINTS[0]),
    "moment and centred gradient": MomentAndGradient(3, POINTS[0], POINTS[1]),
    "average loss": AverageLoss(POINTS),
    "local SGD": LocalSGD(POINTS, 0.125, L2Ball(2.0), Moreau(0.25)),
    "local SGD in a box": LocalSGD(POINTS, 0.125, Box(2.0)),
    "placed gradient": PlacedGradient(POINTS[:1], np.array([[1, 2, -1], [0, 5, 2]]), 3.0, 0.5, 2),
    "unclipped places": PlacedGradient(POINTS[:1], np.array([[1], [0]]), 1.0),
    "range report": RangeReport(FULL, 1.0, 8, 2.0, np.array([1.0, -1.0, 1.0]), np.array([3, 0])),
    "vector report": VectorReport(PLAIN, 1.0, 1e-6, 2.0, POINTS[1]),
}
ASKED = {
    "average gradient": "c85b4f053c7ea61e5781cdfc426ec4d1",
    "plain gradient": "430d4a5b184eb16ab9cd1b01712de287",
    "convolved gradient": "d4fbd9e1a0e6b120ee0301bad228ef0f",
    "second moment": "05151ca29d9a216881904d310ebb7411",
    "second moment with labels": "893047e45017e888a19954dc731f6c9c",
    "moment and gradient": "392e4571122a50594af8251a80d2e29e",
    "moment and centred gradient": "ed9041f17354f2e2f3338e2a7582ad52",
    "average loss": "28d63196cad5b9a89cd783f8f3332c08",
    "local SGD": "9d66edae50867c98b7198298d050241b",
    "local SGD in a box": "6cfd327483bd94b865b993756b27817e",
    "placed gradient": "851fa20680982d15db7ee2ca95ebf82e",
    "unclipped places": "640dba0dadba3dad3ca0b47a3262768a",
    "range report": "81360bcee04298a004726cff2c4fb5ee",
    "vector report": "4a8bc36a25ac31b70cc67f210befb9fd",
}


def asked(task, slot=1):
    return question_to_wire(Question(7, np.array([4, 9]), task), slot, run="run", user=9, seconds=60)


def same(found, wanted):
    """Dataclasses of arrays, numbers and dataclasses."""
    assert type(found) is type(wanted)
    for name in wanted.__dataclass_fields__:
        left, right = getattr(found, name), getattr(wanted, name)
        if hasattr(right, "__dataclass_fields__"):
            same(left, right)
        else:
            np.testing.assert_array_equal(left, right, err_msg=name)


def of_slot(task, slot=1):
    """What one user is asked."""
    from dataclasses import replace

    if isinstance(task, LocalSGD):
        return replace(task, starts=task.starts[[slot]])
    if isinstance(task, PlacedGradient):
        return replace(task, places=task.places[[slot]])
    if isinstance(task, RangeReport):
        return replace(task, coordinates=task.coordinates[[slot]])
    if isinstance(task, AverageGradient) and isinstance(task.smoothing, Convolution):
        return replace(task, smoothing=Convolution(task.smoothing.radius, 0))  # directions are the client's own
    return task


class TestTheBytes:
    @pytest.mark.parametrize("name", MESSAGES)
    def test_of_every_message_never_change(self, name):
        message = MESSAGES[name]
        assert message.SerializeToString(deterministic=True).hex() == GOLDEN[name]
        assert type(message).FromString(bytes.fromhex(GOLDEN[name])) == message

    def test_are_pinned_for_every_message_with_every_field(self):
        named = {**values.DESCRIPTOR.message_types_by_name, **federation.DESCRIPTOR.message_types_by_name}
        for name, kind in named.items():
            seen = {field.name for key, each in MESSAGES.items() if key.partition(".")[0] == name
                    for field, _ in each.ListFields()}  # fmt: skip
            assert seen == {field.name for field in kind.fields}, name

    @pytest.mark.parametrize("name", TASKS)
    def test_of_every_question_never_change(self, name):
        message = asked(TASKS[name])
        assert message.digest.hex() == ASKED[name]

    def test_the_generated_code_is_that_of_the_sources(self):
        path = ROOT / "scripts" / "gen_protos.py"
        spec = importlib.util.spec_from_file_location("gen_protos", path)
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        assert list(script.stale(script.generated())) == []


class TestQuestions:
    @pytest.mark.parametrize("name", TASKS)
    def test_arrive_as_they_were_asked_for_the_slot_of_one_user(self, name):
        run, number, digest, task = question_from_wire(asked(TASKS[name]))
        assert (run, number, digest) == ("run", 7, asked(TASKS[name]).digest)
        same(task, of_slot(TASKS[name]))

    def test_differ_in_name_with_run_round_user_and_task(self):
        task = bytes(32)
        names = {
            question_digest(run, number, user, task + extra)
            for run in ("r", "r/1", "r/1/2") for number in (1, 12) for user in (2, 21) for extra in (b"", b"/")
        }  # fmt: skip
        assert len(names) == 24
        assert asked(TASKS["local SGD"], 0).digest != asked(TASKS["local SGD"], 1).digest

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda m: m.ClearField("average_gradient"), "a task that this client knows"),
            (lambda m: m.ClearField("run"), "1 to 200 characters, got 0"),
            (lambda m: setattr(m, "run", "r" * 201), "1 to 200 characters, got 201"),
            (lambda m: setattr(m, "digest", b"short"), "digest of 16 bytes, got 5"),
            (lambda m: m.average_gradient.weights.append(1.0), "each with its weight, got 2 and 3"),
            (lambda m: m.average_gradient.weights.__setitem__(0, float("nan")), "finite weights"),
            (lambda m: m.average_gradient.ClearField("points"), "array of float64, got one of ''"),
            (lambda m: m.average_gradient.points.shape.__setitem__(0, 3), r"Expected 72 bytes .* \(3, 3\), got 48"),
            (lambda m: m.average_gradient.points.shape.__setitem__(0, 2**63), "numbers, got another shape"),
            (lambda m: m.average_gradient.points.shape.extend([1, 1]), "at most 3 axes"),
            (lambda m: m.average_gradient.points.shape.append(1), "along 2 axes"),
            (lambda m: setattr(m.average_gradient.points, "dtype", "object"), "float64, got one of 'object'"),
            (lambda m: setattr(m.average_gradient.points, "data", b"\xff" * 48), "finite numbers"),
            (lambda m: m.average_gradient.centre.shape.__setitem__(0, 2), "Expected 16 bytes"),
            (lambda m: m.average_gradient.centre.CopyFrom(array_to_wire(np.ones(2))), "Expected 3 numbers"),
            (lambda m: setattr(m.average_gradient, "user_smoothness", -1.0), "user_smoothness > 0"),
            (lambda m: setattr(m.average_gradient, "user_smoothness", float("inf")), "user_smoothness > 0"),
            (lambda m: setattr(m.average_gradient, "reference_items", 0), "reference_items in"),
            (lambda m: setattr(m.average_gradient, "reference_items", 2**63), "reference_items in"),
            (lambda m: setattr(m.average_gradient.smoothing, "moreau", 0.0), "parameter > 0"),
            (lambda m: setattr(m.average_gradient.smoothing, "convolution_radius", float("nan")), "radius > 0"),
            (lambda m: setattr(m.second_moment, "dimension", 0), "second moment fits"),
            (lambda m: setattr(m.second_moment, "dimension", 2**31), "second moment fits"),
            (lambda m: m.second_moment.CopyFrom(federation.SecondMoment(dimension=2, label_scale=-1)), "label_scale >"),
            (lambda m: setattr(m.moment_and_gradient, "dimension", 3), "float64"),
            (lambda m: m.moment_and_gradient.point.CopyFrom(array_to_wire(np.ones(3))), "second moment fits"),
            (lambda m: m.average_loss.points.CopyFrom(array_to_wire(np.ones((17, 3)))), "at most 16 points"),
            (lambda m: setattr(m.local_sgd, "step_size", 1.0), "float64"),
            (lambda m: m.local_sgd.CopyFrom(asked(TASKS["local SGD"]).local_sgd) or m.local_sgd.ClearField("domain"),
             "ball or a box"),
            (lambda m: m.vector_report.CopyFrom(federation.VectorReport(gradient=GRADIENT, delta=1.0)), "Expected"),
        ],
    )  # fmt: skip
    def test_that_are_not_of_the_protocol_are_refused_by_name(self, change, said):
        message = asked(FULL)
        change(message)
        with pytest.raises(WireError, match=said):
            question_from_wire(message)

    @pytest.mark.parametrize(
        ("field", "value", "said"),
        [
            ("bins", 1, "bins in"),
            ("bins", 65_537, "bins in"),
            ("coordinate", 4, "coordinate of the rotated"),
            ("epsilon", 0.0, "epsilon > 0"),
            ("half_width", float("inf"), "half_width > 0"),
        ],
    )
    def test_about_a_range_are_checked(self, field, value, said):
        message = asked(TASKS["range report"])
        setattr(message.range_report, field, value)
        with pytest.raises(WireError, match=said):
            question_from_wire(message)

    def test_about_a_range_have_signs(self):
        for signs in (np.array([1, 0, 1]), np.array([1, -1]), np.array([[1, -1, 1]])):
            message = asked(TASKS["range report"])
            message.range_report.signs.CopyFrom(array_to_wire(signs))
            with pytest.raises(WireError, match="signs"):
                question_from_wire(message)


class TestAnswers:
    @given(st.integers(0, 2**32 - 1), st.sampled_from([(1,), (3,), (2, 5), (0,)]))
    @settings(derandomize=True, deadline=None, max_examples=40)
    def test_arrive_with_the_same_bits(self, seed, shape):
        sent = np.random.default_rng(seed).standard_normal(shape) * 10.0 ** (seed % 600 - 300)
        message = answer_to_wire("r", 3, DIGEST, sent, Status.ANSWERED)
        found, status = answer_from_wire(federation.Answer.FromString(message.SerializeToString()), shape)
        assert status == Status.ANSWERED
        assert found.tobytes() == sent.tobytes()

    @pytest.mark.parametrize("status", [Status.MISSING, Status.REJECTED])
    def test_that_are_none_carry_zeros_of_the_same_size(self, status):
        sent = np.array([1.0, 2.0])
        message = answer_to_wire("r", 3, DIGEST, sent, status)
        assert len(message.values.data) == 16
        message.values.CopyFrom(array_to_wire(sent))  # whatever it says, it is no answer
        found, kept = answer_from_wire(message, (2,))
        assert kept == status
        assert not found.any()

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: m.ClearField("values"),
            lambda m: setattr(m.values, "dtype", "float32"),
            lambda m: setattr(m.values, "dtype", "object"),
            lambda m: setattr(m.values, "data", m.values.data + b"\0"),
            lambda m: setattr(m.values, "data", b""),
            lambda m: m.values.shape.append(1),
            lambda m: m.values.shape.__setitem__(0, 2**64 - 1),
            lambda m: setattr(m.values, "data", np.array([1.0, np.nan]).tobytes()),
            lambda m: setattr(m.values, "data", np.array([-np.inf, 1.0]).tobytes()),
            lambda m: m.ParseFromString(m.SerializeToString() + b"\x20\x63"),  # a status of 99
        ],
    )
    def test_that_are_nonsense_are_rejected_and_zero(self, change):
        message = answer_to_wire("r", 3, DIGEST, np.array([1.0, 2.0]), Status.ANSWERED)
        change(message)
        found, status = answer_from_wire(message, (2,))
        assert status == Status.REJECTED
        assert found.shape == (2,)
        assert not found.any()


class TestArrays:
    @pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.zeros((0, 2**20)), np.float64(3.0)[None]])
    def test_arrive_in_memory_of_their_own(self, array):
        found = array_from_wire(array_to_wire(array), dtype=array.dtype.name, max_numbers=2**20)
        np.testing.assert_array_equal(found, array)
        assert found.flags.writeable
        assert found.flags.owndata or found.base.flags.owndata

    def test_are_little_endian_in_c_order_whatever_they_were(self):
        big = np.arange(6, dtype=">i8").reshape(2, 3).T
        message = array_to_wire(big)
        assert (message.dtype, message.data) == ("int64", np.arange(6).reshape(2, 3).T.copy().tobytes())

    def test_of_too_many_numbers_are_refused_before_they_are_read(self):
        with pytest.raises(WireError, match="at most 3 axes and 5 numbers"):
            array_from_wire(array_to_wire(np.zeros(6)), dtype="float64", max_numbers=5)

    def test_of_the_largest_size_fit_into_a_message(self):
        assert 8 * MAX_NUMBERS < MAX_MESSAGE
