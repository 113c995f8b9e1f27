"""The coordinator's side of two servers: sums of masked answers, whose masks another operator's server lifts off.

    second_server = SecondServerClient(SecondServerLink(...), database)
    helped = second_server.open(specification, plan)       # the second server's signed consent, durable
    engine = TwoServersEngine(engine, second_server, specification, plan)  # sums that hold the second server's noise

A round's list and sum are durable before the list leaves. The second server answers one list a round: what it has
answered is what the round is, also after a kill on either side. Between its reply and the round's commit nothing of the
sum is a number; after the commit the store holds neither it nor an answer. A second server that is away is waited for;
one that answers something else than it was asked pauses the run, by name.

Source: docs/privacy/two-servers.md.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from quoron_client.protocol.identity import read
from quoron_client.protocol.masked import DIGEST, check_signature, read_second_server_key, split_digests
from quoron_client.protocol.questions import Question, Status
from quoron_client.protocol.wire import reduction_to_wire
from quoron_privacy.errors import IdentityError, LedgerUnavailable, OtherVersion, RunError
from quoron_privacy.two_servers import rows
from quoron_privacy.two_servers.noise import FIRST, Entry, next_chain, simulated_chain
from quoron_privacy.two_servers.rows import RingRows, RingSums
from quoron_protos.v1 import helper_pb2
from quoron_protos.v1.helper_pb2_grpc import HelperStub
from quoron_server.plan import RunPlan
from quoron_server.rounds import Observer, RoundEvent
from quoron_server.service.active_run import GrpcEngine
from quoron_server.service.sessions import Sealed
from quoron_server.specification import RunSpecification
from quoron_server.storage.registry import OPEN, Registry
from quoron_server.storage.store import Row, Store, Table, marks, software
from quoron_server.wording import digest

Words = NDArray[np.uint64]

SUMS = Table(
    "masked_rounds",
    {
        "run": "TEXT NOT NULL",
        "round": "INTEGER NOT NULL",
        "chain": "BLOB NOT NULL",  # of all lists, as they were sent
        # What follows is erased when the round is committed.
        "used": "BLOB",  # of all lists without those whom the second server left out, if none is now
        "total": "BLOB",  # of masked answers
        "answered": "INTEGER",
    },
    ("run", "round"),
)
_helped = Table(
    "helped",
    {
        "run": "TEXT NOT NULL",
        "plan_digest": "BLOB NOT NULL",
        "consent": "BLOB NOT NULL",
        "closed": "INTEGER DEFAULT '0' NOT NULL",  # 1: the second server knows of the end
    },
    ("run",),
)
SCHEMA = (_helped, SUMS)

TIMEOUT = 30.0  # seconds for the second server to be there, and to answer what is short
EACH = 0.01  # and for each entry of a list
_PARTING = 5.0  # seconds for the second server to hear of a run's end, for which watchers wait
_PART = 200  # entries of one message
_AT_ONCE = 500  # users in one query
_ALL = 2**31 - 1  # rounds
_MESSAGE, _LONGEST = 4 << 20, 1 << 30  # bytes of a message of the second server's, and of a reply in many
_log = logging.getLogger("quoron")


class ServerAway(LedgerUnavailable):
    """The second server cannot be reached now: the run waits for it, and goes on."""


class ServerDisagrees(OtherVersion):
    """The second server does not answer what it was asked: the run is left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondServerLink:
    """Where the second server is, by whose certificate it is known, and the key that its consent is signed with."""

    address: str
    authority: Path  # of the second server's operator: nobody else's certificates are the second server's
    certificate: Path  # this coordinator's, which that operator has issued
    key: Path
    second_server_key: Path  # the public one that the second server signs with


@dataclass(frozen=True, slots=True)
class _Gathered:
    """One masked answer."""

    entry: Entry
    values: Words


