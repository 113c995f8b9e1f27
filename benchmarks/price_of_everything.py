"""One table through everything that costs ε, on one account: bounds bought, a setting chosen, a model trained, judged.

    python benchmarks/price_of_everything.py [--repeats 3]

The table is the Scorecard's that ships. Every fifth college is set apart before anything, and asked in the end how far
off predictions really are: that is outside of all promises, and possible because the table is no secret. Beside it what
the same sum buys when all of it is spent on training, with bounds that somebody knew (as in scorecard.toml) or bought
in the same run. Noise is secret: figures differ from run to run. Pasted into docs/results.md.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

import quoron
from quoron import Model
from quoron.releases.bounds import PrivateBounds, find_bounds
from quoron.training.lifetime import opened

TABLE = Path(__file__).parent.parent / "simulations" / "quoron" / "data" / "scorecard.parquet"
USER, LABEL, DEGREE, STATE = "unitid", "earnings_med", "pred_degree_awarded_ipeds", "state_abbr"
NUMBERS = ("year", "count_working", "count_not_working")
KNOWN_LABEL = {"column": LABEL, "range": [0, 80_000]}
KNOWN = {  # as scorecard.toml declares them, from public knowledge
    "numeric": {"year": [2007, 2016], "count_working": [0, 10_000], "count_not_working": [0, 2_000]},
    "categorical": {DEGREE: [1, 2, 3]},
    "missing": "midpoint",
}
DECLARING, TUNING, TRAINING = 0.5, 1.0, 1.0
RADII = (1.0, 3.0, 10.0)
DELTA = 1e-6


def main(repeats: int) -> None:
    """Run, and print a table of each."""
    table = pd.read_parquet(TABLE)
    apart = table[USER] % 5 == 0
    rows, others = table[~apart], table[apart & table[LABEL].notna()]
    actual = others[LABEL].to_numpy(float)
    weights = 1 / others.groupby(USER)[USER].transform("count").to_numpy(float)

    def off(guessed: Any) -> float:
        missed = np.clip(np.asarray(guessed, float), 0, 80_000) - np.clip(actual, 0, 80_000)
        return float(np.sqrt(np.average(missed**2, weights=weights)))

    print(f"{rows[USER].nunique():,} colleges, {others[USER].nunique():,} set apart")
    print(f"guessing the mean is off by {off(np.full(len(actual), rows[LABEL].mean())):,.0f} dollars\n")
    for _ in range(repeats):
        with TemporaryDirectory() as folder:
            steps(rows, Path(folder), off, others)


def steps(rows: pd.DataFrame, folder: Path, off: Any, others: pd.DataFrame) -> None:
    """Everything once, with an account of its own."""
    ledger, told = folder / "lifetime.sqlite", Told()

    def charged(name: str, population: str = "colleges") -> dict[str, Any]:
        return {"out": folder / name, "population": population, "ledger": ledger}

    found = find_bounds(
        rows,
        user=USER,
        epsilon=DECLARING,
        delta=DELTA,
        items=True,
        numeric=[*NUMBERS, LABEL],
        categorical=[DEGREE, STATE],
        population="colleges",
        ledger=ledger,
    )
    declared = columns(found)
    told("declarations bought", DECLARING, f"{len(found.declared)} of them", ledger)
    tuned = quoron.tune(rows, epsilon=TUNING, vary={"domain.radius": RADII}, **charged("tuned"), **declared)
    radius = dict(tuned.choice.varied).get("domain.radius", RADII[0])
    one = tuned.choice.price["trial_epsilon"]
    told("one of three radii chosen", TUNING, f"{radius:g}; ε = {one:.2g} a trial", ledger)
    told.and_truth("the search's own model", off(tuned.model.predict(others)))
    trained = quoron.train(
        rows,
        epsilon=TRAINING,
        holdout=0.1,
        settings=(f"domain.radius={radius}",),
        progress=False,
        **charged("trained"),
        **declared,
    )
    told("trained, nine tenths of them", TRAINING, "", ledger)
    assert trained.evaluation is not None
    figure = trained.evaluation.figure("rmse")
    judged = f"off by {figure.value:,.0f} dollars ({figure.low:,.0f} to {figure.high:,.0f}), {figure.bound}"
    told("judged, by the others", 0.0, judged, ledger)
    told.and_truth("that model", off(trained.model.predict(others)))
    total = told.total(ledger)
    for name, given in (
        (
            "all of it on training, bounds known",
            {"user": USER, "label": KNOWN_LABEL, "columns": KNOWN, "items_per_user": 4},
        ),
        ("all of it on one run that buys its bounds", {"user": USER, "label": LABEL}),
    ):
        model: Model = quoron.train(
            rows,
            epsilon=total,
            delta=3 * DELTA,
            settings=("domain.radius=3.0",) if "columns" in given else (),
            progress=False,
            **charged(name.replace(",", ""), population=name.replace(",", "")),
            **given,
        ).model
        told.and_truth(name, off(model.predict(others)))
    print(told)


def columns(found: PrivateBounds) -> dict[str, Any]:
    """What was released, as columns of `train`; without what could not be."""
    by_kind: dict[str, dict[str, Any]] = {}
    for line in found.declared:
        if line.value is not None:
            by_kind.setdefault(line.kind, {})[line.name] = line.value
    numeric = by_kind["numeric"]
    ends = numeric.pop(LABEL)
    return {
        "user": USER,
        "label": {"column": LABEL, "range": ends},
        "columns": {
            "numeric": numeric,
            "categorical": by_kind.get("categorical", {}),
            "missing": "midpoint",
        },
        "items_per_user": max(1, int(by_kind.get("items", {}).get("items_per_user", 1))),
    }


class Told:
    """Lines of the table that is printed."""

    def __init__(self) -> None:
        self.lines = ["| step | its ε | what came of it | the account, ε so far |", "| --- | ---: | --- | ---: |"]

    def __call__(self, step: str, epsilon: float, what: str, ledger: Path) -> None:
        """A step, what was asked for it, and where the account is after it."""
        said = f"{epsilon:g}" if epsilon else "nothing more"
        self.lines.append(f"| {step} | {said} | {what} | {self.total(ledger):.3g} |")

    def and_truth(self, what: str, dollars: float) -> None:
        """Outside of all promises."""
        self.lines.append(f"| *in truth:* {what} | | *off by {dollars:,.0f} dollars* | |")

    def total(self, ledger: Path) -> float:
        """Of the group's account."""
        with opened(ledger) as account:
            return float(account.spent("colleges").epsilon)

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    main(parser.parse_args().repeats)
