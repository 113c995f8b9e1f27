"""Mechanisms for a loop of one's own: every promise holds by the second account, and a state serves one release."""

import copy
import pickle
import runpy
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy import (
    ClippedMean,
    Ledger,
    LocalReport,
    OutlierMean,
    PrefixNoise,
    SecureNoise,
    SeededNoise,
    TruncatedMean,
    clip_rows,
)
from quoron_privacy.errors import BudgetExceeded, ConfigError, Infeasible, RunError, UsageError, VerificationError
from quoron_privacy.mechanisms import Mechanism

SEED = SeededNoise(3)
USERS = 2_000
SCHEDULES: list[dict[str, Any]] = [
    {},
    {"rounds": 12},
    {"rounds": 12, "adjacency": "zero-out"},
    {"cohort": 100, "rounds": 12},
    {"cohort": 100, "rounds": 12, "sampling": "poisson"},
    {"cohort": 100, "rounds": 12, "sampling": "poisson", "adjacency": "zero-out"},
    {"cohort": 100, "rounds": 45, "sampling": "public-schedule"},
]
MAKERS: dict[str, Callable[..., Mechanism]] = {
    "clipped": lambda **of: ClippedMean.calibrate(**_of(users=USERS, clip_norm=1.0) | of),
    "outlier": lambda **of: OutlierMean.calibrate(**_of(users=USERS, spread=0.5) | of),
    "prefix": lambda **of: PrefixNoise.calibrate(**_of(users=USERS, cohort=100, rounds=30, clip_norm=1.0) | of),
    "truncated": lambda **of: TruncatedMean.calibrate(**_of(users=USERS, bound=100.0, spread=0.5) | of),
    "local": lambda **of: LocalReport.calibrate(**_of(clip_norm=1.0) | of),
}


def _of(**numbers: Any) -> dict[str, Any]:
    return {"epsilon": 1.0, "delta": 1e-6, "dimension": 3} | numbers


def rows_of(users: int, dimension: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(0.2, 0.1, size=(users, dimension))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_clipped_mean_keeps_its_promise_by_the_second_account(schedule: dict[str, Any]) -> None:
    mean = MAKERS["clipped"](**schedule)
    assert 0.97e-6 < mean.pair.delta(1.0, 1e-6) <= 1e-6


@pytest.mark.parametrize("kind", MAKERS)
def test_a_mechanism_with_less_noise_is_refused_by_the_second_account(kind: str) -> None:
    mechanism: Any = MAKERS[kind]()
    assert mechanism.pair.delta(1.0, 1e-6) <= 1e-6
    if kind == "truncated":
        less = {
            "mean": replace(
                mechanism.mean, noise=replace(mechanism.mean.noise, scale=mechanism.mean.noise.scale * 0.99)
            )
        }
    else:
        less = {"noise": replace(mechanism.noise, scale=mechanism.noise.scale * 0.99)}
    with pytest.raises(VerificationError):
        replace(mechanism, **less).verify()


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.01, 30),
    st.sampled_from([1e-5, 1e-9]),
    st.integers(2, 10**6),
    st.floats(0.001, 1),
    st.integers(1, 300),
    st.integers(1, 10**6),
    st.sampled_from([None, "poisson", "public-schedule"]),
)
def test_every_calibration_is_within_epsilon_and_delta_or_says_why_not(
    epsilon: float, delta: float, users: int, share: float, rounds: int, dimension: int, sampling: Any
) -> None:
    cohort = max(1, int(share * users))
    try:
        mean = ClippedMean.calibrate(
            epsilon,
            delta,
            users=users,
            cohort=cohort,
            rounds=rounds,
            dimension=dimension,
            clip_norm=1.0,
            sampling=None if cohort == users else sampling,
        )
    except Infeasible:
        return
    assert mean.pair.delta(epsilon, delta) <= delta


@pytest.mark.parametrize("kind", MAKERS)
def test_more_epsilon_never_means_more_noise(kind: str) -> None:
    def scale(epsilon: float) -> float:
        made: Any = MAKERS[kind](epsilon=epsilon)
        return float((made.mean if kind == "truncated" else made).noise.scale)

    scales = [scale(epsilon) for epsilon in (0.5, 1.0, 2.0, 8.0)]
    assert scales == sorted(scales, reverse=True)


