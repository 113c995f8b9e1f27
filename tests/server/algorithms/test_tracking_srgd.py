"""The recommended method: the algorithm box, what one user can move, radii nobody drives out of bounds, plans."""

from dataclasses import fields, replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from one_epoch_reference import drive
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.tracking import PILOT, StepTarget, TrackingSRGD, TrackingState
from server.algorithms.tracking_reference import Users, run, small_plan

NAME = "tracking-srgd"
INFO = ALGORITHMS[NAME]

CASES = [
    {"factorisation": "banded"},
    {"factorisation": "blt", "ridge": 0.05, "participation": 0.8, "logistic": True},
    {"factorisation": "tree", "ridge": 0.05, "domain": Box(0.2), "participation": 0.8},
    {"factorisation": "banded", "domain": L2Ball(0.3), "logistic": True, "reference_items": 3},
    {"factorisation": "blt", "main": (1, 40), "warmup": (1, 20)},
    {"factorisation": "blt", "main": (20, 12), "spread": 0.05, "first_radius": 3.0, "beyond": 0.1},
    {"factorisation": "blt", "adjacency": "zero-out", "participation": 0.8},
    {"adjacency": "zero-out"},
    {"factorisation": "blt", "logistic": True, "sigmoid": True},
    {"factorisation": "blt", "logistic": True, "sigmoid": True, "intercept": True, "main": (4, 40)},
    {"main": (12, 20), "domain": Box(0.2), "ridge": 0.5, "spread": 0.05},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(f"{k}={v}" for k, v in case.items()))
def test_a_run_is_the_algorithm_box_line_by_line(case):
    case = dict(case)
    logistic, ridge = case.pop("logistic", False), case.get("ridge", 0.0)
    plan = small_plan(**case)
    n, absent = plan.problem.users, range(0, plan.problem.users, 5) if "participation" in case else ()
    items = plan.parameters.reference_items
    users = Users(n, 3, ridge=ridge, reference_items=items, logistic=logistic, absent=absent)
    hessian, path, model = run(plan, users, SeededNoise(4))
    algorithm = INFO.make(plan)
    states = drive(algorithm, users, SeededNoise(4))
    metric = algorithm._whole(states[PILOT])
    np.testing.assert_allclose(metric.basis * metric.eigenvalues @ metric.basis.T, hessian, atol=1e-8)
    for before, after, expected in zip(states[PILOT:-1], states[PILOT + 1 :], path, strict=True):
        target = algorithm._target(before)
        np.testing.assert_allclose(target.centre, expected.centre, atol=1e-8)
        assert target.radius == pytest.approx(expected.radius, abs=1e-8)
        np.testing.assert_allclose(after.gradient, expected.gradient, atol=1e-8)
        np.testing.assert_allclose(after.x, expected.x, atol=1e-7)
        np.testing.assert_allclose([after.spread, after.margin], [expected.spread, expected.margin], atol=1e-8)
    np.testing.assert_allclose(algorithm.model(states[-1]), model, atol=1e-7)
    assert np.linalg.norm(model) > 0.1


def test_fifty_classes_are_whitened_by_the_matrix_of_one():
    plan = small_plan(dimension=4)
    algorithm, noise = (
        TrackingSRGD(replace(plan, problem=replace(plan.problem, dimension=200, outputs=50))),
        SeededNoise(1),
    )
    state, asked = algorithm.init(), []
    while (question := algorithm.request(state, noise)) is not None:
        k, numbers = len(question.cohort), question.task.answer_shape(200)[0]
        answers = Answers(np.full((k, numbers), 0.01), np.full(k, Status.ANSWERED, np.uint8))
        asked.append(question.reduction.transform.shape)
        state = algorithm.update(state, answers, noise).state
    assert set(asked) == {(4, 4)}
    assert algorithm.model(state).shape == (200,)
    assert np.isfinite(algorithm.model(state)).all()


class Steered:
    """The noise of `source`, and integers added to the draws of some streams."""

    def __init__(self, source, added):
        self.source, self.added = source, added

    def stream(self, *labels):
        return _Steered(self.source.stream(*labels), self.added.get(labels, 0))


class _Steered:
    def __init__(self, stream, added):
        self.inner, self.added = stream, added

    def gaussian_steps(self, shape):
        return self.inner.gaussian_steps(shape) + self.added


