"""Members by public randomness: a seed and users determine the members, so that an auditor can draw them again.

    >>> draw(seed_of("summer", "{}"), np.arange(100), 3).tolist()
    [38, 79, 95]

Nothing of it is secret, and no amplification by sampling may be claimed of it: docs/privacy/silos.md#ro1.
"""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """How the members of a run were drawn, for an auditor who draws them again."""

    seed: str
    active: NDArray[np.int64]  # whom from
    members: NDArray[np.int64]

    def as_json(self) -> dict[str, Any]:
        """What the chain says of it."""
        return {
            "seed": self.seed,
            "active": len(self.active),
            "of": digest(self.active),
            "members": digest(self.members),
        }


def draw(seed: str, active: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """`n` of the `active` users, in order, shape (n,): those whose SHA-256("SEED USER") is least."""
    if n >= len(active):
        return np.sort(active)
    start = hashlib.sha256(f"{seed} ".encode())
    ranks = []
    for user in active.tolist():
        hashed = start.copy()
        hashed.update(b"%d" % user)
        ranks.append((hashed.digest(), user))
    return np.array(sorted(user for _, user in sorted(ranks)[:n]), dtype=np.int64)


def seed_of(run: str, specification: str) -> str:
    """Public randomness of a run's draw, 64 digits: fixed with all that makes it this run, when it is submitted."""
    return hashlib.sha256(f"quoron members 1\n{run}\n{specification}".encode()).hexdigest()


def digest(users: NDArray[np.int64]) -> str:
    """SHA-256 of user numbers in order, in decimal with a comma between."""
    return hashlib.sha256(",".join(map(str, users.tolist())).encode()).hexdigest()


def packed(users: NDArray[np.int64]) -> bytes:
    """Users as bits, compressed: of a hundred thousand 12 KiB at most."""
    bits = np.zeros(int(users.max(initial=-1)) + 1, bool)
    bits[users] = True
    return zlib.compress(np.packbits(bits).tobytes())


def unpacked(stored: bytes) -> NDArray[np.int64]:
    """What was packed, in order."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(zlib.decompress(bytes(stored)), np.uint8))).astype(np.int64)


def homes(users: NDArray[np.int64], silos: Mapping[int, int]) -> NDArray[np.int64]:
    """The client of each user (k,), by the number of its first one."""
    if not silos:
        return users
    begins = np.array(sorted(silos), np.int64)
    ends = begins + np.array([silos[each] for each in begins.tolist()], np.int64)
    place = np.maximum(np.searchsorted(begins, users, side="right") - 1, 0)
    return np.where((users >= begins[place]) & (users < ends[place]), begins[place], users)


def by_client(users: NDArray[np.int64], silos: Mapping[int, int]) -> dict[int, NDArray[np.intp]]:
    """Places (k,) of each client's users among some, in the order of their numbers."""
    if not silos:
        return {user: np.array([place]) for place, user in enumerate(users.tolist())}
    clients = homes(users, silos)
    order = np.lexsort((users, clients))
    found, begins = np.unique(clients[order], return_index=True)
    ends = [*begins[1:].tolist(), len(order)]
    return {client: order[a:b] for client, a, b in zip(found.tolist(), begins.tolist(), ends, strict=True)}