def test_more_users_never_mean_more_noise() -> None:
    for make in (MAKERS["clipped"], MAKERS["outlier"], MAKERS["truncated"]):
        made = [make(users=users) for users in (1_000, 10_000, 100_000)]
        scales = [getattr(each, "mean", each).noise.scale for each in made]
        assert scales == sorted(scales, reverse=True)


@pytest.mark.parametrize("sampling", ["everybody", "poisson"])
def test_dp_accounting_finds_the_same_epsilon(sampling: str) -> None:
    from dp_accounting.pld import PLDAccountant

    schedule = {"rounds": 8} if sampling == "everybody" else {"rounds": 8, "cohort": 200, "sampling": "poisson"}
    mean = MAKERS["clipped"](adjacency="zero-out", **schedule)
    assert PLDAccountant().compose(mean.dp_event).get_epsilon(1e-6) == pytest.approx(1.0, rel=2e-3)


def test_what_dp_accounting_has_no_event_for_names_the_theorem() -> None:
    with pytest.raises(UsageError, match="outlier-mean"):
        _ = MAKERS["outlier"]().dp_event


@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_serves_one_release_and_a_mechanism_as_many_as_it_was_calibrated_for(kind: str) -> None:
    mechanism, noise = MAKERS[kind](), SecureNoise.fresh()
    rows, state = rows_of(100 if kind == "prefix" else USERS), mechanism.init()
    for _ in range(mechanism.rounds):
        used = state
        _, state = mechanism(rows, state, noise)
    with pytest.raises(RunError, match="that was not used"):
        mechanism(rows, used, noise)
    with pytest.raises(RunError, match=f"at most rounds={mechanism.rounds} releases"):
        mechanism(rows, state, noise)


def test_of_threads_that_share_a_state_one_gets_a_value() -> None:
    mean, came = MAKERS["clipped"](rounds=2), []
    state, rows, begin = mean.init(), rows_of(USERS), threading.Barrier(8)

    def release() -> None:
        begin.wait()
        try:
            came.append(mean(rows, state, SEED))
        except RunError:
            came.append(None)

    threads = [threading.Thread(target=release) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each is not None for each in came) == 1


def test_rows_that_are_refused_leave_the_state_as_it_was() -> None:
    mean = MAKERS["clipped"](cohort=100, rounds=2)
    state = mean.init()
    for wrong, said in (
        (np.zeros((100, 4)), r"\(users, 3\), got shape \(100, 4\)"),
        (np.zeros(3), r"got shape \(3,\)"),
        (np.zeros((101, 3)), "at most 100 rows"),
        (iter([np.zeros((60, 3)), np.zeros((60, 3))]), "at most 100 rows"),
    ):
        with pytest.raises(ConfigError, match=said):
            mean(wrong, state, SEED)
    assert mean(np.zeros((100, 3)), state, SEED)[1].round == 1


def test_secret_noise_is_never_drawn_twice_alike() -> None:
    """Not by a second mechanism, nor from a state that was copied or restored, though the source is the same."""
    mean, noise, rows = MAKERS["clipped"](), SecureNoise.fresh(), rows_of(USERS)
    states = [mean.init(), mean.init(), pickle.loads(pickle.dumps(mean.init())), copy.deepcopy(mean.init())]
    values = [tuple(mean(rows, state, noise)[0]) for state in states]
    assert len(set(values)) == len(values)
    assert tuple(mean(rows, mean.init(), SEED)[0]) == tuple(mean(rows, mean.init(), SEED)[0])


@pytest.mark.parametrize("schedule", SCHEDULES[1:], ids=str)
def test_a_clipped_mean_is_the_mean_of_clipped_rows_and_noise_of_the_stated_scale(schedule: dict[str, Any]) -> None:
    """A slow reference; the standard deviation of 6,000 draws is within 6 of its own: false alarms below 1e-8."""
    mean: Any = MAKERS["clipped"](**schedule, dimension=6_000)
    rows = np.random.default_rng(1).normal(0, 0.02, size=(mean.schedule.cohort, 6_000))
    clipped = sum(clip_rows(row[None, :], 1.0)[0] for row in rows) / mean.schedule.cohort
    noise = mean(rows, mean.init(), SEED)[0] - clipped
    assert noise.std() == pytest.approx(mean.noise.scale, rel=6 / np.sqrt(12_000))
    assert abs(noise.mean()) < 6 * mean.noise.scale / np.sqrt(6_000)


