"""What one range report of a user spends, from its flips alone."""

import math


def bits_epsilon(flips: int) -> float:
    """Return ε of one range report whose bits flip with probability flips / 2⁶⁴: 2 ln((2⁶⁴ - flips) / flips)."""
    return 2 * math.log((2**64 - flips) / flips)
