"""`quoron statistics`: what is told of tables and arrays, what it is charged, and that no row's value raises."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pages import Page, check_loads_nothing
from quoron.cli.app import invoke
from quoron.counting.door import statistics
from quoron.sections import Privacy
from quoron.training import lifetime
from quoron_privacy.errors import BudgetExceeded, ConfigError, DataError, Infeasible
from quoron_server.books.database import Database
from quoron_server.books.lifetime_ledger import PopulationLedger

pytestmark = pytest.mark.usefixtures("own_ledger")
USERS = 3000
SEEDED = Privacy(simulation_seed=3)
ALL = [
    "count by ward",
    "histogram of cost in 4 bins",
    "quantiles of cost at 0.25, 0.5",
    "mean of cost by ward",
]
DECLARED = {"numeric": {"cost": (0, 100)}, "categorical": {"ward": ["north", "south", "west"]}}


@pytest.fixture
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual place of a lifetime ledger, for this test alone."""
    path = tmp_path / "data" / "usual.sqlite"
    monkeypatch.setenv("QUORON_LEDGER", str(path))
    return path


def frame() -> pd.DataFrame:
    """Up to nine rows a user: half of the users north, a third south, and west; the more rows the larger the cost."""
    held = 1 + np.arange(USERS) % 9
    who = np.repeat(np.arange(USERS), held)
    ward = np.array(["north", "north", "north", "south", "south", "west"])[who // 9 % 6]
    cost = (10.0 * held[who]).astype(object)
    cost[::400], cost[1::400], cost[2::400] = "dear", None, math.nan
    return pd.DataFrame({"who": [f"p{each}" for each in who], "ward": ward, "cost": cost})


def told(ledger: Path) -> list[dict]:
    with Database(f"sqlite:///{ledger}") as database:
        return PopulationLedger(database).rows()


def test_items_weigh_one_each_up_to_the_declared_most():
    asked = ["mean of cost", "count by ward"]
    found = statistics(frame(), asked, user="who", epsilon=8.0, items_per_user=9, privacy=SEEDED, **DECLARED)
    assert found.of("mean of cost")[0].value == pytest.approx(63.3, abs=3)
    items = sum(row.value for row in found.of("count by ward"))
    assert items == pytest.approx(5 * USERS, rel=0.03)
    some = statistics(frame(), asked, user="who", epsilon=8.0, items_per_user=3, privacy=SEEDED, **DECLARED)
    assert sum(row.value for row in some.of("count by ward")) == pytest.approx(USERS * 24 / 9, rel=0.03)


def test_a_user_with_many_items_moves_nothing_more_than_others():
    asked = ["count by ward", "mean of cost"]
    small = frame()
    large = pd.concat([small, pd.DataFrame({"who": "p0", "ward": "west", "cost": [0.0] * 50_000})], ignore_index=True)
    one, other = (
        statistics(each, asked, user="who", epsilon=4.0, privacy=SEEDED, **DECLARED) for each in (small, large)
    )
    moved = [abs(a.value - b.value) for a, b in zip(one.rows, other.rows, strict=True)]
    assert max(moved[:3]) <= 1 + 1e-5  # the noise is the same
    assert 0 < moved[3] < 0.05


def test_a_limit_without_room_tells_nothing(own_ledger, monkeypatch):
    with lifetime.opened(own_ledger) as ledger:
        ledger.limit("everyone", epsilon=1.0, delta=1e-5)
    monkeypatch.setattr("quoron.counting.door.held", lambda *_: pytest.fail("a value was looked at"))
    monkeypatch.setattr("quoron.training.votes.release", lambda *_: pytest.fail("a value was looked at"))
    for known in (DECLARED, {}):
        with pytest.raises(BudgetExceeded):
            statistics(frame(), ALL, user="who", epsilon=4.0, **known)
    assert [row["kind"] for row in told(own_ledger)] == ["limit"]


@pytest.mark.parametrize("text", ["count", "mean", "sum of cost", "", "count of cost", "mean of cost by cost"])
def test_what_is_no_question_is_refused(text):
    with pytest.raises(ConfigError, match="Expected"):
        statistics(frame(), text, user="who", epsilon=1.0)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"numeric": {"cost": (5, 5)}}, r"numeric\['cost'\]"),
        ({"questions": ["count by ward", "count by ward"]}, "got one twice"),
        ({"questions": "count by who"}, "it tells who is there"),
        ({"users": 5000}, "with adjacency zero-out and only there"),
        ({"dates": {"cost": ("yesterday", "today")}}, r"dates\['cost'\]"),
        ({"dates": ["cost"], "numeric": {"cost": (0, 1)}}, "as both"),
        ({"questions": "histogram of cost in months"}, "which months there are is public"),
        ({"privacy": Privacy(delta=0.01)}, "delta <= 1/n"),
    ],
)
def test_words_that_cannot_be_meant_are_refused_before_the_charge(words, match, own_ledger):
    with pytest.raises(ConfigError, match=match):
        statistics(frame(), **{"questions": ALL, "user": "who", "epsilon": 4.0} | words)
    assert not own_ledger.exists()


@pytest.mark.parametrize("value", ["none of it a number", None, np.nan, np.inf])
def test_a_column_without_numbers_has_no_figures_and_no_range_of_noise(value):
    visits = pd.DataFrame({"who": np.arange(3000), "cost": [value] * 3000})
    for question in ("mean of cost", "median of cost", "histogram of cost"):
        found = statistics(visits, question, user="who", epsilon=1.0, privacy=SEEDED)
        assert found.rows == ()
        assert "nothing of cost" in found.remarks[0]


