"""The loop of `charging`: the fixed points of the game, level by level."""

from quoron_privacy.kernels.shipped import njit


@njit(cache=True)
def solve(current, hit_up, hit_down, values, rare, likely, picks, sweeps):  # type: ignore[no-untyped-def]
    """Fills `values` with the least fixed points, level by level, from below; returns the largest residual.

    Row i + 1 of `current` is lattice point i, at first h; row 0 stands for everything below, the last row for
    everything above. Plain loops over arrays of the caller's: slices take seconds to compile.
    """
    points, columns = current.shape[0] - 2, current.shape[1]
    worst = 0.0
    for level in range(len(values)):
        # What a hit is worth does not change while a level is solved. The level below is a valid start.
        for i in range(1, points + 1):
            for c in range(columns):
                hit_up[i, c] = likely * current[i + 1, c]
                hit_down[i, c] = rare * current[i - 1, c]
        # Until the next hit a strategy moves one way along the lattice, or to and fro between two neighbours for ever.
        # The worth of to and fro solves two linear equations; what leads there takes one sweep each way.
        for c in range(columns):
            current[1, c] = max(current[1, c], hit_up[1, c] / likely)  # the point below the lowest is itself
        for i in range(2, points + 1):
            for c in range(columns):
                current[i, c] = max(current[i, c], (hit_up[i, c] + rare * hit_down[i - 1, c]) / (1 - rare * likely))
        rise = 1.0
        for _ in range(sweeps):
            # A test for the odds reaches only upwards for V_r and a test against them only downwards.
            for i in range(1, points + 1):
                for c in range(columns):
                    current[i, c] = max(current[i, c], hit_up[i, c] + rare * current[i - 1, c])
            for i in range(points, 0, -1):
                for c in range(columns):
                    current[i, c] = max(current[i, c], hit_down[i, c] + likely * current[i + 1, c])
            for c in range(columns):
                current[0, c] = current[1, c]
            rise = 0.0
            for i in range(1, points + 1):
                for c in range(columns):
                    rise = max(rise, hit_up[i, c] + rare * current[i - 1, c] - current[i, c])
                    rise = max(rise, hit_down[i, c] + likely * current[i + 1, c] - current[i, c])
            if rise <= 1e-17:
                break
        worst = max(worst, rise)
        for k in range(len(picks)):
            for c in range(columns):
                values[level, k, c] = current[picks[k] + 1, c]
    return worst
