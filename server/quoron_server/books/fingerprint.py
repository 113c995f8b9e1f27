"""Whether a question is the one that was asked before: a ledger keeps a digest of it, and erases that at the end."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from quoron_client.protocol.questions import Question
from quoron_server.algorithm import names_of


def digest(question: Question) -> str:
    """A fingerprint of everything the clients are sent, and of who they are unless secret coins say so."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in _parts(question.lasting):
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """All that a value holds, arrays whole."""
    if isinstance(value, np.ndarray):
        yield repr((value.dtype.str, value.shape)).encode()
        yield np.ascontiguousarray(value).tobytes()
    elif (names := names_of(type(value))) is not None or isinstance(value, tuple):
        named = value if names is None else [getattr(value, name) for name in names]
        yield f"{type(value).__name__} {len(named)}".encode()
        for each in named:
            yield from _parts(each)
    else:
        yield repr(value).encode()
