"""Audits of one phase of the outlier filter on worst-case neighbours, and of its broken twins.

Users are grouped by type (same gradient), so that a run costs a few binomial draws and a million runs of the exact
mechanism take seconds. One dimension, τ = η = 1, two rounds. The first audit sees what is released: HALT or the noisy
average. The second sees the whole transcript, which the filter's own noise has to protect, by likelihood ratios.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from audits.harness import Audit, case, events, ratios
from quoron_privacy.robust.filter.concentration import score_error, scores
from quoron_privacy.robust.filter.outlier_filter import calibrate, verify
from quoron_privacy.robust.filter.thresholds import cutoff_law

EPSILON, DELTA, SIZE, DRAWS = 2.0, 1e-3, 1500, 150_000
FAR = 1e6  # alone, and for an unfiltered mean out of all proportion


CLAIMED = calibrate(
    EPSILON, DELTA, cohort_size=SIZE, eta_beta=1.0, phase_users=2 * SIZE, score_error=score_error(SIZE, 1)
)
LAW = cutoff_law(CLAIMED.cutoff_centre, CLAIMED.cutoff_decay)


@dataclass(frozen=True)
class Scenario:
    """Others by type in round 0, the own user's two answers, and the types of round 1 (its users are all others)."""

    positions: tuple[float, ...]
    counts: tuple[int, ...]
    own: tuple[float, float]
    isolated: int = 0  # users at infinite distance from everybody
    later: tuple[tuple[float, float, int], ...] = ((0.0, 0.0, SIZE),)  # position at x = 0, curvature, number of users


@dataclass(frozen=True)
class Twin:
    """What is run; the default is what is claimed."""

    share: float = 1.0  # of the claimed noise
    filter_share: float = 1.0  # of the filter's own
    random_cutoff: bool = True
    filters: bool = True

    @property
    def sigma(self):
        return self.share * CLAIMED.noise_scale(1.0, CLAIMED.theta)  # η = 1 and, with distance = θ, τ = 1

    @property
    def scale(self):
        return self.filter_share * CLAIMED.laplace_scale


def type_scores(at, counts, own=None):
    """Scores of each type (..., types), and of the own user (...)."""
    total = (np.exp(-np.abs(at[..., :, None] - at[..., None, :])) * counts).sum(axis=-1)
    near = 0.0 if own is None else np.exp(-np.abs(at - own))
    return total + near, 1 + (near * counts).sum(axis=-1)


def filtered_chance(score, twin):
    """P(score + noise <= F)."""
    return stats.laplace.cdf((CLAIMED.threshold - score) / twin.scale) if twin.filters else np.zeros_like(score)


def released(world, number, scenario, twin=Twin()):
    """Draws of the released statistic: the noisy average of two iterates, or a huge number for HALT."""

    verify(CLAIMED, EPSILON, DELTA)  # the parameters audited are those of the theorem

    def sample(draws):
        rng = np.random.default_rng([1, world])
        own, counts = scenario.own[world], np.array(scenario.counts)
        at = np.array(scenario.positions)
        others, own_score = type_scores(at, counts, own)
        hits = rng.binomial(counts, filtered_chance(others, twin), size=(draws, len(at)))
        kept = rng.random(draws) >= filtered_chance(own_score, twin)
        alone = rng.binomial(scenario.isolated, filtered_chance(np.float64(1.0), twin), size=draws)
        filtered = hits.sum(axis=1) + alone + ~kept
        x = -(((counts - hits) * at).sum(axis=1) + kept * own) / ((counts - hits).sum(axis=1) + kept)
        first, shift, slope, counts = x, *np.array(scenario.later).T
        at = shift + slope * x[:, None]
        hits = rng.binomial(counts.astype(int), filtered_chance(type_scores(at, counts)[0], twin))
        x = x - ((counts - hits) * at).sum(axis=1) / (counts - hits).sum(axis=1)
        cutoff = rng.choice(len(LAW), p=LAW, size=draws) + 1 if twin.random_cutoff else CLAIMED.cutoff_centre
        noisy = (first + x) / 2 + rng.normal(size=draws) * twin.sigma
        return np.where(filtered + hits.sum(axis=1) >= cutoff, 1e12, noisy)

    return sample


