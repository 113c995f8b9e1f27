"""The binary tree: round t releases the one node of the paper's tree that it completes.

C[t, j] = 1 for the last 2^k rounds up to t, where 2^k is the largest power of two that divides t + 1; a prefix sum is
the sum of one node for each bit of t + 1. All entries are zeros and ones, so nothing is rounded.

Source: Dwork, Naor, Pitassi & Rothblum (2010); Choquette-Choo, Ganesh & Thakurta (2024), Lemma 8.
"""

import numpy as np

from quoron_privacy.prefix.factorisation import Factorisation, Floats


def tree(rounds: int) -> Factorisation:
    """Column norm √depth, depth = ⌊log₂ rounds⌋ + 1: the first round is in one node of every level."""
    depth = rounds.bit_length()
    row_norms = np.sqrt([float(t.bit_count()) for t in range(1, rounds + 1)])
    row_norms.setflags(write=False)
    return Factorisation(
        column_norm=float(np.sqrt(depth)),
        row_norms=row_norms,
        rounding=0.0,
        slots=depth,
        coefficients=None,
        predict=_predict,
        remember=_remember,
    )


def _level(t: int) -> int:
    """k such that round t completes a node of 2^k rounds."""
    return (~t & (t + 1)).bit_length() - 1


def _predict(t: int, memory: Floats) -> Floats:
    children: Floats = memory[: _level(t)].sum(axis=0)  # the newest node of every smaller size
    return children


def _remember(t: int, memory: Floats, own: Floats) -> Floats:
    newer = memory.copy()
    newer[_level(t)] = _predict(t, memory) + own
    return newer
