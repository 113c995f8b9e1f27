"""Every message of the wire with every field set, and its bytes, which never change."""

import numpy as np

from quoron_client.protocol.wire import DIGEST_SIZE
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1 import values_pb2 as values

DIGEST = bytes(range(DIGEST_SIZE))
ARRAY = values.Array(dtype="float64", shape=(1, 2), data=np.array([1.0, -2.0]).tobytes())
GRADIENT = federation.AverageGradient(
    points=ARRAY, weights=(0.5,), user_smoothness=0.25, centre=ARRAY, reference_items=50,
    smoothing=federation.Smoothing(moreau=0.5),
)  # fmt: skip
BALL, DIRECTIONS = federation.Domain(ball_radius=3.0), federation.Smoothing(convolution_radius=0.5)
STORE = federation.Store(incarnations=["a", "b"], rows=7, head="c", then="d", charged=[2**63])
AGREED = federation.Agreed(run="r", epsilon=1.5, delta=0.5)
HELLO = federation.Hello(protocol=1, software="quoron 1")
ANSWER = federation.Answer(run="r", round=7, digest=DIGEST, status=federation.STATUS_REJECTED, values=ARRAY)

CLIPPED = federation.Reduction(clipped=federation.ClippedSum(norm=1.5, divisor=300, centre=ARRAY))
SUMS = federation.Sums(total=ARRAY, cells=ARRAY, clipped=7, answered=300)

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
    "EnrolRequest": federation.EnrolRequest(protocol=1, software="quoron 1", seen=300, people=7),
    "EnrolReply": federation.EnrolReply(user=300, agreed=[AGREED], store=STORE, people=7),
    "Agreed": AGREED,
    "Store": STORE,
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
        gradient=GRADIENT, epsilon=1.0, bins=4, half_width=2.0, signs=ARRAY, coordinate=3, coordinates=ARRAY
    ),
    "VectorReport": federation.VectorReport(gradient=GRADIENT, epsilon=1.0, delta=1e-6, radius=2.0, centre=ARRAY),
    "Domain": BALL,
    "Domain.box_half_width": federation.Domain(box_half_width=3.0),
    "Smoothing": DIRECTIONS,
    "Smoothing.moreau": federation.Smoothing(moreau=0.5),
    "Answer": ANSWER,
    "Answer.follows": federation.Answer(follows=FOLLOWS),
    "Question.follows": federation.Question(follows=FOLLOWS),
    "Question.persons": federation.Question(persons=b"\5", sums=CLIPPED),
    "Answer.statuses": federation.Answer(statuses=b"\0\2", sums=SUMS),
    "Reduction": CLIPPED,
    "Reduction.moment": federation.Reduction(moment=federation.MomentSum(dimension=2, norm=1.5, divisor=300)),
    "Reduction.norm_counts": federation.Reduction(
        norm_counts=federation.NormCountSum(radius=1.5, users=300, transform=ARRAY, centre=ARRAY)
    ),
    "Reduction.lengths": federation.Reduction(lengths=federation.LengthSum(users=300, transform=ARRAY, top=1.5)),
    "Reduction.columns": federation.Reduction(
        columns=federation.ColumnSum(users=300, windows=ARRAY, scale=1.5, constant=True)
    ),
    "Reduction.shaped_moment": federation.Reduction(
        shaped_moment=federation.ShapedMomentSum(users=300, transform=ARRAY, radius=1.5)
    ),
    "Reduction.vector_lengths": federation.Reduction(
        vector_lengths=federation.LengthSum(users=300, transform=ARRAY, top=1.5), classes=3
    ),
    "Reduction.changes": federation.Reduction(changes=federation.ClippedSum(norm=1.5, divisor=300)),
    "ClippedSum": CLIPPED.clipped,
    "MomentSum": federation.MomentSum(dimension=2, norm=1.5, divisor=300),
    "NormCountSum": federation.NormCountSum(radius=1.5, users=300, transform=ARRAY, centre=ARRAY),
    "LengthSum": federation.LengthSum(users=300, transform=ARRAY, top=1.5),
    "ColumnSum": federation.ColumnSum(users=300, windows=ARRAY, scale=1.5, constant=True),
    "ShapedMomentSum": federation.ShapedMomentSum(users=300, transform=ARRAY, radius=1.5),
    "Sums": SUMS,
    "Follows": FOLLOWS,
    "Part": PART,
    "ClientMessage.part": federation.ClientMessage(part=PART),
    "ServerMessage.part": federation.ServerMessage(part=PART),
    "Receipt": federation.Receipt(run="r", round=7, verdict=federation.VERDICT_NOT_ASKED),
    "Ended": federation.Ended(run="r", how="complete"),
    "CallRequest": federation.CallRequest(command="plan", arguments='{"run": "r"}'),
    "RunReference": federation.RunReference(run="r"),
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
    "EnrolRequest": "0801120871756f726f6e203118ac022007",
    "EnrolReply": (
        "08ac0212150a017211000000000000f83f19000000000000e03f1a180a01610a016210071a01632201642a0800000000000000802007"
    ),
    "Store": "0a01610a016210071a01632201642a080000000000000080",
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
        "0000c030033a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0"
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
    "RunReference": "0a0172",
    "CallRequest": "0a04706c616e120c7b2272756e223a202272227d",
    "Document": "0a027b7d",
    "Question.persons": (
        "7201057a2f0a2d09000000000000f83f10ac021a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0"
    ),
    "Answer.statuses": (
        "3a02000242470a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0121f0a07666c6f61743634"
        "120201021a10000000000000f03f00000000000000c0180720ac02"
    ),
    "Reduction": "0a2d09000000000000f83f10ac021a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0",
    "Reduction.moment": "120e080211000000000000f83f18ac02",
    "Reduction.norm_counts": (
        "1a4e09000000000000f83f10ac021a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0221f0a"
        "07666c6f61743634120201021a10000000000000f03f00000000000000c0"
    ),
    "Reduction.lengths": (
        "222d08ac02121f0a07666c6f61743634120201021a10000000000000f03f00000000000000c019000000000000f83f"
    ),
    "Reduction.columns": (
        "4a2f08ac02121f0a07666c6f61743634120201021a10000000000000f03f00000000000000c019000000000000f83f2001"
    ),
    "Reduction.shaped_moment": (
        "2a2d08ac02121f0a07666c6f61743634120201021a10000000000000f03f00000000000000c019000000000000f83f"
    ),
    "Reduction.vector_lengths": (
        "322d08ac02121f0a07666c6f61743634120201021a10000000000000f03f00000000000000c019000000000000f83f4003"
    ),
    "Reduction.changes": "3a0c09000000000000f83f10ac02",
    "ClippedSum": "09000000000000f83f10ac021a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0",
    "MomentSum": "080211000000000000f83f18ac02",
    "NormCountSum": (
        "09000000000000f83f10ac021a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0221f0a0766"
        "6c6f61743634120201021a10000000000000f03f00000000000000c0"
    ),
    "LengthSum": "08ac02121f0a07666c6f61743634120201021a10000000000000f03f00000000000000c019000000000000f83f",
    "ColumnSum": "08ac02121f0a07666c6f61743634120201021a10000000000000f03f00000000000000c019000000000000f83f2001",
    "ShapedMomentSum": "08ac02121f0a07666c6f61743634120201021a10000000000000f03f00000000000000c019000000000000f83f",
    "Sums": (
        "0a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0121f0a07666c6f61743634120201021a10"
        "000000000000f03f00000000000000c0180720ac02"
    ),
}
