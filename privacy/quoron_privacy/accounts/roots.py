"""The least number of users that is enough, and where a function of one number crosses zero: Brent's method.

    >>> round(root(lambda x: x * x - 2, 0.0, 2.0), 12)
    1.414213562373

scipy.optimize takes as long to import as many a plan. The steps are those of scipy's `brentq`, and so are the bits.

Source: Brent (1973), Algorithms for Minimization without Derivatives, chapter 4.
"""

import math
from collections.abc import Callable

_STEPS = 100  # each pair of them at least halves the bracket's distance to a root, or nearly


def root(
    function: Callable[[float], float], low: float, high: float, *, xtol: float = 2e-12, rtol: float = 4 * 2.0**-52
) -> float:
    """Return a zero of a continuous `function` between `low` and `high`, whose signs differ, to xtol + rtol |zero|.

    ValueError where the signs do not differ or a value is not a number.
    """
    before, here = low, high  # the last two iterates; `here` is the best of the three
    f_before, f_here = _value(function, before), _value(function, here)
    if f_before == 0:
        return before
    if f_here == 0:
        return here
    if (f_before < 0) == (f_here < 0):
        raise ValueError(f"Expected different signs at both ends, got f({low}) = {f_before} and f({high}) = {f_here}.")
    across, f_across = before, f_before  # on the other side of the zero
    step = last = here - before
    for _ in range(_STEPS):
        if f_before != 0 and (f_before < 0) != (f_here < 0):
            across, f_across = before, f_before
            step = last = here - before
        if abs(f_across) < abs(f_here):
            before, here, across = here, across, here
            f_before, f_here, f_across = f_here, f_across, f_here
        tolerance = (xtol + rtol * abs(here)) / 2
        half = (across - here) / 2
        if f_here == 0 or abs(half) < tolerance:
            return here
        trial = math.inf
        if abs(last) > tolerance and abs(f_here) < abs(f_before):
            if before == across:  # two points: a secant
                trial = -f_here * (here - before) / (f_here - f_before)
            else:  # three: a parabola on its side
                near = (f_before - f_here) / (before - here)
                far = (f_across - f_here) / (across - here)
                below = far * near * (f_across - f_before)
                trial = -f_here * (f_across * far - f_before * near) / below if below != 0 else math.inf
        if 2 * abs(trial) < min(abs(last), 3 * abs(half) - tolerance):
            last, step = step, trial
        else:
            last = step = half
        before, f_before = here, f_here
        here += step if abs(step) > tolerance else math.copysign(tolerance, half)
        f_here = _value(function, here)
    return here  # rounding kept the bracket from closing: still between points of different signs


def _value(function: Callable[[float], float], point: float) -> float:
    value = float(function(point))
    if math.isnan(value):
        raise ValueError(f"Expected a number at {point}, got nan.")
    return value


def least_number(
    fits: Callable[[int], bool], start: int, *, low: int | None = None, most: int = 1 << 40, within: float = math.inf
) -> int | None:
    """Return the least number above `low`, or from `start` on, that `fits`, to 1 / `within`; None beyond `most`."""
    low, high = start - 1 if low is None else low, start
    while not fits(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while high - low > max(1, low // within):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
