"""Audits of noise itself: a clipped mean's, correlated noise, of a store that is put back, and tests with noise."""

from dataclasses import replace
from hashlib import blake2b

import numpy as np
from scipy import stats

from audits.harness import Audit, case, events, ratios
from papers.choquette_choo_lines import corollary_9
from privacy.references import strategy_matrix
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.noise.streams import SecureNoise, SeededNoise, StartedNoise
from quoron_privacy.prefix.noise import FACTORISATIONS, PrefixNoise
from quoron_privacy.robust.filter.thresholds import HiddenCutoff, LaplaceThreshold


def gaussian_audits():
    """The mean of nine users at zero and one own user, at one end or at the other."""
    epsilon, delta, cohort = 2.0, 1e-5, 10
    sensitivity, mu = mean_sensitivity(1.0, cohort), gdp.mu_for(epsilon, delta, gaussians=1)
    honest = GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=1)
    once = GaussianNoise(sensitivity, sensitivity * np.sqrt(2) / gdp.mu_for(epsilon, delta))  # half of μ²

    def world(own, number, noise=honest, norm=1.0, source=SeededNoise(21)):  # noqa: B008
        rows = np.zeros((cohort, 1))
        rows[3] = own
        mean, _ = clipped_mean(rows, np.ones(cohort, bool), norm, cohort)
        return lambda draws: noise.release(np.full(draws, mean[0]), source.stream("PQ"[number]))

    def difference(own, number, labels):
        """Of two releases of one run; the own user takes part in the second only."""

        def draw(draws):
            out = np.empty(draws)
            for i in range(draws):
                streams = [SeededNoise(50_000 * number + i).stream(*label) for label in labels]
                first, second = (once.release(np.array([v]), s)[0] for v, s in zip((0.0, own), streams, strict=True))
                out[i] = second - first
            return out

        return draw

    def coordinates(factor=1.0):
        """64 coordinates that all move; the ratio of the release under the noise that was really used."""
        used, shift = GaussianNoise(sensitivity, honest.scale * factor), sensitivity / 8
        out = used.release(np.full((20_000, 64), shift), SeededNoise(23).stream("lr"))
        return ((out * shift - shift**2 / 2) / used.scale**2).sum(axis=1)

    yield Audit(
        "gaussian",
        epsilon,
        events(world, ends=(1e6, -1e6), delta=delta, draws=200_000),
        {
            "seeded": case(source=SeededNoise(22), least=0.25),
            "secure": case(source=SecureNoise(b"k" * 32), least=0.25),
        },
        {
            "a quarter of the noise": case(noise=replace(honest, scale=honest.scale / 4)),
            "the sensitivity of one end": case(
                noise=GaussianNoise.for_mu(sensitivity=sensitivity / 2, mu=mu, dimension=1)
            ),
            "no clip": case(norm=float("inf")),
        },
    )
    yield Audit(
        "two gaussians",
        epsilon,
        events(difference, ends=(1 / cohort, -1 / cohort), delta=delta, draws=3000),
        {"noise of its own": case(labels=[("round", 0), ("round", 1)])},
        {"noise that is used twice": case(labels=[("round",), ("round",)])},
    )
    yield Audit(
        "gaussian, by ratios",
        delta,
        ratios(coordinates, epsilon=epsilon),
        {"64 coordinates": case()},
        {"a quarter of the noise": case(factor=0.25), "half of the noise": case(factor=0.5)},
    )