class Wild(TrackingSRGD):
    """Centre and radius jump over nine decades, as functions of everything released."""

    def _target(self, state):
        if state.round < PILOT:
            return None
        value = float(np.sum(state.sum) + np.sum(state.gradient) + 7.0 * state.spread + state.round)
        radius = 10.0 ** (4.75 * np.sin(1e5 * value) - 4.25)  # from 1e-9 to 3
        return StepTarget(3.0 * np.cos(1e3 * (value + np.arange(len(state.x)))), radius, 0.0)


class Crowd:
    """Users whose answers depend wildly on the question, in sizes from far inside to far beyond any radius.

    The own user sends a number in every coordinate, or with "edge" two thirds of the radius away.
    """

    def __init__(self, user, own):
        self.user, self.own = user, own

    def ask(self, question, target):
        d, cohort = (question.task.answer_shape(3)[0], question.cohort[:, None])
        value = 0.0 if target is None else float(np.sum(question.task.centre))
        values = 10.0 ** (6 * np.sin(cohort * 7.0 + 1e4 * value) - 4) * np.cos(cohort + np.arange(d) + value)
        own = self.own
        if target:  # in coordinates in which the metric is Euclidean: these the reduction makes of an answer
            edge = -2 / 3 * target.radius / sqrt(d) * (1 - 1e-9)
            own = np.linalg.solve(question.reduction.transform.T, np.full(d, edge if own == "edge" else own))
        values[question.cohort == self.user] = np.eye(1, d) if isinstance(own, str) else own
        return Answers.checked(values, np.zeros(len(values), np.uint8), largest=1e300)


def released(monkeypatch):
    """Every value that enters an independent Gaussian, in steps of its grid; `take` returns and forgets them."""
    seen, real = [], GaussianNoise.release

    def release(self, value, stream):
        seen.append(np.rint(np.asarray(value) / self.scale * 2.0**30).astype(np.int64))
        return real(self, value, stream)

    monkeypatch.setattr(GaussianNoise, "release", release)

    def take():
        values = list(seen)
        seen.clear()
        return values

    return take


def same_transcript(algorithm, engines, noise, take):
    """The states of world P, and how far the noise of world Q lies from P's when Q releases exactly the same.

    Both are integers on the same grid, so their distance in standard deviations is the μ of the transcript, exactly.
    """
    ps, qs, square = [algorithm.init()], [algorithm.init()], 0.0
    while (question := algorithm.request(ps[-1], noise)) is not None:
        again = algorithm.request(qs[-1], noise)
        assert question.round == again.round
        if question.round >= PILOT:
            for name in ("points", "centre"):
                np.testing.assert_array_equal(getattr(question.task, name), getattr(again.task, name))
        t, p = question.round, algorithm.parameters
        main = t >= PILOT + p.warmup_rounds
        target = algorithm._target(ps[-1]) if t >= PILOT else None
        ps.append(algorithm.update(ps[-1], engines[0].ask(question, target), noise).state)
        first = take()
        answers = engines[1].ask(again, target)
        trial = algorithm.update(qs[-1], answers, noise).state
        second = take()
        moved = [a - b for a, b in zip(first, second, strict=True)]
        labels = [("shares", t - PILOT - p.warmup_rounds) if main else ("release", t)][: len(moved)]
        added = dict(zip(labels, moved, strict=True))
        if main:
            added["prefix", t - PILOT - p.warmup_rounds] = ps[-1].prefix.total - trial.prefix.total
        qs.append(algorithm.update(qs[-1], answers, Steered(noise, added)).state)
        take()
        square += sum(float(np.sum((part * 2.0**-30) ** 2)) for part in added.values())
        for field in fields(TrackingState):
            if field.name == "prefix":
                assert (ps[-1].prefix.total == qs[-1].prefix.total).all()
            else:
                np.testing.assert_array_equal(getattr(ps[-1], field.name), getattr(qs[-1], field.name))
    return ps, sqrt(square)


TREE = pytest.param("tree", marks=pytest.mark.slow)  # other matrices for the same sums


