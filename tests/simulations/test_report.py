"""A report is one page that loads nothing, says what its run folder holds, and marks what depends on private data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from pages import Page, check_loads_nothing
from quoron.network import Times
from quoron.reports import page as parts
from quoron.reports import simulated
from quoron.reports.pictures import Axis, Line, chart, gauge, ranking
from quoron.reports.summary import Summary
from quoron.run_folder import RunFolder, flat
from said import said
from summaries import EXAMPLE

pytestmark = pytest.mark.usefixtures("planned_once")

SUMMARY = Summary(**EXAMPLE)
HOSTILE = ('<script>alert("1")</script>', 'it\'s "quoted" & <b>', "\u200fعمر radio", "x" * 400)


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


def test_a_report_is_written_again_to_the_same_bytes(trained: Any) -> None:
    before = (trained.directory / "report.html").read_bytes()
    assert quoron.report(trained.directory).read_bytes() == before


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