def prefix_audits():
    """Zero-out neighbours, all that a user may give or nothing, among others who answer to what was released.

    Corollary 9 claims (ε, δ/2) of the tree at the noise as printed; δ/2 pays for clipping.
    """
    rounds, sensitivity, epsilon, delta = 8, 0.05, 1.0, 1e-2
    printed = PrefixNoise(rounds, sensitivity, corollary_9(sensitivity, rounds, 4.0, 2 * delta), "tree")

    def honest(name="blt", rounds=rounds, epsilon=epsilon, **often):
        mu, of = gdp.mu_for(epsilon, delta, gaussians=rounds), {"dimension": 1, "factorisation": name, **often}
        return PrefixNoise.for_mu(rounds=rounds, sensitivity=sensitivity, mu=mu, **of)

    def world(own, number, noise=honest(), moments=(0,), source=lambda number: SeededNoise(31 + number)):  # noqa: B008
        """The sufficient statistic ⟨C[:, moments], C (w - g)⟩ of independent transcripts, one a coordinate."""

        def draw(draws):
            state, sums, left = noise.start(draws), np.zeros(draws), []
            for t in range(noise.rounds):
                known = np.sign(sums) * 3.0 + np.cos(sums / sensitivity)  # any function of what was released
                new, state = noise.release(state, known + own * (t in moments), source(number))
                left.append(new - sums - known)  # what an observer cannot explain by public values
                sums = new
            matrix = strategy_matrix(noise.factors, noise.rounds)
            return matrix[:, moments].sum(axis=1) @ (matrix @ np.array(left))

        return draw

    def unnormed(name):
        return replace(honest(name), scale=honest(name).scale / honest(name).column_norm)

    yield Audit(
        "correlated noise",
        epsilon,
        events(world, ends=(sensitivity, 0.0), delta=delta, draws=120_000),
        {name: case(noise=honest(name), least=0.7) for name in sorted(FACTORISATIONS)}
        | {
            "a later round": case(moments=(5,)),
            "secure": case(source=lambda number: SecureNoise(bytes([number + 1] * 32))),
            "the tree of corollary 9 at its own calibration": case(
                noise=honest("tree", epsilon=4.0), claim=4.0, least=0.625
            ),
        },
        {f"no column norm, {name}": case(noise=unnormed(name)) for name in ("blt", "banded", "tree")}
        | {
            "a quarter of the noise": case(noise=replace(honest(), scale=honest().scale / 4)),
            "more rounds than planned": case(noise=replace(honest("tree", rounds=2), rounds=32)),
            "replacement where absence was planned": case(ends=(sensitivity, -sensitivity)),
            "a second participation": case(moments=(0, 1)),
            "the noise of corollary 9 as printed": case(noise=printed, claim=4.0),
        },
    )
    twice = {name: honest(name, participations=2, separation=4) for name in ("banded", "blt")}
    band, other = (honest(name, participations=4, separation=2) for name in ("banded", "blt"))

    def of_one(noise):
        """With the column norm of one participation."""
        return replace(noise, scale=noise.scale * noise.factors.column_norm / noise.column_norm)

    yield Audit(
        "correlated noise, several times",
        epsilon,
        events(world, ends=(sensitivity, 0.0), delta=delta, draws=100_000),
        {name: case(noise=noise, moments=(0, 4), least=0.6) for name, noise in twice.items()}
        | {"four times, of a band of two": case(noise=band, moments=(0, 2, 4, 6))},
        {f"the column norm of one, {name}": case(noise=of_one(noise), moments=(0, 4)) for name, noise in twice.items()}
        | {f"planned for one, {name}": case(noise=honest(name), moments=(0, 4)) for name in twice}
        | {f"more often, {name}": case(noise=noise, moments=(0, 2, 4, 6)) for name, noise in twice.items()}
        | {
            "sooner than planned": case(noise=band, moments=(0, 1, 2, 3), draws=200_000),
            "columns taken for orthogonal": case(
                noise=replace(other, scale=2 * of_one(other).scale), moments=(0, 2, 4, 6), draws=200_000
            ),
        },
    )


def restored_audits():
    """Two committed releases of one round, as a store that is put back makes them: √2 μ and no more.

    A victim answers one clip up or one clip down in the first copy. In the second it answers again, or is kept away
    while a colluder, who was silent before, sends what the victim would have answered if it was up.
    """
    delta = 1e-2
    one = GaussianNoise.for_mu(sensitivity=2.0, mu=gdp.mu_for(1.0, delta, gaussians=1), dimension=1)
    told = {
        "sum": lambda first, second: first + second,
        "difference": lambda first, second: first - second,
        "equal": lambda first, second: float(first == second),
    }

    def world(own, number, away, statistic, nonce=lambda start, total: start):
        sums = own, 1.0 if away else own

        def draw(size):
            found = np.zeros(size)
            for index in range(size):
                key = SecureNoise(blake2b(f"{number + 1} {index}".encode(), digest_size=32).digest())
                starts = [nonce(StartedNoise.fresh(key), total) for total in sums]
                releases = (
                    float(one.release(np.array([total]), start.stream("release", 0))[0])
                    for total, start in zip(sums, starts, strict=True)
                )
                found[index] = told[statistic](*releases)
            return found

        return draw

    def digested(start, total):
        return StartedNoise(start.source, str(total))

    def constant(start, total):
        return StartedNoise(start.source, "always")

    yield Audit(
        "a store that is put back",
        gdp.epsilon_for(np.sqrt(2) * one.effective_mu(1), delta),
        events(world, ends=(1.0, -1.0), delta=delta, draws=2000),
        {
            f"{name}, {'away' if away else 'again'}": case(away=away, statistic=name)
            for name in told
            for away in (True, False)
        },
        {
            "noise that follows from answers": case(away=True, statistic="equal", nonce=digested),
            "a nonce that is always the same, difference": case(away=True, statistic="difference", nonce=constant),
            "a nonce that is always the same, equal": case(away=True, statistic="equal", nonce=constant),
        },
    )


