"""Private releases of tables: models, figures, ranges, means and searches, and what each charges to the ledger.

Everything is as for real, ChaCha20 included; only what the operating system draws otherwise comes again.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, closing
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

import quoron
from golden.plain import plain
from patients import patients
from quoron.releases.bounds import find_bounds

ASKED = ("histogram of age", "count by ward", "mean of dose by ward", "quantiles of dose at 0.1, 0.9", "median of age")
ILL: Mapping[str, Any] = {"column": "ill", "classes": ["no", "yes"]}
DECLARED: Mapping[str, Any] = {"label": ILL, "columns": {"numeric": {"age": (0, 100), "dose": (0, 5)}}}


def visits(users: int) -> pd.DataFrame:
    """Patients on three wards, one of them rare, admitted within two years; some cells are missing."""
    table = patients(users, spread=8.0)
    ward = np.array(["north", "south", "west"])[np.searchsorted([60, 98], table.age)]
    day = pd.Timestamp("2023-01-01") + pd.to_timedelta((table.dose * 146).astype(int), unit="D")
    gaps = table.dose.where(np.arange(len(table)) % 19 > 0)
    ill = table.ill.map({True: "yes", False: "no"})
    return table.assign(ill=ill, ward=ward, admitted=day, dose=gaps)


def _figures(evaluation: Any) -> list[Any]:
    return [plain(figure) for figure in evaluation.figures]


def _trained(users: int = 6000, **given: Any) -> dict[str, Any]:
    """A model of a table, its rounds, the guarantee, and how good it is for people who were held out."""
    run = quoron.train(visits(users), **{"user": "who", "label": "ill", "epsilon": 8.0, "delta": 1e-5} | given)
    said = {
        key: value for key, value in run.summary.as_json().items() if key not in ("version", "directory", "seconds")
    }
    return plain(said | {"weights": run.model.weights, "intervals": run.model.uncertainty})


def _evaluated() -> Any:
    simulated = quoron.simulate(visits(6000), user="who", epsilon=8.0, seed=3, **DECLARED)
    model = simulated.directory
    return _figures(quoron.evaluate(model, visits(5000), user="who", epsilon=4.0, delta=1e-5))


def _statistics(**given: Any) -> Any:
    found = quoron.statistics(visits(20_000), list(ASKED), user="who", epsilon=4.0, delta=1e-6, **given)
    return {"statement": found.statement, "rows": [plain(row) for row in found.figures]}


def _ranges() -> Any:
    columns: dict[str, Any] = {"numeric": ["age", "dose"], "dates": ["admitted"], "categorical": ["ward", "ill"]}
    return find_bounds(visits(30_000), user="who", epsilon=4.0, delta=1e-6, items=True, **columns).toml().splitlines()


def _mean(**given: Any) -> Any:
    values = np.random.default_rng(1).normal(3.0, 1.0, size=(20_000, 3))
    found = quoron.mean(values, epsilon=2.0, bound=1000.0, **given)
    return {"statement": found.statement, "value": plain(found.value)}


def _tuned() -> Any:
    tried: dict[str, Any] = {"loss.ridge": [0, 0.1]}
    run = quoron.tune(visits(6000), user="who", epsilon=8.0, delta=1e-5, vary=tried, **DECLARED)
    return plain({"weights": run.model.weights, "statement": run.statement})


def _rows() -> Any:
    points = np.random.default_rng(2).normal(size=(2000, 6))
    run = quoron.train_rows(
        lambda users, at: at - points[users],
        users=2000,
        dimension=6,
        epsilon=4.0,
        delta=1e-5,
        algorithm="dp-sgd-wor",
        options={"rounds": 32},
        radius=3.0,
        clip_norm=4.0,
        items_per_user=1,
    )
    return plain({"model": run.model, "statement": run.statement})


AGES: Mapping[str, Any] = {"numeric": {"age": (0, 100), "dose": (0, 5)}, "categorical": {"ward": ["north", "south"]}}
RELEASES: Mapping[str, Callable[[], Any]] = {
    "train declared": lambda: _trained(**DECLARED),
    "train undeclared": lambda: _trained(20_000),
    "train undeclared with people held out": lambda: _trained(20_000, holdout=0.3),
    "train zero-out": lambda: _trained(adjacency="zero-out", settings=["population.users=7000"], **DECLARED),
    "train a number": lambda: _trained(
        8_000,
        label={"column": "dose", "range": (0, 5)},
        columns={"numeric": {"age": (0, 100)}},
        settings=["algorithm.name=one-round-least-squares"],
    ),
    "train a rare label": lambda: _trained(
        20_000, label={"column": "ward", "classes": ["north", "south", "west"]}, holdout=0.2
    ),
    "train a comparison": lambda: _trained(12_000, label="age > 79", columns={"numeric": {"dose": (0, 5)}}),
    "train without a look": lambda: _trained(data_quality=0, **DECLARED),
    "evaluate": _evaluated,
    "statistics undeclared": _statistics,
    "statistics declared": lambda: _statistics(**AGES),
    "declare": _ranges,
    "mean": _mean,
    "mean of a known spread": lambda: _mean(spread=1.0),
    "mean, robust": lambda: _mean(spread=6.0, outliers=0.01),
    "tune": _tuned,
    "train rows": _rows,
}


def _drawn() -> Callable[[int], bytes]:
    """Bytes that come again, and are others at every call, as the operating system's are."""
    calls = count()
    return lambda size: blake2b(str(next(calls)).encode(), digest_size=size).digest()


def _account(ledger: Path) -> dict[str, Any] | None:
    """What a release charges, and the kinds of its entries in their order; None where it charges nothing."""
    if not ledger.exists():
        return None
    with closing(sqlite3.connect(ledger)) as opened:
        rows = opened.execute("SELECT kind, payload FROM population ORDER BY sequence").fetchall()
    charges = [json.loads(payload) for kind, payload in rows if kind == "charge"]
    kept = [{key: value for key, value in charge.items() if key not in ("software", "statement")} for charge in charges]
    return {"kinds": [kind for kind, _ in rows], "charges": plain(kept)}


def releases(folder: Path, name: str) -> Iterator[tuple[str, Any]]:
    """One release and what it charges, in an empty folder with an empty ledger."""
    ledger = folder / "lifetime.sqlite"
    drawn = mock.patch.multiple(
        "secrets", token_bytes=_drawn(), token_hex=lambda size: "0" * 2 * size, randbits=lambda bits: bits
    )
    with chdir(folder), drawn, mock.patch.dict("os.environ", {"QUORON_LEDGER": str(ledger)}):
        released = RELEASES[name]()
        yield name, {"released": released, "ledger": _account(ledger)}
