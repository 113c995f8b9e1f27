"""Audits of whole runs: log-likelihood ratios of what a run of one own user shows, everybody else being known."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy.stats import binom

from audits.harness import Audit, Labelled, case, changed, events, ratios
from problems import problem_of
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.accounts import composition, subsampling
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.mean import MeanSGD
from quoron_server.algorithms.noisy import NoisySGD
from quoron_server.algorithms.slots import partition
from quoron_server.plan import Privacy

CURVED = {"curvature": "isotropic", "typical_curvature": 0.1, "gradient_deviation": 0.5, "smoothness": 0.25}
HUGE = 1e6


def planned(name, problem, privacy, seed, **options):
    """A plan that the product has checked."""
    info = ALGORITHMS[name]
    plan = info.plan(problem, privacy, info.options(**options), "calibrated", seed)
    info.verify(plan)
    return plan


def answered(values):
    return Answers(values, np.zeros(len(values), np.uint8))


def mean_sgd_audits():
    """Everybody answers in each of two rounds; the own user sends HUGE or -HUGE, all others their centre."""
    epsilon, delta, users = 1.0, 0.05, 8  # a large δ, so that thousands of runs say something
    problem = problem_of(users=users, items_per_user=5000, dimension=1, domain=L2Ball(1e9), lipschitz=1.0, **CURVED)

    def sound(name="recentred-sgd", **more):
        options = {"rounds": 2, "rate": 1.0, "step_size": 1e-3, "clip_norm": 1.0} | more
        return planned(name, problem, Privacy(epsilon, delta), 1, **options)

    def log_ratio(plan, kind=MeanSGD, clips=True, draws=5_000):
        """Given the releases before it, one is normal, the own share C/B to either side, with deviation C σ."""
        algorithm, source, found = kind(plan), SeededNoise(61), np.zeros(draws)
        p = algorithm.parameters
        for run in range(len(found)):
            state = algorithm.init()
            for _ in range(2):
                values = np.repeat(state.centre[None, :], users, axis=0)
                values[3] = HUGE if clips else state.centre + 3 * state.radius
                after = algorithm.update(state, answered(values), Labelled(source, run)).state
                released = (state.iterate[0] - after.iterate[0]) / p.step_size
                share = state.radius * (1 if clips else 3) / users
                found[run] += 2 * (released - state.centre[0]) * share / (state.radius * p.noise_scale) ** 2
                state = after
        return found

    class Unclipped(MeanSGD):
        """Takes rows as they come, with the noise of a clipped row."""

        def update(self, state, answers, noise):
            quiet = MeanSGD(changed(self.plan, noise_scale=self.parameters.noise_scale / 3))
            after = quiet.update(replace(state, radius=3 * state.radius), answers, noise)
            return replace(after, state=replace(after.state, radius=state.radius))

    plan = sound()
    quieter = {"a quarter of the noise": 4, "a second round that is not charged": 2**0.5, "a user left out": 2}
    yield Audit(
        "mean-sgd",
        plan.guarantee.delta,
        ratios(log_ratio, epsilon=epsilon),
        {"recentred-sgd": case(plan=plan, least=0.5)},
        {
            name: case(
                plan=changed(plan, noise_scale=plan.parameters.noise_scale / factor),
                draws=1_000 if factor == 4 else 5_000,
            )
            for name, factor in quieter.items()
        }
        | {"a clip three times as wide as the noise": case(plan=plan, kind=Unclipped, clips=False)},
    )


def sampled_cohort_audits():
    """Cohorts by coins under replace-one: the own user at one end, or at the opposite one, in each of two rounds."""
    epsilon, delta, users, rate, rounds, own = 1.0, 0.02, 40, 0.1, 2, 3
    problem = problem_of(users=users, items_per_user=4, dimension=1, domain=L2Ball(1e9), lipschitz=1.0, **CURVED)

    def log_ratio(shown, shift, scale):
        """ln P/Q of releases (k, T) by subsampling#k3, the own part `shift` to either side where it is there."""
        move = shown * shift / scale**2
        there, absent = math.log(rate) - shift**2 / (2 * scale**2), math.log1p(-rate)
        return (np.logaddexp(absent, there + move) - np.logaddexp(absent, there - move)).sum(axis=1)

    def sound(name, **extra):
        options = {"rounds": rounds, "rate": rate, "clip_norm": 1.0, "step_size": 1e-3} | extra
        return planned(name, problem, Privacy(epsilon, delta, adjacency="replace-one"), 1, **options)

    def releases(algorithm, runs):
        """Of whole runs with the own user far out on one side and all others at zero, shape (runs, T)."""
        found = np.empty((runs, rounds))
        for run in range(runs):
            source, state = SeededNoise(1000 + run), algorithm.init()
            for round_ in range(rounds):
                question = algorithm.request(state, source)
                values = np.where(question.cohort == own, HUGE, 0.0)[:, None]
                after = algorithm.update(state, answered(values), source).state
                found[run, round_] = (state.iterate - after.iterate)[0] / algorithm.parameters.step_size
                state = after
        return found

    def whole(plan):
        p = plan.parameters
        return log_ratio(releases(ALGORITHMS[plan.algorithm].maker(plan), 2500), 1 / p.cohort_size, p.noise_scale)

    class RealisedDivisor(NoisySGD):
        """Divides by how many were drawn."""

        def update(self, state, answers, noise):
            drawn = max(1, len(answers.status))
            scaled = Answers(np.clip(answers.values, -1, 1) * (self.parameters.cohort_size / drawn), answers.status)
            return NoisySGD(changed(self.plan, clip_norm=float(users))).update(state, scaled, noise)

    def realised(shown, sign, scale):
        """ln of the density of releases where the divisor is 1 + Bin(39, q) with the own user, who adds `sign`."""
        sizes = np.arange(users)
        chances = binom.pmf(sizes, users - 1, rate)
        there = np.stack(
            [
                np.log(rate * c) - (shown - sign / (1 + k)) ** 2 / (2 * scale**2)
                for k, c in enumerate(chances)
                if c > 1e-12
            ]
        )
        absent = math.log1p(-rate) - shown**2 / (2 * scale**2)
        return np.logaddexp(absent, np.logaddexp.reduce(there, axis=0)).sum(axis=1)

    def realised_ratio(plan):
        """Where few others are drawn the own part is far larger than one over the expected number."""
        rng, size, scale = np.random.default_rng(5), (200_000, rounds), plan.parameters.noise_scale
        others, here = rng.binomial(users - 1, rate, size), rng.random(size) < rate
        shown = here / np.maximum(1, others + here) + rng.normal(0, scale, size)
        found = releases(RealisedDivisor(plan), 1000)  # which is what was drawn: false alarms below 1e-8
        assert abs(found.mean() - shown.mean()) < 6 * shown.std() / math.sqrt(found.size)
        assert abs(found.var() / shown.var() - 1) < 0.3
        return realised(shown, 1.0, scale) - realised(shown, -1.0, scale)

    poisson = sound("dp-sgd-poisson")
    halved = changed(poisson, noise_scale=poisson.parameters.noise_scale / 2)
    yield Audit(
        "cohorts by coins",
        poisson.guarantee.delta,
        lambda sample=whole, **given: ratios(sample, epsilon=epsilon)(**given),
        {"dp-sgd-poisson": case(plan=poisson, uses=1.0)},
        {
            "half of the noise": case(plan=halved),
            "a divisor that is the realised size": case(sample=realised_ratio, plan=poisson),
        },
    )

    def account(adjacency="replace-one", times=1.0):
        """The mechanism by many runs of more rounds, so that what an account forgets shows."""
        subsampling.poisson_round_mu.cache_clear()
        mu = times * subsampling.poisson_round_mu(rate, 20, epsilon, delta, adjacency)
        subsampling.poisson_round_mu.cache_clear()
        rng, size = np.random.default_rng(7), (200_000, 20)
        return log_ratio(mu * (rng.random(size) < rate) + rng.standard_normal(size), mu, 1.0)

    two_sided = composition._law

    def one_sided(*given):
        """Negative losses are forgotten: whoever has them is taken for one who has the least of all."""
        law = two_sided(*given)
        kept = law.places >= 0
        rest = 1 - np.exp(law.logs[kept]).sum() - law.lost
        logs = np.append(np.log(max(rest, 1e-300)), law.logs[kept])
        return replace(law, places=np.append(law.places[0], law.places[kept]), logs=logs)

    yield Audit(
        "the account of cohorts by coins",
        delta,
        ratios(account, epsilon=epsilon),
        {"20 rounds": case(least=0.85)},
        {
            "the pair of absences": case(adjacency="zero-out"),
            "half of the shift": case(times=2.0),
            "a one-sided profile": case((composition, "_law", one_sided)),
        },
    )


