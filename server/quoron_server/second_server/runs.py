"""What the second server does, without a transport: consent to a plan, answer one list a round, and destroy keys.

    helped = Helped(store, keys, signing_key)
    consent = helped.open(request, coordinator)
    reply = helped.sum(head, entries, coordinator)     # R = Σ masks - noise: durable before it is returned

| what comes                                            | what happens                                               |
| ----------------------------------------------------- | ---------------------------------------------------------- |
| a plan that is not verified, or of another trust model| refused, by name                                           |
| the same list again                                   | the same bytes                                             |
| another list of an answered round                     | the first one's reply, with its chain and fingerprints     |
| a round before its time, or after another chain       | refused: the database of one side was restored             |
| anything of a run whose lists are fewer than its keys | the run ends: its keys are destroyed, nothing is answered  |
| know of, as the database was restored from a copy     |                                                            |
| a user whom the plan does not have in this round      | left out and named: by count, separation and phase         |
| a seal that does not open under its own info          | left out and named                                         |
| a run that is closed, expired, or whose keys are gone | refused, permanently                                       |

A reply is durable before it is sent, in one transaction with its list; of a list stay the fingerprints and the chain,
no seal. When a run ends all of that is erased but its name and its plan's digest: a run that was closed is never opened
again. Keys are in no database (`keys`). Nothing that the second server does, logs or counts
depends on answers, which it cannot read, nor on how many there are.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from quoron_client.protocol.masked import DIGEST, signature_of, split_digests
from quoron_privacy.errors import ConfigError, LedgerError, RunError, VerificationError
from quoron_privacy.two_servers import rows, seals
from quoron_privacy.two_servers.noise import FIRST, Entry, ServerNoise, next_chain, simulated_chain
from quoron_privacy.two_servers.specification import MechanismSpec
from quoron_protos.v1 import helper_pb2 as pb
from quoron_server.algorithms.two_servers import SECOND_SERVER, noise_of, noise_of_groups
from quoron_server.plan import RunPlan
from quoron_server.second_server.keys import Keys, Secrets
from quoron_server.specification import RunSpecification, planned, require_deployable
from quoron_server.storage.store import Store, Table
from quoron_server.wording import digest

OPEN, CLOSED, EXPIRED = "open", "closed", "expired"
RESTORED = "restored"  # ended, as the database was restored from a copy while the run was open
KEEP = 90 * 86_400.0  # seconds after its consent, after which a run's keys are destroyed in any case
_MAX_TOGETHER = 512  # seals that one thread opens before another may begin
_log = logging.getLogger("quoron.second_server")
Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class HelpedRun:
    """A run as the second server knows and stores it."""

    run: str
    coordinator: str  # fingerprint of its certificate's key
    plan_digest: bytes
    specification: str
    spec: str
    consent: bytes
    expires: int  # seconds since 1970
    state: str = OPEN

    def words(self) -> str:
        """One line for its operator: state, plan, and when its keys end."""
        ends = f"{datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC" if self.state == OPEN else "destroyed"
        return f"{self.run}  {self.state}  plan {self.plan_digest.hex():.12}  keys {ends}"


@dataclass(frozen=True, slots=True)
class AnsweredList:
    """The stored list of a round, and what was answered to it."""

    run: str
    round: int
    chain: bytes  # of all lists up to this one
    fingerprints: bytes  # 32 bytes each, in order
    left_out: bytes  # of these
    reply: bytes


_runs, _lists = Table.of("helped_runs", HelpedRun, "run"), Table.of("helped_lists", AnsweredList, "run", "round")
SCHEMA = (_lists, _runs)
_ANSWERED = "SELECT * FROM helped_lists WHERE run = ?"


class HelpedRunStore:
    """Runs and lists in one database. Every method is one transaction and may be repeated."""

    def __init__(self, database: Store) -> None:
        self._database = database
        database.ensure(SCHEMA)

    def runs(self) -> list[HelpedRun]:
        """Return all of them, those that have ended among them."""
        return [HelpedRun(**row) for row in self._database.rows("SELECT * FROM helped_runs ORDER BY run")]

    def run(self, run: str) -> HelpedRun | None:
        """One of them."""
        found = self._database.rows("SELECT * FROM helped_runs WHERE run = ?", [run])
        return HelpedRun(**found[0]) if found else None

    def add(self, run: HelpedRun) -> None:
        """A run that is consented to."""
        with self._database.transaction() as execute:
            _runs.insert(execute, asdict(run))

    def lists(self, run: str) -> list[AnsweredList]:
        """Return those that were answered, by round."""
        return [AnsweredList(**row) for row in self._database.rows(f"{_ANSWERED} ORDER BY round", [run])]

    def rounds(self, run: str) -> int:
        """Return how many were."""
        (found,) = self._database.rows("SELECT count(*) AS rounds FROM helped_lists WHERE run = ?", [run])
        return int(found["rounds"])

    def answered(self, run: str, round_: int) -> AnsweredList | None:
        """Return the list of a round, if it was answered."""
        found = self._database.rows(f"{_ANSWERED} AND round = ?", [run, round_])
        return AnsweredList(**found[0]) if found else None

    def answer(self, answered: AnsweredList, before: bytes) -> None:
        """Keep a reply that was not sent yet. LedgerError unless it is to the next list, after the chain `before`."""
        with self._database.transaction() as execute:
            last = execute(f"{_ANSWERED} ORDER BY round DESC LIMIT 1", [answered.run])
            rounds, chain = (last[0]["round"] + 1, last[0]["chain"]) if last else (0, bytes(len(before)))
            if (answered.round, before) != (rounds, chain):
                raise LedgerError(
                    f"Expected the list of round {rounds} of run {answered.run}, got one of {answered.round}."
                )
            _lists.insert(execute, asdict(answered))

    def end(self, run: str, state: str) -> bool:
        """Erase all of a run but its name and its plan's digest; whether it was open."""
        nothing = "UPDATE helped_runs SET specification = '', spec = '', consent = ?, state = ?"
        with self._database.transaction() as execute:
            news = bool(execute(f"{nothing} WHERE run = ? AND state = ? RETURNING run", [b"", state, run, OPEN]))
            if news:
                execute("DELETE FROM helped_lists WHERE run = ?", [run])
        if news:
            self._database.checkpoint()
        return news


