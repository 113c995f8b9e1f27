"""Noise of one server of two: its guarantee against one server, how long rows may be, and the chain that labels it.

    >>> spec = MechanismSpec((RoundSpec((Block("sum", 9, 1 << 29, "clipped"),)),) * 4, participations=4)
    >>> round(server_mu(spec), 6)  # a user of all four rounds
    2.0

Everything is in whole steps, 2³⁰ of which are a standard deviation of the noise of one server. `ServerNoise` is
labelled by the chain of lists (`next_chain`), so that no noise serves two histories. Against an observer who knows
neither server's noise, both count: √½ of that μ.

Statement and proof: docs/privacy/two-servers.md#ts3; why all lists must be in: two-servers.md#the-chain.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from math import hypot, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.streams import GRID_BITS, SecureNoise
from quoron_privacy.prefix.noise import Factorisation, factorise, together
from quoron_privacy.release import Adjacency
from quoron_privacy.two_servers.specification import ADJACENCIES, KINDS, SUMS, Block, MechanismSpec, RoundSpec

Words = NDArray[np.uint64]
Steps = NDArray[np.int64]

_ARITHMETIC = 1 + 1e-9  # rounding of plans, as in `prefix`
_STEP = 2.0**-GRID_BITS

FIRST = bytes(32)


def server_mu(spec: MechanismSpec, *, restored: int = 0) -> float:
    """Return μ of what one server, or a party that it shows everything to, learns of a user of the spec's rounds.

    The store of the other server was put back `restored` times. GDP for replace-one or zero-out, as the rows say.
    """
    norms, rounding = np.ones(len(spec.rounds)), 0.0
    if spec.factorisation is not None:
        norms[list(spec.correlated)], rounding = _norms(spec), _rounding(spec)
    moved = [_moved(made, norm) ** 2 for made, norm in zip(spec.rounds, norms.tolist(), strict=True)]
    alone = sqrt(_most(moved, spec.participations, spec.separation)) + rounding
    return alone * sqrt(1 + restored) * _ARITHMETIC


def outsiders_mu(spec: MechanismSpec) -> float:
    """Return μ of all releases, neither server's noise being known: √½ of `server_mu`, and what halving rounds off.

    A row is split into two halves, each with the noise of one server: docs/privacy/two-servers.md#ts5.
    """
    longest = max(made.length for made in spec.rounds)
    norm, rounding = 0.0, 0.0
    if spec.factorisation is not None:
        norm, rounding = factors_of(spec).participation_norm(spec.participations, spec.separation), _rounding(spec)
    halves = (sqrt(spec.participations) + norm) * sqrt(longest / 2) * _STEP
    return (server_mu(spec) - rounding) * sqrt(0.5) * _ARITHMETIC + halves + sqrt(2.0) * rounding


def rounding_mu(factors: Factorisation, rounds: int, dimension: int) -> float:
    """Return what rounded predictions of correlated noise add to μ: 2ρ √(T d) steps (prefix-noise#c2)."""
    return 2 * factors.rounding * sqrt(rounds * dimension) * _STEP


def factors_of(spec: MechanismSpec) -> Factorisation:
    """B C of the specification's correlated rounds, as `PrefixNoise` has it."""
    apart = spec.separation if spec.participations > 1 else None
    return factorise(str(spec.factorisation), len(spec.correlated), apart, spec.participations)


def _apart(block: Block, adjacency: Adjacency) -> float:
    """Return how far apart rows of two neighbours are in a block, in standard deviations."""
    made, which = KINDS[block.kind], ADJACENCIES.index(adjacency)
    cut = 0.0 if which else made.cut * sqrt(block.length)
    return (sqrt(made.square_apart[which]) * block.unit + cut) * _STEP


@lru_cache(maxsize=1024)
def _moved(made: RoundSpec, norm: float) -> float:
    """Of a round whose "sums" correlation moves `norm` times as far; "shares" beside them are one row with them."""
    far = []
    for (first, _), *others in made.together:
        apart = (norm if first.name == SUMS else 1.0) * _apart(first, made.adjacency)
        for shares, _ in others:
            apart = _apart(shares, made.adjacency) * max(1.0, norm * first.unit / shares.unit)
        far.append(apart)
    return hypot(*far)


def _most(moved: Sequence[float], participations: int, separation: int) -> float:
    """Return the largest sum of so many squares in rounds that are multiples of `separation` apart."""
    classes = (sorted(moved[first::separation])[-participations:] for first in range(min(separation, len(moved))))
    return max((sum(squares) for squares in classes), default=0.0)


def _rounding(spec: MechanismSpec) -> float:
    """Of the series of all groups that one user may be in: each predicts from its own noise."""
    dimension = next(block.length for block in spec.rounds[spec.correlated[0]].blocks if block.name == SUMS)
    rounds = len(spec.correlated) * min(spec.groups, spec.participations)
    return rounding_mu(factors_of(spec), rounds, dimension)


def _norms(spec: MechanismSpec) -> Vector:
    """√R_t: how far correlation moves what a user adds in round t, with all its other rounds (two-servers#ts2)."""
    factors, rounds, apart = factors_of(spec), len(spec.correlated), spec.separation
    if spec.participations == 1:
        return np.full(rounds, factors.column_norm)
    c = factors.coefficients
    if c is None or spec.participations * apart < rounds:
        raise ConfigError(
            f"Expected a Toeplitz factorisation and rounds <= participations * separation, got {spec.factorisation!r} "
            f"with {rounds} rounds, {spec.participations} * {apart}."
        )
    return np.sqrt(together(c, apart))


class Entry(NamedTuple):
    """One user of a list."""

    fingerprint: bytes  # SHA-256 of the client's public key
    question_digest: bytes
    sealed: bytes
    group: int = 0  # of a plan with several: each has a sum and noise of its own


def next_chain(before: bytes, round_: int, entries: Iterable[Entry | tuple[bytes, bytes, bytes]]) -> bytes:
    """Return the chain after the entries of all groups that entered a round's sums, 32 bytes; there may be none.

    ConfigError unless entries ascend by fingerprint, each once: so a user is in one group of a round at most.

    The coordinator's chain is of the rows that *it has added*; the second server's of the lists that it was sent, from
    which, with its keys, follows whose seals did not open. A list holds fingerprints and fresh ciphertexts, so nothing
    of anybody's data.

        >>> one = next_chain(FIRST, 0, [Entry(bytes(32), b"question", b"sealed")])
        >>> one != next_chain(FIRST, 0, [Entry(bytes(32), b"question", b"other")])
        True
    """
    if len(before) != 32:
        raise ConfigError(f"Expected a chain of 32 bytes, got {len(before)}.")
    digest, number, last = sha256(b"quoron two-servers list 1\n"), 0, b""
    for fingerprint, question, sealed, *group in entries:
        if len(fingerprint) != 32 or fingerprint <= last:
            raise ConfigError("Expected entries in ascending order of fingerprints of 32 bytes, each once.")
        for part in (fingerprint, question, sealed):
            digest.update(len(part).to_bytes(8, "little") + part)
        digest.update((group[0] if group else 0).to_bytes(8, "little"))
        number, last = number + 1, fingerprint
    numbers = b"".join(value.to_bytes(8, "little") for value in (round_, number))
    return sha256(b"quoron two-servers chain 1\n" + before + numbers + digest.digest()).digest()


def simulated_chain(before: Sequence[bytes], round_: int) -> bytes:
    """Return the chain after a simulated round's list of all answers: in one process and in two, the same noise."""
    entry = Entry(sha256(b"everybody").digest(), b"simulation", b"")
    return next_chain(before[-1] if before else FIRST, round_, [entry])


@dataclass(eq=False)
class ServerNoise:
    """Whole steps for every coordinate, a function of the server's key and of all lists so far.

    Coordinator and second server have one each, with own keys. Labels are (key, run, plan, round, group, chain): no
    nonce, so equal lists give equal bits after a crash, and other lists independent noise. Correlated blocks subtract
    what earlier noise already puts into their row (prefix-noise#c2), of the same chains; it is remembered for one
    history, and computed again for another.

        >>> spec = MechanismSpec((RoundSpec((Block("sum", 4, 1 << 28, "clipped"),)),))
        >>> noise = ServerNoise(b"k" * 32, "run", bytes(32), spec)
        >>> bool((noise.of(0, [bytes(32)]) == noise.of(0, [bytes(32)])).all())
        True
    """

    key: bytes = field(repr=False)
    run: str
    plan_digest: bytes
    spec: MechanismSpec
    _known: dict[int, tuple[tuple[bytes, ...], int, NDArray[np.float64]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.plan_digest) != 32:
            raise ConfigError(f"Expected a plan digest of 32 bytes, got {len(self.plan_digest)}.")
        self._source = SecureNoise(self.key)

    def of(self, round_: int, chains: Sequence[bytes], group: int = 0) -> Words:
        """Return a round's noise, (k,): `chains` are those after rounds 0 to `round_`, this one's list included."""
        history = tuple(chains)
        if not 0 <= round_ < len(self.spec.rounds) or len(history) != round_ + 1:
            raise ConfigError(f"Expected the chains of rounds 0 to {round_}, got {len(history)}.")
        if any(len(chain) != 32 for chain in history):
            raise ConfigError("Expected chains of 32 bytes, got others. Use next_chain.")
        series = self.spec.correlated
        parts = [
            self._correlated(series.index(round_), history, group, at)
            if block.name == SUMS and round_ in series
            else self._independent(round_, history, group, at)
            for at, block in enumerate(self.spec.rounds[round_].blocks)
        ]
        return np.concatenate(parts).view(np.uint64)

    def labels(self, round_: int, history: tuple[bytes, ...], group: int) -> tuple[str | int, ...]:
        """Return the labels of a round's streams, beside the key: nothing of anybody's data is in them."""
        return "two-servers", self.run, self.plan_digest.hex(), round_, group, history[round_].hex()

    def _independent(self, round_: int, history: tuple[bytes, ...], group: int, at: int) -> Steps:
        stream = self._source.stream(*self.labels(round_, history, group), at)
        return stream.gaussian_steps(self.spec.rounds[round_].blocks[at].length)

    def _correlated(self, now: int, history: tuple[bytes, ...], group: int, at: int) -> Steps:
        """Noise number `now` of the series: Z less what earlier noise puts into its row, as `PrefixNoise.release`."""
        factors, rounds = factors_of(self.spec), self.spec.correlated
        chains, done, memory = self._known.get(group, ((), 0, np.empty(0)))
        if not done or done > now or history[: len(chains)] != chains:
            done, memory = 0, np.zeros((factors.slots, self.spec.rounds[rounds[0]].blocks[at].length))
        for t in range(done, now + 1):
            seed = self._independent(rounds[t], history, group, at)
            own: Steps = seed - np.rint(factors.predict(t, memory)).astype(np.int64)
            if t < now:
                memory = factors.remember(t, memory, own.astype(np.float64))
        # kept without this round, which a crash may bring again
        self._known[group] = history[: rounds[now]], now, memory
        return own