@pytest.mark.parametrize("own", [(1e9, "edge"), (1e9, -1e9), (1e9, np.nan), (1e-12, -1e9)], ids=str)
@pytest.mark.parametrize("kind", [TrackingSRGD, Wild])
@pytest.mark.parametrize("how", ["blt", TREE])
def test_replacing_one_user_of_any_cohort_moves_the_noise_of_an_equal_transcript_by_at_most_mu(
    monkeypatch, how, kind, own
):
    # Also: with equal releases every centre, radius, point and question is equal, whatever the user sent.
    plan = small_plan(factorisation=how, main=(4, 6), warmup=(2, 5), pilot=4)
    INFO.verify(plan)
    p, take, found = plan.parameters, released(monkeypatch), {}
    order = np.random.Generator(np.random.Philox(key=plan.seed)).permutation(plan.problem.users)
    for round_ in range(p.rounds):
        user = order[plan.schedule.slots(round_).start + 2]
        _, found[round_] = same_transcript(kind(plan), [Crowd(user, value) for value in own], SeededNoise(round_), take)
    assert max(found.values()) <= p.mu
    if kind is Wild and own == (
        1e9,
        "edge",
    ):  # and the bound is reached: rows on either side of the threshold, in these rounds
        for worst in (PILOT, PILOT + 1, PILOT + p.warmup_rounds):
            assert found[worst] == pytest.approx(p.mu, rel=1e-5)


def test_every_kind_of_release_uses_its_budget_up(monkeypatch):
    plan, take = small_plan(pilot=4, warmup=(2, 5), main=(2, 6)), released(monkeypatch)

    class Opposite:
        """The own user alone: no features and orthogonal ones, orthogonal features, opposite rows."""

        def __init__(self, sign):
            self.sign = sign

        def ask(self, question):
            values = np.zeros((len(question.cohort), question.task.answer_shape(3)[0]))
            if question.round >= PILOT:
                values[0, 0] = 1e9 * self.sign
            elif question.round % 2 or self.sign > 0:
                values[0, 0 if self.sign > 0 else -1] = 1.0
            return Answers(values, np.zeros(len(values), np.uint8))

    algorithm, noise = TrackingSRGD(plan), SeededNoise(2)
    state = algorithm.init()
    for _ in range(PILOT + 1):
        question, values = algorithm.request(state, noise), []
        for sign in (1, -1):
            following = algorithm.update(state, Opposite(sign).ask(question), noise).state
            values.append(take())
        moved = sum(np.sum((a * 2.0**-30 - b * 2.0**-30) ** 2) for a, b in zip(*values, strict=True))
        # Of the second moments after the first, orthogonal features are no longer quite orthogonal.
        assert 0.95 * plan.parameters.mu < sqrt(moved) <= plan.parameters.mu
        assert 1 < question.round < PILOT or sqrt(moved) == pytest.approx(plan.parameters.mu, rel=1e-4)
        state = following


@given(
    kinds=st.lists(
        st.sampled_from(["huge", "tiny", "zero", "nan", "inf", "absent", "split", "alternate"]), min_size=8, max_size=8
    ),
    seed=st.integers(0, 3),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_radii_stay_between_a_millionth_and_three_times_the_first_whatever_everybody_sends(kinds, seed):
    first = 0.01
    plan = small_plan(first_radius=first, spread=0.01, domain=L2Ball(2.0), mu=0.5)

    class Hostile:
        def ask(self, question):
            kind = kinds[question.round % len(kinds)]
            values = np.zeros((len(question.cohort), question.task.answer_shape(3)[0]))
            status = np.full(len(values), Status.MISSING if kind == "absent" else Status.ANSWERED, np.uint8)
            signs = np.where(np.arange(len(values)) % 2, 1.0, -1.0)[:, None]
            flat = {"huge": 1e300, "tiny": 1e-300, "nan": np.nan, "inf": np.inf, "alternate": -1e200}
            values[:] = signs * 1e250 if kind == "split" else flat.get(kind, 0.0)
            return Answers.checked(values, status, largest=np.finfo(float).max)

    algorithm = TrackingSRGD(plan)
    for state in drive(algorithm, Hostile(), SeededNoise(seed))[PILOT:-1]:
        target = algorithm._target(state)
        assert 1e-6 * first <= target.radius <= 3 * first
        assert np.isfinite(target.centre).all()
        assert 1e-6 * first <= state.spread <= first
        assert np.linalg.norm(state.x) <= 2.0 * (1 + 1e-12)
