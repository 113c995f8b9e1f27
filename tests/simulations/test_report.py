"""What people are shown: pages that load nothing and mark what is private, one screen, progress, whole files."""

import io
import json
import math
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from scipy.stats import norm

import quoron
from committed import charges
from pages import Page, check_loads_nothing
from quoron.cli import showing
from quoron.cli.app import invoke
from quoron.federation.control import words
from quoron.reports import page as parts
from quoron.reports import pages
from quoron.reports.pages import ALARMS, Odds, rounded_up
from quoron.reports.summary import Summary
from quoron.reports.terminal import Terminal
from quoron.results import percent
from quoron.run_folder import RunFolder
from quoron.sklearn import DoubtfulModel, PrivateLogisticRegression
from quoron_client.federation.session import _printable
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, RunError, printable
from summaries import EXAMPLE

SUMMARY = Summary(**EXAMPLE)
HOSTILE = ('<script>alert("1")</script>', 'it\'s "quoted" & <b>', "\u200fعمر radio", "x" * 400)


@pytest.fixture
def page(tmp_path: Path) -> Any:
    def written(summary: Summary) -> str:
        pages.write_simulation(RunFolder(tmp_path), summary, None)
        return (tmp_path / "report.html").read_text()

    return written


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of `train` on columns whose names would break a page that believed them."""
    place, draw = tmp_path_factory.mktemp("trained"), np.random.default_rng(5)
    columns = {name: draw.uniform(0, 1, 2000) for name in HOSTILE[:3]}
    words = draw.choice(["<i>a</i>", "b"], 2000)
    frame = pd.DataFrame({"who": np.arange(2000), **columns, HOSTILE[3]: words, "ill": draw.integers(0, 2, 2000)})
    features = {"numeric": dict.fromkeys(columns, (0, 1)), "categorical": {HOSTILE[3]: ["<i>a</i>", "b"]}}
    told: dict[str, Any] = {"user": "who", "label": "ill", "columns": features, "epsilon": 8.0, "delta": 1e-5}
    told |= {"out": place / "run", "algorithm": "one-pass-dp-sgd"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QUORON_LEDGER", str(place / "ledger.sqlite"))
        return quoron.train(frame, **told)


def test_pages_load_nothing_whatever_is_in_them(page: Any, trained: Any) -> None:
    told = {"statement": "<b>&", "choice": HOSTILE[0], "remarks_simulation_only": HOSTILE}
    for text in (page(SUMMARY), page(Summary(**{**EXAMPLE, **told}))):
        check_loads_nothing(text)
    check_loads_nothing((trained.directory / "report.html").read_text())


def test_names_and_texts_are_escaped_whole_and_isolated(trained: Any) -> None:
    """A right-to-left mark of a name ends with the name."""
    text = (trained.directory / "report.html").read_text()
    for name in HOSTILE:
        assert name not in text.replace(HOSTILE[2], "") or name in HOSTILE[2:]
        assert any(name in words for words in Page(text).facts())
        assert f"<bdi>{parts.text(name)}" in text
    assert parts.text("half \ud800 a pair").isprintable()


def test_a_model_card_says_in_markdown_what_the_report_says_and_names_make_nothing_of_it(trained: Any) -> None:
    card = (trained.directory / "model-card.md").read_text()
    parsed = MarkdownIt("commonmark").enable("table").parse(card)
    inner = [part for token in parsed for part in token.children or ()]
    assert {part.type for part in inner} == {"text"}
    assert not any(token.type.startswith(("html", "fence", "code")) for token in parsed)
    said = " ".join(" ".join(part.content for part in inner).split())
    for told in (trained.statement, "What the model says", "What this means for one person"):
        assert " ".join(told.split()) in said
    for name in (*HOSTILE, "users"):
        assert " ".join(name.split()) in said


def test_what_depends_on_private_data_is_marked_everywhere(page: Any) -> None:
    remarks = ("The table has <one> user.",)
    test = {"accuracy": 0.7}
    summary = replace(SUMMARY, remarks_simulation_only=remarks, test=test, unfit_simulation_only={"age": 0.125})
    text = page(summary)
    badge = str(parts.BADGE)
    assert f"{badge} How good the model is</h" in text
    marked = {label.removeprefix("simulation only ") for label in Page(text).facts() if label.startswith("simulation")}
    assert marked == {"users filtered", "values that do not fit", "time, peak memory"}
    assert f"{badge} To take care of</h2>\n<ul><li>The table has &lt;one&gt; user." in text
    assert "nothing on this page protects anybody" in text


PEOPLE = 600


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "ledger.sqlite"))
    random = np.random.default_rng(5)
    who = np.repeat(np.arange(PEOPLE), 3)
    values = {f"x{each}": random.uniform(0, 100, len(who)) for each in range(30)}
    people = pd.DataFrame({"who": who, **values, "ill": random.random(len(who)) < values["x0"] / 100})
    people.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path


def screen(words: list[str], monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    """Lines that a terminal of so many columns shows."""
    shown = io.StringIO()
    monkeypatch.setattr(showing, "console", lambda: Terminal(width=width, force_terminal=True, file=shown))
    assert invoke(words) == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    return [each[at : at + width] for each in plain.splitlines() for at in range(0, max(len(each), 1), width)]


SAID: dict[str, Any] = {
    "user": "who",
    "label": "ill",
    "columns": {"numeric": {"x0": (0, 100)}},
    "epsilon": 2.0,
    "delta": 1e-6,
    "data_quality": 0,
    "algorithm": "one-pass-dp-sgd",
    "options": {"rounds": 4},
}


def test_no_warning_is_hidden(place: Path) -> None:
    trained = quoron.train("people.csv", **SAID, out="trained")
    warned = tuple(f"Doubt {each} {'it may be worthless ' * 20}" for each in range(9))
    shown = showing.sections_of(replace(trained, summary=replace(trained.summary, warnings=warned)))
    assert [each.warnings for each in shown if each.warnings and not each.detail] == [[*warned, trained.summary.unseen]]


@pytest.mark.slow
def test_a_plan_no_better_than_not_training_says_so_first_and_before_the_charge(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.read_csv("people.csv").iloc[:1320]  # of 440 users
    table.to_csv("few.csv", index=False)
    said: dict[str, Any] = {"user": "who", "label": "ill", "columns": {"numeric": {"x*": (0, 100)}}, "epsilon": 1.0}
    sentence = "No better than not training, as far as the bound says: with 440 users for 31 coefficients at ε = 1 "
    planned = quoron.train("few.csv", **said, dry_run=True)
    assert planned.as_json()["remarks"][0] == planned.doubts[0]
    assert quoron.plan("few.csv", **said | {"epsilon": 8.0, "columns": {"numeric": {"x0": (0, 100)}}}).doubts == ()
    words = ["few.csv", "--user", "who", "--label", "ill", "--epsilon", "1", "--numeric", "x*=0:100"]
    dry = ["train", *words, "--dry-run"]
    for command in (["simulate", *words], dry):
        assert " ".join(screen(command, monkeypatch, 80)).startswith("Warning: No better than not training, as far as")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DoubtfulModel)
        with pytest.raises(DoubtfulModel, match=re.escape(sentence)):
            quoron.train("few.csv", **said, out="stopped")
        with pytest.raises(DoubtfulModel, match="No better than not training"):
            quoron.tune("people.csv", **said, vary={"loss.ridge": [0, 0.1]}, out="searched")
        rows, ill, who = table.filter(like="x"), table["ill"], table["who"]
        with pytest.raises(DoubtfulModel, match=re.escape(sentence)):
            PrivateLogisticRegression(epsilon=1.0, bounds=(0, 100), classes=[False, True]).fit(rows, ill, groups=who)
    assert list(charges(Path("ledger.sqlite"))) == []
    capsys.readouterr()
    assert invoke(["--quiet", "train", *words]) == 0
    assert f"Warning: {sentence}" in capsys.readouterr().err


def test_columns_named_as_identifiers_are_features_only_where_they_are_declared(place: Path) -> None:
    people = pd.read_csv("people.csv")[["who", "x0", "ill"]]
    for name in ("id", "visit_id", "patientID", "case id", "covid", "paid"):
        people[name] = 1.0 * np.arange(len(people))
    people.to_parquet("ids.parquet")
    said: dict[str, Any] = {"user": "who", "label": "ill", "epsilon": 6.0}

    def left_out(**columns: Any) -> list[str]:
        remarks = quoron.train("ids.parquet", **said, columns=columns, dry_run=True).remarks
        return [each.split("'")[1] for each in remarks if "its name is an identifier's. To use it declare it" in each]

    assert left_out() == ["id", "visit_id", "patientID", "case id"]
    assert left_out(numeric={"visit_id": (0, 1800)}, estimate={"id": "any", "*": "any"}) == ["patientID", "case id"]
    people[["who", "visit_id", "ill"]].to_parquet("only.parquet")
    with pytest.raises(ConfigError, match=r"Expected features, got none. Column 'visit_id' is left out"):
        quoron.train("only.parquet", **said)


MOVING = "age\x1b[2J\x1b]0;title\x07\r\x9b31m\u202e\udc80"


def harmless(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" for each in text)


@given(st.text())
def test_what_is_printable_is_left_as_it_is_and_the_rest_is_told(text: str) -> None:
    shown = printable(text)
    assert harmless(shown)
    assert shown == text if harmless(text) else shown != text


def test_a_header_with_control_characters_reaches_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "visits.csv").write_text(f"patient,{MOVING[:-1]},ill\na,1,yes\n", encoding="utf-8")
    (tmp_path / "table.toml").write_text(
        """
        [population]
        kind = "table"
        path = "visits.csv"
        columns.csv = { separator = "," }
        user = "nobody"
        label = "ill"
        columns.numeric = { age = [0, 100] }

        [privacy]
        epsilon = 1.0
        """,
        encoding="utf-8",
    )
    assert invoke(["train", str(tmp_path / "table.toml"), "--out", str(tmp_path / "run")]) != 0
    printed = capsys.readouterr()
    assert "age" in printed.err
    assert harmless(printed.out + printed.err)


def test_a_coordinator_cannot_write_on_an_operators_terminal() -> None:
    for event in (
        {"kind": "ended", "how": MOVING, "error": f"{MOVING}\nround 1 of 1: done"},
        {"kind": "paused", "error": MOVING},
        {"round": 0, "rounds": 1, "messages": 3, "kind": "round", "public": {MOVING: MOVING}},
    ):
        line = words(event)
        assert harmless(line)
        assert "\n" not in line
    assert "\n" not in _printable(f"{MOVING}\n{MOVING}")


def test_a_json_file_comes_back_and_any_change_of_it_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    values = {"b": [1, 2.5, None, "ü"], "a": {"x": True}}
    folder.write_json("plan.json", values | {"endless": float("inf")})
    assert folder.read_json("plan.json") == values | {"endless": None}
    text = (tmp_path / "plan.json").read_text()
    laid_out = json.dumps(json.loads(text), indent=4)
    (tmp_path / "plan.json").write_text(laid_out)
    assert folder.read_json("plan.json") == values | {"endless": None}  # an editor may have laid it out
    for other in (text.replace("2.5", "2.25"), text.replace("sha256", "sha"), text[:-9], "", "[]", "1", "[" * 10**5):
        (tmp_path / "plan.json").write_text(other)
        with pytest.raises(RunError, match=r"plan.json as it was written"):
            folder.read_json("plan.json")
    (tmp_path / "plan.json").write_bytes(b"\xff")
    with pytest.raises(RunError, match=r"plan.json as it was written"):
        folder.read_json("plan.json")


def test_a_damaged_model_or_configuration_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_model(np.arange(5.0))
    whole = (tmp_path / "model.npz").read_bytes()
    for at in range(0, len(whole), 3):
        (tmp_path / "model.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            assert folder.model().tolist() == [0, 1, 2, 3, 4]
        except RunError:
            continue
    (tmp_path / "model.npz").write_bytes(whole[:-30])
    with pytest.raises(RunError, match=r"model.npz as it was written"):
        folder.model()
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"Expected .*config.toml to be UTF-8 text"):
        folder.config()


def test_no_file_is_written_through_a_link(tmp_path):
    (tmp_path / "run").mkdir()
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for name in (".plan.json.new", "plan.json"):
        (tmp_path / "run" / name).symlink_to(mine)
    RunFolder(tmp_path / "run").write_json("plan.json", {})
    assert mine.read_text() == "mine"
    assert not (tmp_path / "run" / "plan.json").is_symlink()


def test_a_full_disk_leaves_the_old_file_and_no_scraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.write_text("report.html", "old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quoron_client.durable.os.fsync", full)
    with pytest.raises(RunError, match=r"report\.html: No space left on device\. Make room, then continue with"):
        folder.write_text("report.html", "new")
    assert (tmp_path / "report.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


GRID = np.linspace(1e-4, 1 - 1e-4, 801)


def best(alarms: np.ndarray, odds: Odds) -> np.ndarray:
    return np.array([odds.power(float(alarm)) for alarm in alarms])


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (1.0, 0.05), (8.0, 1e-6), (50.0, 1e-9)])
def test_randomised_response_that_reveals_with_chance_delta_meets_the_bounds_and_nothing_is_beyond(epsilon, delta):
    """The worst (ε, δ) pair there is (docs/privacy/gaussian.md#od1): its own trade-off is the bound."""
    kept = (1 - delta) / (1 + math.exp(-epsilon))
    one = np.array([delta, kept, 1 - delta - kept, 0.0])  # tells it, says it, says the other, tells the other
    other = one[::-1]
    alarms = np.concatenate([[0.0], np.cumsum(other)])
    found = np.concatenate([[0.0], np.cumsum(one)])
    odds = Odds(epsilon, delta)
    assert best(GRID, odds) == pytest.approx(np.interp(GRID, alarms, found), abs=1e-12)
    assert odds.right == pytest.approx(float(np.max(found + 1 - alarms)) / 2, abs=1e-12)


@pytest.mark.parametrize("mu", [0.05, 0.2367, 1.0, 4.0])
def test_of_a_gaussian_run_the_bounds_are_those_of_the_best_threshold(mu):
    epsilon, delta = gdp.epsilon_for(mu, 1e-6), 1e-6
    odds = Odds(epsilon, delta, mu)
    cuts = np.linspace(-8, 8 + mu, 4001)  # says yes beyond a cut of N(0, 1) or N(μ, 1)
    alarms, found = norm.sf(cuts), norm.sf(cuts - mu)
    assert best(alarms, odds) == pytest.approx(found, abs=1e-9)
    assert odds.right == pytest.approx(float(np.max(found + 1 - alarms)) / 2, abs=1e-6)
    assert np.all(best(GRID, odds) <= best(GRID, Odds(epsilon, delta)) + 1e-12)
    assert odds.right <= Odds(epsilon, delta).right


def test_samplers_that_are_not_exact_are_counted_on_both_sides():
    """Laws within s of those of a Gaussian pair: the one moves s of its mass to where it tells most, the other away."""
    mu, lack = 0.5, 0.01
    odds = Odds(30.0, 1e-9, mu, lack)
    alarms = np.linspace(0.01, 0.9, 90)
    moved = np.minimum(norm.cdf(norm.ppf(alarms + lack) + mu) + lack, 1.0)
    assert best(alarms, odds) == pytest.approx(moved, abs=1e-9)
    assert odds.right == pytest.approx(norm.cdf(mu / 2) + lack)


def test_odds_rise_beyond_the_factor_as_rarely_as_is_said():
    """gaussian#od3: of the Gaussian pair the loss exceeds ε + log 2 with chance 2δ at most; so for the worst one."""
    for mu in (0.1, 0.2367, 1.0, 3.0):
        for delta in (1e-9, 1e-6, 1e-3):
            epsilon = gdp.epsilon_for(mu, delta)
            assert norm.sf((epsilon + math.log(2) - mu**2 / 2) / mu) <= 2 * delta
    naive = norm.sf((gdp.epsilon_for(0.2367, 1e-6) - 0.2367**2 / 2) / 0.2367)
    assert naive > 1e-6  # "beyond e to the ε with probability δ at most" is wrong


def test_a_broken_reading_is_told_by_the_worst_pair():
    """The twin forgets δ: the response that reveals is found more often than it says."""
    epsilon, delta = 0.1, 0.05
    reached = delta + math.exp(epsilon) * ALARMS
    assert Odds(epsilon, delta).power(ALARMS) >= reached - 1e-12
    assert Odds(epsilon, 0.0).power(ALARMS) < reached


def test_what_is_told_is_never_rounded_below_what_is_proved():
    for share in np.random.default_rng(0).uniform(0, 1, 200):
        assert float(percent(share).removesuffix(" %")) >= 100 * share - 1e-9
    for value in (1.0001, 2.7182, 5.43656, 99.94, 44052.9):
        assert value <= float(rounded_up(value).replace(",", "")) <= 1.01 * value
    assert percent(0.05) == "5 %"
