"""What a run releases, a neighbour's run could have released, at no more than what the plan charges: `replay`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from contracts.charges import charges
from contracts.neighbours import ABSENT, CORNERS, Pair, far, threshold
from contracts.replay import Scene, replay, scene
from contracts.replay import first_complaint as says
from contracts.scenes import PRIVACY, PROBLEM, SMALL, make, make_plan
from contracts.worlds import Complaint, Spent
from cover import by_default
from quoron_privacy.means.clipping import ClippedSum, clipped_mean
from quoron_privacy.means.free_counts import MomentMean, ShapedMomentSum
from quoron_privacy.release import Sums
from quoron_privacy.robust.smooth_test import SmoothTest
from quoron_server.algorithm import Algorithm
from quoron_server.algorithms import ALGORITHMS, tracking
from quoron_server.algorithms import min_cohort as min_cohorts
from quoron_server.algorithms.localised.filtered import OutlierFilter
from quoron_server.algorithms.min_cohort import MET, NOT_MET, WithMinCohort
from quoron_server.algorithms.noisy import NoisySGD, NoisySGDParameters
from quoron_server.algorithms.one_epoch import SRGD, AcceleratedSRGD
from quoron_server.plan import Privacy, RunPlan

SCENES = dict.fromkeys((*ALGORITHMS, *SMALL))  # with the variants of options
NOISY = [name for name in SCENES if ALGORITHMS[name.partition("/")[0]].trust_model != "none"]
OTHERS = (
    "filtered",
    "median",
    "outlier",
    "accelerated-erm",
)  # charge for worse company than honest users
CONTRACT = ("group-phased-sgd",)  # in phases of many steps
ROUNDED = ("dp-sgd-poisson/replaced-adaptive",)  # counts, which move by √2, are charged as gradients, which move by 2
LOOSE = (*CONTRACT, *ROUNDED)
TIGHT = [name for name in NOISY if not name.startswith(OTHERS) and name not in LOOSE]
CROWDED = [
    name
    for name in NOISY
    if name.startswith(("accelerated-erm", "outlier-gd")) or {"step_size", "phases"} <= {*SMALL.get(name, {})}
]
# Of families that are replayed here in another form; `test_the_farthest_answers_use_all_that_the_plan_charges` has all.
VARIANTS = ("whitened-tracking/classes", "whitened-tracking/parts", "winsorised-erm/zero-out", "dp-ftrl/banded")
OPPOSITE = (threshold(0, 0), threshold(0, 1))
FAR = (far(0), far(1))
APART = (threshold(0, 0), threshold(0, 2))  # of second moments, which do not know signs


@cache
def scenery(name: str) -> Scene:
    return scene(make(name))


def extremes(name: str) -> list[Pair]:
    """Every round's farthest answers; answers on either side of a threshold, and nobody, in turn."""
    turns = [OPPOSITE, APART, (OPPOSITE[0], ABSENT), (ABSENT, FAR[1])]
    rounds = range(make_plan(name).cost.rounds)
    return [Pair(at, 0, *FAR) for at in rounds] + [Pair(at, at, *turns[at % len(turns)]) for at in rounds]


def pairs(name: str) -> list[Pair]:
    """The extremes, and every third corner against another one; of variants of an algorithm every seventh."""
    found, half = extremes(name), CORNERS // 2
    chosen = range(0, half, 7 if "/" in name else 3)  # all directions and sizes; any pair: the slow test
    found += [Pair(number % make_plan(name).cost.rounds, 31 * number, number, number + half) for number in chosen]
    if make_plan(name).guarantee.adjacency == "zero-out":
        found = [replace(each, second=ABSENT) for each in found] + [replace(each, first=ABSENT) for each in found]
    return [each for each in found if each.first != each.second]


def shares(plan: RunPlan, spent: list[Spent]) -> list[float]:
    """What was used of each charge."""
    return [cost / charged for _, cost, charged in charges(plan, spent) if charged]


