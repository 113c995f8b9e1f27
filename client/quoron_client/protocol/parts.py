"""Questions and answers that are too long for one message: their end follows them, in parts of the same stream.

    messages = said(answer)                     # one, or one and its parts
    whole = arriving.take(message, allowed)     # None until all of it is there

The end is a question's task, of whom and for which sums; or an answer's values or sums. In its place stands its length,
of a question its digest too, which is in the question's name, and nothing else is said until it has come. That bytes of
an answer arrive as they left is the transport's part. A part holds `MOST` bytes and the last one the rest, so
whoever hears them holds what has come, never more than was announced, and nothing of what it does not want. What fits
into one message is one, as ever.

| what comes                                              | what happens                                           |
| ------------------------------------------------------- | ------------------------------------------------------ |
| more than is allowed, or less than would need parts     | WireError, before any of it                            |
| a part out of order, missing, repeated                  | WireError: the byte that was expected, the one that came |
| a part of another size                                  | WireError                                              |
| another message before the last part, a part after none | WireError                                              |
| a question of another digest; bytes of more than the end | WireError                                             |
| the end of what is not wanted (any more)                | dropped as it comes                                    |
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from quoron_privacy.errors import WireError
from quoron_protos.v1 import federation_pb2 as federation

BESIDE = 4 << 10  # bytes of a question or an answer beside its vectors, and of a part beside its data
MOST = (256 << 10) - BESIDE  # bytes of one message, and of what a part holds: so much of a call that never ends is held
_DIGEST = 32  # bytes

Long = federation.Question | federation.Answer | federation.MaskedAnswer
Message = TypeVar("Message", federation.ServerMessage, federation.ClientMessage)


def fits(length: int) -> bool:
    """Whether a question or an answer of so many bytes is one message."""
    return length <= MOST


def follows(end: bytes) -> federation.Follows:
    """What is said in place of a question's end."""
    return federation.Follows(length=len(end), digest=blake2b(end, digest_size=_DIGEST).digest())


def parts(end: bytes) -> Iterator[federation.Part]:
    """The end, in order."""
    for offset in range(0, len(end), MOST):
        yield federation.Part(offset=offset, data=end[offset : offset + MOST])


def said(answer: federation.Answer | federation.MaskedAnswer) -> Iterator[federation.ClientMessage]:
    """An answer, and where it is too long for one message its values after it."""
    if fits(answer.ByteSize()):
        yield _told(answer)
        return
    if isinstance(answer, federation.MaskedAnswer):
        masked = federation.MaskedAnswer(run=answer.run, round=answer.round, digest=answer.digest, sealed=answer.sealed)
        yield from _parted(masked, federation.MaskedAnswer(values=answer.values).SerializeToString())
        return
    head = federation.Answer(run=answer.run, round=answer.round, digest=answer.digest, status=answer.status)
    rest = federation.Answer(values=answer.values if answer.HasField("values") else None, statuses=answer.statuses)
    if answer.HasField("sums"):
        rest.sums.CopyFrom(answer.sums)
    yield from _parted(head, rest.SerializeToString())


def _parted(head: federation.Answer | federation.MaskedAnswer, end: bytes) -> Iterator[federation.ClientMessage]:
    head.follows.length = len(end)
    yield _told(head)
    for part in parts(end):
        yield federation.ClientMessage(part=part)


def _told(answer: federation.Answer | federation.MaskedAnswer) -> federation.ClientMessage:
    if isinstance(answer, federation.Answer):
        return federation.ClientMessage(answer=answer)
    return federation.ClientMessage(masked=answer)


class Arriving(Generic[Message]):
    """Messages of one direction of a conversation, put together. After a WireError there is nothing more to hear."""

    def __init__(self) -> None:
        self._head: Long | None = None
        self._length = self._here = 0
        self._kept: list[bytes] | None = None  # None: dropped

    @property
    def open(self) -> bool:
        """Whether parts are due."""
        return self._head is not None

    @property
    def ends(self) -> bool:
        """Whether the next part is the last of what is kept, which `take` then puts together: it takes a while."""
        return self._kept is not None and self._length - self._here <= MOST

    def take(self, message: Message, allowed: Callable[[Long], int | None]) -> Message | Long | None:
        """A message as it is; a question or an answer that its end has followed; None while that is on its way.

        `allowed` says of one without its end how many bytes that may have, or None where nothing is wanted of it: then
        it is dropped as it comes, and None. Raises WireError as the table says.
        """
        kind = message.WhichOneof("kind")
        if self._head is not None:
            if kind != "part":
                raise WireError(f"Expected the part at byte {self._here:,} of {self._length:,}, got another message.")
            return self._added(message.part)
        if kind == "part":
            raise WireError("Expected a message that parts follow, got a part.")
        long: Long | None = getattr(message, kind) if kind in ("question", "answer", "masked") else None
        if long is None or not long.HasField("follows"):
            return message
        self._begin(long, allowed(long))
        return None

    def _begin(self, head: Long, allowed: int | None) -> None:
        announced = head.follows
        if isinstance(head, federation.Question):
            end = head.WhichOneof("task") or head.persons or head.HasField("sums") or head.HasField("row")
        elif isinstance(head, federation.MaskedAnswer):
            end = bool(head.values)
        else:
            end = head.HasField("values") or head.statuses or head.HasField("sums")
        if end:
            raise WireError("Expected a message whose end follows it to be without it, got both.")
        named = _DIGEST if isinstance(head, federation.Question) else 0
        if len(announced.digest) != named or not announced.length > MOST - BESIDE or not announced.length:
            raise WireError(f"Expected what follows to be too long for one message, got {announced.length:,} bytes.")
        if allowed is not None and announced.length > allowed:
            raise WireError(f"Expected at most {allowed:,} bytes to follow, got {announced.length:,} announced.")
        self._head, self._length, self._here = head, announced.length, 0
        self._kept = None if allowed is None else []

    def _added(self, part: federation.Part) -> Long | None:
        data, due = part.data, min(MOST, self._length - self._here)
        if part.offset != self._here:
            raise WireError(
                f"Expected the part at byte {self._here:,} of {self._length:,}, got the one at {part.offset:,}."
            )
        if len(data) != due:
            raise WireError(f"Expected {due:,} bytes in the part at byte {self._here:,}, got {len(data):,}.")
        self._here += due
        if self._kept is not None:
            self._kept.append(data)
        return self._put_together() if self._here == self._length else None

    def _put_together(self) -> Long | None:
        head, kept = self._head, self._kept
        self._head, self._kept = None, None
        if head is None or kept is None:
            return None
        end = b"".join(kept)
        kept.clear()
        if isinstance(head, federation.Question) and follows(end).digest != head.follows.digest:
            raise WireError(f"Expected {len(end):,} bytes of the announced digest, got others.")
        try:
            whole = type(head).FromString(end)
        except DecodeError:
            raise WireError("Expected the end of a message, got bytes that are none.") from None
        del end
        head.ClearField("follows")
        if whole.run or whole.round or whole.digest or whole.HasField("follows"):
            raise WireError("Expected the end of a message, got another beginning.")
        whole.MergeFromString(head.SerializeToString())
        return whole
