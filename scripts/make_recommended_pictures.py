"""Draw docs/images/recommended-risk.svg and recommended-radius.svg: python scripts/make_recommended_pictures.py

Runs the presets one-pass and one-pass-heterogeneous. The first picture has the excess risk of every round with the
predicted value, the second the private radius beside the true spread of users' answers at the best model.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from charts import Axis, Line, alone, chart

import quoron
from quoron.run_folder import RunFolder
from quoron.simulation.problem import setup
from quoron.simulation.run import SimulatedRun
from quoron_client.protocol.questions import AverageGradient, Question

IMAGES = Path(__file__).parent.parent / "docs" / "images"
ALGORITHM = "tracking-srgd"
PRESETS = {"one-pass": "alike users", "one-pass-heterogeneous": "users who differ"}
LOOKED_AT = 4_000  # users whose true spread is measured


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """One run and what no deployment could know about it."""

    result: SimulatedRun
    rounds: Sequence[dict[str, Any]]
    true_spread: float  # root mean squared distance of answers at the best model from their mean


def carry_out(preset: str, folder: Path) -> Shown:
    """Run a preset with its seed."""
    result = quoron.simulate(preset, algorithm=ALGORITHM, out=folder / preset)
    return Shown(result, RunFolder(result.directory).rounds(), true_spread(result))


def true_spread(result: SimulatedRun) -> float:
    """Of the first users' average gradients at the best model, weighted as their clients weight them, in the metric."""
    scene = setup(result.config, Path.cwd())
    points, users = scene.population.optimum[None, :], np.arange(min(LOOKED_AT, scene.problem.users))
    mean = scene.engine.ask(Question(0, users, AverageGradient(points, (1.0,)))).values.mean(axis=0)
    task = AverageGradient(points, (1.0,), None, mean, result.plan.parameters.reference_items)
    answers = scene.engine.ask(Question(0, users, task)).values
    p = result.plan.parameters  # features are alike in all directions, so their metric is a number
    unit = np.sqrt(scene.problem.features / p.link_curvature) / p.feature_norm
    return float(unit * np.sqrt(np.mean(np.sum(answers**2, axis=1))))


def risk_lines(shown: Shown) -> list[Line]:
    """Excess risk of the model after every round."""
    known = [row for row in shown.rounds if row.get("simulation.excess_risk") is not None]
    lines = [Line("excess risk", [(row["round"] + 1, row["simulation.excess_risk"]) for row in known])]
    predicted = shown.result.summary.predicted_excess_risk
    return lines if predicted is None else [*lines, _level("predicted by the plan", shown, predicted)]


def radius_lines(shown: Shown) -> list[Line]:
    """Radius and spread as released, and the true spread."""
    known = [row for row in shown.rounds if row.get("public.spread") is not None]
    radius = Line("radius", [(row["round"] + 1, row["public.radius"]) for row in known])
    spread = Line("private estimate of the spread", [(row["round"] + 1, row["public.spread"]) for row in known])
    return [radius, spread, _level("true spread at the best model", shown, shown.true_spread)]


def _level(name: str, shown: Shown, value: float) -> Line:
    return Line(name, [(1, value), (len(shown.rounds), value)], "dashed")


def picture(name: str, runs: dict[str, Shown], lines: Callable[[Shown], list[Line]], up: str, *, log: bool) -> Path:
    """One panel a run, side by side."""
    drawn = [
        chart(preset, lines(shown), Axis(f"rounds, {PRESETS[preset]}"), Axis(up, log=log))
        for preset, shown in runs.items()
    ]
    path = IMAGES / f"{name}.svg"
    path.write_bytes(alone(drawn))
    return path


def main() -> int:
    """Run, draw, and say where."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = {preset: carry_out(preset, Path(folder)) for preset in PRESETS}
    print(picture("recommended-risk", runs, risk_lines, "excess risk", log=True))
    print(picture("recommended-radius", runs, radius_lines, "distance from the centre", log=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