@pytest.mark.parametrize("name", by_default(NOISY, [name for name in NOISY if name not in VARIANTS]))
def test_a_neighbour_can_release_the_same_at_what_the_plan_charges(name: str) -> None:
    chosen = pairs(name)
    replayed = [replay(scenery(name), pair) for pair in chosen]
    assert replayed.count(None) <= len(chosen) / 20  # what is charged to δ is rare
    moved = [spent for spent in replayed if spent and any(each.square for each in spent)]
    assert len(moved) >= len(chosen) / 6  # the others are neighbours that filters remove


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISY)
def test_any_neighbour_can_release_the_same_at_what_the_plan_charges(name: str) -> None:
    plan, drawn = make_plan(name), np.random.default_rng(3)
    zero_out = plan.guarantee.adjacency == "zero-out"
    for _ in range(2000):
        at, slot, first, second, turn = drawn.integers(
            [make_plan(name).cost.rounds, 10**6, CORNERS, CORNERS, CORNERS]
        ).tolist()
        crowded = name in CROWDED and bool(drawn.integers(2))
        replay(scenery(name), Pair(at, slot, first, ABSENT if zero_out else second, crowded, turn))


@pytest.mark.parametrize("name", TIGHT)
def test_the_farthest_answers_use_all_that_the_plan_charges(name: str) -> None:
    used: list[float] = []
    plan, turn = make_plan(name), 0 if "epochs" in SMALL.get(name, {}) else 7  # of several epochs all sums are charged
    second = (ABSENT, ABSENT) if plan.guarantee.adjacency == "zero-out" else (FAR[1], OPPOSITE[1])
    for at in range(make_plan(name).cost.rounds):
        firsts = FAR[0], OPPOSITE[0], FAR[0], FAR[0]
        others = (*second, ABSENT if ABSENT in second else far(2), second[1])  # orthogonal; in another cell
        for pair in (Pair(at, 0, first, other, turn=turn) for first, other in zip(firsts, others, strict=True)):
            used += shares(plan, replay(scenery(name), pair) or [])
        if max(used, default=0) >= 0.999:  # what other rounds are charged is enough: `replay` complains otherwise
            break
    assert 0.999 <= max(used) <= 1 + 1e-9


@pytest.mark.parametrize("name", CROWDED)
def test_a_crowd_as_loose_as_a_test_lets_pass_costs_at_most_what_the_plan_charges(name: str) -> None:
    used: list[float] = []
    plan = make_plan(name)
    for at, shown in enumerate(scenery(name).honest):
        for second in (threshold(0, 1), threshold(0, 2), threshold(1, 1), ABSENT):
            pair = Pair(at, 3 * len(shown.question.cohort) // 4, threshold(0, 0), second, crowded=True, turn=0)
            used += shares(plan, replay(scenery(name), pair) or [])
    assert 0.5 <= max(used) <= 1 + 1e-9


FEW = (
    "one-pass-dp-sgd",
    "phased-sgd",
    "outlier-iterates",
)  # ask enough users a round for a minimum cohort that costs little
OFTEN = ("dp-sgd-poisson", "dp-sgd-wor", "dp-ftrl/epochs", "recentred-sgd")  # ask one user in several rounds
TOLD = ("tracking-srgd", "whitened-tracking")  # by what they release
CHEAP, DEAR = Privacy(8.0, 1e-3, 0.5, 0.4), Privacy(8.0, 1e-3, 0.5, 1.7)
MIN_COHORTS = dict.fromkeys((*FEW, *TOLD), CHEAP) | dict.fromkeys(OFTEN, DEAR)


def with_min_cohort(name: str, kind: type[WithMinCohort] = WithMinCohort) -> WithMinCohort:
    made = ALGORITHMS[name.partition("/")[0]].make(make_plan(name, None, MIN_COHORTS.get(name, DEAR)))
    assert isinstance(made, WithMinCohort)
    min_cohort = made.plan.guarantee.min_cohort
    assert min_cohort is not None
    return kind(made.plan, min_cohort, made.inner)


OTHER_MIN_COHORTS = [name for name in NOISY if name not in MIN_COHORTS]


@pytest.mark.parametrize(
    "name", [*MIN_COHORTS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_MIN_COHORTS)]
)
def test_a_neighbour_can_meet_the_same_min_cohorts_by_a_count_that_moves_by_one(name: str) -> None:
    whole = scene(with_min_cohort(name))
    assert whole.honest[-1].public["min_cohort"] == MET
    replayed = [replay(whole, pair) for pair in pairs(name)[::2] if pair.round < len(whole.honest)]
    assert sum(spent is not None for spent in replayed) >= 0.9 * len(replayed) >= 9


