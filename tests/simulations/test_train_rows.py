"""Private training on rows of any framework: what holds, whatever the function that makes them does."""

import stat
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import quoron
from audits.harness import epsilon_lower_bound
from committed import limit
from flower.plugged import CLIP, DIMENSION, SMALL, Killed, dying
from quoron.data.users import Declared
from quoron.run_folder import RunFolder
from quoron.training import lifetime
from quoron.training.rows import (
    Items,
    LocalSGD,
    RowsEngine,
    Setting,
    Timetable,
    TrainedRows,
    algorithm_of,
    completed,
    problem_of,
)
from quoron.training.table import CuratorEngine
from quoron_client import L2Ball, make_loss
from quoron_client.data.items import ItemBatch
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.errors import BudgetExceeded, ConfigError, LedgerError, RunError
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import SecureNoise, SeededNoise
from quoron_server import rounds
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.optimisers import Optimiser
from quoron_server.parameters import Kind
from quoron_server.plan import Privacy
from quoron_server.rounds import Observer, RoundEvent
from quoron_server.storage.ledger import Ledger
from quoron_server.wording import SEEDED, TEXTS, sentence

pytestmark = pytest.mark.usefixtures("account")
USERS = 6
FIT = tuple(SMALL)
OWN_POINTS = np.random.default_rng(0).normal(0.3, 0.1, (USERS, DIMENSION))


def pulls(users: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Gradients of half the squared distance to a point of each user's own."""
    return point - OWN_POINTS[users]


def trained(out: Path, compute: Any = pulls, name: str = "one-pass-dp-sgd", **changed: Any) -> TrainedRows[Any]:
    given = {"users": USERS, "dimension": DIMENSION, "epsilon": 8.0, "delta": 1e-3, "clip_norm": CLIP, "radius": 2.0}
    given |= {"algorithm": name, "options": SMALL.get(name, {}), "smoothness": 1.0, "seed": 5}
    return quoron.train_rows(compute, out=out, **given | changed)


def test_rows_answer_as_the_curators_engine_does() -> None:
    draw = np.random.default_rng(1)
    batch = ItemBatch(draw.normal(size=(60, 2)).astype(np.float32), np.ones(60), np.arange(0, 61, 3))
    declared = Declared(20, 3, 2, make_loss("linear", feature_norm=9.0), L2Ball(3.0))
    noise, question = (
        SecureNoise(bytes(range(32))),
        Question(0, np.arange(5, 20), AverageGradient(np.ones((1, 2)), (1.0,))),
    )
    theirs = CuratorEngine(declared, batch, noise).ask(question).values

    def compute(round_: int, users: np.ndarray, point: np.ndarray, dice: Any) -> np.ndarray:
        return np.stack([-np.asarray(batch.features[3 * u : 3 * u + 3], float).mean(axis=0) for u in users])

    problem = problem_of({"radius": 3.0, "items_per_user": 3, "clip_norm": 1.0}, users=20, dimension=2)
    reduction = ClippedSum(1.0, 15)
    for chunk in (None, 1, 4):
        ours = RowsEngine(compute, problem, np.zeros(2), noise, chunk).ask(question).values
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        sums = RowsEngine(compute, problem, np.zeros(2), noise, chunk).ask(replace(question, reduction=reduction))
        np.testing.assert_array_equal(sums.total, reduction.of(ours, np.ones(15, bool)).total)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"options": {"clip_norm": 1.0}}, "clip_norm beside the options"),
        ({"start": np.ones(2)}, "start to be 3 finite numbers"),
        ({"algorithm": "recentred-sgd", "smoothness": None, "options": SMALL["recentred-sgd"]}, "Expected smoothness"),
        ({"clip_norm": None}, "options.step_size where clip_norm is None"),
        ({"clip_norm": None, "options": {"clip": "fixed", "step_size": 1.0}}, "Expected clip_norm with options.clip"),
        ({"clip_norm": None, "algorithm": "srgd", "options": {"rounds": 3}}, "Expected clip_norm for srgd, got none"),
    ],
)
def test_a_wrong_request_is_refused_by_name_before_anything_is_written(
    changed: dict[str, Any], words: str, tmp_path: Path, account: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        trained(tmp_path / "run", **changed)
    assert not (tmp_path / "run").exists()
    assert not account.exists()


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)


def one_step(row: Any, out: Path) -> np.ndarray:
    """The step is one and a simulation's noise always the same, so the model moves as the released mean does."""

    def compute(users: np.ndarray, point: np.ndarray) -> np.ndarray:
        found = pulls(users, point)
        if row is not None:
            found[users == 4] = row
        return found

    return trained(out, compute, options={"rounds": 1, "step_size": 1.0}, radius=1e6).model