def threshold_audits():
    """Noisy tests, of scores that move by one; a transcript of 20 users' is claimed as 20 randomised responses."""
    source, rate = SeededNoise(31), 0.5
    test = LaplaceThreshold(scale=1 / rate, threshold=10.0)
    broken = replace(test, scale=test.scale / 4)

    def world(score, number, test=test):
        return lambda draws: test.decide(np.full(draws, score), source.stream("PQ"[number], str(score)))

    users, epsilon = 20, 4.0
    k = np.arange(users + 1)
    law = stats.binom.pmf(k, users, 1 / (1 + np.exp(-rate)))
    claim = float((law * np.maximum(0.0, -np.expm1(epsilon - (2 * k - users) * rate))).sum())

    def transcript(test=test):
        hits = test.decide(np.full((100_000, users), 10.0), source.stream("transcript", str(test is broken)))
        used = np.ceil(test.threshold / test.grid) * test.grid
        laws = [stats.laplace.sf(used - score, scale=test.scale) for score in (10.0, 9.0)]
        return np.where(hits, np.log(laws[0] / laws[1]), np.log((1 - laws[0]) / (1 - laws[1]))).sum(axis=1)

    yield Audit(
        "noisy test",
        test.epsilon(1.0),
        events(world, ends=(8.0, 9.0), delta=0.0, draws=300_000),
        {f"a score of {score}": case(ends=(score, score + 1)) for score in (10.0, 9.0, 9.5, 5.0, 14.0)}
        | {"both below the threshold, exactly e^ε apart": case(least=0.9)},
        {"a quarter of the noise": case(test=broken), "a score that moves by two": case(ends=(7.0, 9.0))},
    )
    yield Audit(
        "noisy tests of many users",
        claim,
        ratios(transcript, epsilon=epsilon),
        {"20 users": case()},
        {"a quarter of the noise": case(test=broken)},
    )


def cutoff_audits():
    """One less than `centre` users are surely filtered; the own user is kept in one world, filtered in the other."""
    cutoff, source = HiddenCutoff(centre=4, decay=0.5), SeededNoise(31)
    law = np.array(cutoff.weights, float) / float(sum(cutoff.weights))
    end_mass = float(law[0])

    def halted(count, number, hidden=True):
        if not hidden:
            return lambda draws: np.full(draws, count >= cutoff.centre)
        stream = source.stream("halt", ("in", "out")[number])
        return lambda draws: np.array([count >= cutoff.draw(stream) for _ in range(draws)])

    def effective(shift):
        """Of the cutoff less how many users were filtered."""
        stream = source.stream("effective")
        drawn = np.array([cutoff.draw(stream) for _ in range(50_000)])
        other = np.concatenate([np.zeros(shift), law[:-shift]])[drawn - 1]  # law of cutoff + shift
        with np.errstate(divide="ignore"):
            return np.log(law[drawn - 1] / other)

    yield Audit(
        "hidden cutoff",
        cutoff.decay,
        events(halted, ends=(3, 4), delta=end_mass, draws=100_000),
        {"one user": case()},
        {"a deterministic cutoff": case(hidden=False)},
    )
    yield Audit(
        "hidden cutoff, by ratios",
        end_mass,
        ratios(effective, epsilon=cutoff.decay),
        {"one user": case(shift=1)},
        {"two users": case(shift=2)},
    )


def harness_audits():
    """The harness on what is known: randomised response is found almost in full."""
    truth = 2.0
    keep = 1 / (1 + np.exp(-truth))

    def world(chance, number):
        return lambda draws: np.random.default_rng(number).random(draws) < chance

    yield Audit(
        "randomised response",
        truth,
        events(world, ends=(keep, 1 - keep), delta=0.0, draws=400_000),
        {"as claimed": case(least=0.975)},
        {"more than claimed": case(claim=truth - 0.05)},
    )


AUDITS = [
    *gaussian_audits(),
    *prefix_audits(),
    *restored_audits(),
    *threshold_audits(),
    *cutoff_audits(),
    *harness_audits(),
]