def test_a_run_that_ends_below_its_min_cohort_shows_the_same_to_a_neighbour(monkeypatch) -> None:
    monkeypatch.setattr(min_cohorts, "enough", lambda *_: next(decisions))
    decisions = cycle([True, True, False])
    whole = scene(with_min_cohort("dp-sgd-wor"))
    assert [shown.public["min_cohort"] for shown in whole.honest] == [MET, MET, NOT_MET]
    assert whole.honest[-1].model is None
    for at in range(3):
        decisions = cycle([*[True] * (2 - at), False])
        assert replay(whole, Pair(at, 0, *FAR)) is not None


# Broken twins.


class CountingDouble(WithMinCohort):
    """Counts whoever answers first twice."""

    def counted(self, answers):
        return super().counted(answers) + int(answers.answered[:1].sum())


class CountingSGD(NoisySGD):
    """Steps by how many answered."""

    def update(self, state, answers, noise):
        update = super().update(state, answers, noise)
        share = int(answers.answered.sum()) / self.parameters.cohort_size
        moved = state.iterate + share * (update.state.iterate - state.iterate)
        return replace(update, state=replace(update.state, iterate=moved))


class TellingSGD(NoisySGD):
    """Tells everybody how many answered."""

    def update(self, state, answers, noise):
        update = super().update(state, answers, noise)
        return replace(update, public={"answered": int(answers.answered.sum())})


class LeakingScaleSGD(NoisySGD):
    """Its noise knows, in the ninth digit, how long answers are."""

    def update(self, state, answers, noise):
        p = self.parameters
        _, clipped = clipped_mean(answers.values, answers.answered, p.clip_norm, p.cohort_size)
        louder = replace(p, noise_scale=p.noise_scale * (1 + 1e-9 * clipped))
        return NoisySGD(replace(self.plan, parameters=louder)).update(state, answers, noise)


def leaking(update):
    """A millionth of a coordinate of what was answered stays in the point of the next question."""

    def leaks(self, state, answers, noise):
        after = update(self, state, answers, noise)
        seen = np.nan_to_num(answers.values[:, 0], posinf=0.0, neginf=0.0)
        leak = 1e-6 * float(np.clip(seen, -1, 1).mean())
        return replace(after, state=replace(after.state, iterate=after.state.iterate + leak))

    return leaks


class LeakingSRGD(SRGD):
    update = leaking(SRGD.update)


class LeakingAcceleratedSRGD(AcceleratedSRGD):
    update = leaking(AcceleratedSRGD.update)


class OwnNoiseSGD(NoisySGD):
    """Adds noise itself, in a way that nobody has looked at."""

    def update(self, state, answers, noise):
        update = super().update(state, answers, noise)
        moved = update.state.iterate + noise.stream("more", state.round).gaussian_steps(3) * 2.0**-40
        return replace(update, state=replace(update.state, iterate=moved))


def sum_around_too_wide_a_threshold(self: ClippedSum, values, answered):
    """Clips 3 % farther out than it says."""
    wide = ORIGINAL_SUM(replace(self, norm=1.03 * self.norm), values, answered)
    return replace(wide, total=(1.03 * wide.total).astype(np.int64))


