"""Audits of what a whole run of the one-epoch family shows.

The real algorithm object asks and steps; the observer reads the sums off the points that were sent out, and knows what
all other users answer there.
"""

from dataclasses import replace

import numpy as np

from audits.harness import Audit, case, changed, events
from one_epoch_reference import FAMILY, drive, made, released_sums, strategy
from papers.choquette_choo_lines import corollary_9
from quoron_client.protocol.domains import Box
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import mean_sensitivity
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.slots import partition
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

ROUNDS, CLIP, EPSILON, DELTA = 8, 1.0, 1.0, 1e-2
HUGE = 1e6  # what the own user sends: far beyond the clip


def planned(name, *, cohort=2, factorisation="blt"):
    """A plan that the product has checked."""
    sizes = {"users": ROUNDS * cohort, "items_per_user": 1, "dimension": 1}
    problem, info = Problem(**sizes, domain=Box(1e9), lipschitz=CLIP, smoothness=0.25), ALGORITHMS[name]
    options = {"rounds": ROUNDS, "inverse_step": 0.5, "clip_norm": CLIP, "factorisation": factorisation}
    plan = info.plan(problem, Privacy(EPSILON, DELTA), info.options(**options), "calibrated", 3)
    info.verify(plan)
    return plan


def widened(plan, runs):
    """`runs` runs at once, one a coordinate: all is coordinatewise but the clip, and a row of ±C has norm C √runs."""
    wide = changed(plan, clip_norm=plan.parameters.clip_norm * np.sqrt(runs))
    return replace(wide, problem=replace(plan.problem, dimension=runs))


class Others:
    """Everybody but the own user answers a public function of the points; the own user sends `own`, None if absent."""

    def __init__(self, plan, own, moment):
        p = plan.parameters
        self.plan, self.own, self.known = plan, own, []
        self.user = partition(seed=plan.seed, users=plan.problem.users)[moment * p.cohort_size]

    def ask(self, question):
        points, weights = question.task.points, question.task.weights
        answer = sum(w * np.cos(9 * x) for w, x in zip(weights, points, strict=True))
        answer *= CLIP / 2 / sum(map(abs, weights))
        values = np.tile(answer, (len(question.cohort), 1))
        status = np.full(len(values), Status.ANSWERED, dtype=np.uint8)
        mine = question.cohort == self.user
        self.known.append(answer * (len(values) - mine.any()) / len(values))
        values[mine] = 0.0 if self.own is None else self.own
        status[mine] = Status.ANSWERED if self.own is not None else Status.MISSING
        return Answers(values, status)


def statistic(plan, states, known, moment):
    """⟨C[:, moment], C (w - known)⟩, sufficient for the pair of worlds; w holds what each round added to the sums."""
    sums = released_sums(plan, states)
    if plan.parameters.gradients == "independent":
        return sums[moment] / (moment + 1) - known[moment]
    left = np.diff(sums, axis=0, prepend=0.0) - np.array(known)
    matrix = strategy(plan.parameters.factorisation, plan.parameters.rounds)
    return matrix[:, moment] @ (matrix @ left)


def world(own, number, plan, moment=0):
    def draw(runs):
        wide = widened(plan, runs)
        others = Others(wide, own, moment)
        return statistic(wide, drive(made(wide), others, SeededNoise(61 + number)), others.known, moment)

    return draw


def one_at_a_time(own, number, plan, make=made):
    """Without widening: every run is an object of its own, with its own noise."""

    def draw(runs):
        found = np.empty(runs)
        for run in range(runs):
            others = Others(plan, own, 2)
            states = drive(make(plan), others, SeededNoise(10**6 * number + run))
            found[run] = statistic(plan, states, others.known, 2)[0]
        return found

    return draw


class Queue:
    """One user a round, in a common queue: if the first is absent, every later round holds another user."""

    def __init__(self, absent):
        self.absent = absent

    def ask(self, question):
        end = 1.0 if (question.round + self.absent) % 2 == 0 else -1.0
        return Answers(np.full((1, question.task.points.shape[1]), end * CLIP), np.zeros(1, np.uint8))


