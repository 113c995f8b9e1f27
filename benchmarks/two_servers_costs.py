"""What two servers cost: a mask and its addition, a seal and its opening, and exact sums of rows beside the plain sum.

    .venv/bin/python benchmarks/two_servers_costs.py

Milliseconds or microseconds of one core a user; sums of 100,000 users. Set OPENBLAS_NUM_THREADS and NUMBA_NUM_THREADS
to 1.
"""

from time import perf_counter

import numpy as np

from quoron_privacy.two_servers import seals
from quoron_privacy.two_servers.noise import FIRST, ServerNoise, next_chain
from quoron_privacy.two_servers.rows import ClippedRows, NormCountRows, mask
from quoron_privacy.two_servers.specification import Block, RoundSheet, Sheet

USERS, K, UNIT = 100_000, 1_000, 1 << 28


def seconds(work, times):
    """Of one call, the least of three tries."""
    tries = []
    for _ in range(3):
        begun = perf_counter()
        for _ in range(times):
            work()
        tries.append((perf_counter() - begun) / times)
    return min(tries)


def main():
    """Print all figures."""
    total, key, seed = np.zeros(K, np.uint64), seals.RunKey.fresh(), bytes(range(32))
    sealed = seals.seal(key.public, seed, b"info")

    def unmask():
        nonlocal total
        total += mask(seed, K)

    print(f"mask of {K:,} words and adding it: {1e6 * seconds(unmask, 2000):.1f} µs")
    print(f"seal ({len(sealed):,} bytes): {1e3 * seconds(lambda: seals.seal(key.public, seed, b'info'), 100):.3f} ms")
    opened = seals.opener(key.secret)
    print(f"open: {1e3 * seconds(lambda: opened(sealed, b'info'), 100):.3f} ms")
    entries = [(n.to_bytes(32, "big"), bytes(32), sealed) for n in range(1, 10_001)]
    print(f"chain, a user: {1e6 * seconds(lambda: next_chain(FIRST, 0, entries), 1) / len(entries):.2f} µs")
    one = Sheet((RoundSheet((Block("sums", K, UNIT, "clipped"),)),) * 100, "blt")
    chains = [bytes([t]) * 32 for t in range(100)]
    noise = ServerNoise(seed, "run", bytes(32), one)
    drawn = seconds(lambda: [noise.of(t, chains[: t + 1]) for t in range(100)], 1)
    print(f"noise of 100 correlated rounds: {1e3 * drawn:.0f} ms")
    values, answered = np.random.default_rng(1).normal(size=(USERS, K)), np.ones(USERS, bool)
    plain = seconds(lambda: values.sum(axis=0), 1)
    clipped = ClippedRows(one.rounds[0], 20.0)
    counts = NormCountRows(
        RoundSheet((Block("sums", K, UNIT, "norm-counts"), Block("shares", 3, UNIT, "norm-counts"))), 40.0
    )
    print(f"plain float sum of {USERS:,} rows: {plain:.3f} s")
    for name, reduction in (("clipped", clipped), ("norm counts", counts)):
        reduction.of(values[:10], answered[:10])
        took = seconds(lambda reduction=reduction: reduction.of(values, answered), 1)
        print(f"integer sum, {name}: {took:.3f} s, {took / plain:.1f} times")


if __name__ == "__main__":
    main()
