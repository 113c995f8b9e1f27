"""Audits of what a whole run of tracking-srgd shows.

A twin is the algorithm object with one step changed, or with a plan that `verify` refuses. The runs are those of
`tracking_lab`, many at a time, which `test_tracking_lab` compares with the object on single runs, sound and broken.
"""

from dataclasses import replace

import numpy as np

from audits import tracking_lab as lab
from audits.harness import Audit, case, epsilon_lower_bound
from audits.tracking_lab import HUGE, INNER, Scene, evidence, next_centre, next_spread
from one_epoch_reference import strategy
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.means.free_counts import MeanAndCounts
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_server.algorithms import tracking as method
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.tracking import PILOT, TrackingSRGD
from server.algorithms.tracking_reference import small_plan

EPSILON, DELTA, RUNS, LONG_RUNS = 1.0, 1e-2, 50_000, 40_000
MU = mu_for(EPSILON, DELTA)
STILL, FREE = L2Ball(1e-9), L2Ball(10.0)  # in the first no step moves the centre: radii are spreads


def planned(*, cohort=16, warmups=2, rounds=4, domain=STILL, beyond=0.4, **options):
    sizes = {"pilot": 2, "warmup": (warmups, cohort), "main": (rounds, cohort)}
    options = {"spread": 0.3, "factorisation": "blt"} | options
    return small_plan(dimension=1, mu=MU, domain=domain, beyond=beyond, **sizes, **options)


def warming(**options):
    """A plan of fresh gradients in all rounds but the last."""
    return planned(warmups=5, rounds=1, **options)


class Twin(TrackingSRGD):
    """The object with one step told anew: `broken` gets the honest step's state and makes the twin's."""

    def _step(self, state, answers, noise):
        honest = super()._step(state, answers, noise)
        target, main = self._target(state), self._in_main(state)
        users = (self._mechanisms.main if main else self._mechanisms.warmup).users
        rows = np.clip(answers.values[:, 0] / target.radius, -1, 1)
        length = np.abs(rows)
        unit = np.array([rows.sum() / users])
        shares = np.array([(1 - length).sum(), (length <= 2 / 3).sum(), len(rows)]) / users
        return replace(honest, state=self.broken(state, honest.state, target, unit, shares, noise))

    def scaled(self, state, after, target, unit, factor):
        """`after`, had the noise been `factor` times what it was."""
        p, main = self.parameters, self._in_main(state)
        moved = after.sum - state.sum if main else after.gradient
        moved = target.centre + target.radius * unit + (moved - target.centre - target.radius * unit) * factor
        summed = state.sum + moved if main else state.sum
        gradient = summed / self._weight(state) if main else moved
        metric = self._metric(state)
        x = metric.project(self.plan.problem.domain, state.x - metric.step(gradient + p.ridge * state.x))
        return replace(after, sum=summed, gradient=gradient, x=x)


class CentreRaw(Twin):
    def broken(self, state, after, target, unit, shares, noise):
        return replace(after, gradient=target.centre + target.radius * unit)  # x is still the noised one's


class RadiusRaw(Twin):
    """The spread follows shares that nobody has noised."""

    def broken(self, state, after, target, unit, shares, noise):
        p, main = self.parameters, self._in_main(state)
        mechanism = self._mechanisms.main if main else self._mechanisms.warmup
        presence = state.presence.seen(shares[2], mechanism.presence_deviation)
        lag = max(float(after.gradient @ after.gradient) - after.error, 0.0)
        spread, margin = method.next_spread(
            state.spread,
            state.margin,
            MeanAndCounts(unit, *shares.tolist(), 0),
            radius=target.radius,
            known=lag if state.round == PILOT else target.known,
            present=presence.mean,
            deviation=mechanism.presence_deviation,
            target=p.beyond,
            largest=p.first_radius,
        )
        return replace(after, spread=spread, margin=margin, presence=presence)


class WrongRound(Twin):
    def broken(self, state, after, target, unit, shares, noise):
        return self.scaled(state, after, target, unit, self._target(after).radius / target.radius)


class ConstantNoise(Twin):
    def broken(self, state, after, target, unit, shares, noise):
        main = self._in_main(state)
        return self.scaled(state, after, target, unit, after.radii[0] / target.radius) if main else after


class SeedScaled(Twin):
    def broken(self, state, after, target, unit, shares, noise):
        p, j = self.parameters, self._weight(state)
        if not self._in_main(state):
            return after
        seeds = [noise.stream("prefix", k).gaussian_steps((1,)) for k in range(j)]
        scaled = after.radii[:j, None] * seeds * self._mechanisms.main.prefix.step
        wanted = np.linalg.inv(strategy(p.factorisation, p.main_rounds))[j - 1, :j] @ scaled
        bare = self.scaled(state, after, target, unit, 0.0)
        summed = bare.sum + wanted
        x = self.plan.problem.domain.project(state.x - self._metric(state).step(summed / j))
        return replace(bare, sum=summed, gradient=summed / j, x=x)


class Users:
    """The scene's users: the answers of the lab, from what the question says."""

    def __init__(self, scene, outlier):
        self.scene, self.outlier = scene, outlier
        start = scene.plan.schedule.slots(scene.own[0] + PILOT - 1).start
        self.user = int(partition(seed=scene.plan.seed, users=scene.plan.problem.users)[start])

    def ask(self, question, target):
        task, values = question.task, np.empty((len(question.cohort), 1))
        late = question.round > self.scene.plan.parameters.warmup_rounds + PILOT
        values[:] = lab.residual(self.scene.others, task.points[0], task.centre, late)
        values[question.cohort == self.user] = HUGE if self.outlier else -INNER * target.radius
        return Answers(values, np.zeros(len(values), np.uint8))


