"""Two servers and their clients in a few lines, and what an observer of one server computes of an own user."""

from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from quoron_privacy.two_servers.chain import FIRST, next_chain
from quoron_privacy.two_servers.noise import ServerNoise
from quoron_privacy.two_servers.ring import added, less, mask, signed
from quoron_privacy.two_servers.sheet import Block, RoundSheet, Sheet

PLAN = sha256(b"plan").digest()
UNIT = 1 << 29
NEAR = 1 << 12  # steps; independent noise is so near to other noise, in five coordinates, once in 10²⁷ times


def sheet(rounds=2, length=5, factorisation="sqrt-toeplitz", participations=1, separation=1):
    block = Block("sums", length, UNIT, "clipped")
    return Sheet((RoundSheet((block,)),) * rounds, factorisation, participations, separation)


def rows(users, length=5, seed=0):
    made = np.random.default_rng(seed).integers(-(1 << 27), 1 << 27, (users, length))
    return made.astype(np.int64)


def seeds(users, seed=0):
    return [sha256(f"{seed} {user}".encode()).digest() for user in range(users)]


def fingerprint(user):
    return sha256(f"user {user}".encode()).digest()


def entries(users, seeds):
    """A list: seals are stood in for by what no two seeds share."""
    return sorted((fingerprint(user), b"question", sha256(b"sealed" + seeds[user]).digest()) for user in users)


@dataclass
class Helper:
    """What the helper keeps, and how it answers. Copies of it are books that were put back."""

    noise: ServerNoise
    chains: list = field(default_factory=list)
    forgets: bool = False  # a broken twin: labels hold the round's own list alone

    def put_back(self):
        return Helper(self.noise, list(self.chains), self.forgets)

    def reply(self, users, seeds):
        before = FIRST if self.forgets or not self.chains else self.chains[-1]
        chain = next_chain(before, len(self.chains), entries(users, seeds))
        self.chains.append(chain)
        masks = [mask(seeds[user], self.noise.sheet.rounds[0].length) for user in users]
        none = np.zeros(self.noise.sheet.rounds[0].length, np.uint64)
        return less(added(none, *masks), self.noise.of(len(self.chains) - 1, self.chains))


def own_row(masked, with_own, reply_with, without, reply_without):
    """The row of whoever is in the first list alone, as two replies tell it, if their noise is the same."""
    one = less(added(*(masked[user] for user in with_own)), reply_with)
    other = less(added(*(masked[user] for user in without)), reply_without)
    return signed(less(one, other))


def found(guess, row):
    """Whether a guess is the row, but for roundings of predictions."""
    return bool(np.abs(guess - row).max() <= NEAR)


class NoList(ServerNoise):
    """A broken twin: noise of a round is labelled by the round alone."""

    def labels(self, round_, history, group):
        return "two-servers", self.run, round_