def sum_that_tests_rows_before_it_shortens_them(self: ClippedSum, values, answered):
    """A finite row whose square overflows has an infinite length: less what is too long of it is not a number."""
    with np.errstate(all="ignore"):
        usable = answered & np.isfinite(values).all(axis=1)
        lengths = np.sqrt(np.sum(values**2, axis=1, keepdims=True))
        shortened = np.where(lengths > self.norm, values * (1 - (lengths - self.norm) / lengths), values)
        total = np.where(usable[:, None], shortened, 0.0).sum(axis=0) / self.norm * 2.0**self.bits
    return replace(ORIGINAL_SUM(self, values, answered), total=total)


@dataclass(frozen=True, eq=False)
class WithLower(Sums):
    """And by how much the lower triangle is off."""

    lower: Any


def moment_summed_twice(self: ShapedMomentSum, factors, answered):
    """The lower triangle is summed in single precision."""
    sums = ORIGINAL_MOMENTS(self, factors, answered)
    usable = answered & np.isfinite(factors).all(axis=1)
    triangular = np.zeros((len(factors), *self.transform.shape))
    rows, columns = np.triu_indices(len(self.transform))
    triangular[:, rows, columns] = np.where(usable[:, None], np.clip(factors, -1, 1), 0.0)
    single = triangular.astype(np.float32)
    upper, lower = (np.einsum("uki,ukj->ij", each, each) / self.users for each in (triangular, single))
    return WithLower(sums.total, sums.cells, sums.clipped, sums.answered, np.tril(lower - upper, -1))


def moment_with_noise_mirrored(self: MomentMean, sums: WithLower, radius, stream):
    """Both triangles under the same noise: their difference has none."""
    found = ORIGINAL_MOMENT(self, sums, radius, stream)
    return found._replace(mean=found.mean + sums.lower)


def level_half_as_high(self: SmoothTest, score: int) -> int | None:
    """A ladder that one user climbs by two levels."""
    above = score - self.cohort_size * self.core
    return None if above < 0 else min(above // (self.cohort_size - 1), len(self.table) - 1)


ORIGINAL_SUM, ORIGINAL_MOMENTS, ORIGINAL_MOMENT = ClippedSum.of, ShapedMomentSum.of, MomentMean.release


def first_complaint(algorithm: Algorithm[Any], name: str, **crowded: Any) -> str:
    """What replay says of a twin, or nothing."""
    return says(scene(algorithm), (replace(pair, **crowded) for pair in pairs(name)))


@pytest.mark.parametrize(
    ("twin", "name", "message"),
    [
        (CountingSGD, "one-pass-dp-sgd", "model"),
        (TellingSGD, "one-pass-dp-sgd", "public, answered"),
        (LeakingScaleSGD, "one-pass-dp-sgd", "scale of gaussian"),
        (LeakingAcceleratedSRGD, "accelerated-srgd", r"question\.task\.points"),
        (LeakingSRGD, "srgd", "model"),
        (OwnNoiseSGD, "one-pass-dp-sgd", "replay does not know"),
    ],
)
def test_replay_catches_an_algorithm_that_leaks(twin: Callable[..., Any], name: str, message: str) -> None:
    with pytest.raises(Complaint, match=message):
        raise Complaint(first_complaint(twin(make_plan(name)), name))


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "dp-sgd-wor", "phased-sgd", "accelerated-srgd"])
def test_replay_catches_a_count_that_has_too_little_noise_to_cost_nothing(name: str) -> None:
    """As if whoever is away did not move the mean as well."""
    whole = with_min_cohort(name)
    louder = with_min_cohort(name)
    louder._participation = tuple(
        each if each.released else replace(each, mu=1.3 * each.mu) for each in whole._participation
    )
    assert first_complaint(whole, name) == ""
    assert "the plan charges" in first_complaint(louder, name)


