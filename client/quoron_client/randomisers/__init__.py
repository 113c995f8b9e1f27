"""Local randomisers: reports that are private before they leave the client."""

from quoron_client.randomisers.randomness import LocalRandomness, SeededRandomness, SystemRandomness
from quoron_client.randomisers.range_bits import RangeBits
from quoron_client.randomisers.vector import VectorNoise

__all__ = [
    "LocalRandomness",
    "RangeBits",
    "SeededRandomness",
    "SystemRandomness",
    "VectorNoise",
]