class SecondServerClient:
    """The second server, and what is kept about it in the coordinator's store. Threads may share it; calls block.

    Of a round its list's chain and its masked sum are kept until it is committed. After the commit only the chain is
    left: no sum, and not how many were in it. Every method is one transaction and may be repeated.
    """

    def __init__(self, link: SecondServerLink, database: Store) -> None:
        """Raise IdentityError for files that will not do."""
        self.link, self._database = link, database
        self._key = read_second_server_key(link.second_server_key)
        self._channel: grpc.Channel | None = None
        self._lock = threading.Lock()
        files = [read(path) for path in (link.authority, link.key, link.certificate)]
        self._credentials = grpc.ssl_channel_credentials(*files)
        database.ensure(SCHEMA)

    def chain_before(self, run: str, round_: int) -> bytes:
        """After the list of the round before, as it was sent."""
        found = self.held(run, round_ - 1)
        if found is None:
            raise ServerDisagrees(
                f"Expected the chain of lists of run {run} up to round {round_} in this database, found none: it was "
                "put back. Cancel the run."
            )
        return bytes(found["chain"])

    def held(self, run: str, round_: int) -> Row | None:
        """Return the row of a round whose list was sent, or was about to be; None of others."""
        found = self._database.rows("SELECT * FROM masked_rounds WHERE run = ? AND round = ?", [run, round_])
        return found[0] if found else None

    def hold(
        self,
        run: str,
        round_: int,
        chain: bytes,
        used: bytes | None = None,
        total: Words | None = None,
        answered: int | None = None,
    ) -> None:
        """Keep the list and the sum of a round, in place of one that the second server does not have."""
        row = {"run": run, "round": round_, "chain": chain, "used": used, "answered": answered}
        row |= {"total": None if total is None else total.astype("<u8").tobytes()}
        with self._database.transaction() as execute:
            execute("DELETE FROM masked_rounds WHERE run = ? AND round = ?", [run, round_])
            SUMS.insert(execute, row)

    def forget(self, run: str, *, before: int | None = None) -> None:
        """Erase what is kept of sums, of rounds `before` one that is committed, or of all."""
        erased = "UPDATE masked_rounds SET used = NULL, total = NULL, answered = NULL"
        which = "run = ? AND answered IS NOT NULL AND round < ?"
        self._database.rows(f"{erased} WHERE {which}", [run, _ALL if before is None else before])
        self._database.checkpoint()

    def open(self, specification: RunSpecification, plan: RunPlan) -> helper_pb2.HelperConsent:
        """Its consent to a run, kept from the first time on. Raises ServerAway and ServerDisagrees."""
        known = self._database.rows("SELECT consent FROM helped WHERE run = ?", [specification.run])
        if known:
            return helper_pb2.HelperConsent.FromString(known[0]["consent"])
        consent = self._consent(specification, plan)
        row = {"run": consent.run, "plan_digest": consent.plan_digest, "consent": consent.SerializeToString()}
        with self._database.transaction() as execute:
            _helped.insert(execute, row)
        return consent

    def require_same_key(self, specification: RunSpecification, plan: RunPlan) -> None:
        """ServerDisagrees, before a list leaves, unless that server still has the key that clients seal for."""
        consent = self._consent(specification, plan)
        if consent.run_key != self.open(specification, plan).run_key:
            raise ServerDisagrees(
                f"Expected the second server to have the key that clients of run {specification.run} seal for, got "
                "another. It has lost its database or keys, and nothing would open: cancel the run, and begin another."
            )

    def _consent(self, specification: RunSpecification, plan: RunPlan) -> helper_pb2.HelperConsent:
        """As the second server says it now."""
        run, wanted = specification.run, bytes.fromhex(digest(plan))
        asked = {"run": run, "specification": specification.as_text(), "plan_digest": wanted, "software": software()}
        request = helper_pb2.OpenRun(**asked)  # type: ignore[arg-type]
        consent: helper_pb2.HelperConsent = self._call(lambda stub: stub.Open(request, timeout=4 * TIMEOUT))
        self._check(consent, consent.signature)
        if (consent.run, consent.plan_digest, consent.spec_digest) != (run, wanted, plan.spec.digest()):
            raise ServerDisagrees(f"Expected the second server's consent to run {run}, got one to another plan.")
        return consent

    def close_ended(self, registry: Registry) -> None:
        """Tell the second server of every run that has ended. Of one that it does not hear of, its clock takes care."""
        away = False
        for row in self._database.rows("SELECT run, plan_digest FROM helped WHERE closed = 0"):
            run = row["run"]
            known = registry.run(run)
            if known is not None and known.state in OPEN:
                continue
            self.forget(run)
            if away:  # callers that wait for an end wait for one try
                continue
            try:
                self._close(helper_pb2.CloseRun(run=run, plan_digest=row["plan_digest"]))
            except ServerAway:
                away = True
                _log.warning("run %s has ended, which the second server %s does not know yet", run, self.link.address)
                continue
            except ServerDisagrees as error:
                _log.warning("%s", error)
            self._database.rows("UPDATE helped SET closed = 1 WHERE run = ?", [run])

    def _close(self, request: helper_pb2.CloseRun) -> None:
        self._call(lambda stub: stub.Close(request, timeout=_PARTING))

    def sum(self, head: helper_pb2.HelperList, entries: Sequence[Entry]) -> helper_pb2.Reply:
        """Return the second server's signed reply to a list, or to the one that it has answered in that round."""

        def said() -> Iterator[helper_pb2.ListPart]:
            for start in range(0, max(1, len(entries)), _PART):
                some = [helper_pb2.Entry(**entry._asdict()) for entry in entries[start : start + _PART]]
                yield helper_pb2.ListPart(head=None if start else head, entries=some)

        seconds = TIMEOUT + EACH * len(entries)
        reply: helper_pb2.Reply = self._reply(head.run, head.round, lambda stub: stub.Sum(said(), timeout=seconds))
        return reply

    def recall(self, run: str, round_: int) -> helper_pb2.Reply | None:
        """Its reply to a round, if it has answered one."""
        request = helper_pb2.RoundReference(run=run, round=round_)
        reply: helper_pb2.Reply | None
        reply = self._reply(run, round_, lambda stub: stub.Recall(request, timeout=TIMEOUT), missing=True)
        return reply

    def _reply(
        self, run: str, round_: int, ask: Callable[[Any], Iterator[helper_pb2.Chunk]], *, missing: bool = False
    ) -> Any:
        data = self._call(lambda stub: self._whole(part.data for part in ask(stub)), missing=missing)
        if data is None:
            return None
        try:
            reply = helper_pb2.Reply.FromString(data)
        except DecodeError:
            raise ServerDisagrees(f"Expected a reply of second server {self.link.address}, got another.") from None
        self._check(reply, reply.signature)
        if (reply.run, reply.round) != (run, round_):
            raise ServerDisagrees(
                f"Expected the second server's reply to round {round_} of run {run}, got one to another list."
            )
        return reply

    def _whole(self, parts: Iterator[bytes]) -> bytes:
        """Raise ServerDisagrees for a reply that no plan has and that would fill memory."""
        data = bytearray()
        for part in parts:
            data += part
            if len(data) > _LONGEST:
                raise ServerDisagrees(f"Expected a reply of the second server of at most {_LONGEST:,} bytes, got more.")
        return bytes(data)

    def _check(self, message: helper_pb2.HelperConsent | helper_pb2.Reply, signature: bytes) -> None:
        try:
            check_signature(message, signature, self._key)
        except IdentityError as error:
            raise ServerDisagrees(str(error)) from None

    def _call(self, ask: Callable[[Any], Any], *, missing: bool = False) -> Any:
        """Return what the second server answers; None where it says that there is none and one may be `missing`."""
        try:
            return ask(HelperStub(self._connected()))
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            if missing and code == grpc.StatusCode.NOT_FOUND:
                return None
            said = " ".join((error.details() or "no reason").split())[:600]
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
                self._channel = None  # which may have died without a word: the next call has a connection of its own
                raise ServerAway(
                    f"second server {self.link.address} does not answer ({said}); what waits goes on when it is back",
                    outside="the second server does not answer",
                ) from None
            raise ServerDisagrees(
                f"Expected the second server at {self.link.address} to do its part, it answers {code.name}: {said}",
                outside="the second server refuses",
            ) from None

    def _connected(self) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                more = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
                options = (("grpc.max_receive_message_length", _MESSAGE), *more)
                self._channel = grpc.secure_channel(self.link.address, self._credentials, options=options)
            return self._channel

    def fingerprints(self, users: Sequence[int]) -> dict[int, bytes]:
        """SHA-256 of the key of each user's certificate."""
        found: dict[int, bytes] = {}
        for start in range(0, len(users), _AT_ONCE):
            some = users[start : start + _AT_ONCE]
            query = f'SELECT "user", fingerprint FROM users WHERE "user" IN ({marks(some)})'
            found |= {row["user"]: bytes.fromhex(row["fingerprint"]) for row in self._database.rows(query, some)}
        return found


