"""Gaussian samples a second: one core, and several at once as `NoiseAhead` draws coming rounds.

    python benchmarks/noise.py [--millions 4] [--threads 2]

One core is measured in processor time, so other programs do not slow it; threads are measured by the clock, so they do.
"""

import argparse
import os
import time

import numpy as np

from quoron_privacy.noise.ahead import NoiseAhead
from quoron_privacy.noise.sources import SecureNoise

REPEATS = 5


def one_core(samples: int) -> tuple[float, float]:
    """Best of some repeats, in millions a second of processor time: ours, and numpy's float64 normals."""
    stream, generator = SecureNoise.fresh().stream("benchmark"), np.random.default_rng(1)
    stream.gaussian_steps(samples)  # compiled
    best = [0.0, 0.0]
    for _ in range(REPEATS):
        for which, draw in enumerate((stream.gaussian_steps, generator.standard_normal)):
            began = time.process_time()
            draw(samples)
            best[which] = max(best[which], samples / 1e6 / (time.process_time() - began))
    return best[0], best[1]


def ahead(samples: int, threads: int) -> float:
    """Millions a second by the clock, of so many rounds at once."""
    with NoiseAhead(SecureNoise.fresh(), threads=threads) as noise:
        began = time.perf_counter()
        for round_ in range(2 * threads):
            noise.expect(("release", round_), samples)
        for round_ in range(2 * threads):
            noise.stream("release", round_).gaussian_steps(samples)
        return 2 * threads * samples / 1e6 / (time.perf_counter() - began)


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=4, help="samples of one round, in millions")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    samples = arguments.millions * 1_000_000
    ours, numpys = one_core(samples)
    print(f"one core: {ours:.1f} million samples a second; numpy's standard_normal {numpys:.1f}")
    for threads in sorted({1, arguments.threads}):
        print(f"drawn ahead by {threads} threads: {ahead(samples, threads):.1f} million a second of the clock")


if __name__ == "__main__":
    main()