def test_order_blocks_and_precision_of_rows_change_no_bit() -> None:
    mean, rows = MAKERS["clipped"](cohort=100, rounds=2), rows_of(100).astype(np.float32)
    one = mean(rows, mean.init(), SEED)[0]
    assert one.dtype == np.float32
    for other in (rows[::-1], iter(np.split(rows, 10)), rows.copy(order="F")):
        assert (mean(other, mean.init(), SEED)[0] == one).all()
    assert (mean(rows.tolist(), mean.init(), SEED)[0].astype(np.float32) == one).all()


@pytest.mark.parametrize("kind", ["clipped", "outlier", "prefix", "truncated"])
def test_a_row_that_is_not_finite_is_one_that_is_missing(kind: str) -> None:
    mechanism = MAKERS[kind]()
    rows = rows_of(mechanism.schedule.cohort)
    rows[-7:] = [
        [np.nan, 0, 0],
        [np.inf, 1, 1],
        [0, -np.inf, 0],
        [np.nan] * 3,
        [np.inf] * 3,
        [1, 1, np.nan],
        [np.inf, 0, 0],
    ]
    assert (mechanism(rows, mechanism.init(), SEED)[0] == mechanism(rows[:-7], mechanism.init(), SEED)[0]).all()
    assert np.isfinite(mechanism(rows[:0], mechanism.init(), SEED)[0] if kind != "outlier" else 0.0).all()


def test_outliers_move_an_outlier_mean_no_farther_than_its_noise_and_a_clipped_mean_as_far_as_they_may() -> None:
    mean: Any = MAKERS["outlier"](rounds=5)
    rows, state = rows_of(USERS), mean.init()
    rows[:20] = 1e30
    for _ in range(5):
        value, state = mean(rows, state, SEED)
        assert np.abs(value - 0.2).max() < 10 * mean.noise.scale


@pytest.mark.parametrize("share", [0.0, 0.002, 0.05])
@pytest.mark.parametrize("at", [-5.0, 1e6, np.nan, np.inf, 1e300])
def test_with_no_more_outliers_than_declared_a_release_is_nearly_certain_and_near_the_honest_mean(
    share: float, at: float
) -> None:
    """Others on a sphere of the declared spread; noise beyond seven standard deviations: false alarm below 1e-10."""
    mean: Any = MAKERS["outlier"](outliers=0.05, epsilon=2.0)
    rows = np.random.default_rng(0).normal(size=(USERS, 3))
    rows = 3.0 + 0.5 * rows / np.linalg.norm(rows, axis=1, keepdims=True)
    lost = round(share * USERS)
    rows[:lost] = at
    seen = mean.account.mean.observe(rows, np.ones(USERS, np.bool_), radius=mean.radius, reference=np.zeros(3))
    assert mean.account.test.chance(seen.score) >= 0.999
    assert np.abs(mean(rows, mean.init(), SEED)[0] - rows[lost:].mean(axis=0)).max() < 7 * mean.noise.scale + 0.01


def test_where_too_few_agree_nothing_is_released_and_later_rounds_go_on() -> None:
    mean, state = MAKERS["outlier"](rounds=3), MAKERS["outlier"](rounds=3).init()
    scattered = np.random.default_rng(2).normal(0, 100, size=(USERS, 3))
    nothing, state = mean(scattered, state, SEED)
    something, state = mean(rows_of(USERS), state, SEED)
    assert nothing is None
    assert np.abs(something - 0.2).max() < 0.2
    assert state.round == 2


@pytest.mark.parametrize("factorisation", ["blt", "banded", "tree"])
def test_sums_of_values_with_correlated_noise_have_the_stated_deviation(factorisation: str) -> None:
    """The last sum's standard deviation over 6,000 columns, within 6 of its own: false alarms below 1e-8."""
    made: Any = PrefixNoise.calibrate(
        1.0, 1e-6, users=3_000, cohort=100, rounds=30, dimension=6_000, clip_norm=1.0, factorisation=factorisation
    )
    state, total = made.init(), np.zeros(6_000)
    for _ in range(30):
        value, state = made(np.zeros((0, 6_000)), state, SEED)
        total += value
    assert total.std() == pytest.approx(made.noise.scale * made.noise.factors.row_norms[29], rel=6 / np.sqrt(12_000))


