"""Audits of methods that test and remove outliers: accelerated ERM, outlier-gd, outlier iterates, median-sgd.

In one dimension. What simulation has no power for, sampling with replacement and amplification given that a test has
passed, is refuted by exact enumeration in tests/privacy/robust/test_subsampled_test.py and refused by `verify`.
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np

from audits.harness import Audit, case, changed, events
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.robust import coordinate_median as median
from quoron_privacy.robust import smooth_test
from quoron_privacy.robust.filter.concentration import score_error, scores
from quoron_privacy.robust.laplace_gate import LaplaceGate, LaplaceOneShot, verify_laplace_gate
from quoron_privacy.robust.outlier_mean import in_score_units, random_inclusion, score_scale
from quoron_privacy.robust.smooth_test import TICKETS, SmoothTest, release_scale
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.chains import ChainPhase
from quoron_server.algorithms.slots import partition
from quoron_server.plan import Privacy

USERS, ROUNDS = 600, 2
EPSILON, DELTA = 2.0, 1e-2
SIZES = {
    "users": USERS,
    "items_per_user": 1,
    "dimension": 1,
    "domain": L2Ball(1.0),
    "lipschitz": 1.0,
    "smoothness": 1.0,
}


@cache
def planned(name, **options):
    """A plan that the product has checked."""
    info = ALGORITHMS[name]
    more = {"gradient_deviation": 0.02} if name == "outlier-gd" else {"feature_norm": 1.0}
    plan = info.plan(
        problem_of(**SIZES, **more), Privacy(EPSILON, DELTA), info.options(rounds=ROUNDS, **options), "calibrated", 5
    )
    info.verify(plan)
    return plan


class Places:
    """Others at fixed places, whatever is asked; the own user at its own."""

    def __init__(self, plan, others, own):
        self.places = np.empty(USERS)
        self.places[partition(seed=plan.seed, users=USERS)] = np.append(own, others)

    def ask(self, question):
        return Answers(self.places[question.cohort][:, None], np.zeros(len(question.cohort), np.uint8))


def released(own, number, plan, others):
    """The sum of the released gradients of whole runs, each a real object."""

    def draw(runs):
        algorithm, found = ALGORITHMS[plan.algorithm].maker(plan), np.zeros(runs)
        people = Places(plan, others, own)
        for run in range(runs):
            noise, state = SeededNoise(10**7 * number + run), algorithm.init()
            while (question := algorithm.request(state, noise)) is not None:
                update = algorithm.update(state, people.ask(question), noise)
                state = update.state
                found[run] += float(state.gradient[0]) if update.public["released"] else 0.0
        return found

    return draw


def antipodal(radius):
    """Everybody in one place, the own user τ to either side of it: the largest shift of a full-weight answer."""
    return {"others": np.zeros(USERS - 1), "ends": (radius * 0.999, -radius * 0.999)}


def halves():
    """Two far clusters of nearly half each: the own user decides which of them has a majority."""
    return {"others": np.repeat([0.0, 900.0], [USERS // 2 - 1, USERS // 2]), "ends": (900.0, 0.0)}


def edge(phase):
    """So many far away that scores stand in the middle of the ladder; the own user with the rest, or gone."""
    mean, size = phase.accounting.mean, phase.cohort_size
    lost = next(k for k in range(size) if (size - k) ** 2 + k < size * (size + mean.core) / 2)
    return {"others": np.append(np.zeros(USERS - 1 - lost), 1e3 * np.arange(1, lost + 1)), "ends": (0.0, 5e5)}


UNTESTED = SmoothTest, "decide", lambda *_: True


def accelerated_audits():
    kinds = {
        "lottery": {"cohort": USERS},
        "secret cohorts": {"cohort": 400},
    }
    plans = {
        kind: planned("accelerated-erm", phases=1, stages=1, radius=0.1, **options) for kind, options in kinds.items()
    }
    first = {kind: plan.parameters.phases[0] for kind, plan in plans.items()}
    apart = {kind: {"plan": plan, **antipodal(first[kind].radius)} for kind, plan in plans.items()}
    at_edge = {"plan": plans["lottery"], **edge(first["lottery"])}

    def quieter(kind, factor):
        less = changed(plans[kind], phases=(replace(first[kind], noise_scale=first[kind].noise_scale / factor),))
        return apart[kind] | {"plan": less, "draws": 600}

    def middle():
        """The score between those of both worlds."""
        phase = first["lottery"]
        where = {"radius": phase.radius, "reference": np.zeros(1)}
        both = [Places(at_edge["plan"], at_edge["others"], own).places[:, None] for own in at_edge["ends"]]
        here = np.ones(phase.cohort_size, np.bool_)
        return sum(phase.accounting.mean.observe(rows, here, **where).score for rows in both) // 2

    certain = SmoothTest, "decide", lambda self, score, stream: score > middle()  # one user decides
    yield Audit(
        "accelerated-erm",
        plans["lottery"].guarantee.epsilon,
        events(released, ends=(), delta=DELTA, draws=400),
        {kind: case(**given) for kind, given in apart.items()}
        | {"lottery, undecided tests": case(slow=True, **at_edge)},
        {
            "no test, lottery": case(UNTESTED, plan=plans["lottery"], **halves()),
            "16 times less noise, lottery": case(**quieter("lottery", 16)),
            "a test without randomness": case(certain, slow=True, **at_edge | {"draws": 900}),
        },
    )


def outlier_gd_audits():
    plan = planned("outlier-gd", radius=0.1)
    apart = antipodal(plan.parameters.radius)
    quiet = changed(plan, noise_scale=plan.parameters.noise_scale / 64)
    yield Audit(
        "outlier-gd",
        plan.guarantee.epsilon,
        events(released, ends=(), delta=DELTA, draws=300),
        {"lottery": case(plan=plan, **apart)},
        {
            "a 64th of the noise": case(plan=quiet, draws=450, **apart),
            "no test": case(UNTESTED, plan=plan, draws=400, **halves()),
        },
    )


def iterate_audits():
    """One phase's release: score, weights and aggregate are the mechanism's, coins and noise a run's samplers'.

    τ = 1. What is seen is what is released: the noisy mean, or silence.
    """
    epsilon, delta, chains, silent, far = 1.0, 1e-3, 300, 1e12, 1e5
    names = "lottery", "as printed"
    # Of the printed form, by a Laplace test and coins, with the least noise for these ε and δ.
    printed = LaplaceOneShot(random_inclusion(chains, 250), LaplaceGate(chains, 250, 3.862374, 275.99686), 0.1321075)

    @cache
    def phase_of(name):
        if name == "as printed":
            verify_laplace_gate(printed, epsilon, delta)
            return ChainPhase(1, 1, 1.0, 1.0, release_scale(printed, 1.0, 1), printed)
        made = smooth_test.release(epsilon, delta, chains)
        return ChainPhase(1, 1, 1.0, 1.0, release_scale(made, 1.0, 1), made)

    def antipodal(phase):
        """Everybody at zero but the own chain, at τ on one side or the other."""
        return (1.0, -1.0), np.zeros(chains - 1)

    def strays(phase, chance):
        """Isolated ones that bring a release's chance down to `chance`; the own chain in the cluster, or isolated."""
        test = phase.release.test
        gone = next(gone for gone in range(chains) if test.chance((chains - gone) ** 2 + gone) <= chance)
        others = np.zeros(chains - 1)
        others[:gone] = far * np.arange(1, gone + 1)
        return (0.0, -far), others

    def two_halves(phase):
        """Equal clusters far apart: the own chain makes one of them the majority, or neither."""
        return (-far, far), np.repeat([-far, far], [chains // 2, chains - 1 - chains // 2])

    def on_the_ramp(phase):
        """A core, and chains at whose height the own chain decides: their weight moves with it."""
        mean, others = phase.release.mean, np.zeros(chains - 1)
        stray = max(1, (chains - mean.core) // 3)
        others[:stray] = mean.removal_radius
        others[stray : (chains + stray) // 2] = 1e-3
        return (0.9, -1.0), others

    scenarios = {
        "antipodal": antipodal,
        "nearly forbidden": lambda phase: strays(phase, 2 * delta),
        "on the ladder": lambda phase: strays(phase, 0.3),
        "two halves": two_halves,
        "on the ramp": on_the_ramp,  # elsewhere coins leave nothing to chance
    }

    def world(own, number, name, others, noise=1.0, tests=True):
        phase, rows, label = phase_of(name), np.append(own, others)[:, None], "PQ"[number]
        mean, where, test = phase.release.mean, {"radius": phase.radius, "reference": np.zeros(1)}, phase.release.test
        seen, source = mean.observe(rows, np.ones(chains, bool), **where), SeededNoise(17)
        gaussian = GaussianNoise(1.0, phase.release_scale * noise)

        def passes(draws):
            stream = source.stream("test", label)
            if not tests:
                return np.ones(draws, bool)
            if isinstance(test, SmoothTest):
                return stream.uniform_below(TICKETS, draws) < test.tickets(seen.score)
            noises = stream.laplace_steps(score_scale(test.scale, chains), draws)
            return seen.score + noises >= in_score_units(test.threshold, chains)

        def means(draws):
            if mean.kind == "weighted":
                return np.full(draws, mean.aggregate(rows, seen.weights, **where)[0])
            stream = source.stream("inclusion", label)
            kept = [mean.include(seen.weights, stream) for _ in range(400)]  # as many different aggregates
            found = np.array([mean.aggregate(rows, weights, **where)[0] for weights in kept])
            return found[stream.uniform_below(len(found), draws)]

        return lambda draws: np.where(
            passes(draws), gaussian.release(means(draws), source.stream("release", label)), silent
        )

    def measure(name, scenario, **twin):
        ends, others = scenarios[scenario](phase_of(name))
        return events(world, ends=ends, delta=delta, draws=120_000)(name=name, others=others, **twin)

    yield Audit(
        "outlier iterates",
        epsilon,
        measure,
        {
            f"{name}, {scenario}": case(name=name, scenario=scenario)
            for name in names
            for scenario in scenarios
            if (name, scenario) != ("as printed", "on the ramp")  # whose coins are drawn 400 times alone
        },
        {f"a 32nd of the noise, {name}": case(name=name, scenario="antipodal", noise=1 / 32) for name in names}
        | {f"no test, {name}": case(name=name, scenario="two halves", tests=False) for name in names}
        | {
            "a sixteenth of the noise": case(name="lottery", scenario="antipodal", noise=1 / 16),
        },
    )


def median_audits():
    """One phase of one round, τ = η = 1, held to the median itself: a mean in between would hide most of the shift."""
    epsilon, delta, size, draws, halted, noise = 2.0, 1e-3, 2000, 120_000, 1e12, SeededNoise(47)
    planned = median.calibrate(epsilon, delta, size, 0.0, 2.0, score_error=score_error(size, 1))
    sound = replace(planned, room=1e-6)

    def score(rows):
        return float(np.mean(scores(rows, 1.0, norm="linf")))

    def crowd(own):
        """All at one place but the own user."""
        return np.append(np.zeros(size - 1), own)[:, None]

    def halves(own, apart):
        """Two halves of others, and the own user with one of them: it decides where the median lies."""
        rows = np.repeat([0.0, apart], size // 2)[:, None]
        rows[0] = own
        return rows

    def decision(own, number, factor=1.0):
        """Whether a phase of this score passes; the threshold far above, where chances are e^ε apart."""
        test = replace(sound.test, scale=sound.test_scale * factor, threshold=score(crowd(0.0)) + 1.0)
        value, stream = score(crowd(own)), noise.stream("PQ"[number], "median")
        return lambda draws: test.decide(np.full(draws, value), stream)

    yield Audit(
        "test of median-sgd",
        sound.test_epsilon,
        events(decision, ends=(0.0, 1e6), delta=0.0, draws=2 * draws),
        {"as planned": case(least=0.7)},
        # The paper's Lemma 36 takes a sensitivity of 1 for scores that its own equation (17) lets move by 2.
        {"noise of the printed sensitivity": case(factor=0.5)},
    )

    # So far apart that the score, B(1 + e^-apart)/2, passes nearly always.
    apart = -math.log(2 * (sound.threshold + 4 * sound.test_scale) / size - 1)
    pairs = [
        (halves(0.0, apart), halves(apart, apart)),
        (crowd(0.0), crowd(1e6)),
        (crowd(sound.clip), crowd(-sound.clip)),
    ]

    def shown(rows, number, pair, clips=True, factor=1.0):
        """The noisy iterate of a phase of one round, or a huge number where it halts."""
        held = np.clip(rows, -sound.clip, sound.clip) if clips else rows
        estimate = median.debiased_mean(held, sound.trim, sound.room) if clips else held.mean(axis=0)
        sigma, stream = sound.noise_scale(1.0, sound.theta) * factor, noise.stream("PQ"[number], str(pair))
        value, rng = score(held), np.random.default_rng([number, pair])

        def draw(draws):
            passes = sound.test.decide(np.full(draws, value), stream)
            return np.where(passes, -estimate[0] + sigma * rng.normal(size=draws), halted)

        return draw

    def measure(**twin):
        assert median.verify(sound, epsilon, delta) <= delta
        found = [
            events(shown, ends=ends, delta=delta, draws=draws)(pair=number, **twin) for number, ends in enumerate(pairs)
        ]
        return max(found)

    yield Audit(
        "median-sgd",
        epsilon,
        measure,
        {"worst of three pairs": case()},
        {
            "a tenth of the noise": case(factor=0.1),  # these pairs attain four tenths of the shift
            "no clip": case(clips=False),
        },
    )


AUDITS = [
    *accelerated_audits(),
    *outlier_gd_audits(),
    *iterate_audits(),
    *median_audits(),
]
