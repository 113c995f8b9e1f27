"""The report is one page that loads nothing, says the promise, and marks what depends on private data."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from quoron.network import Times
from quoron.reports import page as report_page
from quoron.reports import plots
from quoron.reports.summary import Summary, from_json, size
from quoron.run_folder import RunFolder, flat
from quoron_privacy.errors import ConfigError, RunError
from summaries import EXAMPLE

pytestmark = pytest.mark.usefixtures("planned_once")

SUMMARY = Summary(**EXAMPLE)


def event(round_: int, **more: Any) -> dict[str, Any]:
    scores = {"score_min": 1.0, "score_median": 90.0, "score_max": 99.0, "threshold": 60.0, "filtered": round_ % 2}
    diagnostics = {**scores, "excess_risk": 0.1 / (round_ + 1)}
    values = {"round": round_, "rounds": 24, "asked": 100, "total_gradient_evaluations": 5000 * (round_ + 1)}
    return {
        **values,
        "public": {"epsilon_spent": float(round_ > 11), "radius": 0.3, "spread": 0.2},
        "diagnostics": diagnostics,
        **more,
    }


NETWORK = {f"network.{part}": seconds for part, seconds in Times(waiting=0.1, upload=0.2).as_json().items()}
ROWS = [flat(event(round_)) | NETWORK for round_ in range(24)]


class Elements(HTMLParser):
    """Every tag with its attributes, and whether tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing_from_elsewhere_and_is_well_formed() -> None:
    page = report_page.page(SUMMARY, ROWS, name="quickstart-1")
    elements = Elements(page)
    assert elements.open == []
    assert not {tag for tag, _ in elements.seen} & {"script", "link", "img", "iframe", "object", "image"}
    for _, attributes in elements.seen:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "url(http" not in page
    assert "@import" not in page


def test_the_page_says_the_promise_the_summary_and_shows_every_plot() -> None:
    page = report_page.page(SUMMARY, ROWS, name="quickstart-1")
    assert SUMMARY.statement in page
    assert all(text in page for _, text in SUMMARY.rows())
    assert page.count("<svg") == len(plots.PLOTS)
    assert 'name="viewport"' in page


def test_figures_of_private_data_are_marked_as_simulation_only() -> None:
    page = report_page.page(SUMMARY, ROWS, name="quickstart-1")
    marked = [part.split("<svg")[0] for part in page.split("<figure>")[1:]]
    assert ["simulation only" in part for part in marked] == [plot.simulation for plot in plots.PLOTS]


def test_a_plot_without_its_figures_is_left_out() -> None:
    bare = [{"round": 0, "asked": 10, "total_gradient_evaluations": 10, "public.epsilon_spent": 1.0}]
    page = report_page.page(SUMMARY, bare, name="bare")
    assert page.count("<svg") == 2
    assert report_page.page(SUMMARY, [], name="no rounds at all").count("<svg") == 0


def test_names_and_texts_are_escaped() -> None:
    page = report_page.page(Summary(**{**EXAMPLE, "statement": "<b>&"}), [], name="<script>")
    assert "<script>" not in page
    assert "&lt;b&gt;&amp;" in page


def test_the_same_run_gives_the_same_page() -> None:
    assert report_page.page(SUMMARY, ROWS, name="a") == report_page.page(SUMMARY, ROWS, name="a")


def test_a_summary_survives_being_stored(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    summary = replace(SUMMARY, remarks_simulation_only=("One thing.",), clipped_simulation_only={"age": 0.1})
    folder.write_json("summary.json", summary.as_json())
    assert from_json(folder.summary()) == summary


def test_what_is_amiss_and_what_figures_are_read_beside_is_said_everywhere() -> None:
    summary = replace(
        SUMMARY,
        test={"rmse": 9000.0},
        test_without_privacy={"rmse": 8000.0},
        test_unbounded={"rmse": 7000.0},
        test_baseline={"rmse": 12000.0},
        clipped_simulation_only={"age": 0.125},
        remarks_simulation_only=("The table has <one> user.",),
    )
    rows = dict(summary.rows())
    assert rows["held-out rmse"] == (
        "9000 (without privacy 8000, and without the domain's bound 7000, always the same answer 1.2e+04)"
    )
    assert rows["values outside their range (simulation only)"] == "age 12 %"
    assert str(summary).endswith("Simulation only: The table has <one> user.")
    assert "simulation only</span> The table has &lt;one&gt; user." in report_page.page(
        summary, [], name="a", remarks=summary.remarks_simulation_only
    )


def test_rounds_survive_being_stored_with_gaps_as_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_rounds([*ROWS, {"round": 24, "new": 1.5}])
    stored = folder.rounds()
    assert stored[3]["simulation.filtered"] == 1
    assert stored[3]["new"] is None
    assert stored[24] == dict.fromkeys(stored[24], None) | {"round": 24, "new": 1.5}


def test_a_summary_that_is_not_there_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="quoron resume"):
        RunFolder(tmp_path).summary()


def test_numbers_that_json_cannot_hold_become_null(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("plan.json", {"epsilon": float("inf"), "phases": [{"scale": float("nan")}]})
    assert folder.plan() == {"epsilon": None, "phases": [{"scale": None}]}


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


def test_without_matplotlib_a_page_is_whole_and_says_what_draws_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "find_spec", lambda name: None)
    page = report_page.page(SUMMARY, ROWS, name="quickstart-1")
    assert "quoron[plots]" in page
    assert "<svg" not in page
    assert SUMMARY.statement in page
    with pytest.raises(ConfigError, match=r"pip install 'quoron\[plots\]'"):
        report_page.pictures()


def test_a_risk_stands_beside_what_was_predicted_and_that_of_the_start() -> None:
    assert dict(SUMMARY.rows())["excess risk"] == "4.6e-06 (predicted at most 5e-06, at the start 0.089)"