def queued(absent, number, plan):
    ends = (-1.0) ** np.arange(ROUNDS)  # the direction in which the two worlds differ

    def draw(runs):
        wide = widened(plan, runs)
        states = drive(made(wide), Queue(absent), SeededNoise(number))
        matrix = strategy("blt", ROUNDS)
        return (matrix @ ends) @ (matrix @ np.diff(released_sums(wide, states), axis=0, prepend=0.0))

    return draw


def less_noise(plan, factor):
    return changed(plan, noise_scale=plan.parameters.noise_scale / factor)


def unnormed(name, factorisation):
    plan = planned(name, factorisation=factorisation)
    p = plan.parameters
    return less_noise(plan, PrefixNoise(p.rounds, p.sensitivity, p.noise_scale, factorisation).column_norm)


def audits():
    plans = {name: planned(name) for name in FAMILY}
    accelerated = plans["accelerated-srgd"]
    halved = less_noise(accelerated, 2)
    # Corollary 9: zero-out and the tree against (ε, δ/2); the other half of δ pays for clipping.
    absence = mean_sensitivity(CLIP, 2, "zero-out")
    sizes = {"rounds": ROUNDS, "sensitivity": absence, "dimension": 1, "factorisation": "tree"}
    scales = {
        "printed": corollary_9(absence, ROUNDS, 4.0, 2 * DELTA),
        "own": PrefixNoise.for_mu(mu=gdp.mu_for(4.0, DELTA, gaussians=ROUNDS), **sizes).scale,
    }
    tree = planned("accelerated-srgd", factorisation="tree")
    trees = {
        name: {"plan": changed(tree, sensitivity=absence, noise_scale=scale), "ends": (HUGE, 0.0), "claim": 4.0}
        for name, scale in scales.items()
    }
    yield Audit(
        "one epoch",
        accelerated.guarantee.epsilon,
        events(world, ends=(HUGE, -HUGE), delta=DELTA, draws=80_000),
        {name: case(plan=plan, least=0.65) for name, plan in plans.items()}
        | {f"{name}, a later round": case(plan=plan, moment=5) for name, plan in plans.items()}
        | {f"{name}, absent": case(plan=plan, ends=(HUGE, None)) for name, plan in plans.items()}
        | {
            "half of the noise for a user that answers zero": case(plan=halved, ends=(HUGE, 0.0)),
            "the tree of corollary 9 at its own calibration": case(least=0.625, **trees["own"]),
        },
        {f"a quarter of the noise, {name}": case(plan=less_noise(plan, 4)) for name, plan in plans.items()}
        | {f"no clip, {name}": case(plan=changed(plan, clip_norm=1e6), ends=(3, -3)) for name, plan in plans.items()}
        | {f"sensitivity of absence, {name}": case(plan=less_noise(plan, 2)) for name, plan in plans.items()}
        | {
            f"no column norm, {name}, {factorisation}": case(plan=unnormed(name, factorisation))
            for name in ("accelerated-srgd", "srgd", "dp-ftrl")
            for factorisation in ("blt", "tree")
        }
        | {
            "the noise of corollary 9 as printed": case(**trees["printed"]),
        },
    )
    yield Audit(
        "one epoch in a queue",
        accelerated.guarantee.epsilon,
        events(queued, ends=(0, 0), delta=DELTA, draws=80_000),
        {"nobody moves up": case(plan=planned("accelerated-srgd", cohort=1))},
        {"everybody moves up": case(plan=planned("accelerated-srgd", cohort=1), ends=(0, 1))},
    )
    yield Audit(
        "one epoch, one run at a time",
        accelerated.guarantee.epsilon,
        events(one_at_a_time, ends=(HUGE, -HUGE), delta=DELTA, draws=200),
        {"from a verified plan": case(plan=accelerated, make=ALGORITHMS["accelerated-srgd"].make)},
        {
            "an eighth of the noise": case(plan=less_noise(accelerated, 8)),
            "a quarter of the noise": case(plan=less_noise(accelerated, 4), draws=800, slow=True),
        },
    )


AUDITS = [*audits()]
