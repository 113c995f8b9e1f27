"""Reports in a real browser: light and dark, on a desk, a phone and paper; nothing amiss, nothing cut off."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from browser import PROGRAM, Browser, browser
from quoron.evaluation.evaluation import Bin, Evaluation, Figure
from quoron.reports import pages as training
from quoron.run_folder import RunFolder
from quoron.simulation import comparison as comparing
from quoron.simulation.comparison import Request
from quoron.training import result
from small_run import TOML

pytestmark = [pytest.mark.programs, pytest.mark.skipif(PROGRAM is None, reason="no Chromium: apt-get install chromium")]

LONG, REVERSED = "w" * 300, "\u200fعمر المريض radio"
PAGES = ("trained", "evaluated", "simulated", "compared", "searched")
# Of each text the contrast with what is behind it, as WCAG 2 has it; less than 4.5 with where it is.
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const f = (c) => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
    return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
  const bad = []; let texts = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) { const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !e.getClientRects().length || e.closest("script, title")) continue;
    const style = getComputedStyle(e); texts += 1;
    const [a, b] = [light(rgb(style.color)), light(ground(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) bad.push([walk.currentNode.data, (a + .05) / (b + .05)]); }
  return {texts, bad};
})()"""
# What reaches beyond the window, but for what moves in a frame of its own.
BEYOND = """[document.documentElement.scrollWidth > innerWidth ? "page" : "",
  ...[...document.querySelectorAll("body *")].filter((e) => !e.closest(".wide, pre, details") &&
    e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))].filter(Boolean)"""
GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind, with names that would break one that believed them."""
    place, draw = tmp_path_factory.mktemp("pages"), np.random.default_rng(5)
    names = ("<script>console.error('carried out')</script>", LONG, REVERSED)
    frame = pd.DataFrame({"who": np.arange(2000), **{name: draw.uniform(0, 1, 2000) for name in names}})
    frame["ill"] = draw.integers(0, 2, 2000)
    told = {
        "user": "who",
        "label": "ill",
        "columns": {"numeric": dict.fromkeys(names, (0, 1))},
        "epsilon": 8.0,
        "delta": 1e-5,
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QUORON_LEDGER", str(place / "ledger.sqlite"))
        done = quoron.train(frame, **told | {"out": place / "trained", "algorithm": "one-pass-dp-sgd"})
    figures = (
        Figure("AUC", 0.742, 0.711, 0.773, 0.5, "chance", useless=False),
        Figure("rmse", 12345.6, 11000.0, 13500.0, 20000.0, "mean", useless=True),
    )
    bins = (Bin(0.2, 0.25, 0.1, 0.4), Bin(0.7, 0.6, 0.5, 0.8))
    evaluated = Evaluation(figures, bins, 1000, 1.0, 1e-6, "A guarantee of its own.", ("A remark.",))
    (place / "evaluated").mkdir()
    stored, folder = result.stored(RunFolder(done.directory)), RunFolder(place / "evaluated")
    summary = replace(stored.summary, evaluation=evaluated, warnings=(LONG, "short"))
    training.write_training(folder, summary, stored.model)
    (place / "small.toml").write_text(TOML)
    chosen = ["algorithm.name=tracking-srgd"]
    quoron.simulate(str(place / "small.toml"), settings=chosen, out=place / "simulated")
    rows = [
        {
            "algorithm": f"{LONG[:20]}-{at}", "taken": "", "excess_risk": 0.1 / at, "low": 0.05 / at, "high": 0.2 / at,
            "behind_low": 0.1, "behind_high": 0.2, "runs": 2, "of_start": 0.5, "held_back": 0.0,
            "predicted_excess_risk": 0.5, "rounds": 10.0 * at, "messages": 1e4 * at,
            "gradient_evaluations": 1e6 * at, "bytes_up": 1e5 * at, "bytes_down": 1e6, "trust_model": "central-release",
            "infeasible": None, "failed": None, "test_accuracy": 0.7, "privacy.epsilon": float(epsilon),
        }
        for epsilon in (1, 4)
        for at in range(1, 20)
    ]  # fmt: skip
    config = RunFolder(place / "simulated").config()
    request = Request.of(config, algorithms=["recentred-sgd"], vary={"privacy.epsilon": [1, 4]}, seeds=2)
    (place / "compared").mkdir()
    (place / "compared" / "report.html").write_text(comparing.comparison_page(rows, request, name="<b>compared"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QUORON_LEDGER", str(place / "ledger.sqlite"))
        settings = {"vary": {"loss.ridge": [0.0, 1.0]}, "algorithms": ["one-pass-dp-sgd", "filtered-sgd"]}
        quoron.tune(frame, **told | settings, out=place / "searched", n_trials=2.0)
    return {name: place / name / "report.html" for name in PAGES}


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1200])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_can_be_read(name: str, width: int, dark: bool, pages: Any, window: Browser) -> None:
    window.show(pages[name], width=width, dark=dark)
    assert window.value("innerWidth") == width
    assert window.complaints() == []
    assert window.requests() == [pages[name].as_uri()]
    assert window.value(BEYOND) == []
    found = window.value(CONTRAST)
    assert found["texts"] > 30
    assert found["bad"] == []
    assert (sum(int(each) for each in window.value(GROUND)[4:-1].split(",")) < 380) == dark


@pytest.mark.parametrize("name", PAGES)
def test_paper_is_white(name: str, pages: Any, window: Browser) -> None:
    window.show(pages[name], width=794, dark=True, media="print")
    assert window.value(GROUND) == "rgb(255, 255, 255)"
    assert window.value(CONTRAST)["bad"] == []
    assert window.complaints() == []


def test_what_is_shown_is_what_the_run_folder_holds(pages: Any, window: Browser) -> None:
    """As a person reads it: coefficients of model.json, figures of summary.json."""
    folder = RunFolder(pages["trained"].parent)
    model, summary = json.loads((folder.path / "model.json").read_text()), folder.summary()
    window.show(pages["trained"], width=1200, dark=False)
    rows = window.value("[...document.querySelectorAll('tr')].map((r) => [...r.cells].map((c) => c.innerText))")
    shown = {row[0].replace("\u200b", ""): row[1:] for row in rows if len(row) > 1}
    for name, value in model["coefficients"].items():
        assert float(shown[name][0]) == pytest.approx(float(value), rel=1e-3)
    assert shown["users"][0].startswith(f"{summary['users']:,}, ")
    assert shown["all of its releases together"][0].startswith(f"ε = {summary['group_epsilon']:.4g} at ")
    window.show(pages["simulated"], width=1200, dark=False)
    assert window.value("document.querySelectorAll('.badge').length") == 2


def test_figures_of_a_search_are_those_that_were_released(pages: Any, window: Browser) -> None:
    rows = "[...document.querySelectorAll('tr')].map((r) => [...r.cells].map((c) => c.innerText))"
    folder = RunFolder(pages["searched"].parent)
    choice, searched = folder.read_json("choice.json"), folder.read_json("plan.json")["search"]
    window.show(pages["searched"], width=1200, dark=False)
    facts = {row[0]: row[1] for row in window.value(rows) if len(row) == 2}
    assert facts["chosen"] == choice["name"]
    assert facts["the whole search"].startswith(f"ε = {choice['price']['epsilon']:.4g} at")
    assert f"{choice['score']:.4g} ± " in facts[f"its {choice['score_name']}"]
    assert {each["name"] for each in searched["candidates"]} <= facts.keys()
    assert [facts[each["name"]].split(":")[0] for each in searched["refused"]] == ["left out"] * 2


def test_the_policy_stops_a_script_that_got_in(pages: Any, window: Browser, tmp_path: Path) -> None:
    """The broken twin: a page that escapes nothing. The browser refuses any script, and says so."""
    text = pages["trained"].read_text().replace("</main>", "<script>document.title = 'carried out'</script></main>")
    (tmp_path / "broken.html").write_text(text)
    window.show(tmp_path / "broken.html", width=1200, dark=False)
    assert window.value("document.title") != "carried out"
    assert any("Content Security Policy" in json.dumps(event) for event in window.complaints())