def test_replay_catches_a_min_cohort_that_counts_a_user_double() -> None:
    assert first_complaint(with_min_cohort("one-pass-dp-sgd"), "one-pass-dp-sgd") == ""
    assert "the plan charges" in first_complaint(with_min_cohort("one-pass-dp-sgd", CountingDouble), "one-pass-dp-sgd")
    name = "outlier-iterates"
    assert "the minimum cohort's count moves by 2" in first_complaint(with_min_cohort(name, CountingDouble), name)


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "dp-sgd-poisson", "accelerated-srgd"])
def test_replay_catches_a_threshold_that_is_wrong_by_three_per_cent(name, monkeypatch) -> None:
    monkeypatch.setattr(ClippedSum, "of", sum_around_too_wide_a_threshold)
    assert "the plan charges" in first_complaint(make(name), name)


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        ("one-pass-dp-sgd", "noise_scale"),
        ("dp-sgd-poisson", "noise_scale"),
        ("dp-sgd-wor", "noise_scale"),
        ("recentred-sgd", "noise_scale"),
        ("mean-sgd", "noise_scale"),
        ("accelerated-srgd", "noise_scale"),
        ("accelerated-sgd", "noise_scale"),
        ("srgd", "noise_scale"),
        ("dp-ftrl", "noise_scale"),
        ("tracking-srgd", "length_scale"),
        ("tracking-srgd", "moment_scale"),
        ("tracking-srgd", "warmup_scale"),
        ("tracking-srgd", "main_scale"),
    ],
)
def test_replay_catches_noise_that_is_three_per_cent_too_small(name: str, constant: str) -> None:
    plan = make_plan(name)
    quieter = replace(plan.parameters, **{constant: getattr(plan.parameters, constant) / 1.03})
    assert "the plan charges" in first_complaint(type(make(name))(replace(plan, parameters=quieter)), name)


def test_replay_catches_a_finite_answer_whose_length_overflows(monkeypatch) -> None:
    monkeypatch.setattr(ClippedSum, "of", sum_that_tests_rows_before_it_shortens_them)
    assert "the plan charges" in first_complaint(make("one-pass-dp-sgd"), "one-pass-dp-sgd")


def test_replay_catches_a_symmetric_matrix_with_the_same_noise_in_both_triangles(monkeypatch) -> None:
    monkeypatch.setattr(ShapedMomentSum, "of", moment_summed_twice)
    monkeypatch.setattr(MomentMean, "release", moment_with_noise_mirrored)
    whitening = tracking.whitening  # which hears nothing of so few users
    monkeypatch.setattr(tracking, "whitening", lambda m, *a: whitening(m, *a)._replace(transform=np.tril(m.mean)))
    assert ": public, unevenness" in first_complaint(make("tracking-srgd"), "tracking-srgd")


def test_replay_catches_a_filter_whose_threshold_is_too_low() -> None:
    info = ALGORITHMS["filtered-sgd"]
    plan = info.plan(PROBLEM, PRIVACY, info.options(step_size=3.0), "calibrated", 7)  # whose crowds come near the limit
    broken = OutlierFilter(plan)
    broken.test = replace(broken.test, threshold=0.7 * broken.test.threshold)
    assert "the plan charges" in first_complaint(broken, "filtered-sgd")


def test_replay_catches_a_smooth_test_whose_levels_are_half_as_high(monkeypatch) -> None:
    make("accelerated-erm")  # verified while it is whole: `verify` refuses it afterwards
    monkeypatch.setattr(SmoothTest, "level", level_half_as_high)
    assert "the smooth test's level moves" in first_complaint(make("accelerated-erm"), "accelerated-erm", crowded=True)


def test_replay_refuses_a_plan_whose_charge_it_does_not_know() -> None:
    plan = make_plan("one-pass-dp-sgd")

    class Unknown(NoisySGDParameters):
        def stretches(self, problem):
            (rounds,) = super().stretches(problem)
            (release,) = rounds.releases
            return (replace(rounds, releases=(replace(release, mechanism=problem.dimension, mu=None),)),)

    unknown = replace(plan, parameters=Unknown(**asdict(plan.parameters)))
    with pytest.raises(Complaint, match="does not know what int charges"):
        list(charges(unknown, [Spent(0, "gaussian", 1.0)]))
    with pytest.raises(Complaint, match="round 6: the plan of one-pass-dp-sgd releases nothing there"):
        list(charges(plan, [Spent(plan.cost.rounds, "gaussian", 1.0)]))
