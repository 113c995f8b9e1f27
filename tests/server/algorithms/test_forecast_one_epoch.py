import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_server.algorithms.one_epoch import isotropic_risk, response

PROBLEM = problem_of(
    users=1000,
    items_per_user=5,
    dimension=4,
    domain=L2Ball(1.5),
    lipschitz=1.0,
    smoothness=0.25,
    curvature="isotropic",
    typical_curvature=0.2,
)

OTHERS = [("ftrl", "ftrl"), ("recursive", "anytime")]


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
            elif method == "anytime":
                z = z - summed / (2 * beta)
                x = (1 - 2 / (t + 3)) * x + 2 / (t + 3) * z
            else:
                x = x - summed / (beta * weight)
        if rounds - t <= suffix:
            total += x / suffix
    return y if method == "accelerated" else total


@given(
    method=st.sampled_from(["accelerated", "plain", "ftrl", "anytime"]),
    rounds=st.integers(1, 12),
    h=st.floats(0.01, 1.0),
    slack=st.floats(1.0, 10.0),
    data=st.data(),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_responses_are_the_derivatives_of_the_recursion(method, rounds, h, slack, data):
    candidates = [(slack, data.draw(st.integers(1, rounds))), (2 * slack, rounds)]
    if method == "anytime":  # its model is the last point
        candidates = [(beta, 1) for beta, _ in candidates]
    found = response(
        method, rounds, np.array([beta for beta, _ in candidates]), h, np.array([s for _, s in candidates])
    )
    zero = np.zeros(rounds)
    for each, (beta, suffix) in enumerate(candidates):
        assert found.bias[each] == pytest.approx(follow(method, rounds, beta, h, suffix, 1.0, zero), abs=1e-12)
        for t in range(rounds):
            unit = zero.copy()
            unit[t] = 1.0
            assert found.sums[each, t] == pytest.approx(follow(method, rounds, beta, h, suffix, 0.0, unit), abs=1e-12)


def risk_by_sums(problem, gradients, method, beta, suffix, cohort, clip, kernel):
    """One candidate's risk: the start's bias, and what every user and every draw of noise does to the model."""
    h, rounds, unit = problem.beliefs.typical_curvature, len(kernel), np.eye(len(kernel))
    reached = [follow(method, rounds, beta, h, suffix, 0.0, unit[t]) for t in range(rounds)]  # per unit of Ŝ_t
    path = [1.0] + [follow("plain", t, beta, h, 1, 1.0, np.zeros(t)) for t in range(1, rounds)]
    if method in ("accelerated", "anytime"):
        path = response(method, rounds, np.array([beta]), h, np.array([suffix])).path[0]
    error = 0.0
    for j in range(rounds):
        far = abs((j + 1) * path[j] - j * path[j - 1]) if gradients == "recursive" and j else abs(path[j])
        far *= problem.radius
        each = problem.user_deviation**2 + h * problem.smoothness / problem.items_per_user * far**2
        if gradients == "independent":
            weight = (j + 1) * reached[j]
            error += weight**2 * (each / cohort + problem.dimension * (clip * kernel[0]) ** 2)
        else:
            error += sum(reached[j:]) ** 2 * each / cohort
            error += problem.dimension * sum(reached[t] * clip * kernel[t - j] for t in range(j, rounds)) ** 2
    bias = follow(method, rounds, beta, h, suffix, 1.0, np.zeros(rounds))
    return h / 2 * ((bias * problem.radius) ** 2 + error)


@given(
    kind=st.sampled_from([(g, m) for g in ("recursive", "independent") for m in ("accelerated", "plain")] + OTHERS),
    rounds=st.integers(1, 9),
    candidates=st.lists(
        st.tuples(st.floats(0.3, 3.0), st.floats(0.0, 1.0), st.floats(0.1, 2.0)), min_size=1, max_size=4
    ),
    decay=st.floats(0.0, 1.0),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_risks_of_many_candidates_are_those_of_each(kind, rounds, candidates, decay):
    gradients, method = kind
    kernel = 0.1 * decay ** np.arange(rounds)
    whole = {"accelerated": rounds, "anytime": 1}
    suffixes = [whole.get(method) or max(1, round(share * rounds)) for _, share, _ in candidates]
    betas, clips = [beta for beta, _, _ in candidates], [clip for _, _, clip in candidates]
    found = isotropic_risk(PROBLEM, gradients, method, np.array(betas), np.array(suffixes), 50, np.array(clips), kernel)
    expected = [
        risk_by_sums(PROBLEM, gradients, method, beta, suffix, 50, clip, kernel)
        for beta, suffix, clip in zip(betas, suffixes, clips, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
