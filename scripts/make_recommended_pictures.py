"""Draw docs/images/recommended-risk.svg and recommended-radius.svg: python scripts/make_recommended_pictures.py

Runs the presets one-pass and one-pass-heterogeneous. The first picture has the excess risk of every round with the
predicted value, the second the private radius beside the true spread of users' answers at the best model.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import quoron
from quoron import Keep, Method
from quoron.reports.plots import BLUE, GREY, ORANGE, STYLE
from quoron.run_folder import RunFolder
from quoron.simulation.run import RunResult
from quoron.simulation.scene import setup
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question

IMAGES = Path(__file__).parent.parent / "docs" / "images"
ALGORITHM = "tracking-srgd"
PRESETS = {"one-pass": "alike users", "one-pass-heterogeneous": "users who differ"}
SHADES = {"pilot": "#e4e7eb", "warm-up": "#fdf0e6", "main": "#eef4fa"}
LOOKED_AT = 4_000  # users whose true spread is measured


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """One run and what no deployment could know about it."""

    result: RunResult
    rounds: Sequence[dict[str, Any]]
    true_spread: float  # root mean squared distance of answers at the best model from their mean


def carry_out(preset: str, folder: Path) -> Shown:
    """Run a preset with its seed."""
    result = quoron.simulate(preset, method=Method(ALGORITHM), keep=Keep(folder / preset))
    return Shown(result, RunFolder(result.directory).rounds(), true_spread(result))


def true_spread(result: RunResult) -> float:
    """Of the first users' average gradients at the best model, weighted as their clients weight them, in the metric."""
    scene = setup(result.config, Path.cwd())
    points, users = scene.population.optimum[None, :], np.arange(min(LOOKED_AT, scene.problem.users))
    mean = scene.engine.ask(Question(0, users, AverageGradient(points, (1.0,)))).values.mean(axis=0)
    task = AverageGradient(points, (1.0,), None, mean, result.plan.parameters.reference_items)
    answers = scene.engine.ask(Question(0, users, task)).values
    p = result.plan.parameters  # features are alike in all directions, so their metric is a number
    unit = np.sqrt(scene.problem.features / p.link_curvature) / p.feature_norm
    return float(unit * np.sqrt(np.mean(np.sum(answers**2, axis=1))))


def draw_risk(axes: Axes, shown: Shown) -> None:
    """Excess risk of the model after every round."""
    known = [row for row in shown.rounds if row.get("simulation.excess_risk") is not None]
    risks = [row["simulation.excess_risk"] for row in known]
    axes.plot([row["round"] + 1 for row in known], risks, color=BLUE, marker="o", markersize=3, label="excess risk")
    predicted = shown.result.summary.predicted_excess_risk
    if predicted is not None:
        axes.axhline(predicted, color=ORANGE, linestyle="--", label="predicted by the plan")
    axes.set_yscale("log")
    axes.set_ylabel("excess risk")


def draw_radius(axes: Axes, shown: Shown) -> None:
    """Radius and spread as released, and the true spread."""
    known = [row for row in shown.rounds if row.get("public.spread") is not None]
    places = [row["round"] + 1 for row in known]
    axes.plot(places, [row["public.radius"] for row in known], color=BLUE, marker="o", markersize=3, label="radius")
    spread = [row["public.spread"] for row in known]
    axes.plot(places, spread, color=GREY, marker="o", markersize=3, label="private estimate of the spread")
    axes.axhline(shown.true_spread, color=ORANGE, linestyle="--", label="true spread at the best model")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("distance from the centre")


def shade(axes: Axes, shown: Shown) -> None:
    """A background for each phase, named at the top."""
    for phase, rows in groupby(shown.rounds, key=lambda row: row["public.phase"]):
        numbers = [row["round"] + 1 for row in rows]
        axes.axvspan(numbers[0] - 0.5, numbers[-1] + 0.5, color=SHADES[phase], zorder=0, linewidth=0)
        axes.text(
            (numbers[0] + numbers[-1]) / 2,
            1.01,
            phase,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=8,
        )
    axes.set_xlim(0.5, len(shown.rounds) + 0.5)
    axes.set_xlabel("rounds")


def picture(name: str, runs: dict[str, Shown], draw: Callable[[Axes, Shown], None]) -> Path:
    """One panel a run, side by side."""
    # Text as outlines and a white ground: the picture looks the same wherever it is shown.
    with mpl.rc_context(STYLE), mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        figure = Figure(figsize=(10.0, 3.8), layout="constrained", facecolor="white")
        for axes, (preset, shown) in zip(figure.subplots(1, len(runs), sharey=True), runs.items(), strict=True):
            draw(axes, shown)
            shade(axes, shown)
            axes.set_title(f"{preset}: {PRESETS[preset]}", loc="left", fontsize=11, pad=18)
        axes.legend()
        path = IMAGES / f"{name}.svg"
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def main() -> int:
    """Run, draw, and say where."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = {preset: carry_out(preset, Path(folder)) for preset in PRESETS}
    for name, draw in (("recommended-risk", draw_risk), ("recommended-radius", draw_radius)):
        print(picture(name, runs, draw))
    return 0


if __name__ == "__main__":
    sys.exit(main())
