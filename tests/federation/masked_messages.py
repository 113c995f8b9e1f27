"""Every message of two servers with every field set, and its bytes, which never change: as `wire_messages`."""

from federation.wire_messages import CLIPPED, DIGEST, FOLLOWS
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1 import helper_pb2 as helper

MASK = federation.MaskedAnswer(run="r", round=7, digest=DIGEST, values=b"\1" * 8, sealed=b"\2")
CONSENT = helper.HelperConsent(
    suite="s", run="r", plan_digest=b"\1", spec_digest=b"\2", run_key=b"\3", participations=2, separation=3,
    epsilon=1.0, delta=1e-6, adjacency="zero-out", expires=300, signature=b"\4",
    simulation=True,
)  # fmt: skip
ENTRY = helper.Entry(fingerprint=b"\1", question_digest=b"\2", sealed=b"\3", group=2)
LIST = helper.HelperList(run="r", plan_digest=b"\1", round=7, previous=b"\2", entries=300)
MESSAGES = {
    "ClientMessage.masked": federation.ClientMessage(masked=MASK),
    "MaskedAnswer": MASK,
    "MaskedAnswer.follows": federation.MaskedAnswer(follows=FOLLOWS),
    "Question.row": federation.Question(row=CLIPPED),
    "Announcement.spec": federation.Announcement(run="r", description="{}", spec="{}", consent=CONSENT),
    "OpenRun": helper.OpenRun(run="r", specification="{}", plan_digest=b"\1", software="quoron 1"),
    "HelperConsent": CONSENT,
    "HelperList": LIST,
    "Entry": ENTRY,
    "ListPart": helper.ListPart(head=LIST, entries=[ENTRY]),
    "RoundReference": helper.RoundReference(run="r", round=7),
    "Chunk": helper.Chunk(data=b"\1"),
    "Reply": helper.Reply(
        run="r", plan_digest=b"\1", round=7, chain=b"\2", left_out=b"\3", values=b"\4",
        fingerprints=b"\5", signature=b"\6",
    ),
    "CloseRun": helper.CloseRun(run="r", plan_digest=b"\1"),
    "Closed": helper.Closed(news=True),
}  # fmt: skip
GOLDEN: dict[str, str] = {
    "ClientMessage.masked": "2a240a017210071a10000102030405060708090a0b0c0d0e0f220801010101010101012a0102",
    "MaskedAnswer": "0a017210071a10000102030405060708090a0b0c0d0e0f220801010101010101012a0102",
    "MaskedAnswer.follows": "32080880a0800312010a",
    "Question.row": (
        "82012f0a2d09000000000000f83f10ac021a1f0a07666c6f61743634120201021a10000000000000f03f00000000000000c0"
    ),
    "Announcement.spec": (
        "0a017212027b7d1a027b7d22370a01731201721a01012201022a01033002380341000000000000f03f498dedb5a0f7c6b03e"
        "52087a65726f2d6f757458ac026201046801"
    ),
    "OpenRun": "0a017212027b7d1a0101220871756f726f6e2031",
    "HelperConsent": (
        "0a01731201721a01012201022a01033002380341000000000000f03f498dedb5a0f7c6b03e52087a65726f2d6f757458ac026201046801"
    ),
    "HelperList": "0a0172120101180722010228ac02",
    "Entry": "0a01011201021a01032002",
    "ListPart": "0a0e0a0172120101180722010228ac02120b0a01011201021a01032002",
    "RoundReference": "0a01721007",
    "Chunk": "0a0101",
    "Reply": "0a017212010118072201022a01033201043a0105420106",
    "CloseRun": "0a0172120101",
    "Closed": "0801",
}