@dataclass(slots=True, eq=False)
class TwoServersEngine(Observer):
    """The engine of a run of two servers, around the one that brings questions to clients.

    As an observer of the run it erases what is kept of a round's sum, once the round is committed.
    """

    inner: GrpcEngine
    second_server: SecondServerClient
    specification: RunSpecification
    plan: RunPlan
    hides_answers: ClassVar[bool] = True
    _begun: bool = False  # whether this process has asked anything yet
    _gathered: dict[bytes, _Gathered] = field(default_factory=dict)

    @property
    def last_asked(self) -> int:
        """As the inner one's."""
        return self.inner.last_asked

    def measured(self) -> Mapping[str, float]:
        """As the inner one's."""
        return self.inner.measured()

    def round_finished(self, event: RoundEvent) -> None:
        """After the commit."""
        self.second_server.forget(self.specification.run, before=event.round + 1)

    def finished(self, model: Any) -> None:
        """What a kill has left."""
        self.second_server.forget(self.specification.run)

    def ask(self, question: Question) -> RingSums:
        """The sum of who answered, with the second server's noise, and the chain of all lists; as `GrpcEngine` raises,
        ServerAway and ServerDisagrees."""
        asked: Any = question.reduction
        run, round_ = self.specification.run, question.round
        if not isinstance(asked, RingRows):
            raise RunError(f"Expected a question whose answers two servers may sum, got round {round_} of {run}.")
        self._gathered = {}
        before = self.second_server.chain_before(run, round_) if round_ else FIRST
        reply = None
        if not self._begun:
            self.second_server.forget(run, before=round_)  # of a round whose commit came just before a kill
            self.second_server.require_same_key(self.specification, self.plan)
            reply = self.second_server.recall(run, round_)
        self._begun = True
        if reply is None:
            reply = self._first(question, asked, before)
        sums = self._unmasked(question, asked, before, reply)
        self._gathered = {}
        return replace(sums, chain=simulated_chain(asked.chains, round_)) if self.specification.simulation else sums

    def _first(self, question: Question, asked: RingRows, before: bytes) -> helper_pb2.Reply:
        """Ask everybody, keep what came, and send the list."""
        run, round_ = self.specification.run, question.round
        self._gather(question, asked)
        entries = [self._gathered[fingerprint].entry for fingerprint in sorted(self._gathered)]
        chain = next_chain(before, round_, entries)
        used = next_chain(self._used(asked), round_, entries)
        total = self._totals(round_, self._gathered.values())
        self.second_server.hold(run, round_, chain, used, total, len(entries))
        plan = bytes.fromhex(digest(self.plan))
        head = helper_pb2.HelperList(run=run, plan_digest=plan, round=round_, previous=before, entries=len(entries))
        return self.second_server.sum(head, entries)

    def _unmasked(self, question: Question, asked: RingRows, before: bytes, reply: helper_pb2.Reply) -> RingSums:
        """Σ y - R, over those of the second server's list whom it did not leave out."""
        round_, run = question.round, self.specification.run
        length, held = self._length(round_) * self._groups, self.second_server.held(run, round_)
        if len(reply.values) != 8 * length or len(reply.left_out) % DIGEST:
            raise ServerDisagrees(
                f"Expected {length} numbers of the second server in round {round_} of run {run}, got others."
            )
        lifted = np.frombuffer(reply.values, "<u8").astype(np.uint64)
        left_out = split_digests(reply.left_out)
        same = held is not None and held["chain"] == reply.chain
        if held is not None and same and held["total"] is not None and not left_out:
            total = rows.less(np.frombuffer(held["total"], "<u8").astype(np.uint64), lifted)
            return RingSums(total, held["used"], held["answered"], len(question.cohort))
        listed = sorted(self._gathered if same and self._gathered else set(split_digests(reply.fingerprints)))
        asked_for = self.second_server.fingerprints(self.inner.session.members[question.cohort].tolist())
        if not set(listed) <= set(asked_for.values()):
            raise ServerDisagrees(
                f"Expected the second server's reply to a list of those who are asked in round {round_} of run {run}, "
                "got one with others: anyone who has sent it had another coordinator's database, or it does not follow."
            )
        self._gather_all(question, asked, listed)
        entries = [self._gathered[fingerprint].entry for fingerprint in listed]
        if next_chain(before, round_, entries) != reply.chain or not set(left_out) <= set(listed):
            raise ServerDisagrees(
                f"Expected the second server's reply to a list of run {run} whose clients send what they sent before, "
                f"got one of other entries in round {round_}: a client's record was put back, or the second server "
                "does not follow. Cancel the run, or put back what is newer."
            )
        kept = [fingerprint for fingerprint in listed if fingerprint not in set(left_out)]
        used = next_chain(self._used(asked), round_, [self._gathered[fingerprint].entry for fingerprint in kept])
        self.second_server.hold(run, round_, reply.chain)
        total = self._totals(round_, [self._gathered[fingerprint] for fingerprint in kept])
        return RingSums(rows.less(total, lifted), used, len(kept), len(question.cohort))

    def _gather_all(self, question: Question, asked: RingRows, listed: Sequence[bytes]) -> None:
        """Ask until everybody of a list that the second server has answered has sent again what it sent before."""
        while not all(fingerprint in self._gathered for fingerprint in listed):
            _log.warning(
                "run %s: round %d is asked again, until those of the list of the second server %s are here",
                self.specification.run,
                question.round,
                self.second_server.link.address,
            )
            self._gather(question, asked)

    def _gather(self, question: Question, asked: RingRows) -> None:
        """Ask everybody once; what came is kept for this round, by fingerprint."""
        length = self._length(question.round)
        answers = self.inner.collect(question, (length,), reduction_to_wire(asked.reduction))
        session, values = self.inner.session, answers.values.view(np.uint64)
        sealed: dict[int, Sealed] = session.sealed
        there = [row for row in sorted(sealed) if answers.status[row] == Status.ANSWERED]
        users = session.members[question.cohort[there]].tolist()
        known = self.second_server.fingerprints(users)
        for row, user in zip(there, users, strict=True):
            if (own := known.get(user)) is not None:
                entry = Entry(own, sealed[row].question, sealed[row].text, row % self._groups)
                self._gathered[own] = _Gathered(entry, values[row])

    def _length(self, round_: int) -> int:
        return self.plan.spec.rounds[round_].length

    @property
    def _groups(self) -> int:
        servers = self.plan.guarantee.servers
        return 1 if servers is None else servers.groups

    def _used(self, asked: RingRows) -> bytes:
        return asked.chains[-1] if asked.chains else FIRST

    def _totals(self, round_: int, gathered: Iterable[_Gathered]) -> Words:
        """Of each group, one after the other."""
        totals = np.zeros((self._groups, self._length(round_)), np.uint64)
        for share in gathered:
            totals[share.entry.group] += share.values
        return totals.reshape(-1)
