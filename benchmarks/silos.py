"""Three hospitals of 300 made-up patients each, or fifty of 2,000: a federation of silos beside its alternatives.

    python benchmarks/silos.py --hospitals 3 --patients 300        # prints a table, and JSON with --json FILE

Everybody's excess risk is measured over the same patients, those of all hospitals, against the best model without
privacy; every figure is a mean over seeds of noise, slots and patients. What is compared:

* a curator who holds the pooled table (`quoron train`), with the same method;
* silos that send a row a patient, and silos that send one sum;
* one client a hospital that is one user, its patients its items (`--one-user`);
* no federation: each hospital trains with the same (ε, δ) by itself, and the mean of the models is taken;
* one client a patient: the bits of silos by rows, for what it sends.
"""

import argparse
import json
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from quoron import config as configs
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation.problem import setup
from quoron_privacy.errors import QuoronError

EXAMPLE = Path(__file__).parent.parent / "examples" / "federation" / "hospitals.py"
write_hospitals = runpy.run_path(str(EXAMPLE))["write_hospitals"]
BASE = ["population.test_fraction=0.0"]


def carried_out(text: str, folder: Path, settings: list[str]) -> tuple[Prepared[Any], Any]:
    """One simulated run, and its result."""
    config = configs.parse(text, settings=[*BASE, *settings])
    prepared = runs.prepare(config, folder, alternatives=False)
    with tempfile.TemporaryDirectory() as place:
        return prepared, runs.carry_out(prepared, RunFolder(Path(place)), report=False)


def seeded(seed: int) -> list[str]:
    """Of noise and of who is asked when."""
    return [f"run.seed={seed}"]


def measured(hospitals: int, patients: int, seed: int, epsilon: float) -> dict[str, dict[str, float]]:
    """Of every way: excess risk, messages and bytes."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_hospitals(folder, hospitals=hospitals, patients=patients, seed=seed)
        text = (folder / "run.toml").read_text()
        plain = "\n".join(line for line in text.splitlines() if not line.startswith("silos"))
        settings = [f"privacy.epsilon={epsilon}", *seeded(seed)]
        people = setup(configs.parse(plain, settings=[*BASE, *settings]), folder).population
        found["nothing learnt"] = {"excess_risk": people.excess_risk(np.zeros(people.dimension))}

        def way(name: str, source: str, more: list[str]) -> None:
            began = time.perf_counter()
            prepared, result = carried_out(source, folder, [*settings, *more])
            found[name] = {
                "excess_risk": people.excess_risk(result.weights),
                "method": prepared.planned.plan.algorithm,
                "rounds": prepared.planned.plan.cost.rounds,
                "messages": result.summary.messages,
                "bytes_up": result.summary.bytes_up,
                "seconds": time.perf_counter() - began,
            }
            print(name, found[name], file=sys.stderr, flush=True)
            return result.weights

        way("curator with the pooled table", plain, ["privacy.min_cohort=none"])
        way("silos, a row a patient", text, [])
        found["one client a patient"] = dict(found["silos, a row a patient"])
        found["silos, a row a patient"]["messages"] = found["silos, a row a patient"]["rounds"] * hospitals
        way("silos, one sum each", text, ["population.silos.sums=true"])
        found["one user a hospital"] = as_users(plain, folder, people, settings)
        for method in ("dp-sgd-wor", "whitened-tracking"):
            found[f"{method} in each hospital, models averaged"] = averaged(plain, folder, people, settings, method)
    return found


def as_users(plain: str, folder: Path, people: Any, settings: list[str]) -> dict[str, float]:
    """Each hospital is one user, with all of its visits."""
    text = plain.replace('user = "patient"', 'user = "hospital"')
    more = [
        "privacy.min_cohort=none",
        "privacy.allow_large_delta=true",
        "algorithm.name=dp-sgd-wor",
        "population.items_per_user=800",
    ]
    more += ["algorithm.options.rounds=5"]
    try:
        prepared, result = carried_out(text, folder, [*settings, *more])
    except QuoronError as error:
        return {"excess_risk": float("nan"), "refused": str(error)[:200]}  # type: ignore[dict-item]
    return {
        "excess_risk": people.excess_risk(result.weights),
        "method": prepared.planned.plan.algorithm,
        "rounds": prepared.planned.plan.cost.rounds,
        "messages": result.summary.messages,
        "bytes_up": result.summary.bytes_up,
    }


def averaged(plain: str, folder: Path, people: Any, settings: list[str], method: str) -> dict[str, float]:
    """Each hospital trains with the same promise by itself; the mean of their models, weighed by patients."""
    models = []
    for path in sorted((folder / "visits").iterdir()):
        source = plain.replace('path = "visits"', f'path = "visits/{path.name}"')
        more = [f"algorithm.name={method}", "privacy.allow_large_delta=true"]
        models.append(carried_out(source, folder, [*settings, *more])[1].model)
    return {"excess_risk": people.excess_risk(np.mean(models, axis=0)), "method": method, "messages": len(models)}


def table(found: list[dict[str, dict[str, Any]]]) -> list[tuple[str, float, float, dict[str, Any]]]:
    """Mean and standard error of the excess risk of each way, and the figures of the first seed."""
    rows = []
    for name, first in found[0].items():
        risks = np.array([each[name]["excess_risk"] for each in found])
        rows.append(
            (
                name,
                float(risks.mean()),
                float(risks.std(ddof=1) / np.sqrt(len(risks))) if len(risks) > 1 else 0.0,
                first,
            )
        )
    return rows


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hospitals", type=int, default=3)
    parser.add_argument("--patients", type=int, default=300)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = [measured(asked.hospitals, asked.patients, seed, asked.epsilon) for seed in range(asked.seeds)]
    for name, risk, error, first in table(found):
        more = ", ".join(f"{key} {value}" for key, value in first.items() if key != "excess_risk")
        print(f"{name:<42} {risk:.2g} ± {error:.1g}  {more}")
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
