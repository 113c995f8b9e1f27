"""A report is one page that loads nothing, says what its run folder holds, and marks what depends on private data."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from pages import Page, check_loads_nothing
from quoron.evaluating.evaluation import Bin, Evaluation, Figure
from quoron.network import Times
from quoron.reports import page as parts
from quoron.reports import simulated
from quoron.reports.pictures import Axis, Line, chart, gauge, ranking
from quoron.reports.summary import Summary, size
from quoron.run_folder import RunFolder, flat
from quoron.training import report as training
from quoron.training import result
from quoron_privacy.errors import RunError
from said import said
from summaries import EXAMPLE

pytestmark = pytest.mark.usefixtures("planned_once")

SUMMARY = Summary(**EXAMPLE)
HOSTILE = ('<script>alert("1")</script>', 'it\'s "quoted" & <b>', "\u200fعمر radio", "x" * 400)
FIGURES = (
    Figure("accuracy", "user", 0.69, 0.66, 0.72, 0.63, "majority", useless=False),
    Figure("AUC", "user", 0.742, 0.711, 0.773, 0.5, "chance", useless=False),
    Figure("AUC", "item", 0.6, 0.1, 1.1, 0.5, "chance", useless=True),
)
EVALUATION = Evaluation(
    FIGURES, (Bin(0.2, 0.25, 0.1, 0.4), Bin(0.7, 0.6, 0.5, 0.8)), 1000, 1.0, 1e-6, "A promise of its own."
)


def event(round_: int, **more: Any) -> dict[str, Any]:
    scores = {"score_min": 1.0, "score_median": 90.0 + round_, "score_max": 190.0, "threshold": 60.0, "filtered": 1}
    diagnostics = {**scores, "excess_risk": 0.1 / (round_ + 1)}
    values = {"round": round_, "rounds": 24, "asked": 100, "total_gradient_evaluations": 5000 * (round_ + 1)}
    public = {"epsilon_spent": float(round_ > 11), "radius": 1 / (1 + round_), "spread": 0.2}
    return {**values, "public": public, "diagnostics": diagnostics, **more}


NETWORK = {f"network.{part}": seconds for part, seconds in Times(waiting=0.1, upload=0.2).as_json().items()}
ROWS = [flat(event(round_)) | NETWORK for round_ in range(24)]
RISKS, RADII, USERS, SCORES, TIMES = (
    "Excess risk by round",
    "Private radius by round",
    "Users by round",
    "Scores against the threshold",
    "Projected time by round",
)


@pytest.fixture
def page(tmp_path: Path) -> Any:
    return lambda summary, rows=(): simulated.html(RunFolder(tmp_path), summary, None, rows)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of `train` on columns whose names would break a page that believed them."""
    place, draw = tmp_path_factory.mktemp("trained"), np.random.default_rng(5)
    columns = {name: draw.uniform(0, 1, 2000) for name in HOSTILE[:3]}
    words = draw.choice(["<i>a</i>", "b"], 2000)
    frame = pd.DataFrame({"who": np.arange(2000), **columns, HOSTILE[3]: words, "ill": draw.integers(0, 2, 2000)})
    features = {"numeric": dict.fromkeys(columns, (0, 1)), "categorical": {HOSTILE[3]: ["<i>a</i>", "b"]}}
    told = said(
        user="who", label="ill", **features, epsilon=8.0, delta=1e-5, out=place / "run", algorithm="one-pass-dp-sgd"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QUORON_LEDGER", str(place / "ledger.sqlite"))
        return quoron.train(frame, **told)


def drawn(text: str) -> list[str]:
    """Labels of the pictures."""
    return [str(a["aria-label"]) for tag, a, _ in Page(text).elements if tag == "svg" and a.get("role") == "img"]


def test_pages_load_nothing_whatever_is_in_them(page: Any, trained: Any) -> None:
    told = {"statement": "<b>&", "choice": HOSTILE[0], "remarks_simulation_only": HOSTILE}
    for text in (page(SUMMARY, ROWS), page(Summary(**{**EXAMPLE, **told}), [])):
        check_loads_nothing(text)
    check_loads_nothing((trained.directory / "report.html").read_text())


def test_names_and_texts_are_escaped_whole_and_isolated(trained: Any) -> None:
    """A right-to-left mark of a name ends with the name; what is too long for a picture is told whole."""
    text = (trained.directory / "report.html").read_text()
    for name in HOSTILE:
        assert name not in text.replace(HOSTILE[2], "") or name in HOSTILE[2:]
        assert any(name in words for words in Page(text).facts())
        assert f"<bdi>{parts.text(name)}" in text
    assert parts.text("half \ud800 a pair").isprintable()
    name = "<" * 50
    assert f"<title>{parts.text(name)}</title>" in ranking(
        "a", [(name, 1.0, (None, None), ""), ("b", 2.0, (None, None), "")]
    )


def test_a_training_report_says_what_the_files_of_its_folder_hold(trained: Any) -> None:
    folder = RunFolder(trained.directory)
    text = (trained.directory / "report.html").read_text()
    found, told = Page(text), json.loads((trained.directory / "summary.json").read_text())
    facts, model = found.facts(), json.loads((trained.directory / "model.json").read_text())
    for name, value in model["coefficients"].items():
        shown, odds = facts[" ".join(name.split())].split()
        assert float(shown) == pytest.approx(float(value), rel=1e-3)
        assert float(odds) == pytest.approx(math.exp(float(value)), rel=1e-2)
    for line in trained.summary.health.lines if trained.summary.health else ():
        assert facts[" ".join(line.what.split())] == line.text(told["health"]["users"])
    assert told["statement"] in " ".join(found.texts("blockquote"))
    assert f"ε = {told['epsilon']:g}, δ = {told['delta']:g}, μ = {told['mu']:.4g}" in facts["charged for this run"]
    assert facts["all of the group's runs together"].startswith(f"ε = {told['group_epsilon']:.4g} ")
    assert facts["digest of its plan"] == model["promise"]["plan"]
    assert facts["begun on"] == model["promise"]["made"]
    assert facts["by quoron"] == quoron.__version__ == told["version"]
    assert folder.path.joinpath("config.toml").read_text() in "".join(
        "".join(inner) for tag, _, inner in found.elements if tag == "pre"
    )
    assert f"{trained.summary.users:,}" in found.texts("b")
    assert "simulation only" not in text
    assert drawn(text) == [
        "Columns by how far they move the model",
        "Share of people found against share of people falsely accused",
    ]


def test_a_report_is_written_again_to_the_same_bytes(trained: Any) -> None:
    before = (trained.directory / "report.html").read_bytes()
    assert quoron.report(trained.directory).read_bytes() == before


def test_an_evaluation_is_shown_with_intervals_baselines_and_verdicts(trained: Any) -> None:
    done = result.stored(RunFolder(trained.directory))
    summary = replace(done.summary, evaluation=EVALUATION, group_left="ε = 2, δ = 1e-06")
    text = training.html(RunFolder(trained.directory), summary, done.model, [])
    page, facts = Page(text), Page(text).facts()
    check_loads_nothing(text)
    assert facts["AUC per user"] == "0.742 0.711 to 0.773 0.5 (chance) higher is better"
    assert facts["accuracy per user"] == "0.69 0.66 to 0.72 0.63 (majority) higher is better"
    assert facts["AUC per item"].endswith("too wide to say anything")
    assert page.texts("b")[0] == "0.742"  # first of all
    assert "95 %: 0.711 to 0.773; chance 0.5" in page.texts("span")
    assert "left: ε = 2, δ = 1e-06" in page.texts("span")
    assert "Observed against predicted chances" in drawn(text)
    assert EVALUATION.statement in " ".join(page.texts("blockquote"))
    assert "Observed against predicted chances" not in drawn((trained.directory / "report.html").read_text())


def test_a_simulation_shows_what_its_summary_and_its_rounds_hold(page: Any) -> None:
    text = page(SUMMARY, ROWS)
    facts = Page(text).facts()
    for label, words in SUMMARY.rows():
        assert facts[label].removeprefix("simulation only ") == words
    assert SUMMARY.statement in text
    line = points(text, RISKS)
    values = [math.log(SUMMARY.excess_risk_initial or 0.0), *(math.log(row["simulation.excess_risk"]) for row in ROWS)]
    assert np.corrcoef(values, [y for _, y in line])[0, 1] == pytest.approx(-1, abs=1e-5)  # heights are the values
    assert np.corrcoef(range(25), [x for x, _ in line])[0, 1] == pytest.approx(1, abs=1e-5)


def points(text: str, title: str) -> list[tuple[float, float]]:
    """Of a picture's first line."""
    inner = text.split(f'aria-label="{title}"', 1)[1].partition('points="')[2].partition('"')[0]
    return [(float(x), float(y)) for x, _, y in (each.partition(",") for each in inner.split())]


def test_what_depends_on_private_data_is_marked_everywhere(page: Any) -> None:
    remarks = ("The table has <one> user.",)
    test = {"accuracy": 0.7}
    summary = replace(SUMMARY, remarks_simulation_only=remarks, test=test, clipped_simulation_only={"age": 0.125})
    text = page(summary, ROWS)
    badge = str(parts.BADGE)
    for title in (RISKS, USERS, SCORES, TIMES, "How good the model is"):
        assert f"{badge} {title}</h" in text
    assert f"{badge} {RADII}" not in text
    facts = Page(text).facts()
    marked = {label for label, words in facts.items() if words.startswith("simulation only ")}
    assert marked == {
        "users filtered (simulation only)",
        "excess risk",
        "held-out accuracy",
        "values outside their range (simulation only)",
        "time, peak memory with child processes",
    }
    assert f"{badge} The table has &lt;one&gt; user." in text
    assert "nothing on this page protects anybody" in text


def test_pictures_are_drawn_of_whatever_numbers_there_are() -> None:
    """One point, equal ones, zeros and negative ones on any axis: coordinates are finite and within the picture."""
    cases: list[list[tuple[float, float]]] = [[(1, 0.5)], [(1, 2), (2, 2)], [(0, 0), (1, 0)], [(1, -3), (2, 5)], []]
    cases += [[(1, 1e-300), (2, 1e300)], [(5, 1e12), (6, 1e12 + 1)]]
    for given in cases:
        for log in (False, True):
            text = chart("a", [Line("one", given), Line("two", given, "bars")], Axis("x"), Axis("y", log=log))
            assert "nan" not in text
            assert "inf" not in text
            for x, y in points(text, "a"):
                assert 0 <= x <= 361
                assert 0 <= y <= 211
    assert "nan" not in gauge(0.5, (None, None), (0, 1)) + ranking("b", [("a", 0.0, (None, None), "0")])


def test_proofs_are_links_where_the_package_says_where_its_documentation_is(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "by docs/privacy/whitened-tracking.md#w1, and docs/comparing.md <b>."
    monkeypatch.setattr(parts, "documentation", lambda: None)
    assert "<a" not in parts.formal(words)
    monkeypatch.setattr(parts, "documentation", lambda: "https://docs.example/quoron")
    linked = [a["href"] for tag, a, _ in Page(parts.formal(words)).elements if tag == "a"]
    assert linked == [
        f"https://docs.example/quoron/{each}" for each in ("privacy/whitened-tracking.html#w1", "comparing.html")
    ]


def test_a_summary_that_is_not_there_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="quoron resume"):
        RunFolder(tmp_path).summary()


def test_a_full_disk_leaves_the_old_file_and_no_scraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.write_text("report.html", "old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quoron.run_folder.os.fsync", full)
    with pytest.raises(RunError, match=r"report\.html: No space left on device\. Make room, then continue with"):
        folder.write_text("report.html", "new")
    assert (tmp_path / "report.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_sizes_are_told_in_the_unit_people_use() -> None:
    assert [size(count) for count in (0, 999, 1_000, 2.5e9, 7e12)] == ["0 B", "999 B", "1 kB", "2.5 GB", "7 TB"]
