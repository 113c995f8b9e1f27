"""Statistics, declarations and means: what is told, what it is charged, and that no row's value raises."""

import importlib
import json
import math
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import quoron
from committed import charges, limit
from cover import by_default
from quoron.cli.app import invoke
from quoron.releases.bounds import find_bounds
from quoron.releases.mean import PrivateMean, mean
from quoron.releases.once import release_once, verify_gaussian
from quoron.releases.statistics import statistics
from quoron.training import lifetime
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import BudgetExceeded, ConfigError, DataError, Infeasible, NothingReleased, VerificationError
from quoron_privacy.noise.streams import SecureNoise, SeededNoise
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.wording import ReleaseGuarantee

pytestmark = pytest.mark.usefixtures("ledger")
USERS = 3000
SEEDED = {"seed": 3}
ALL = [
    "count by ward",
    "histogram of cost in 4 bins",
    "quantiles of cost at 0.25, 0.5",
    "mean of cost by ward",
]
DECLARED = {"numeric": {"cost": (0, 100)}, "categorical": {"ward": ["north", "south", "west"]}}


def frame() -> pd.DataFrame:
    """Up to nine rows a user: half of the users north, a third south, and west; the more rows the larger the cost."""
    held = 1 + np.arange(USERS) % 9
    who = np.repeat(np.arange(USERS), held)
    ward = np.array(["north", "north", "north", "south", "south", "west"])[who // 9 % 6]
    cost = (10.0 * held[who]).astype(object)
    cost[::400], cost[1::400], cost[2::400] = "dear", None, math.nan
    return pd.DataFrame({"who": [f"p{each}" for each in who], "ward": ward, "cost": cost})


def told(ledger: Path) -> list[dict]:
    with lifetime.opened(ledger) as kept:
        return kept.rows()


def test_items_weigh_one_each_up_to_the_declared_most():
    asked = ["mean of cost", "count by ward"]
    found = statistics(frame(), asked, user="who", epsilon=8.0, items_per_user=9, **SEEDED, **DECLARED)
    assert found.of("mean of cost")[0].value == pytest.approx(63.3, abs=3)
    items = sum(row.value for row in found.of("count by ward"))
    assert items == pytest.approx(5 * USERS, rel=0.03)
    some = statistics(frame(), asked, user="who", epsilon=8.0, items_per_user=3, **SEEDED, **DECLARED)
    assert sum(row.value for row in some.of("count by ward")) == pytest.approx(USERS * 24 / 9, rel=0.03)


def test_a_user_with_many_items_moves_nothing_more_than_others():
    asked = ["count by ward", "mean of cost"]
    small = frame()
    large = pd.concat([small, pd.DataFrame({"who": "p0", "ward": "west", "cost": [0.0] * 50_000})], ignore_index=True)
    one, other = (statistics(each, asked, user="who", epsilon=4.0, **SEEDED, **DECLARED) for each in (small, large))
    moved = [abs(a.value - b.value) for a, b in zip(one.figures, other.figures, strict=True)]
    assert max(moved[:3]) <= 1 + 1e-5  # the noise is the same
    assert 0 < moved[3] < 0.05


def test_a_limit_without_room_tells_nothing(ledger, monkeypatch):
    limit(ledger, epsilon=1.0, delta=1e-5)
    monkeypatch.setattr("quoron.releases.statistics.weigh", lambda *_: pytest.fail("a value was looked at"))
    monkeypatch.setattr("quoron.training.column_bounds.release", lambda *_: pytest.fail("a value was looked at"))
    for known in (DECLARED, {}):
        with pytest.raises(BudgetExceeded):
            statistics(frame(), ALL, user="who", epsilon=4.0, **known)
    assert [row["kind"] for row in told(ledger)] == ["limit"]


@pytest.mark.parametrize("value", ["none of it a number", None, np.nan, np.inf])
def test_a_column_without_numbers_has_no_figures_and_no_range_of_noise(value):
    visits = pd.DataFrame({"who": np.arange(3000), "cost": [value] * 3000})
    for question in ("mean of cost", "median of cost", "histogram of cost"):
        found = statistics(visits, question, user="who", epsilon=1.0, **SEEDED)
        assert found.figures == ()
        assert "nothing of cost" in found.remarks[0]


def test_groups_that_no_two_dozen_users_share_are_none():
    own = pd.DataFrame({"who": np.arange(5000), "value": [f"word {place}" for place in range(5000)]})
    found = statistics(own, "count by value", user="who", epsilon=1.0, **SEEDED)
    assert found.figures == ()
    assert "no values of value" in found.remarks[0]


@pytest.mark.parametrize("known", [DECLARED, {}])
def test_under_zero_out_whether_somebody_is_there_is_private(known, ledger):
    found = statistics(frame(), ["count", *ALL], user="who", epsilon=4.0, zero_out=5000, **known)
    assert found.users == 5000
    assert "adjacency zero-out" in found.statement
    everybody = found.of("count")[0]
    assert everybody.low < USERS < everybody.high < USERS + 200
    assert told(ledger)[0]["payload"]["adjacency"] == "zero-out"


def test_under_zero_out_noise_is_less_and_whether_there_is_anybody_is_told_with_noise():
    """By the root of two than with replace-one."""
    one, other = (
        statistics(frame(), "count by ward", user="who", epsilon=4.0, **DECLARED, **more)
        for more in ({**SEEDED}, {"seed": 3, "zero_out": USERS})
    )
    there = frame().drop_duplicates("who").ward.value_counts()
    first, second = ([row.value - there[row.group] for row in each.figures] for each in (one, other))
    assert np.divide(first, second) == pytest.approx(2**0.5, rel=1e-3)
    for nobody in (frame().assign(who=None), frame().iloc[:0]):
        for asked in ("count", "mean of cost", "count by ward"):
            found = statistics(nobody, asked, user="who", epsilon=4.0, zero_out=5000, **DECLARED)
            assert found.of("count")[0].value < 50 if asked == "count" else found.figures
    with pytest.raises(DataError, match="at most zero_out=100"):
        statistics(frame(), "count", user="who", epsilon=4.0, zero_out=100)
    with pytest.raises(ConfigError, match="zero_out=0"):
        statistics(frame().iloc[:0], "count", user="who", epsilon=4.0, zero_out=0)


HOSTILE = {
    "nobody": ({"who": [None] * 500, "x": range(500)}, "a user in some row"),
    "no rows": ({"who": [], "x": []}, "a table with rows"),
    "spans of time": ({"who": range(500), "x": pd.to_timedelta(range(500), "h")}, "numbers or text"),
    "no such column": ({"who": range(500)}, "'x'"),
    "one user": ({"who": ["a"] * 500, "x": range(500)}, "users"),
    "no numbers": ({"who": range(500), "x": [math.nan] * 500}, None),
    "all kinds": ({"who": range(600), "x": [1, "a", None, 2.5, True, b"\xff"] * 100}, None),
    "huge integers": ({"who": range(600), "x": [10**400, -(10**30), 2**63] * 200}, None),
    "imaginary": ({"who": range(500), "x": np.arange(500) * 1j}, None),
    "users that are lists": ({"who": [[each] for each in range(500)], "x": range(500)}, None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_table_is_refused_before_the_charge_or_answered(name, ledger):
    made, said = HOSTILE[name]
    known = {"user": "who", "epsilon": 2.0, "numeric": {"x": (0, 10)}}
    if said is None:
        found = statistics(pd.DataFrame(made), ["mean of x", "median of x"], **known)
        assert all(0 <= row.low <= row.high <= 10 for row in found.figures)
        return
    with pytest.raises((DataError, Infeasible), match=said):
        statistics(pd.DataFrame(made), ["mean of x", "median of x"], **known)
    assert not ledger.exists()


def test_what_is_no_table_is_a_data_error():
    with pytest.raises(DataError, match="DataFrame"):
        statistics([[None], [3]], "mean of value", user="who", epsilon=1.0)


def test_the_command_says_what_python_says(tmp_path, capsys, ledger):
    path = tmp_path / "visits.csv"
    frame().to_csv(path, index=False)
    words = ["--user", "who", "--epsilon", "2", "--numeric", "cost=0:100", "--categorical", "ward=north,south,west"]
    assert invoke(["stats", str(path), "count by ward", "median of cost", *words]) == 0
    said = capsys.readouterr().out
    assert all(each in said for each in ("count by ward", " north ", "quantiles of cost at 0.5"))
    assert "adjacency replace-one" in said
    assert "95 %" in said


ASKED = {"user": "who", "epsilon": 8.0, "delta": 1e-6, "seed": 3}


def visits() -> pd.DataFrame:
    """Four rows a user; a hundredth of the values are no numbers, or odd."""
    rows = np.arange(4 * USERS)
    delay = (rows * 37 % 300 - 100).astype(object)
    delay[::400], delay[1::400], delay[2::400], delay[3::400] = "late", 1e300, None, math.nan
    return pd.DataFrame(
        {
            "who": [f"user {row // 4}" for row in rows],
            "delay": delay,
            "height": 1.5 + rows % 7 / 10,
            "ward": np.where(rows % 5 == 0, "Böblingen", np.where(rows % 5 == 1, 'the "old" one', "North")),
            "code": rows // 4 % 3,
            "secret": [f"text {row}" for row in rows],
        }
    )


def test_columns_that_cannot_be_told_are_comments_with_their_cost() -> None:
    table = visits().assign(nothing="?", zero=0)
    declaration = find_bounds(table, numeric=["nothing", "zero"], categorical=["secret"], **ASKED)
    declared = declaration.toml()
    assert "# nothing: too few users have numbers here" in declared
    assert "# zero: zero for nearly everybody" in declared
    assert "# secret: no category has enough users" in declared
    assert "columns" not in tomllib.loads(declared)["population"]


def test_too_few_users_are_told_before_anything_is_charged_or_released(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"bounds: 3,000 users do not tell 2 .* or fewer columns"):
        find_bounds(
            visits(), numeric=["delay"], items=True, epsilon=0.05, ledger=str(tmp_path / "none.sqlite"), user="who"
        )


def test_what_a_declaration_of_ranges_costs_is_its_whole_promise_and_no_more(ledger: Path) -> None:
    declared = find_bounds(visits(), user="who", epsilon=2.0, numeric=["delay", "height"])
    (charge,) = charges(ledger)
    assert (charge.epsilon, charge.delta, charge.mu) == (2.0, 1e-6, declared.mu)
    assert gdp.delta_for(declared.mu, 2.0) + (1 + math.exp(2.0)) * charge.variation <= 1e-6


def test_no_noise_is_drawn_twice_whatever_columns_are_called(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is looked at was drawn with the words of the noise of a column of that name."""
    drawn, plain = [], SecureNoise.stream

    def noting(source: SecureNoise, *labels: str | int) -> object:
        drawn.append((source.fingerprint(), *labels))
        return plain(source, *labels)

    monkeypatch.setattr(SecureNoise, "stream", noting)
    rows = np.arange(3000)
    names = ["users", "estimates", "places", "cells", "closer", "declare", "items"]
    table = pd.DataFrame({"who": rows, "age": rows % 70, **dict.fromkeys(names, rows % 2)})
    find_bounds(table, user="who", epsilon=20.0, items=True, numeric=["age"], categorical=names)
    assert len(drawn) == len(set(drawn)) >= 5


@pytest.mark.parametrize("value", ["\ud800", b"", "nan", True, np.float32(2.5), 2.0**70, "0x1"], ids=ascii)
def test_no_other_value_raises_either(value: object) -> None:
    table = pd.DataFrame({"who": [*range(200), 1, 2], "odd": [*["a"] * 200, value, value]}, dtype=object)
    declared = find_bounds(table, user="who", epsilon=32.0, seed=1, numeric=["odd"])
    assert declared.declared[0].value is None
    declared = find_bounds(table, user="who", epsilon=8.0, seed=1, items=True, categorical=["odd"])
    assert declared.declared[0].value == ["a"]


module = importlib.import_module("quoron.releases.mean")
ROWS = np.random.default_rng(0).normal([3.0, -1.0, 0.0, 0.5, 2.0], 0.05, size=(20_000, 5))
TRUTH = ROWS.mean(axis=0)
METHODS = ["learnt", "clip", "two-stage", "range", "robust"]
every = pytest.mark.parametrize("method", METHODS)


def found(users=ROWS, epsilon=1.0, delta=1e-6, **keywords) -> PrivateMean:
    return mean(users, epsilon=epsilon, delta=delta, **{"bound": 10.0, "spread": 0.3, "seed": 1, **keywords})


@every
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_no_user_can_raise_or_move_the_mean_far(method, bad):
    users = ROWS.copy()
    users[7] = bad
    users.flags.writeable = False  # nothing is copied that need not be, and nobody's array is written to
    mean = found(users, method=method)
    assert np.linalg.norm(mean.value - TRUTH) < 20 * mean.noise_scale + 2 * mean.radius / 2000


@pytest.mark.parametrize(("method", "value"), [("clip", 0.999), ("learnt", 1.0)])
def test_a_user_who_overflows_alone_is_absent_alone(method, value):
    """The divisor stays: who is absent counts as the centre."""
    items = [np.full((2, 5), 1.7e308), *[np.ones((2, 5))] * 999]
    mean = found(items, spread=None, method=method)
    assert np.linalg.norm(mean.value - value) < 20 * mean.noise_scale + 1e-9


@pytest.mark.parametrize("method", ["learnt", "range", "robust"])
def test_too_few_users_are_told_how_many_it_takes(method):
    with pytest.raises(Infeasible, match=r"users >=|n >= "):
        found(ROWS[:50], method=method)


def with_outliers(share=0.01):
    """The users, some of whom have moved to the far corner of what may be; and the mean of the others."""
    users, moved = ROWS.copy(), int(share * len(ROWS))
    users[:moved] = -10.0 / math.sqrt(5)
    return users, users[moved:].mean(axis=0)


def test_one_in_a_hundred_at_the_far_corner_does_a_robust_mean_no_harm():
    """Its error is that of its noise, near the clean mean's; plain clipping is off by a hundredth of the way."""
    users, honest = with_outliers()
    clean = found(method="two-stage")
    robust, plain = found(users, outliers=0.01), found(users, method="clip")
    assert robust.method == "robust"
    assert robust.noise_scale < 2 * clean.noise_scale
    # Seven standard deviations in each of five coordinates: false alarm below 1e-10.
    assert np.abs(robust.value - honest).max() < 7 * robust.noise_scale + 1e-3
    error = np.linalg.norm(robust.value - honest)
    assert np.linalg.norm(plain.value - honest) > 10 * max(error, 7 * robust.noise_scale)


def test_a_robust_mean_whose_error_may_be_as_long_as_its_bound_is_refused_with_the_users_that_would_do() -> None:
    given = {"epsilon": 0.3, "delta": 1e-6, "bound": 1.0, "spread": 1.0, "method": "robust"}
    with pytest.raises(Infeasible, match=r"900 users .* are too few: the error is at most") as refused:
        mean(np.zeros((900, 30)), **given, population="few")
    assert refused.value.users is not None
    least = refused.value.users
    enough = mean(np.zeros((least, 30)), **given, seed=0)  # of a thousand draws one releases nothing
    assert enough.error.least < 1.0
    with pytest.raises(Infeasible):
        mean(np.zeros((least - 1, 30)), **given, population="few")
    assert str(enough.error).endswith("without outliers")


def test_a_silent_robust_mean_is_an_error_that_says_what_it_cost():
    users, _ = with_outliers(0.3)
    with pytest.raises(NothingReleased, match=r"Nothing was released: .* spread=0.3 .*, delta=1e-06\), is spent"):
        found(users, outliers=0.01)


def test_a_frame_of_numbers_counts_by_its_values_and_one_of_anything_else_is_refused_by_name():
    assert np.array_equal(found(pd.DataFrame(ROWS, columns=list("abcde"))).value, found(ROWS).value)
    for other in ("word", pd.Timestamp("2020-01-01"), 1j, None):
        with pytest.raises(DataError, match="columns name"):
            found(pd.DataFrame({"height": [1.0, 2.0], "name": [other, other]}))


FAR = [(1, None), (5, None), (30, None), (1, 3.0), (10, 10.0)]  # columns, and a declared radius of all users


def far(users, columns, times, seed=0):
    """Users of scale one, in a bound so many times as large as their typical length, and that bound."""
    bound = times * math.sqrt(columns)
    return np.random.default_rng([seed, users]).normal(0.45 * times, 1.0, (users, columns)), bound


def off(rows, radius=None, **given):
    """What was released, the error, and what was forecast of it for users in a ball of that radius."""
    found = mean(rows, **given)
    middle = rows.mean(axis=0)
    radius = np.linalg.norm(rows - middle, axis=1).max() if radius is None else radius
    return found, float(np.linalg.norm(found.value - middle)), found.error.within(radius)


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
@pytest.mark.parametrize("times", [10.0, 1e4, 1e6])
@pytest.mark.parametrize(("columns", "spread"), FAR)
def test_a_mean_is_refused_or_within_its_forecast_and_the_number_of_users_that_is_named_is_the_least(
    columns, spread, times, epsilon
):
    """Fixed seeds. The forecast is below the declared spread, or bound; public numbers decide."""
    few, bound = far(4, columns, times)
    given = {"epsilon": epsilon, "bound": bound, "spread": spread, "seed": 1}
    with pytest.raises(Infeasible, match=f"4 users at epsilon={epsilon:g}, delta=1e-06 are too few") as told:
        mean(few, **given)
    needed = told.value.users
    assert f"users >= {needed:,}" in str(told.value)
    for users in (needed, needed + 1, 2 * needed, 9 * needed):
        _, error, forecast = off(far(users, columns, times)[0], spread, **given)
        assert error <= forecast
        assert forecast < (spread or bound)
    with pytest.raises(Infeasible):
        mean(far(needed - 1, columns, times)[0], **given)


@pytest.mark.parametrize("method", ["auto", "clip"])
def test_the_epsilon_that_is_named_is_the_least_that_is_feasible(method):
    rows = far(100, 5, 100.0)[0]
    with pytest.raises(Infeasible, match=r"epsilon >= ") as told:
        mean(rows, epsilon=0.05, bound=250.0, method=method, seed=1)
    least = float(str(told.value).split("epsilon >= ")[1].rstrip("."))
    assert mean(rows, epsilon=least, bound=250.0, method=method, seed=1).error.within(250.0) < 250.0
    with pytest.raises(Infeasible):
        mean(rows, epsilon=least - 0.01, bound=250.0, method=method, seed=1)


@pytest.mark.parametrize(("columns", "times"), by_default([(1, 1e5), (5, 1e3), (30, 10.0)], [(1, 1e5)]))
def test_more_users_or_a_larger_epsilon_make_no_mean_worse_where_the_method_changes(columns, times):
    """Root mean squares of 20 fixed seeds: below and from the number on with which users' place is found."""
    with pytest.raises(Infeasible) as told:
        mean(far(4, columns, times)[0], epsilon=1.0, bound=far(4, columns, times)[1], method="learnt", seed=1)
    enough, errors = told.value.users, {}
    for users, epsilon in ((enough - 1, 1.0), (enough, 1.0), (enough - 1, 1.05), (2 * enough, 1.0)):
        runs = []
        for seed in range(20):
            rows, bound = far(users, columns, times, seed)
            found, error, _ = off(rows, epsilon=epsilon, bound=bound, seed=seed)
            runs.append(error)
        assert found.method == ("clip" if (users, epsilon) == (enough - 1, 1.0) else "learnt")
        errors[users, epsilon] = math.sqrt(np.mean(np.square(runs)))
    plain = errors.pop((enough - 1, 1.0))
    assert max(errors.values()) < plain
    assert errors[2 * enough, 1.0] < errors[enough, 1.0]


def test_the_forecast_is_logged_before_the_charge_and_printed_with_the_value(caplog, tmp_path):
    limit(tmp_path / "l.sqlite", epsilon=0.5, delta=1e-5)
    with caplog.at_level("INFO", logger="quoron"), pytest.raises(BudgetExceeded):
        mean(ROWS, epsilon=1.0, bound=10.0, ledger=tmp_path / "l.sqlite")
    assert str(found(spread=None, method="auto").error) in caplog.text
    assert dict(found(method="clip").rows())["error"].startswith("at most 0.0")


def test_what_a_masked_array_hides_is_not_there():
    hidden = np.where(np.arange(3000)[:, None] < 500, 9.0, ROWS[:3000])
    masked, gone = np.ma.masked_equal(hidden, 9.0), np.where(hidden == 9.0, np.nan, hidden)
    assert np.array_equal(found(masked).value, found(gone).value)
    assert np.array_equal(found(list(masked)).value, found(gone).value)


@pytest.mark.parametrize("declared", [True, False])
def test_every_question_is_answered_for_one_price(declared):
    known = DECLARED if declared else {}
    found = statistics(frame(), ALL, user="who", epsilon=4.0, **SEEDED, **known)
    wards = {row.group: row for row in found.of("count by ward")}
    assert set(wards) == {"north", "south", "west"}
    for name, share in (("north", 1 / 2), ("south", 1 / 3), ("west", 1 / 6)):
        assert wards[name].value == pytest.approx(share * USERS, abs=60)
        assert wards[name].low <= share * USERS <= wards[name].high
    bins = found.of("histogram of cost in 4 bins")
    assert sum(row.value for row in bins) == pytest.approx(USERS, abs=150)
    # Every user weighs one: the mean of 10, ..., 90, and not that of items, which is 63.3.
    for row in found.of("mean of cost by ward"):
        assert row.value == pytest.approx(50, abs=8)
        assert row.low < row.value < row.high
    quartile, middle = found.of("quantiles of cost at 0.25, 0.5")
    assert quartile.cell == "0.25"
    assert 27 < quartile.value < 42
    assert 37 < middle.value < 62
    assert ("estimated" in "".join(found.remarks).lower()) is not declared
    assert found.statement.startswith("SIMULATED")
    assert json.loads(json.dumps(found.as_json()))["users"] == USERS


def test_the_charge_is_the_whole_promise_and_stands_before_anything_is_told(ledger):
    statistics(frame(), ALL, user="who", epsilon=4.0, population="clinic", **DECLARED)
    statistics(frame(), ALL, user="who", epsilon=4.0, population="clinic")
    rows = told(ledger)
    assert [row["kind"] for row in rows] == ["charge", "release", "end"] * 2
    for charge in (rows[0]["payload"], rows[3]["payload"]):
        assert (charge["group"], charge["epsilon"], charge["delta"]) == ("clinic", 4.0, 1e-6)
        assert 0.5 < charge["mu"] < 1.0  # sums of squares, as training's
        assert "statistics.md#st1" in charge["statement"]
    assert [len(row["payload"]["statistics"]) for row in rows if row["kind"] == "release"] == [4, 7]


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_so_many_users_as_are_asked_for_do(epsilon):
    def call(users: int) -> None:
        own = pd.DataFrame({"who": np.arange(users), "value": np.random.default_rng(0).random(users)})
        asked = ["median of value", "mean of value", "histogram of value"]
        statistics(own, asked, user="who", epsilon=epsilon, numeric={"value": (0, 1)}, **SEEDED)

    least = 1
    for _ in range(4):  # each question says what it needs
        try:
            call(least)
            break
        except Infeasible as refused:
            least = int(refused.needs.split(" users")[0].replace(",", ""))
    assert 30 < least < 4000 / epsilon
    with pytest.raises(Infeasible):
        call(least - 1)


def test_bounds_are_charged_again_when_released_again_and_not_released_beyond_the_limit(ledger: Path) -> None:
    limit(ledger, "patients", epsilon=10.0, delta=1e-5)
    asked = {"items": True, "user": "who", "population": "patients", "ledger": str(ledger)}
    find_bounds(visits(), categorical=["ward"], epsilon=2.0, delta=1e-6, **asked)
    only = find_bounds(visits(), epsilon=3.0, **asked)
    with pytest.raises(BudgetExceeded, match="patients"):
        find_bounds(visits(), epsilon=10.5, **asked)
    first, second = charges(ledger, "patients")
    assert (first.epsilon, first.delta) == (2.0, 1e-6)
    assert (second.epsilon, second.delta, second.mu) == (3.0, 1e-6, only.mu)
    assert first.run != second.run


@every
def test_the_value_is_within_its_noise_of_the_mean_and_its_guarantee_the_one_that_was_asked_for(method):
    mean = found(method=method, epsilon=4.0, delta=1e-5)
    # Five coordinates, seven standard deviations: false alarm below 1e-10.
    assert np.abs(mean.value - TRUTH).max() < 7 * mean.noise_scale
    assert (mean.method, mean.epsilon, mean.delta) == (method, 4.0, 1e-5)
    for said in ("(4, 1e-05)", "adjacency replace-one", "docs/privacy/private-mean.md"):
        assert said in mean.statement


@every
def test_a_mean_is_charged_once_before_it_is_released_and_not_where_there_is_no_room(method, tmp_path):
    more = {"bound": 10.0, "spread": 0.3, "method": method, "ledger": tmp_path / "ledger.sqlite", "seed": 1}
    limit(tmp_path / "ledger.sqlite", epsilon=5.0, delta=1e-5)
    with (
        mock.patch.object(PopulationLedger, "release", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        mean(ROWS, epsilon=2.0, **more)  # killed when nothing is said yet: it is spent all the same
    assert mean(ROWS, epsilon=2.0, **more).method == method
    with pytest.raises(BudgetExceeded):
        mean(ROWS, epsilon=2.0, **more)
    assert [charge.epsilon for charge in charges(tmp_path / "ledger.sqlite")] == [2.0, 2.0]


def test_a_robust_mean_of_users_who_do_not_agree_is_charged_and_its_silence_kept(tmp_path):
    far = np.concatenate([ROWS[:10_000], ROWS[:10_000] + 5.0])
    with pytest.raises(NothingReleased):
        mean(far, epsilon=2.0, bound=20.0, spread=0.5, outliers=0.01, ledger=tmp_path / "ledger.sqlite")
    assert len(charges(tmp_path / "ledger.sqlite")) == 1


@pytest.mark.parametrize("users", [3, 50, 82])
def test_the_users_that_a_robust_mean_asks_for_are_enough_and_one_fewer_are_not(users):
    declared = {"bound": 10.0, "spread": 0.5, "outliers": 0.01}
    with pytest.raises(Infeasible, match="needs users >=") as refused:
        found(ROWS[:users, :3], **declared)
    needed = refused.value.users
    assert found(ROWS[:needed, :3], **declared).method == "robust"
    with pytest.raises(Infeasible):
        found(ROWS[: needed - 1, :3], **declared)


PROMISE = ReleaseGuarantee.central(1.0, 1e-6, "figures", "docs/privacy/statistics.md#st1")


def once(steps: list[Any], ledger: Path, seed: int | None = None, fails: bool = False) -> tuple[int, str]:
    """Release 7, and note each step; at the draw with what the ledger holds by then."""

    def verify() -> None:
        steps.append("verify")
        if fails:
            raise VerificationError("Expected less, got more.")

    def draw(noise: Any) -> tuple[int, dict[str, Any]]:
        steps.append((type(noise), len(charges(ledger)) if ledger.exists() else 0))
        return 7, {"seven": 7}

    given: dict[str, Any] = {"mu": 0.1, "variation": 1e-30, "population": None, "ledger": ledger}
    return release_once("seven", PROMISE, draw, verify, seed=seed, **given)


def test_a_release_is_verified_then_charged_then_drawn(tmp_path: Path) -> None:
    steps: list[Any] = []
    value, statement = once(steps, tmp_path / "ledger.sqlite")
    assert (value, steps) == (7, ["verify", (SecureNoise, 1)])
    (charge,) = charges(tmp_path / "ledger.sqlite")
    assert (charge.epsilon, charge.delta, charge.mu, charge.variation) == (1.0, 1e-6, 0.1, 1e-30)
    assert statement.startswith("(1, 1e-06)-differential privacy for all items of any one user at once")


def test_what_the_second_account_refuses_is_neither_charged_nor_drawn(tmp_path: Path) -> None:
    steps: list[Any] = []
    with pytest.raises(VerificationError):
        once(steps, tmp_path / "ledger.sqlite", fails=True)
    assert steps == ["verify"]
    assert not (tmp_path / "ledger.sqlite").exists()


def test_with_a_seed_the_sentence_says_simulated_and_only_a_given_ledger_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    value, statement = once(steps, tmp_path / "ledger.sqlite", seed=3)
    assert (value, steps) == (7, ["verify", (SeededNoise, 1)])
    assert statement.startswith("SIMULATED")
    monkeypatch.setenv(lifetime.VARIABLE, str(tmp_path / "usual.sqlite"))
    given: dict[str, Any] = {"seed": 3, "population": None, "ledger": None}
    assert release_once("seven", PROMISE, lambda _: (7, {}), lambda: None, **given) == (7, statement)
    assert not (tmp_path / "usual.sqlite").exists()


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 15.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_the_second_account_accepts_what_is_promised_and_no_more(epsilon: float, delta: float) -> None:
    mu = gdp.mu_for(epsilon, delta)
    verify_gaussian("private mean", mu * (1 - 1e-9), 1e-40, epsilon, delta)
    with pytest.raises(Infeasible):
        verify_gaussian("private mean", mu * (1 + 1e-7), 1e-40, epsilon, delta)


@pytest.mark.parametrize("dimension", [1, 20])
@pytest.mark.parametrize("epsilon", [0.05, 15.0])
@pytest.mark.parametrize("delta", [1e-12, 0.1])
def test_a_mean_is_calibrated_below_what_the_second_account_accepts(
    epsilon: float, delta: float, dimension: int, tmp_path: Path
) -> None:
    values = np.zeros((200_000, dimension), np.float32)
    quoron.mean(values, epsilon=epsilon, delta=delta, bound=1.0, method="clip", seed=0, ledger=tmp_path / "l.sqlite")
    (charge,) = charges(tmp_path / "l.sqlite")
    assert charge.mu is not None
    assert DominatingPair.gaussian(charge.mu, charge.variation).delta(epsilon, delta) <= delta