def test_one_user_moves_a_released_mean_by_at_most_two_clips_over_the_cohort(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    @cache
    def honest() -> np.ndarray:
        return one_step(None, tmp_path_factory.mktemp("honest") / "run")

    @settings(max_examples=15)
    @given(st.lists(numbers, min_size=DIMENSION, max_size=DIMENSION))
    def check(row: list[float]) -> None:
        moved = one_step(np.array(row), tmp_path_factory.mktemp("other") / "run")
        assert np.linalg.norm(honest() - moved) <= 2 * CLIP / USERS * (1 + 1e-9)

    check()
    zero = one_step(np.zeros(DIMENSION), tmp_path_factory.mktemp("zero") / "run")
    for fill in (np.nan, np.inf):  # what is not finite is the zero row, to the bit
        other = one_step(np.full(DIMENSION, fill), tmp_path_factory.mktemp("other") / "run")
        np.testing.assert_array_equal(zero, other)


@pytest.mark.parametrize("shape", [(DIMENSION,), (USERS, DIMENSION + 1), (1, DIMENSION)])
def test_rows_of_another_shape_end_the_call_and_never_the_run(shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"one row of 3 numbers for each of \d users, got shape"):
        trained(tmp_path / "run", lambda users, point: np.zeros(shape))
    np.testing.assert_array_equal(trained(tmp_path / "run").weights, trained(tmp_path / "other").weights)


def test_the_account_is_charged_before_a_row_is_made_and_the_key_is_erased(tmp_path: Path, account: Path) -> None:
    seen: list[float] = []

    def compute(users: np.ndarray, point: np.ndarray) -> np.ndarray:
        with lifetime.opened(account) as kept:
            seen.extend(charge.epsilon for charge in kept.charges("patients"))
        ledger = tmp_path / "run" / "ledger.sqlite"
        assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
        return pulls(users, point)

    found = trained(tmp_path / "run", compute, seed=None, population="patients")
    assert seen == [8.0] * 3
    assert found.guarantee.curated
    assert TEXTS[Kind.OWN_ROWS] in sentence(found.guarantee)
    assert SEEDED not in sentence(found.guarantee)
    folder = RunFolder(tmp_path / "run")
    np.testing.assert_array_equal(folder.model(), found.weights)
    assert folder.summary()["statement"] == sentence(found.guarantee)
    assert not any(key.startswith("simulation.") for row in folder.rounds() for key in row)
    with Ledger.open(folder.ledger) as own, pytest.raises(LedgerError, match="erased"):
        _ = own.noise_key
    with lifetime.opened(account) as kept:
        assert [row["kind"] for row in kept.rows()] == ["charge", "release", "end"]


LATER = [pytest.param(name, marks=pytest.mark.slow) for name in FIT[3:]]  # the same ledger and rows
KILLED = [*FIT[:3], *LATER]


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_simulation_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    calls = 0

    def counting(users: np.ndarray, point: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return pulls(users, point)

    whole = trained(tmp_path / "whole", counting, name).model
    for number in range(1, calls + 1):
        with pytest.raises(Killed):
            trained(tmp_path / f"{number}", dying(pulls, number), name)
        again = trained(tmp_path / f"{number}", name=name).model
        np.testing.assert_array_equal(again, whole)
        complete = trained(tmp_path / f"{number}", lambda users, point: pytest.fail("asked"), name)
        np.testing.assert_array_equal(complete.weights, whole)


def test_a_run_goes_on_from_the_start_that_it_began_with_and_another_is_refused_by_name(tmp_path: Path) -> None:
    begun = np.array([0.25, -0.5, 1e-17])
    whole = trained(tmp_path / "whole", start=begun).model
    with pytest.raises(Killed):
        trained(tmp_path / "run", dying(pulls, 1), start=begun)
    with pytest.raises(LedgerError, match="Different here: start"):
        trained(tmp_path / "run", start=begun + 1e-12)
    np.testing.assert_array_equal(trained(tmp_path / "run").weights, whole)
    np.testing.assert_array_equal(trained(tmp_path / "run", start=begun).weights, whole)
    (tmp_path / "run" / "start.npz").write_bytes(b"PK broken")
    with pytest.raises(LedgerError, match=r"Expected the start of the run in .*start\.npz, got a file that cannot"):
        trained(tmp_path / "run")


def test_other_settings_are_another_run(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    others = {"start": np.ones(3), "epsilon": 4.0, "clip_norm": 1.0}
    for changed in (
        *({name: value} for name, value in others.items()),
        {"seed": None},
        {"seed": 6},
    ):
        with pytest.raises(LedgerError, match=f"Different here: .*{next(iter(changed))}"):
            trained(tmp_path / "run", **changed)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="an empty folder or one of a run of rows"):
        trained(tmp_path / "mine")
    with pytest.raises(ConfigError, match="Go on with the same call and out="):
        quoron.resume(tmp_path / "run")


def test_training_counts_from_the_start_and_a_watcher_sees_the_points_of_questions(tmp_path: Path) -> None:
    start, seen = np.full(DIMENSION, 7.0), list[tuple[int, np.ndarray]]()
    asked: list[np.ndarray] = []

    def compute(users: np.ndarray, point: np.ndarray) -> np.ndarray:
        asked.append(point)
        return pulls(users, point - start)

    moved = trained(tmp_path / "moved", compute, start=start, watch=lambda round_, point: seen.append((round_, point)))
    assert [number for number, _ in seen] == [0, 1, 2]
    np.testing.assert_array_equal([point for _, point in seen], asked)
    np.testing.assert_array_equal(asked[0], start)
    assert np.linalg.norm(moved.model - start) <= 2.0 + 1e-9


@pytest.mark.parametrize(("rate", "assumed"), [(0.5, True), (1.0, False)])
def test_the_promise_for_cohorts_of_a_fixed_size_assumes_that_the_function_forgets(rate: float, assumed: bool) -> None:
    problem = problem_of({"radius": 2.0, "clip_norm": CLIP, "smoothness": 1.0}, users=USERS, dimension=3)
    promise = {"privacy": Privacy(8.0, 1e-3), "clip_norm": CLIP}
    for name, how, fixed in (
        ("dp-sgd-wor", {}, True),
        ("recentred-sgd", {}, False),
        ("dp-sgd-poisson", {}, False),
    ):
        options = {"rounds": 1, "rate": rate, **how}
        plan = Setting(problem=problem, algorithm=name, options=options, **promise).plan(0)
        assert plan.guarantee.rests_on(Kind.FORGETFUL_FUNCTION) == (assumed and fixed)


def released(own: float, leak: float = 0.0, clip: float = 1.0) -> Any:
    """Released means of four users' rows, one of them `own`; `leak` of it gets into all, as in a batch norm."""
    problem = problem_of({"radius": 1e6, "clip_norm": 1.0}, users=4, dimension=1)
    promise = {"privacy": Privacy(2.0, 1e-3), "clip_norm": 1.0}
    options = {"rounds": 1, "step_size": 1.0}
    plan = Setting(problem=problem, algorithm="one-pass-dp-sgd", options=options, **promise).plan(0)
    algorithm = ALGORITHMS[plan.algorithm].make(plan)
    algorithm.parameters = replace(plan.parameters, clip_norm=clip)

    def compute(round_: int, users: np.ndarray, point: np.ndarray, noise: Any) -> np.ndarray:
        return np.where(users == 2, own, leak * own)[:, None]

    noise, state = SeededNoise(1), algorithm.init()
    question = algorithm.request(state, noise)
    answers = RowsEngine(compute, problem, np.zeros(1), noise).ask(question)
    world = int(own > 0)

    def draw(draws: int) -> np.ndarray:
        sources = (SeededNoise(2 * number + world) for number in range(draws))
        return np.array([algorithm.update(state, answers, noise).state.iterate[0] for noise in sources])

    return draw


def audited(draws: int = 2500, **broken: float) -> float:
    """Of the worst neighbours, wrong with probability at most 1e-8."""
    return epsilon_lower_bound(released(1e6, **broken), released(-1e6, **broken), delta=1e-3, draws=draws)


def test_rows_never_cost_more_than_the_claimed_epsilon() -> None:
    assert 0.5 < audited(draws=6000) <= 2.0


def test_the_audit_catches_a_function_that_lets_one_user_into_the_rows_of_others() -> None:
    assert audited(leak=1.0) > 2.0


def test_the_audit_catches_a_missing_clip() -> None:
    assert audited(clip=4.0) > 2.0


def test_without_a_clip_norm_rows_of_any_length_are_learnt_from_to_the_bit_again(tmp_path: Path) -> None:
    """Users of whom nobody knows that their rows are a thousand times as long as 1; a killed run goes on the same."""
    draw = np.random.default_rng(2)
    points = draw.normal(3.0, 0.5, (3000, DIMENSION))

    def rows(users: np.ndarray, point: np.ndarray) -> np.ndarray:
        return 1000.0 * (point - points[users])

    options = {"rounds": 40, "rate": 0.5, "step_size": 1e-3, "clip": "adaptive", "optimiser": "momentum"}
    options |= {"momentum": 0.5, "suffix": 5}
    run = {"users": 3000, "clip_norm": None, "options": options, "name": "dp-sgd-wor", "radius": 9.0}
    whole = trained(tmp_path / "whole", rows, smoothness=None, **run)
    assert np.linalg.norm(whole.model - points.mean(axis=0)) < 0.5
    with pytest.raises(Killed):
        trained(tmp_path / "killed", dying(rows, 17), smoothness=None, **run)
    np.testing.assert_array_equal(trained(tmp_path / "killed", rows, smoothness=None, **run).weights, whole.weights)


def test_a_run_beyond_the_populations_limit_calls_nothing(tmp_path: Path, account: Path) -> None:
    limit(account, "patients", epsilon=5.0, delta=1e-2)
    with pytest.raises(BudgetExceeded):
        trained(tmp_path / "run", lambda users, point: pytest.fail("asked"), seed=None, population="patients")
    assert not (tmp_path / "run").exists()


def test_a_real_run_goes_on_to_the_same_privacy_and_not_the_same_bits(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(tmp_path / "run", dying(pulls, 2), seed=None)
    with pytest.raises(LedgerError, match="it began with another"):
        trained(tmp_path / "run", seed=None, smoothness=0.5)
    model = trained(tmp_path / "run", seed=None).model
    complete = trained(tmp_path / "run", lambda users, point: pytest.fail("asked"), seed=None)
    np.testing.assert_array_equal(complete.weights, model)
    seeded = [trained(tmp_path / f"{n}").model for n in range(2)]
    np.testing.assert_array_equal(*seeded)  # of a simulation the noise comes again


@pytest.mark.parametrize("users", [1, 300, 2_000, 7_000, 10**6])
def test_missing_arguments_follow_from_public_numbers_and_what_is_given_stays(users: int) -> None:
    rule = completed({"epsilon": 2.0}, users, 500)
    options = rule["options"]
    assert options is not None
    assert rule["algorithm"] == "dp-sgd-wor"
    assert options["rounds"] == (40 if users <= 290 else 80 if users <= 490 else 120)
    assert options["rounds"] * options["step_size"] == pytest.approx(1.2)
    assert min(users, 2_000) <= round(options["rate"] * users) <= max(2_000, users // 10)
    own = completed({"epsilon": 2.0, "delta": 1e-5, "clip_norm": 1.0, "options": {"rounds": 24}}, users, 500)
    assert own["options"] == {**options, "rounds": 24, "step_size": 1.2 / 24, "suffix": 6}
    assert (own["delta"], own["clip_norm"]) == (1e-5, 1.0)
    plain = completed({"epsilon": 2.0, "options": {"optimiser": "sgd", "step_size": 1.0}}, users, 500)["options"]
    assert plain == {"rounds": options["rounds"], "rate": options["rate"], "optimiser": "sgd", "step_size": 1.0}
    adam = completed({"epsilon": 2.0, "options": {"optimiser": "adam"}}, users, 500)["options"]
    assert (options["optimiser"], adam) == ("normalised", options | {"optimiser": "adam"})
    named: Any = {"epsilon": 2.0, "algorithm": "one-pass-dp-sgd", "options": {"step_size": 1.0}, "radius": 3.0}
    assert completed(named, users, 500) == {"items_per_user": 32, "delta": 1e-6} | named


class Told(Observer):
    """Writes down the rounds that are committed, and with `asked` those whose points are shown."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def round_finished(self, event: RoundEvent) -> None:
        self.order.append(f"{event.round} committed")

    def asked(self, users: np.ndarray, point: np.ndarray) -> np.ndarray:
        self.order.append("shown")
        return pulls(users, point)


@pytest.mark.parametrize("broken", [False, True])
def test_a_function_is_shown_no_point_of_a_round_that_is_not_committed(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a large model, for any time; the broken twin takes it for code that shows its points to no one."""
    monkeypatch.setattr(rounds, "LARGE_STATE", 0)
    monkeypatch.setattr(rounds, "UNSEEN", np.inf)
    if broken:
        commits = rounds._Commits
        monkeypatch.setattr(rounds, "_Commits", lambda *given, **_: commits(*given, in_one_transaction=True))
    told = Told()
    done = trained(tmp_path / "run", told.asked, observers=[told])
    apart = [each for round_ in range(done.rounds) for each in ("shown", f"{round_} committed")]
    assert done.rounds > 1
    assert (told.order == apart) != broken


@pytest.mark.parametrize("users", [1, 100, 300, 2_000, 10**6])
def test_the_rule_for_zero_out_is_that_of_twice_the_users_and_leaves_other_choices_alone(users: int) -> None:
    named: Any = {"epsilon": 2.0, "algorithm": "dp-sgd-poisson"}
    rule, plain = completed(named, users, 500), completed({"epsilon": 2.0}, users, 500)
    assert (rule["algorithm"], rule["clip_norm"]) == ("dp-sgd-poisson", plain["clip_norm"])
    twice = completed({"epsilon": 2.0}, 2 * users, 500)["options"] or {}
    assert rule["options"] == twice | {"rate": (plain["options"] or {})["rate"]}
    for kept in ({"clip_norm": 1.0}, {"options": {"step_size": 1.0, "rounds": 3}}):
        assert completed(named | kept, users, 500).get("options") == kept.get("options")


def test_steps_of_a_schedule_add_up_to_as_much() -> None:
    for name in ("linear", "cosine"):
        options = completed({"epsilon": 2.0, "options": {"schedule": name}}, 300, 500)["options"] or {}
        made = Optimiser(schedule=name)  # type: ignore[arg-type]
        steps = [options["step_size"] * made.rate(t, options["rounds"]) for t in range(options["rounds"])]
        assert sum(steps) == pytest.approx(1.2)


def test_a_step_size_may_be_a_function_of_the_round() -> None:
    def falling(round_: int) -> float:
        return 0.5 * (1 - round_ / 4)

    options = {"rounds": 4, "step_size": falling}
    _, found = algorithm_of({"epsilon": 1.0, "options": options})
    assert found == {"rounds": 4, "step_size": 0.5, "schedule": (1.0, 0.75, 0.5, 0.25)}
    for wrong in ({"step_size": falling}, {**options, "schedule": "linear"}, {**options, "step_size": lambda t: 0.0}):
        with pytest.raises(ConfigError, match=r"options\.step_size"):
            algorithm_of({"epsilon": 1.0, "options": wrong})


def test_defaults_leave_what_is_wrong_to_its_own_error() -> None:
    with pytest.raises(ConfigError, match="Expected epsilon, got none"):
        completed({}, 100, 5)  # type: ignore[typeddict-item]
    for users, dimension in ((0, 5), (100, 0)):
        assert completed({"epsilon": 1.0}, users, dimension)["algorithm"] == "dp-sgd-wor"


def timetable(counts: list[int], local: LocalSGD | None, most: int = 4) -> Timetable:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Timetable(Items((np.zeros(offsets[-1]),), offsets), most, local)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=6),
    st.integers(0, 9),
    st.sampled_from([None, LocalSGD(epochs=2, batch_size=3)]),
    st.integers(0, 99),
)
@example([2, 3], 8, None, 0)
def test_which_items_others_take_does_not_depend_on_how_many_one_user_has(
    counts: list[int], other: int, local: LocalSGD | None, round_: int
) -> None:
    users, found, passes = np.arange(len(counts))[::-1].copy(), [], 1 if local is None else 2
    for own in (counts[0], other):
        here = timetable([own, *counts[1:]], local)
        minibatches = here.minibatches(round_, users, SeededNoise(3))
        taken = minibatches.places - here.items.offsets[users][:, None, None]
        found.append((taken[:-1] * (minibatches.weights[:-1] > 0), minibatches.weights[:-1]))
        for user, chosen, weights in zip(users, minibatches.places, minibatches.weights, strict=True):
            real = chosen[weights > 0] - here.items.offsets[user]
            times = np.bincount(real, minlength=1)
            assert len(real) == passes * min(here.items.counts[user], 4)
            assert set(times[times > 0]) <= {passes}
            assert not len(real) or real.max() < here.items.counts[user]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_items_that_a_user_with_many_takes_are_uniform() -> None:
    """False alarm below 1e-7: fourteen shares, six deviations."""
    rounds, user, noise = 3_000, np.array([1]), SeededNoise(5)
    taken = np.zeros((7, 2))
    here = timetable([2, 7], LocalSGD(batch_size=1), most=2)
    for round_ in range(rounds):
        for step, place in enumerate(here.minibatches(round_, user, noise).places[0, :, 0] - 2):
            taken[place, step] += 1
    assert np.abs(taken / rounds - 1 / 7).max() < 6 * np.sqrt(1 / 7 * 6 / 7 / rounds)
