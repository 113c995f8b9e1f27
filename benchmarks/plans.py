"""Feasibility edges and noise of the outlier filters against published tables, and how long a plan takes.

    python benchmarks/plans.py

The tables were found by another implementation of the same theorems; a ratio below 1 needs fewer users, or less noise,
than the table.
"""

import time

from quoron_client.domains import L2Ball
from quoron_server.accounting import outlier_filter, soft_filter
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

DELTA = 1e-6
# epsilon -> (B_min, Ξ at 1.5, 2, 4, 10 times B_min), at step · smoothness = 1
HARD = {
    0.5: (15_506, 68, 42.7, 29.6, 24),
    1.0: (6_652, 29.4, 21.5, 15.1, 12.2),
    2.0: (2_559, 19, 11.8, 7.9, 6.4),
    4.0: (1_121, 8.2, 5.6, 4.2, 3.4),
    8.0: (471, 5, 3.6, 2.3, 1.9),
}
SOFT = {
    0.5: (8_087, 221, 135, 70, 44.6),
    1.0: (4_127, 114, 70.3, 36.6, 23.3),
    2.0: (2_151, 60.4, 37.5, 19.4, 12.3),
    4.0: (1_196, 32, 20, 10.4, 6.6),
    8.0: (710, 17.7, 11, 5.6, 3.6),
}


def main() -> None:
    for name, theorem, table in (("outlier filter", outlier_filter, HARD), ("soft filter", soft_filter, SOFT)):
        print(f"\n{name}: ours / table at step · smoothness = 1, delta = {DELTA:g}")
        print("epsilon    B_min  ratio   noise factor ratio at 1.5x, 2x, 4x, 10x the table's B_min")
        for epsilon, (edge, *factors) in table.items():
            ours = theorem.smallest_cohort(epsilon, DELTA, 1.0)
            ratios = []
            for multiple, factor in zip((1.5, 2, 4, 10), factors, strict=True):
                size = int(multiple * edge)
                found = theorem.calibrate(epsilon, DELTA, size, 1.0, 10 * size)
                ratios.append(found.noise_factor / factor)
            print(f"{epsilon:7g} {ours:8,} {ours / edge:6.2f}   " + "  ".join(f"{ratio:5.2f}" for ratio in ratios))

    print("\nseconds for a plan, first with these numbers (compiled code warm), then again")
    problem = Problem(
        users=300_000,
        items_per_user=50,
        dimension=10,
        domain=L2Ball(4.0),
        lipschitz=1.0,
        smoothness=0.25,
        user_smoothness=0.055,
        gradient_deviation=0.46,
        curvature="isotropic",
        typical_curvature=0.021,
    )
    for name, info in ALGORITHMS.items():
        info.plan(problem, Privacy(2.0, DELTA), info.options(), "calibrated", 1)
        times = []
        for _ in range(2):
            began = time.perf_counter()
            plan = info.plan(problem, Privacy(1.0, DELTA), info.options(), "calibrated", 1)
            info.verify(plan)
            times.append(time.perf_counter() - began)
        print(f"{name:20s} {times[0]:6.3f} {times[1]:6.3f}")


if __name__ == "__main__":
    main()