def test_correlated_noise_is_worth_its_name_in_several_passes_too() -> None:
    """Of 3 passes over 20 batches: sums have less noise than with independent noise of the same promise."""
    of_run: dict[str, Any] = {"users": 2_000, "cohort": 100, "rounds": 60, "dimension": 3, "clip_norm": 1.0}
    correlated: Any = PrefixNoise.calibrate(1.0, 1e-6, **of_run)
    alone: Any = ClippedMean.calibrate(1.0, 1e-6, **of_run, sampling="public-schedule")
    assert correlated.schedule.participations == 3
    assert correlated.noise.max_std < 0.6 * np.sqrt(60) * alone.noise.scale


def test_a_truncated_mean_follows_the_spread_and_not_the_bound() -> None:
    far, near = MAKERS["truncated"](bound=2e4, users=10_000), MAKERS["truncated"](bound=10.0, users=10_000)
    assert far.mean.noise.scale < 20 * near.mean.noise.scale  # type: ignore[attr-defined]
    value, _ = far(rows_of(10_000) + 5_000.0, far.init(), SEED)
    assert np.abs(value - 5_000.2).max() < 0.2


def test_the_servers_mean_of_local_reports_withstands_one_that_is_endless() -> None:
    report = MAKERS["local"](epsilon=8.0)
    reports, _ = report(rows_of(20_000), report.init(), SEED)
    assert reports.shape == (20_000, 3)
    assert np.abs(report.mean(reports) - 0.2).max() < 0.1  # type: ignore[attr-defined]
    reports[0], reports[1] = 1e300, np.nan
    assert np.abs(report.mean(reports) - 0.2).max() < 0.1  # type: ignore[attr-defined]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_cohorts_are_drawn_as_the_account_takes_them(schedule: dict[str, Any]) -> None:
    mean, noise = MAKERS["clipped"](**schedule), SecureNoise.fresh()
    cohorts, state, seen = [], mean.init(), np.zeros(USERS, np.int64)
    for _ in range(mean.rounds):
        cohorts.append(mean.cohort(state, noise))
        seen[cohorts[-1]] += 1
        assert len(set(cohorts[-1])) == len(cohorts[-1])
        _, state = mean(rows_of(len(cohorts[-1])), state, noise)
    if mean.schedule.sampling == "poisson":
        assert {len(cohort) for cohort in cohorts} != {100}
    else:
        assert {len(cohort) for cohort in cohorts} == {mean.schedule.cohort}
    if not mean.schedule.secret:
        assert seen.max() <= mean.schedule.participations