def test_groups_that_no_two_dozen_users_share_are_none():
    own = [[f"word {place}"] for place in range(5000)]
    found = statistics(own, "count by value", epsilon=1.0, privacy=SEEDED)
    assert found.rows == ()
    assert "no values of value" in found.remarks[0]


def stays(**more) -> pd.DataFrame:
    """Half of the users came in January 2023, a third in March, and the others never; each three times."""
    when = np.array(["2023-01-15", "2023-01-15", "2023-01-15", "2023-03-02", "2023-03-02", "?"])[np.arange(USERS) % 6]
    return pd.DataFrame({"who": np.repeat(np.arange(USERS), 3), "came": np.repeat(when, 3)} | more)


@pytest.mark.parametrize("known", [DECLARED, {}])
def test_under_zero_out_whether_somebody_is_there_is_private(known, own_ledger):
    """Noise is less by the root of two than with replace-one, and how many there are is told with noise."""
    private = Privacy(adjacency="zero-out")
    found = statistics(frame(), ["count", *ALL], user="who", epsilon=4.0, privacy=private, users=5000, **known)
    assert found.users == 5000
    assert "adjacency zero-out" in found.statement
    everybody = found.of("count")[0]
    assert everybody.low < USERS < everybody.high < USERS + 200
    assert told(own_ledger)[0]["payload"]["adjacency"] == "zero-out"
    one, other = (
        statistics(frame(), "count by ward", user="who", epsilon=4.0, **DECLARED, **more)
        for more in ({"privacy": SEEDED}, {"privacy": Privacy(simulation_seed=3, adjacency="zero-out"), "users": USERS})
    )
    there = frame().drop_duplicates("who").ward.value_counts()
    first, second = ([row.value - there[row.group] for row in each.rows] for each in (one, other))
    assert np.divide(first, second) == pytest.approx(2**0.5, rel=1e-3)
    for nobody in (frame().assign(who=None), frame().iloc[:0]):
        for asked in ("count", "mean of cost", "count by ward"):
            found = statistics(nobody, asked, user="who", epsilon=4.0, privacy=private, users=5000, **DECLARED)
            assert found.of("count")[0].value < 50 if asked == "count" else found.rows
    with pytest.raises(DataError, match="at most users=100"):
        statistics(frame(), "count", user="who", epsilon=4.0, privacy=private, users=100)


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
def test_a_hostile_table_is_refused_before_the_charge_or_answered(name, own_ledger):
    made, said = HOSTILE[name]
    known = {"user": "who", "epsilon": 2.0, "numeric": {"x": (0, 10)}}
    if said is None:
        found = statistics(pd.DataFrame(made), ["mean of x", "median of x"], **known)
        assert all(0 <= row.low <= row.high <= 10 for row in found.rows)
        return
    with pytest.raises((DataError, Infeasible), match=said):
        statistics(pd.DataFrame(made), ["mean of x", "median of x"], **known)
    assert not own_ledger.exists()


def test_a_missing_column_is_a_data_error():
    with pytest.raises(DataError, match="'price'"):
        statistics(frame(), "mean of price", user="who", epsilon=1.0)
    with pytest.raises(DataError, match="arrays of numbers or words"):
        statistics([[None], [3]], "mean of value", epsilon=1.0)


def test_the_command_says_what_python_says(tmp_path, capsys, own_ledger):
    path = tmp_path / "visits.csv"
    frame().to_csv(path, index=False)
    words = ["--user", "who", "--epsilon", "2", "--numeric", "cost=0:100", "--categorical", "ward=north,south,west"]
    assert invoke(["statistics", str(path), "count by ward", "median of cost", *words]) == 0
    said = capsys.readouterr().out
    assert "count by ward\n  north: 1" in said
    assert "adjacency replace-one" in said
    assert "95 %" in said
    assert invoke(["statistics", str(path), "mean of cost", "--user", "who", "--epsilon", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 40 < found["rows"][0]["value"] < 60
    assert found["remarks"]
    assert invoke(["statistics", str(path), "mean of cost", "--user", "who", "--epsilon", "0.02"]) == 2
    assert "users" in capsys.readouterr().err
    page, asked = tmp_path / "page.html", ["statistics", str(path), "count by ward", *words, "--report"]
    spent = len(told(own_ledger))
    assert invoke([*asked, str(tmp_path / "no folder" / "page.html")]) == 2
    assert "Make the folder" in capsys.readouterr().err
    assert len(told(own_ledger)) == spent
    assert invoke([*asked, str(page)]) == 0
    check_loads_nothing(page.read_text())
    north = capsys.readouterr().out.split("north: ")[1].split()[0]
    on_page = Page(page.read_text()).facts()["north"].split()[0].replace(",", "")
    assert abs(float(on_page) - float(north)) < 0.6  # one number: whole on the page, a tenth on the console
    stays().to_csv(path, index=False)
    words = ["--user", "who", "--epsilon", "4", "--adjacency", "zero-out", "--users", "5000"]
    asked = ["count", "histogram of came in years"]
    assert invoke(["statistics", str(path), *asked, *words, "--dates", "came=2022-01-01:2023-12-31"]) == 0
    said = capsys.readouterr().out
    assert "\n  2023: 2" in said
    assert "adjacency zero-out" in said