def transcript_log_ratios(scenario, swapped, twin=Twin(), draws=100_000):
    """ln P/Q of (own noise, effective cutoff, every other user's decision up to the halt, noisy iterate), under P."""
    rng = np.random.default_rng(2)
    worlds = scenario.own[::-1] if swapped else scenario.own
    at, counts = np.array(scenario.positions), np.array(scenario.counts)
    (p_score, p_own), (q_score, q_own) = (type_scores(at, counts, own) for own in worlds)
    noise = rng.laplace(size=draws) * twin.scale  # the same in both worlds: the claim is proved by this coupling
    p_in, q_in = p_own + noise > CLAIMED.threshold, q_own + noise > CLAIMED.threshold
    chances = np.concatenate([[0.0], LAW, [0.0, 0.0]])  # by cutoff, from 0 to one past the largest
    effective = rng.choice(len(LAW), p=LAW, size=draws) + 1 - ~p_in
    with np.errstate(divide="ignore"):
        ratio = np.log(chances[effective + ~p_in]) - np.log(chances[effective + ~q_in])
    left, survivors, total = effective - scenario.isolated, np.zeros(draws), np.zeros(draws)
    p_hit, q_hit = filtered_chance(p_score, twin), filtered_chance(q_score, twin)
    for k in range(len(at)):  # runs of kept users between hits are geometric; a run without hits left has halted
        waiting = np.where(left > 0, counts[k], 0)
        while (waiting > 0).any():
            gap = rng.geometric(p_hit[k], size=draws)
            hit, passed = gap <= waiting, np.minimum(gap - 1, waiting)
            ratio += hit * np.log(p_hit[k] / q_hit[k]) + passed * (np.log1p(-p_hit[k]) - np.log1p(-q_hit[k]))
            survivors, total, left = survivors + passed, total + passed * at[k], left - hit
            waiting = np.where(hit & (left > 0), waiting - gap, 0)
    means = [(total + kept * own) / (survivors + kept + 1e-300) for kept, own in zip((p_in, q_in), worlds, strict=True)]
    mu = np.where(left > 0, np.abs(means[0] - means[1]) / twin.sigma, 0.0)
    return ratio + mu * rng.normal(size=draws) + mu**2 / 2


def place(margin):
    """Distance from a tight cluster at which the own user's score exceeds the threshold by `margin` noise scales."""
    return float(-np.log((CLAIMED.threshold + margin * CLAIMED.laplace_scale - 1) / (SIZE - 1)))


def pair_of_clusters(expected_hits, scale):
    """Two halves so far apart that about `expected_hits` users a round are filtered by noise of this scale."""
    score = CLAIMED.threshold + scale * np.log(SIZE / (2 * expected_hits))
    return (0.0, float(-np.log(2 * score / SIZE - 1))), (SIZE // 2, SIZE - 1 - SIZE // 2)


def near_the_threshold(expected_hits, filter_share=1.0):
    clusters = pair_of_clusters(expected_hits, filter_share * CLAIMED.laplace_scale)
    return Scenario(*clusters, own=(0.0, FAR))


def opposite(margin):
    return Scenario((0.0,), (SIZE - 1,), (-place(margin), place(margin)))


def stray(isolated):
    return Scenario((0.0,), (SIZE - 1 - isolated,), (place(2.0), FAR), isolated=isolated)


MIXED = ((0.0, 0.0, SIZE // 2), (0.25, 1.0, SIZE - SIZE // 2))
SCENARIOS = {
    "opposite sides of a cluster, at the threshold": opposite(0.0),
    "opposite sides of a cluster, well above it": opposite(2.0),
    "kept or far away": stray(0),
    "kept or far away, one hit short of the central cutoff": stray(CLAIMED.cutoff_centre - 1),
    "everybody near the threshold": near_the_threshold(5.0),
    "later users of different curvature": replace(opposite(1.0), later=MIXED),
}


def misjudged(own=0.3):
    """How far scores of types are from those of the users they stand for, the own one at 0.3."""
    scene = near_the_threshold(5.0)
    others, ours = type_scores(np.array(scene.positions), np.array(scene.counts), own)
    rows = np.append(np.repeat(scene.positions, scene.counts), 0.3)[:, None]
    return float(np.max(np.abs(scores(rows, 1.0)[[0, -2, -1]] / [*others, ours] - 1)))


def audits():
    yield Audit("types of users", 1e-8, misjudged, {"at 0.3": case()}, {"elsewhere": case(own=0.31)})
    twins = {
        "a quarter of the noise": ("opposite sides of a cluster, well above it", Twin(share=1 / 4)),
        "no filter": ("kept or far away", Twin(filters=False)),
        "a deterministic cutoff": ("kept or far away, one hit short of the central cutoff", Twin(random_cutoff=False)),
    }
    yield Audit(
        "outlier filter",
        EPSILON,
        events(released, ends=(0, 1), delta=DELTA, draws=DRAWS),
        {name: case(scenario=scenario) for name, scenario in SCENARIOS.items()},
        {name: case(scenario=SCENARIOS[scenario], twin=twin) for name, (scenario, twin) in twins.items()},
    )
    quiet = Twin(filter_share=1 / 4)
    ways = {"to": False, "fro": True}
    yield Audit(
        "transcripts of the outlier filter",
        DELTA,
        ratios(transcript_log_ratios, epsilon=EPSILON),
        {
            f"{hits} hits, {way}": case(scenario=near_the_threshold(hits), swapped=swapped)
            for hits in (2.0, 20.0)
            for way, swapped in ways.items()
        },
        {
            f"a quarter of the filter's noise, {way}": case(
                scenario=near_the_threshold(20.0, quiet.filter_share), swapped=swapped, twin=quiet
            )
            for way, swapped in ways.items()
        },
    )


AUDITS = [*audits()]
