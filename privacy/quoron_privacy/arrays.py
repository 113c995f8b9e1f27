"""Arrays as signatures call them; how many numbers there are along which axis is said where one is named."""

import zlib

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]  # of any shape
Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]  # mostly with a row for each user
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def mask(places: Integers) -> Mask:
    """Return a bit for each place up to the last of these."""
    bits = np.zeros(int(places.max(initial=-1)) + 1, bool)
    bits[places] = True
    return bits


def compressed(bits: Mask) -> bytes:
    """Return bits as bytes: of a hundred thousand 12 KiB at most."""
    return len(bits).to_bytes(4, "little") + zlib.compress(np.packbits(bits).tobytes(), 1)


def decompressed(stored: bytes) -> Mask:
    """Return the bits that were compressed."""
    many, bits = int.from_bytes(stored[:4], "little"), np.frombuffer(zlib.decompress(stored[4:]), np.uint8)
    return np.unpackbits(bits, count=many).astype(bool)
