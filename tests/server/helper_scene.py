"""A helper without a transport, and users who mask and seal as clients do."""

import contextlib
import functools
import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.two_servers import wanted
from quoron_privacy.two_servers import rows, seals
from quoron_privacy.two_servers.noise import FIRST, Entry, next_chain
from quoron_protos.v1 import helper_pb2 as pb
from quoron_server.plan import RunPlan
from quoron_server.second_server import runs
from quoron_server.second_server.keys import Keys
from quoron_server.second_server.runs import HelpedRuns, HelpedRunStore
from quoron_server.specification import RunSpecification
from quoron_server.storage.database import Database
from quoron_server.wording import digest

LEADER = "a" * 64
PLANNED = functools.cache(runs.planned)  # a plan takes a second, and is the same every time
SIGNING = Ed25519PrivateKey.generate()
Row = np.ndarray[Any, np.dtype[np.int64]]


def real(algorithm: str = "one-pass-dp-sgd", **changes: object) -> RunSpecification:
    """A run of secret noise."""
    return wanted(algorithm, simulation=False, simulation_seed=None, **changes)


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def opened(place: Path, **changes: Any) -> Iterator[HelpedRuns]:
    """A helper on the store and keys of a folder, as they are there."""
    with Database(f"sqlite:///{place}/helper.sqlite", as_it_is=changes.pop("as_it_is", False)) as database:
        made = HelpedRuns(HelpedRunStore(database), Keys(place / "keys"), SIGNING, threads=1, **changes)
        with patch.object(runs, "planned", PLANNED):
            yield made
        made.close_threads()


def plan_of(run: RunSpecification) -> RunPlan:
    return PLANNED(run.as_text())[1]


def request(run: RunSpecification) -> pb.OpenRun:
    plan = bytes.fromhex(digest(plan_of(run)))
    return pb.OpenRun(run=run.run, specification=run.as_text(), plan_digest=plan, software="test")


@dataclass
class Leader:
    """A coordinator's side of one run: users' rows, lists in order, and sums."""

    run: RunSpecification
    helped: HelpedRuns
    consent: pb.HelperConsent = field(init=False)
    chain: bytes = FIRST
    lists: list[list[Entry]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.consent = self.helped.open(request(self.run), LEADER)
        plan = plan_of(self.run)
        self.spec = plan.schedule.spec()

    def masked(self, user: int, round_: int, row: Row | None = None, **about: Any) -> tuple[Entry, np.ndarray]:
        """What a user sends, as list entry and words; `about` is what a replay says instead."""
        said = {"run": self.run.run, "plan": self.consent.plan_digest, "round": round_, "who": key_of(user)} | about
        name = hashlib.sha256(f"{user}/{round_}".encode()).digest()
        seed = secrets.token_bytes(32)
        info = seals.info(seals.SUITE, said["run"], said["plan"], said["round"], name, said["who"])
        words = rows.mask(seed, self.spec.rounds[round_].length)
        values = words if row is None else rows.added(row, words)
        return Entry(key_of(user), name, seals.seal(self.consent.run_key, seed, info)), values

    def head(self, round_: int, entries: Sequence[Entry], previous: bytes | None = None, **more: Any) -> pb.HelperList:
        return pb.HelperList(
            run=self.run.run,
            plan_digest=self.consent.plan_digest,
            round=round_,
            previous=self.chain if previous is None else previous,
            entries=len(entries),
            **more,
        )

    def ask(self, round_: int, entries: Sequence[Entry]) -> pb.Reply:
        """The reply to the next list, after which the chain goes on."""
        ordered = sorted(entries)
        reply = self.helped.sum(self.head(round_, ordered), ordered, LEADER)
        self.chain = next_chain(self.chain, round_, ordered)
        assert reply.chain == self.chain
        return reply


def key_of(user: int) -> bytes:
    return hashlib.sha256(f"user {user}".encode()).digest()


def words_of(reply: pb.Reply) -> np.ndarray:
    return np.frombuffer(reply.values, "<u8").astype(np.uint64)