class Refused(RunError):
    """What a coordinator asks for is not done; asking again changes nothing."""


class UnknownRun(Refused):
    """Nothing of that name was consented to, or answered."""


@dataclass(slots=True, eq=False)
class _Working:
    """An open run in memory: what follows from its store and keys alone."""

    spec: MechanismSpec
    secrets: Secrets = field(repr=False)
    noise: ServerNoise = field(repr=False)
    chains: list[bytes]  # after each answered list
    rounds: dict[bytes, list[int]]  # that each user's mask was lifted in
    simulation: bool = False

    def labels(self, chain: bytes) -> list[bytes]:
        """What the noise of the round that ends with a `chain` is labelled by; in a simulation, for one's own bits."""
        chains = [*self.chains, chain]
        if not self.simulation:
            return chains
        made: list[bytes] = []
        for round_ in range(len(chains)):
            made.append(simulated_chain(made, round_))
        return made


class HelpedRuns:
    """The runs of one second server. Methods block; threads may share it."""

    def __init__(
        self,
        store: HelpedRunStore,
        keys: Keys,
        signing: Ed25519PrivateKey,
        *,
        keep: float = KEEP,
        allow_simulation: bool = False,
        threads: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.keys, self._signing = store, keys, signing
        self._keep, self._allow_simulation, self._clock = keep, allow_simulation, clock
        self._threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="opens")
        self._working: dict[str, _Working] = {}
        self._lock = threading.RLock()  # one request at a time: of one round there is one list
        for run in store.runs():
            if run.state != OPEN:
                keys.destroy(run.run)  # where a kill came between

    def close_threads(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def open(self, request: pb.OpenRun, coordinator: str) -> pb.HelperConsent:
        """Return the second server's signed consent to a run, the same however often it is asked.

        Raises Refused for what was closed and for another plan, and what `specification.planned` raises.
        """
        new = None if self.store.run(request.run) is not None else planned(request.specification)  # seconds, perhaps
        with self._lock:
            self.expire()
            if (known := self.store.run(request.run)) is not None:
                self._require(known, coordinator, request.plan_digest)
                if known.specification != request.specification:
                    raise Refused(f"Expected run {request.run} as it was opened, got another specification.")
                self._require(self._noticed(known), coordinator, request.plan_digest)  # before the next list
                return pb.HelperConsent.FromString(known.consent)
            specification, plan = new or planned(request.specification)
            spec = self._sheet(request, specification, plan)
            seeded = specification.simulation_seed
            made = self.keys.make(request.run, noise_key=None if seeded is None else str(seeded).encode())
            consent = self._consent(request, plan, spec, made, simulation=specification.simulation)
            row = HelpedRun(
                request.run,
                coordinator,
                request.plan_digest,
                request.specification,
                spec.as_json(),
                consent.SerializeToString(),
                consent.expires,
            )
            self.store.add(row)
            _log.info("consented to run %s, plan %.12s", request.run, request.plan_digest.hex())
            return consent

    def _sheet(self, request: pb.OpenRun, specification: RunSpecification, plan: RunPlan) -> MechanismSpec:
        """Return the units that follow from the plan that this second server has made and verified itself."""
        if specification.run != request.run:
            raise Refused(f"Expected the specification of run {request.run}, got that of {specification.run}.")
        if plan.guarantee.trust_model != "two-servers":
            raise Refused(f"Expected a plan of trust model two-servers, got {plan.guarantee.trust_model}.")
        require_deployable(specification, plan, allow_simulation=self._allow_simulation)
        if specification.early_ends:
            raise Refused("Expected rounds that end at their time, with two servers, got early_ends=true.")
        if bytes.fromhex(digest(plan)) != request.plan_digest:
            raise Refused(
                f"Expected the plan that this server makes of run {request.run} ({digest(plan):.12}), got another "
                f"({request.plan_digest.hex():.12}). Use the same version of quoron on both sides: {request.software}."
            )
        try:
            return plan.spec
        except VerificationError:
            raise Refused(
                f"Expected an algorithm whose rounds are integer sums, with two servers, got {plan.algorithm}."
            ) from None

    def _consent(
        self, request: pb.OpenRun, plan: RunPlan, spec: MechanismSpec, made: Secrets, *, simulation: bool
    ) -> pb.HelperConsent:
        guarantee = plan.guarantee
        consent = pb.HelperConsent(
            suite=seals.SUITE,
            run=request.run,
            plan_digest=request.plan_digest,
            spec_digest=spec.digest(),
            run_key=made.public,
            participations=spec.participations,
            separation=spec.separation,
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            adjacency=guarantee.adjacency,
            expires=int(self._clock() + self._keep),
            simulation=simulation,
        )
        consent.signature = signature_of(consent, self._signing)
        return consent

    def sum(self, head: pb.HelperList, entries: Sequence[Entry], coordinator: str) -> pb.Reply:
        """Return the second server's part of a round's sum, signed. Raises Refused as the table says."""
        with self._lock:
            run = self._known(head.run, coordinator, head.plan_digest)
            working = self._work(run)
            answered = len(working.chains)
            before = working.chains[-1] if working.chains else FIRST
            if head.round < answered:
                return self._again(run, head, entries)
            if head.round != answered or head.round >= len(working.spec.rounds):
                raise Refused(
                    f"Expected the list of round {answered} of run {head.run}, got that of round {head.round}: lists "
                    "come in order, and every one of them. If it was answered before, an older database was put back."
                )
            if head.previous != before:
                raise Refused(
                    f"Expected round {head.round} of run {head.run} after the lists that this server has "
                    "answered, got other ones: the database of one of the two servers was put back."
                )
            if any(entry.group >= working.spec.groups for entry in entries):
                raise Refused(f"Expected users in one of {working.spec.groups} groups, got one in another.")
            chain = _chain(before, head, entries)
            left_out, total = self._lifted(run, working, head.round, entries)
            noise = noise_of_groups(working.noise, working.labels(chain))
            reply = pb.Reply(
                run=head.run,
                plan_digest=head.plan_digest,
                round=head.round,
                chain=chain,
                left_out=b"".join(left_out),
                values=rows.less(total, noise).astype("<u8").tobytes(),
            )
            reply.signature = signature_of(reply, self._signing)
            fingerprints = b"".join(entry.fingerprint for entry in entries)
            kept = AnsweredList(head.run, head.round, chain, fingerprints, reply.left_out, reply.SerializeToString())
            self._working.pop(head.run)  # if the write fails, the store says whether it is there
            self.store.answer(kept, before)
            self.keys.note(head.run, head.round + 1)  # if this fails, `_work` does it before a reply
            self._working[head.run] = working
            working.chains.append(chain)
            _count(working.rounds, kept)
            _log.info("run %s: round %d was answered", head.run, head.round)
            return reply

    def users(self, run: str, coordinator: str) -> int:
        """Return the length of an open run's longest list, which bounds memory."""
        with self._lock:
            return RunSpecification.parse(self._known(run, coordinator).specification).problem.users

    def recall(self, run: str, round_: int, coordinator: str) -> pb.Reply:
        """Return the reply to a round that was answered. UnknownRun where none was."""
        with self._lock:
            found = self._known(run, coordinator)
            self._work(found)
            answered = self.store.answered(run, round_)
            if answered is None:
                raise UnknownRun(f"Expected an answered round of run {run}, got round {round_}.")
            return _with_list(answered)

    def close(self, run: str, plan_digest: bytes, coordinator: str) -> bool:
        """End a run: destroy its keys, keep its name. Return whether it was open."""
        with self._lock:
            if (known := self.store.run(run)) is None:
                raise UnknownRun(f"Expected a run that this second server has consented to, got {run}.")
            if (known.coordinator, known.plan_digest) != (coordinator, plan_digest):
                raise Refused(f"Expected the coordinator and the plan that run {run} was opened with, got others.")
            return self._end(run, CLOSED)

    def expire(self) -> None:
        """Destroy the keys of runs whose time is over, by this second server's clock."""
        with self._lock:
            for run in self.store.runs():
                if run.state == OPEN and run.expires <= self._clock():
                    self._end(run.run, EXPIRED)

    def _end(self, run: str, state: str) -> bool:
        """Keys first: where they cannot be removed, or what follows fails, the run stays open and is ended again."""
        self._working.pop(run, None)
        self.keys.destroy(run)
        news = self.store.end(run, state)
        if news:
            _log.info("run %s is %s: its keys are destroyed", run, state)
        return news

    def _known(self, run: str, coordinator: str, plan_digest: bytes | None = None) -> HelpedRun:
        self.expire()
        found = self.store.run(run)
        if found is None:
            raise UnknownRun(f"Expected a run that this second server has consented to, got {run}.")
        self._require(found, coordinator, found.plan_digest if plan_digest is None else plan_digest)
        return found

    def _require(self, run: HelpedRun, coordinator: str, plan_digest: bytes) -> None:
        if run.state != OPEN:
            why = " The second server's database was restored from a copy." if run.state == RESTORED else ""
            raise Refused(f"Expected an open run, got {run.run}, which is {run.state}: its keys are destroyed.{why}")
        if (run.coordinator, run.plan_digest) != (coordinator, plan_digest):
            raise Refused(f"Expected the coordinator and the plan that run {run.run} was opened with, got others.")

    def _work(self, run: HelpedRun) -> _Working:
        """Return an open run in memory. Refused where its keys are gone, and where its store is older than they."""
        if (found := self._working.get(run.run)) is not None:
            return found
        made = self.keys.read(run.run)
        if made is None:
            raise Refused(f"Expected the keys of run {run.run}, but they are gone: it cannot go on. Begin another.")
        self._require(self._noticed(run), run.coordinator, run.plan_digest)
        lists = self.store.lists(run.run)
        if len(lists) > self.keys.noted(run.run):  # a kill, or a full disk, came between
            self.keys.note(run.run, len(lists))
        rounds: dict[bytes, list[int]] = {}
        for entry in lists:
            _count(rounds, entry)
        specification, plan = planned(run.specification)  # again, after a restart: seconds, perhaps
        if bytes.fromhex(digest(plan)) != run.plan_digest or plan.spec.as_json() != run.spec:
            raise Refused(
                f"Expected the plan of run {run.run} as it was consented to, but this version of quoron makes another, "
                "whose noise would not go on from what was answered. Use that version, or `second-server runs RUN "
                "--close`."
            )
        self._working[run.run] = _Working(
            MechanismSpec.read(run.spec),
            made,
            noise_of(made.noise_key, SECOND_SERVER, plan.without("min_cohort")),
            [entry.chain for entry in lists],
            rounds,
            specification.simulation,
        )
        return self._working[run.run]

    def _noticed(self, run: HelpedRun) -> HelpedRun:
        """The run; it ends here if the keys' folder knows of more lists than the database, which was restored then."""
        if run.state != OPEN or self.store.rounds(run.run) >= self.keys.noted(run.run):
            return run
        self._end(run.run, RESTORED)
        return self.store.run(run.run) or run

    def _again(self, run: HelpedRun, head: pb.HelperList, entries: Sequence[Entry]) -> pb.Reply:
        """Return the reply that was given: to another list with whose it is."""
        answered = self.store.answered(run.run, head.round)
        if answered is None:
            raise Refused(f"Expected an answered round of run {run.run}, got round {head.round}.")
        earlier = self.store.answered(run.run, head.round - 1)
        before = FIRST if earlier is None else earlier.chain
        same = head.previous == before and _chain(before, head, entries) == answered.chain
        return pb.Reply.FromString(answered.reply) if same else _with_list(answered)

    def _lifted(
        self, run: HelpedRun, working: _Working, round_: int, entries: Sequence[Entry]
    ) -> tuple[list[bytes], Words]:
        """Fingerprints that are left out, in order, and the sum of the others' masks."""
        length, groups = working.spec.rounds[round_].length, working.spec.groups
        opened = seals.opener(working.secrets.run_key)

        def some(start: int) -> tuple[list[bytes], Words]:
            left_out, total = [], np.zeros((groups, length), np.uint64)
            for entry in entries[start : start + _MAX_TOGETHER]:
                seed = None
                if working.spec.admits(working.rounds.get(entry.fingerprint, ()), round_):
                    about = seals.info(
                        seals.SUITE, run.run, run.plan_digest, round_, entry.question_digest, entry.fingerprint
                    )
                    seed = opened(entry.sealed, about)
                if seed is None:
                    left_out.append(entry.fingerprint)
                else:
                    total[entry.group] += rows.mask(seed, length)
            return left_out, total

        total, left_out = np.zeros((groups, length), np.uint64), []
        for part, words in self._pool.map(some, range(0, len(entries), _MAX_TOGETHER)):
            left_out += part
            total += words
        return left_out, total.reshape(-1)


def close(run: str, store: HelpedRunStore, keys: Keys) -> str:
    """End a run for good, by the second server's own operator; what was done, in words.

    LedgerError for a run that was not consented to. Keys first: a run without keys answers nothing.
    """
    if store.run(run) is None:
        raise LedgerError(f"Expected a run that was consented to, got {run!r}. `quoron second-server runs` lists them.")
    there = keys.holds(run)
    keys.destroy(run)
    state = "closed" if store.end(run, CLOSED) else "was not open"
    return f"{run}: {state}; {'its keys are destroyed' if there else f'no keys of it are in {keys.folder}'}."


def _chain(before: bytes, head: pb.HelperList, entries: Sequence[Entry]) -> bytes:
    """Refused for a list that is none."""
    if any(len(entry.question_digest) != DIGEST or len(entry.sealed) != seals.SEALED for entry in entries):
        raise Refused(f"Expected digests of {DIGEST} bytes and seals of {seals.SEALED} in a list, got others.")
    try:
        return next_chain(before, head.round, entries)
    except ConfigError as error:
        raise Refused(str(error)) from None


def _count(rounds: dict[bytes, list[int]], answered: AnsweredList) -> None:
    """Whose masks were lifted in a round."""
    left_out = set(split_digests(answered.left_out))
    for fingerprint in split_digests(answered.fingerprints):
        if fingerprint not in left_out:
            rounds.setdefault(fingerprint, []).append(answered.round)


def _with_list(answered: AnsweredList) -> pb.Reply:
    """Return the reply to a list, with the fingerprints of that list."""
    reply = pb.Reply.FromString(answered.reply)
    reply.fingerprints = answered.fingerprints
    return reply
