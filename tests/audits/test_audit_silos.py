"""Audits of sums that silos make, on worst-case neighbours of one person, and of their broken twins."""

import numpy as np
import pytest

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.clipping import ClippedSum, clip_rows
from quoron_privacy.means.contrasts import Contrasts, ContrastSum
from quoron_privacy.means.free_presence import LengthSum, LogLength, MomentMean, ShapedMomentSum
from quoron_privacy.means.norm_counts import NormCountMean, NormCountSum
from quoron_privacy.means.silo_sums import objection
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.release import Sums
from quoron_server.silos import known_twice

EPSILON, DELTA, PERSONS, SILOS = 1.0, 0.01, 20, 3
DRAWS, NOBODY = 6_000, Sums(np.zeros(1, np.int64), np.zeros(4, np.int64), 0, 0)
USERS = PERSONS * SILOS
CLIPPED = ClippedSum(1.0, USERS)
NOISE = GaussianNoise.for_mu(
    sensitivity=mean_sensitivity(1.0, USERS, "replace-one"), mu=gdp.mu_for(EPSILON, DELTA), dimension=1
)
OTHERS = np.full((PERSONS - 1, 1), 0.05)


def clip_by_person(rows):
    return CLIPPED.of(rows, np.ones(len(rows), bool))


def clip_by_silo(rows):
    """The twin: what all persons' rows add up to is clipped once, to as many times the clip norm."""
    whole = clip_rows(rows.sum(axis=0, keepdims=True), float(len(rows)))
    return Sums(np.trunc(whole[0] * 2.0**CLIPPED.bits).astype(np.int64), np.zeros(4, np.int64), 0, len(rows))


def one_row_a_silo(rows):
    """The twin: the silo is one slot, whose clipped mean stands for all of its persons."""
    mean = clip_rows(rows.mean(axis=0, keepdims=True), 1.0)
    return Sums(np.trunc(len(rows) * mean[0] * 2.0**CLIPPED.bits).astype(np.int64), np.zeros(4, np.int64), 0, len(rows))


def away_for_one(rows):
    """The twin: the silo answers only while nobody's row is negative."""
    return clip_by_person(rows) if rows.min() >= 0 else NOBODY


def released(own, silo, others, seed):
    """The noisy mean over three silos, of which the first holds the person; `others` is what each of the rest sends."""
    honest = silo(np.concatenate([OTHERS, [[own]]]))
    sums = [each for each in (honest, *others) if objection(each, CLIPPED, persons=PERSONS, length=1) is None]
    if silo is not clip_by_person:  # a twin's sums are not those of any rows
        sums = [honest, *(each for each in others if objection(each, CLIPPED, persons=PERSONS, length=1) is None)]
    mean = CLIPPED.mean(sum(sums, NOBODY))
    stream = SeededNoise(seed).stream("release")
    return lambda draws: np.array([NOISE.release(mean, stream)[0] for _ in range(draws)])


def lower_bound(silo, worlds=(1e6, -1e6), others=()):
    one, two = (released(own, silo, others, seed) for seed, own in enumerate(worlds))
    return epsilon_lower_bound(one, two, delta=DELTA, draws=DRAWS)


class TestSiloSums:
    def test_replacing_one_person_is_within_the_promise(self):
        assert 0.3 < lower_bound(clip_by_person) <= EPSILON

    @pytest.mark.parametrize("sent", [2**40, 2**62, -(2**62)])
    def test_what_other_silos_send_changes_nothing_for_the_person(self, sent):
        lie = Sums(np.array([sent]), np.array([0, 0, PERSONS, 0]), 0, PERSONS)
        assert lower_bound(clip_by_person, others=(lie, lie)) <= EPSILON

    @pytest.mark.parametrize("twin", [clip_by_silo, one_row_a_silo])
    def test_a_clip_by_silo_is_caught(self, twin):
        assert lower_bound(twin) > 3 * EPSILON

    def test_a_silo_that_stays_away_because_of_one_person_is_caught(self):
        """With rows near the clip norm, twenty of which are missed."""
        full = np.ones((PERSONS - 1, 1))
        worlds = []
        for seed, own in enumerate((0.0, -1e-9)):
            mean = CLIPPED.mean(away_for_one(np.concatenate([full, [[own]]])))
            stream = SeededNoise(seed).stream("release")
            worlds.append(lambda draws, m=mean, s=stream: np.array([NOISE.release(m, s)[0] for _ in range(draws)]))
        assert epsilon_lower_bound(*worlds, delta=DELTA, draws=DRAWS) > 3 * EPSILON

    def test_a_person_known_to_two_silos_has_twice_the_promise_and_no_better(self):
        one, two = [], []
        for own, into in ((1e6, one), (-1e6, two)):
            sums = clip_by_person(np.concatenate([OTHERS, [[own]]]))
            mean, stream = CLIPPED.mean(sums + sums), SeededNoise(len(one)).stream("release")
            into.append(lambda draws, m=mean, s=stream: np.array([NOISE.release(m, s)[0] for _ in range(draws)]))
        epsilon, delta = known_twice(EPSILON, DELTA)
        assert epsilon_lower_bound(one[0], two[0], delta=delta, draws=20_000) <= epsilon
        assert epsilon_lower_bound(one[0], two[0], delta=DELTA, draws=20_000) > EPSILON


