"""The predicted risk of `tracking-srgd` is that of the model it assumes, run many times; and it ranks as it should."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from one_epoch_reference import strategy
from quoron_server.algorithms.tracking import LAG_SHARE, MAIN_FACTOR, Assumed, predict

PATHS = 30_000
ASSUMED = Assumed(
    dimension=3,
    distance=5.0,
    curvature=0.08,
    least_curvature=0.08,
    ridge=0.0,
    spread=0.1,
    first_radius=1.0,
    margin=1.8,
    gradient_spread=0.05,
)


def simulate(known, metric, warmup, main, seed=3):
    """Mean risks of start point, sampling and privacy noise: one linear model, three inputs, radii from their sum."""
    k, rng, rounds = known, np.random.default_rng(seed), main[0]
    p, slope = 1 / (metric + k.ridge), k.curvature + k.ridge
    start = np.zeros((PATHS, k.dimension))
    start[:, 0] = k.distance
    points = np.array([start, np.zeros_like(start), np.zeros_like(start)])  # distances to the optimum, by origin

    def drawn(deviation):
        return deviation * rng.standard_normal((PATHS, k.dimension))

    def length(moved):
        return np.sqrt(np.mean(np.sum(moved.sum(axis=0) ** 2, axis=1)))

    inverse = np.linalg.inv(strategy("sqrt-toeplitz", rounds))
    seeds = [drawn(main[2]) for _ in range(rounds)]
    moved, error, sums, coefficients, chances = 0.0, 0.0, np.zeros_like(points), np.zeros(rounds), 0.0
    for t in range(warmup[0] + rounds):
        in_main = t >= warmup[0]
        divisor, noise = main[1:] if in_main else warmup[1:]
        j = t - warmup[0] + 1 if in_main else 1
        spread = np.hypot(k.spread, j * k.gradient_spread * moved if j > 1 else 0.0)
        reach = k.margin * np.sqrt(spread**2 * (1 + 1 / divisor) + error) + j * LAG_SHARE * metric * moved
        radius = min(k.first_radius * (MAIN_FACTOR if in_main else 1.0), reach)
        radius = k.first_radius if t == 0 else radius
        sampled = drawn(spread / np.sqrt(divisor * k.dimension))
        if in_main:
            row = sum(inverse[j - 1, i] * seeds[i] for i in range(j))
            sums = sums + np.array([np.zeros_like(sampled), sampled, radius * row])
            coefficients += radius * np.concatenate([inverse[j - 1, :j], np.zeros(rounds - j)])
            chances += spread**2 / divisor
            errors = sums / j
            error = (k.dimension * main[2] ** 2 * np.sum(coefficients**2) + chances) / j**2
        else:
            errors = np.array([np.zeros_like(sampled), sampled, drawn(radius * noise)])
            error = spread**2 / divisor + k.dimension * (radius * noise) ** 2
        step = -p * (slope * points + errors)
        points, moved = points + step, length(step)
    return slope / 2 * np.mean(np.sum(points**2, axis=2), axis=1)


CASES = [
    (ASSUMED, 0.2, (4, 500, 0.02), (8, 1000, 0.02)),
    (ASSUMED._replace(spread=0.5, gradient_spread=0.5), 0.2, (3, 200, 0.05), (12, 300, 0.05)),
    (ASSUMED._replace(ridge=0.1, distance=1.0), 0.3, (2, 1000, 0.01), (5, 100, 0.1)),
    (ASSUMED._replace(curvature=0.19, least_curvature=0.19, first_radius=0.3), 0.2, (6, 300, 0.1), (20, 400, 0.05)),
]


@pytest.mark.parametrize("case", CASES)
def test_parts_are_the_means_of_the_assumed_model(case):
    # Means of 30,000 times a χ² of three degrees: a standard error of 0.5 %. A false alarm is 5.5 of them: below 1e-7
    # for each of 8 comparisons. The radii hang on means of the same kind.
    known, metric, warmup, main = case
    inverse = np.linalg.inv(strategy("sqrt-toeplitz", main[0]))[:, 0]
    found = predict(known, metric=metric, warmup=warmup, main=main, inverse=inverse)
    means = simulate(known, metric, warmup, main)
    assert found[0, 0] == pytest.approx(means[0], rel=1e-9)
    np.testing.assert_allclose(found[1:, 0], means[1:], rtol=0.0275)


def noise_and_sampling_by_responses(known, metric, warmup, main, inverse):
    """Recursive rounds with one response for each round's seed noise and each cohort's sampling, none shared."""
    k, slope, p = known, known.curvature + known.ridge, 1 / (metric + known.ridge)
    keep, d, (rounds, divisor, noise) = 1 - p * slope, known.dimension, main
    gap, sampled, noised, moved, error = k.distance, 0.0, 0.0, 0.0, 0.0
    for t in range(warmup[0]):
        reach = k.margin * np.sqrt(k.spread**2 * (1 + 1 / warmup[1]) + error) + LAG_SHARE * metric * moved
        reach = min(k.first_radius, reach) if t else k.first_radius
        sampling, private = k.spread**2 / warmup[1], d * (reach * warmup[2]) ** 2
        error = sampling + private
        moved = p * np.sqrt(slope**2 * (gap**2 + sampled + noised) + error)
        gap *= 1 - p * (k.least_curvature + k.ridge)
        sampled, noised = keep**2 * sampled + p**2 * sampling, keep**2 * noised + p**2 * private
    sums, points, chance, spreads = (np.zeros(rounds) for _ in range(4))
    for j in range(1, rounds + 1):
        own = k.spread**2 + ((j * k.gradient_spread * moved) ** 2 if j > 1 else 0.0)
        reach = k.margin * np.sqrt(own * (1 + 1 / divisor) + error) + LAG_SHARE * j * metric * moved
        spreads[j - 1] = own / divisor
        sums[:j] += min(reach, MAIN_FACTOR * k.first_radius) * inverse[:j][::-1]
        error = (noise**2 * d * np.sum(sums[:j] ** 2) + np.sum(spreads)) / j**2
        step, drawn = -p * (slope * points[:j] + sums[:j] / j), -p * (slope * chance[:j] + 1 / j)
        points[:j] += step
        chance[:j] += drawn
        earlier = (p * slope * keep ** (j - 1)) ** 2 * (gap**2 + sampled + noised)
        moved = np.sqrt(noise**2 * d * np.sum(step**2) + np.sum(spreads[:j] * drawn**2) + earlier)
    sampled = keep ** (2 * rounds) * sampled + np.sum(spreads * chance**2)
    noised = keep ** (2 * rounds) * noised + noise**2 * d * np.sum(points**2)
    return slope * sampled / 2, slope * noised / 2


@given(
    metrics=st.lists(st.floats(0.08, 1.0), min_size=1, max_size=3),
    warmup=st.tuples(st.integers(1, 6), st.integers(1, 500), st.floats(0.0, 0.5)),
    main=st.tuples(st.integers(1, 40), st.integers(1, 500), st.floats(0.0, 0.5)),
    ridge=st.sampled_from([0.0, 0.05]),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_predictions_of_many_candidates_are_those_of_each_by_its_own_responses(metrics, warmup, main, ridge):
    known = ASSUMED._replace(ridge=ridge, least_curvature=0.05)
    inverse = np.linalg.inv(strategy("sqrt-toeplitz", 45))[:, 0]  # longer than any: fewer rounds have the first of it
    found = predict(known, metric=np.array(metrics), warmup=warmup, main=main, inverse=inverse)
    expected = [noise_and_sampling_by_responses(known, metric, warmup, main, inverse) for metric in metrics]
    np.testing.assert_allclose(found[1:].T, expected, rtol=1e-9)


def total(known=ASSUMED, warm=0.02, main=0.02, rounds=8):
    inverse = np.linalg.inv(strategy("sqrt-toeplitz", rounds))[:, 0]
    return predict(known, metric=0.2, warmup=(4, 500, warm), main=(rounds, 1000, main), inverse=inverse).sum()


@given(
    factor=st.floats(1.0, 5.0),
    name=st.sampled_from(["distance", "spread", "gradient_spread", "margin", "dimension"]),
)
@settings(derandomize=True, deadline=None, max_examples=40)
def test_a_harder_problem_never_has_less_predicted_risk(factor, name):
    harder = ASSUMED._replace(**{name: type(getattr(ASSUMED, name))(factor * getattr(ASSUMED, name))})
    assert total(harder) >= total() * (1 - 1e-12)


@given(warm=st.floats(0.0, 0.5), main=st.floats(0.0, 0.5))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_more_noise_never_has_less_predicted_risk(warm, main):
    here = total(warm=warm, main=main)
    assert total(warm=1.1 * warm, main=1.1 * main) >= here * (1 - 1e-12)
    assert np.isfinite(here)