class Column:
    """The noise of one column of the lab."""

    def __init__(self, noise, column, columns):
        self.noise, self.column, self.columns = noise, column, columns

    def stream(self, *labels):
        self.labels = labels
        return self

    def gaussian_steps(self, shape):
        whole = (self.columns,) if self.labels[0] == "prefix" else (self.columns, *np.atleast_1d(shape))
        return self.noise.stream(*self.labels).gaussian_steps(whole)[self.column].reshape(shape)


def object_run(algorithm, scene, outlier, noise):
    """(centre, radius, spread after, x after) of every round, from the object; the pilot's metric is given."""
    states, seen = [replace(algorithm.init(), round=PILOT, eigenvalues=np.array([scene.curvature]))], []
    users = Users(scene, outlier)
    while (question := algorithm.request(states[-1], noise)) is not None:
        if question.round + 1 - PILOT in scene.own[1:]:  # the coordinator asks somebody again
            question = replace(question, cohort=np.concatenate([[users.user], question.cohort[1:]]))
        target = algorithm._target(states[-1])
        states.append(algorithm.update(states[-1], users.ask(question, target), noise).state)
        seen.append([target.centre[0], target.radius, states[-1].spread, states[-1].x[0]])
    return np.array(seen).T


def with_little_noise(plan):
    """As much as zero-out takes, which another user in one's place is twice as far from."""
    p = plan.parameters
    return replace(plan, parameters=replace(p, warmup_scale=0.527 * p.warmup_scale, main_scale=0.527 * p.main_scale))


def without_column_norm(plan):
    p = plan.parameters
    norm = PrefixNoise(p.main_rounds, 1.0, 1.0, p.factorisation).column_norm
    return replace(plan, parameters=replace(p, main_scale=p.main_scale / norm))


MANY = {"rounds": 64}
SOUND = {
    "warm-up, first round": Scene(warming(cohort=64, spread=0.1), "centre", (1,)),
    "warm-up, all others far away": Scene(warming(), "far", (2,)),
    "warm-up, moving": Scene(warming(domain=FREE), "wild", (3,)),
    "main, shrinking radii": Scene(planned(cohort=64, rounds=8), "centre", (3,)),
    "main, growing radii": Scene(planned(cohort=64, rounds=8, spread=0.02), "leaving", (8,)),
    "main, moving": Scene(planned(domain=FREE), "wild", (4,)),
    "main, last round": Scene(planned(domain=FREE), "wild", (6,)),
}
LONG = Scene(planned(**MANY), "wild", (3,))
NARROW = warming(cohort=3)  # one of three users decides what the counts say
BROKEN = {  # twin of the lab, object, scene, attack
    "centre_raw": ("centre-raw", CentreRaw, SOUND["warm-up, first round"], next_centre),
    "radius_raw": ("radius-raw", RadiusRaw, Scene(NARROW, "far", (2,)), next_spread),
    "wrong_round": ("wrong-round", WrongRound, SOUND["warm-up, first round"], "wrong-round"),
    "twice": ("sound", TrackingSRGD, Scene(warming(), "wild", (1, 2)), "by radius"),
    "rec_wrongC": ("constant-noise", ConstantNoise, SOUND["main, growing radii"], "constant-noise"),
    "rec_seedC": ("seed-scaled", SeedScaled, SOUND["main, shrinking radii"], "seed-scaled"),
    "rec_twice": ("sound", TrackingSRGD, Scene(planned(), "wild", (3, 4)), "by radius"),
    "halved": (
        "sound",
        TrackingSRGD,
        Scene(with_little_noise(warming()), "centre", (1,)),
        "by radius",
    ),
    "rec64_nocol": ("sound", TrackingSRGD, replace(LONG, plan=without_column_norm(LONG.plan)), "by radius"),
}
HARD = {
    "twice": 2 * RUNS,
    "rec_twice": 2 * RUNS,
    "halved": 2 * RUNS,
    "rec64_nocol": LONG_RUNS,
}  # runs for what shows little
ATTACKS = ("by radius", "constant-noise", "seed-scaled", "wrong-round", next_centre, next_spread)


def attack(shown, how):
    return evidence(shown, how) if isinstance(how, str) else how(shown)


def found(scene, attacks=ATTACKS, twin="sound", runs=RUNS):
    """The largest ε that any of the attacks proves."""
    shown = [lab.run(scene, outlier, SeededNoise(71 + outlier), runs, twin) for outlier in (True, False)]
    worlds = [[attack(world, how) for world in shown] for how in attacks]
    pairs = [[lambda draws, values=values: values for values in pair] for pair in worlds]
    return max(epsilon_lower_bound(*pair, delta=DELTA, draws=runs) for pair in pairs)


BY_RADIUS, NO_ROUND_AFTER = ("by radius",), ("main, last round",)
TWINS = {
    name: case(scene=scene, attacks=[how], twin=twin, runs=HARD.get(name, 20_000), slow=name == "rec64_nocol")
    for name, (twin, _, scene, how) in BROKEN.items()  # by default the plan of 64 rounds is refused, as is tested
}
AUDITS = [
    Audit(
        "tracking-srgd",
        EPSILON,
        found,
        {
            name: case(scene=scene, attacks=ATTACKS[:4] if name in NO_ROUND_AFTER else ATTACKS)
            for name, scene in SOUND.items()
        }
        | {
            f"{name}, best attack": case(scene=SOUND[name], attacks=BY_RADIUS, least=0.5)
            for name in ("warm-up, first round", "main, growing radii")
        }
        | {"64 rounds": case(scene=LONG, attacks=BY_RADIUS, runs=LONG_RUNS, least=0.6, slow=True)},
        TWINS,
    )
]