class Own:
    """The own user's items all pull the same way, over their whole length; others have reached their optimum."""

    def __init__(self, user, sign, longest):
        self.user, self.sign, self.longest = user, sign, longest

    def ask(self, question):
        values = np.zeros((len(question.cohort), question.task.points.shape[1]))
        values[question.cohort == self.user] = self.sign * self.longest / np.sqrt(values.shape[1])
        return answered(values)


def group_audits():
    """Methods over items: all items of one user at opposite ends, or none."""
    epsilon, delta, phases = 1.0, 1e-2, 4

    def problem(users, items):
        sizes = {"users": users, "items_per_user": items, "dimension": 1}
        return problem_of(**sizes, domain=Box(1e9), lipschitz=1.0, smoothness=0.25)

    def world(sign, number, plan):
        """Many runs at once, one a coordinate; each phase's release less its start, weighed as the ratio does."""
        p = plan.parameters
        weights = np.array([phase.sensitivity / phase.release_scale**2 for phase in p.phases])
        user = int(partition(seed=plan.seed, users=plan.problem.users)[0])

        def draw(runs):
            longest = np.sqrt(runs)  # so that every coordinate pulls with length one
            wide = replace(plan, problem=replace(plan.problem, dimension=runs, lipschitz=float(longest)))
            algorithm, people = ALGORITHMS[plan.algorithm].maker(wide), Own(user, sign, longest)
            state, shown, noise = algorithm.init(), [np.zeros(runs)], SeededNoise(5 + number)
            while (question := algorithm.request(state, noise)) is not None:
                update = algorithm.update(state, people.ask(question), noise)
                state = update.state
                if update.releases:
                    shown.append(state.released)
            return weights @ np.array([after - before for before, after in pairwise(shown)])

        return draw

    def rescaled(plan, scale):
        phases = tuple(replace(phase, release_scale=scale(phase)) for phase in plan.parameters.phases)
        return changed(plan, phases=phases)

    options = {"rounds": 2 * phases, "phases": phases, "step_size": 1.0}
    plan = planned("group-phased-sgd", problem(16, 8), Privacy(epsilon, delta), 3, **options)
    mu = plan.parameters.mu
    yield Audit(
        "group-phased-sgd",
        plan.guarantee.epsilon,
        events(world, ends=(1.0, -1.0), delta=delta, draws=60_000),
        {"as planned": case(plan=plan, least=0.6)},
        {
            "a quarter of the noise": case(plan=rescaled(plan, lambda phase: phase.release_scale / 4)),
            "one phase accounted of all": case(plan=rescaled(plan, lambda phase: phase.sensitivity / mu)),
        },
    )


AUDITS = [
    *mean_sgd_audits(),
    *sampled_cohort_audits(),
    *group_audits(),
]
