"""The loop of `forecast`: accelerated steps on a quadratic, and how each error reaches the end."""

from quoron_privacy.kernels.shipped import njit


@njit(cache=True)
def response(beta, h, weights, path):  # type: ignore[no-untyped-def]
    """a_T per unit of start distance; fills `weights` and `path` (T,) with what `forecast.response` says."""
    steps = len(weights)
    x = a = 1.0
    for t in range(steps):
        share, length = 2 / (t + 2), (t + 1) / (2 * beta)
        path[t] = share * x + (1 - share) * a
        x -= length * h * path[t]
        a = share * x + (1 - share) * a
    to_x, to_a = 0.0, 1.0  # derivatives of a_T
    for t in range(steps - 1, -1, -1):
        share, length = 2 / (t + 2), (t + 1) / (2 * beta)
        through = to_x + share * to_a
        weights[t] = -length * through
        to_x = through * (1 - length * h * share)
        to_a = (1 - share) * (to_a - length * h * through)
    return a