MU, FACTORS = gdp.mu_for(EPSILON, DELTA), np.tile([0.5, 0.1, 0.5], (PERSONS - 1, 1))
LENGTH, MOMENT = LogLength.for_mu(users=USERS, mu=MU), MomentMean.for_mu(dimension=2, users=USERS, mu=MU)
GRADIENT = NormCountMean.for_mu(dimension=4, users=USERS, mu=MU)
LENGTHS, MOMENTS = LengthSum(USERS, np.eye(2), 1.0), ShapedMomentSum(USERS, np.eye(2), 1.0)
CLASSES = ContrastSum(Contrasts(2, 3), NormCountSum(1.0, USERS, np.eye(2)))


def length(sums, stream):
    found = LENGTH.release_sums(sums, stream)
    return np.array([found.mean, found.presence * 0.8660254]) / LENGTH.scale


def moment(sums, stream):
    found = MOMENT.release_sums(sums, 1.0, stream)
    return np.array([*found.mean[[0, 0, 1], [0, 1, 1]] * [1, np.sqrt(2), 1], found.presence]) / MOMENT.scale


def gradient(sums, stream):
    found = GRADIENT.release_sums(sums, stream)
    return np.array([*found.mean, np.sqrt(2) * found.beyond, found.within, found.presence]) / GRADIENT.scale


def contrasts(own):
    """Gradients of three classes, whose parts add up to zero."""
    return np.concatenate([np.zeros((PERSONS - 1, 6)), [[*own, *own, *np.multiply(-2, own)]]])


QUESTIONS = {  # of `whitened-tracking` by sums: release, reduction, and rows of a silo in both worlds
    "length": (length, LENGTHS, np.vstack([FACTORS, [9.0, 0, 9.0]]), np.vstack([FACTORS, [0.0, 0, 0]])),
    "moment": (moment, MOMENTS, np.vstack([FACTORS, [9.0, 0, 0]]), np.vstack([FACTORS, [0.0, 0, 9.0]])),
    "gradient": (gradient, CLASSES, contrasts([9.0, 0.0]), contrasts([-9.0, 0.0])),
}


class Still:
    def gaussian_steps(self, shape):
        return np.zeros(shape, np.int64)


def spent(name, silo):
    release, reduction, one, two = QUESTIONS[name]
    near, far = (release(silo(reduction, rows), Still()) for rows in (one, two))
    stream, sums = SeededNoise(5).stream("release"), silo(reduction, one)
    drawn = np.array([release(sums, stream) for _ in range(DRAWS)])
    away = np.sum((drawn - far) ** 2, axis=1) - np.sum((drawn - near) ** 2, axis=1)
    return delta_bounds(away / 2, epsilon=EPSILON)


def by_person(reduction, rows):
    return reduction.of(rows, np.ones(len(rows), bool))


def one_for_all(reduction, rows):
    """The twin: what the silo's persons hold together is shaped once, and stands for each of them."""
    whole = reduction.of(np.mean(rows, axis=0, keepdims=True), np.ones(1, bool))
    return Sums(len(rows) * whole.total, len(rows) * whole.cells, 0, len(rows))


@pytest.mark.parametrize("name", QUESTIONS)
class TestWhitenedTrackingBySums:
    def test_replacing_one_person_is_within_the_promise_and_uses_it_up(self, name):
        _, reduction, rows, _ = QUESTIONS[name]
        sums = by_person(reduction, rows)
        assert objection(sums, reduction, persons=PERSONS, length=len(sums.total)) is None
        low, high = spent(name, by_person)
        assert low <= DELTA
        assert high > DELTA / 2

    def test_a_row_of_the_silo_as_a_whole_is_caught(self, name):
        assert spent(name, one_for_all)[0] > DELTA
