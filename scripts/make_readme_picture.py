"""Draw docs/images/scorecard.svg and print its figures: python scripts/make_readme_picture.py

What graduates of a college earn, predicted for every fifth college by a model of the others, all years of one college
protected at once: the error in dollars against ε, by several seeds, and predicted against actual earnings. Simulations,
as the table that ships is no secret: what is held out is looked at as it is.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from charts import Axis, Line, alone, chart
from numpy.typing import NDArray

import quoron

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "simulations" / "quoron" / "data" / "scorecard.parquet"
PICTURE = ROOT / "docs" / "images" / "scorecard.svg"
MOST = 80_000.0  # dollars, the declared range of earnings
EPSILONS = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0)
SEEDS, SHOWN, PARTS = range(5), 2.0, 12
COUNTS = {"count_working": 10_000, "count_not_working": 2_000}


def predicted(rows: pd.DataFrame, others: pd.DataFrame, epsilon: float, seed: int) -> NDArray[np.float64]:
    """Earnings of `others` by a model of `rows`, as `quoron train scorecard.toml` declares them."""
    with TemporaryDirectory() as folder:
        run = quoron.simulate(
            rows,
            user="unitid",
            label={"column": "earnings_med", "range": [0, MOST]},
            columns={
                "numeric": {"year": [2007, 2016]} | {name: [0, most] for name, most in COUNTS.items()},
                "categorical": {"pred_degree_awarded_ipeds": [1, 2, 3]},
                "missing": "midpoint",
            },
            epsilon=epsilon,
            delta=1e-6,
            seed=seed,
            items_per_user=4,
            out=Path(folder) / "run",
            settings=("domain.radius=3.0",),
        )
        assert run.model is not None
        return np.asarray(run.model.predict(others), np.float64)


def without_privacy(rows: pd.DataFrame, others: pd.DataFrame) -> NDArray[np.float64]:
    """The same by plain least squares, on the same columns held at their ranges."""

    def columns(table: pd.DataFrame) -> NDArray[np.float64]:
        held = [table[name].fillna(most / 2).clip(0, most).to_numpy(float) for name, most in COUNTS.items()]
        degrees = [(table.pred_degree_awarded_ipeds == each).to_numpy(float) for each in (1, 2, 3)]
        return np.stack([np.ones(len(table)), table.year.to_numpy(float) - 2010, *held, *degrees], axis=1)

    known = rows[rows.earnings_med.notna()]
    weights = 1 / np.sqrt(known.groupby("unitid").unitid.transform("count").to_numpy(float))  # each college counts once
    labels = weights * known.earnings_med.clip(0, MOST).to_numpy(float)
    fitted = np.linalg.lstsq(weights[:, None] * columns(known), labels, rcond=None)[0]
    return np.clip(columns(others) @ fitted, 0, MOST)


def main() -> int:
    """Split, train, compare, draw."""
    table = pd.read_parquet(TABLE)
    held_out = table.unitid % 5 == 0
    rows, others = table[~held_out], table[held_out & table.earnings_med.notna()]
    actual = others.earnings_med.clip(0, MOST).to_numpy(float)
    weights = 1 / others.groupby("unitid").unitid.transform("count").to_numpy(float)  # each college counts once

    def error(guessed: NDArray[np.float64]) -> float:
        return float(np.sqrt(np.average((guessed - actual) ** 2, weights=weights)))

    mean = float(rows.earnings_med.clip(0, MOST).mean())
    baselines = {"guessing the mean": error(np.full(len(actual), mean))}
    baselines["without privacy"] = error(without_privacy(rows, others))
    errors = {e: [error(predicted(rows, others, e, seed)) for seed in SEEDS] for e in EPSILONS}
    guessed = predicted(rows, others, SHOWN, 0)
    groups = np.array_split(np.argsort(guessed), PARTS)
    dots = [(float(guessed[group].mean()), float(actual[group].mean())) for group in groups]
    ends = (min(EPSILONS), max(EPSILONS))
    private = Line(
        "private, mean and range of five runs",
        [(each, float(np.mean(found))) for each, found in errors.items()],
        reach=[(min(found), max(found)) for found in errors.values()],
    )
    lines = [private, *(Line(name, [(end, off) for end in ends], "dashed") for name, off in baselines.items())]
    diagonal = [(min(map(min, dots)),) * 2, (max(map(max, dots)),) * 2]
    pictures = [
        chart("Error in dollars", lines, Axis("ε", log=True), Axis("error, dollars, root mean square")),
        chart(
            "Predicted against actual",
            [Line(f"twelfths of the colleges' years, ε = {SHOWN:g}", dots, "dots"), Line("exact", diagonal, "dashed")],
            Axis("predicted median earnings, dollars"),
            Axis("actual, dollars"),
        ),
    ]
    PICTURE.write_bytes(alone(pictures))
    print(f"{rows.unitid.nunique():,} colleges trained on, {others.unitid.nunique():,} others predicted; {PICTURE}")
    for name, off in baselines.items():
        print(f"{name}: {off:,.0f} dollars")
    for each, found in errors.items():
        print(f"epsilon={each:g}: {np.mean(found):,.0f} dollars ({min(found):,.0f} to {max(found):,.0f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
