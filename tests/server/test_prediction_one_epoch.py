import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_server.prediction_one_epoch import response


def follow(method, rounds, beta, h, suffix, start, added):
    """The recursion of `srgd` on F(x) = h x²/2 without projections, `added[t]` put into Ŝ_t; the model it returns."""
    x = z = start
    y, total, sums = 0.0, 0.0, 0.0
    for t in range(rounds):
        weight = t + 1
        if method == "ftrl":
            sums += h * x  # what the cohorts' gradients add; perturbations do not accumulate by themselves
            x = start - (sums + added[t]) / beta
        else:
            summed = weight * h * x + added[t]
            if method == "accelerated":
                z = z - summed / (2 * beta)
                y = x - summed / (beta * weight)
                x = (1 - 2 / (t + 3)) * y + 2 / (t + 3) * z
            else:
                x = x - summed / (beta * weight)
        if rounds - t <= suffix:
            total += x / suffix
    return y if method == "accelerated" else total


@given(
    method=st.sampled_from(["accelerated", "plain", "ftrl"]),
    rounds=st.integers(1, 12),
    h=st.floats(0.01, 1.0),
    slack=st.floats(1.0, 10.0),
    data=st.data(),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_responses_are_the_derivatives_of_the_recursion(method, rounds, h, slack, data):
    suffix = data.draw(st.integers(1, rounds))
    found = response(method, rounds, slack, h, suffix)
    zero = np.zeros(rounds)
    assert found.bias == pytest.approx(follow(method, rounds, slack, h, suffix, 1.0, zero), abs=1e-12)
    for t in range(rounds):
        unit = zero.copy()
        unit[t] = 1.0
        assert found.sums[t] == pytest.approx(follow(method, rounds, slack, h, suffix, 0.0, unit), abs=1e-12)