@pytest.mark.parametrize(
    "of",
    [
        {"users": 50},
        {"users": 400, "cohort": 40, "rounds": 10, "sampling": "public-schedule"},
    ],
    ids=str,
)
def test_an_outlier_mean_names_the_fewest_users_that_do(of: dict[str, Any]) -> None:
    with pytest.raises(Infeasible) as refused:
        OutlierMean.calibrate(**_of(spread=0.5, **of))
    enough = refused.value.users
    assert enough is not None
    share = of["users"] // of.get("cohort", of["users"])
    for users, fits in ((enough, True), (enough - share, False)):
        size = {"users": users} | ({"cohort": users // share} if share > 1 else {})
        if fits:
            OutlierMean.calibrate(**_of(spread=0.5, **of | size))
        else:
            with pytest.raises(Infeasible):
                OutlierMean.calibrate(**_of(spread=0.5, **of | size))


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({"cohort": 0}, "cohort in 1..users=2,000, got cohort=0"),
        ({"cohort": 2_001}, "got cohort=2,001"),
        ({"cohort": 10, "sampling": "everybody"}, "cohort=users with everybody"),
        ({"sampling": "poisson"}, "cohort=users with everybody"),
        ({"cohort": 10, "sampling": "coins"}, "sampling='coins'"),
        ({"cohort": 10, "adjacency": "zero-out"}, "adjacency='replace-one'"),
        ({"adjacency": "add-remove"}, "'add-remove'"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"dimension": 0}, "dimension"),
        ({"rounds": 0}, "rounds"),
        ({"clip_norm": 0.0}, "norm"),
    ],
    ids=str,
)
def test_what_cannot_be_calibrated_is_named(of: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ClippedMean.calibrate(**_of(users=USERS, clip_norm=1.0) | of)


@pytest.mark.parametrize(
    "of",
    [{"outliers": 0.5}, {"outliers": -0.1}, {"cohort": 50, "sampling": "poisson"}, {"spread": 0.0}],
)
def test_what_no_outlier_mean_is_proved_for_is_refused(of: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OutlierMean.calibrate(**_of(users=USERS, spread=0.5) | of)


def test_a_ledger_takes_what_fits_together_and_adds_nothing_that_does_not() -> None:
    plain, gaussian = Ledger(2.0, 1e-5, gaussian_share=0.0), Ledger(2.0, 1e-5, gaussian_share=1.0)
    outlier, clipped = MAKERS["outlier"](), MAKERS["clipped"]()
    assert plain.charge(outlier).epsilon == 1.0
    assert plain.charge(outlier).epsilon == 2.0
    with pytest.raises(BudgetExceeded, match="2 mechanisms charged"):
        plain.charge(outlier)
    assert len(plain.charges) == 2
    fitted = 0
    while fitted < 10:
        try:
            gaussian.charge(clipped, f"pilot {fitted}")
        except BudgetExceeded:
            break
        fitted += 1
    assert fitted > 2  # more than ε = 1 each would leave room for
    assert gaussian.charges[0].run == "pilot 0"


def test_rounds_that_were_not_run_are_given_back_and_no_round_follows() -> None:
    mean, ledger = MAKERS["clipped"](rounds=16), Ledger(1.2, 1e-5, gaussian_share=1.0)
    ledger.charge(mean)
    with pytest.raises(BudgetExceeded):
        ledger.charge(mean)
    state = mean.init()
    for _ in range(4):
        _, state = mean(rows_of(USERS), state, SEED)
    spent = ledger.give_back(mean, state)
    assert spent.mu == pytest.approx(mean.pair.mu / 2, rel=1e-9)
    assert ledger.charges[0].run == "ClippedMean-1"
    with pytest.raises(RunError, match="that was not used"):
        mean(rows_of(USERS), state, SEED)
    again = MAKERS["clipped"](epsilon=0.9, rounds=3)
    ledger.charge(again)
    assert ledger.give_back(again, again.init()).mu == spent.mu


def test_a_run_whose_first_round_costs_next_to_nothing_is_given_back_to_that() -> None:
    """Its ε at the same δ may be zero, which no charge is."""
    mean, ledger = MAKERS["clipped"](epsilon=1e-3, delta=0.1, rounds=400), Ledger(1.0, 0.5, gaussian_share=1.0)
    ledger.charge(mean)
    _, state = mean(rows_of(USERS), mean.init(), SEED)
    assert ledger.give_back(mean, state).mu == pytest.approx(mean.pair.mu / 20, rel=1e-9)


def test_what_is_proved_as_one_is_not_given_back_in_parts() -> None:
    clipped = MAKERS["clipped"](cohort=100, rounds=12)
    for mechanism in (clipped, MAKERS["prefix"](), MAKERS["outlier"](rounds=2)):
        ledger = Ledger(4.0, 1e-5, gaussian_share=0.5)
        ledger.charge(mechanism)
        with pytest.raises(ConfigError, match="proved as one"):
            ledger.give_back(mechanism, mechanism.init())
    plain, everybody = Ledger(4.0, 1e-5, gaussian_share=0.0), MAKERS["clipped"](rounds=12)
    plain.charge(everybody)
    with pytest.raises(ConfigError, match="charged to the Gaussian share"):
        plain.give_back(everybody, everybody.init())
    with pytest.raises(ConfigError, match="charged last"):
        plain.give_back(clipped, clipped.init())


def test_the_guarantee_names_what_it_protects_against_and_where_it_is_proved() -> None:
    said = MAKERS["clipped"](cohort=100, rounds=3).guarantee
    assert said.startswith(
        "(1, 1e-06)-differential privacy for all items of any one user at once, adjacency replace-one"
    )
    assert "cohort membership stays secret" in said
    assert "membership" not in MAKERS["clipped"]().guarantee
    assert "the server too" in MAKERS["local"]().guarantee
    proofs = Path(__file__).parents[2]
    for make in MAKERS.values():
        assert (proofs / str(make().theorem).partition("#")[0]).is_file()


def test_the_plain_loop_of_the_examples_learns(capsys: pytest.CaptureFixture) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples/loops/plain.py"))
    features, labels, weights = example["made_up"]()
    found = example["train"](features, labels, SeededNoise(1))
    assert np.abs(found - weights).max() < 0.2
    assert "(2, 1e-06)-differential privacy" in capsys.readouterr().out
