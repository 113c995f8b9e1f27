"""Visits of made-up hospitals: one file a hospital, whose mix of cases differs, and run.toml. No patient exists.

    python examples/federation/hospitals.py --out trial    # trial/visits/hospital-1.parquet, ..., trial/run.toml

A visit ends with or without another one within thirty days (`readmitted`), by a logistic model that is the same
everywhere, of what is known of the visit and of how frail the patient is, which no column says. How many visits a
patient has is uneven: most one or two, some twenty.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CASES = ("heart", "lung", "kidney", "infection", "injury", "other")
RISK = dict(zip(CASES, (0.9, 0.6, 0.7, 0.1, -0.9, -0.4), strict=True))  # of another visit, on the scale of the logistic
MOST_VISITS = 20

RUN = """\
# {hospitals} made-up hospitals of {patients} patients each: does a patient come back within thirty days?
#
# MADE UP by examples/federation/hospitals.py: no patient of them exists. A user is a patient, with all of its visits.
# One machine that holds all visits:  quoron simulate run.toml;  quoron train run.toml
# Each hospital by itself:            quoron client --data visits/hospital-1.parquet --user patient ...
#                                     quoron submit run.toml --users {users} ...  (docs/silos.md)

[population]
kind = "table"
path = "visits"                     # one file a hospital; of a federation each hospital reads its own, nobody this
user = "patient"
label = "readmitted"
items_per_user = 2                  # a low typical number of visits
silos = {{ sizes = {silos} }}       # with sums = true in it each hospital sends one sum of clipped rows: fewer methods
test_fraction = 0.2                 # of a simulation: patients who are held out to measure the model

[population.columns.numeric]        # public ranges, agreed without looking at anybody's visits
age = [0, 100]
nights = [0, 30]
medicines = [0, 20]
earlier_stays = [0, 10]
emergency = [0, 1]

[population.columns.categorical]
cases = ["heart", "lung", "kidney", "infection", "injury", "other"]

[privacy]
epsilon = 4.0
delta = 1e-5
# `quoron submit` declares a minimum cohort of 0.5: the run goes on while so many answer, whose hospitals are there
"""


def visits(hospital: int, patients: int, seed: int) -> pa.Table:
    """The visits of one hospital, numbered from 1: what it has depends on its number, its patients and the seed."""
    random = np.random.default_rng([seed, hospital])
    mix = random.dirichlet([1.5] * len(CASES))  # hospitals differ in whom they treat
    older = random.normal(0.0, 6.0)
    frail = random.normal(0.0, 0.7, patients)
    age = np.clip(random.normal(58 + older, 17, patients), 18, 99)
    own = random.choice(len(CASES), patients, p=mix)
    counts = np.minimum(random.geometric(1 / (1.6 + np.exp(0.8 * frail)), patients), MOST_VISITS)
    who = np.repeat(np.arange(patients), counts)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    case = np.where(random.random(len(who)) < 0.7, own[who], random.integers(0, len(CASES), len(who)))
    emergency = (random.random(len(who)) < 0.25 + 0.2 * (case < 2)).astype(np.int64)
    nights = np.minimum(random.poisson(3 + 2 * emergency + 1.2 * np.maximum(frail[who], 0)), 60)
    medicines = np.minimum(random.poisson(4 + 0.05 * age[who] + 1.5 * np.maximum(frail[who], 0)), 40)
    earlier = np.arange(len(who)) - first[who]
    of_case = np.array([RISK[each] for each in CASES])[case]
    lean = -2.2 + 0.02 * (age[who] - 55) + of_case + 0.7 * emergency + 0.06 * nights + 0.05 * (medicines - 6)
    lean += 0.25 * np.minimum(earlier, 6) + frail[who]
    again = random.random(len(who)) < 1 / (1 + np.exp(-lean))
    return pa.table(
        {
            "patient": [f"h{hospital}-{number + 1:05d}" for number in who],
            "hospital": np.full(len(who), hospital),
            "age": np.floor(age[who]).astype(np.int64),
            "cases": [CASES[each] for each in case],
            "emergency": emergency,
            "nights": nights,
            "medicines": medicines,
            "earlier_stays": earlier,
            "readmitted": again,
        }
    )


def write_hospitals(folder: Path, *, hospitals: int = 3, patients: int = 300, seed: int = 0) -> tuple[Path, ...]:
    """Write the files of all hospitals and run.toml, in a folder without any, and return their paths."""
    digits = len(str(hospitals))
    files = [folder / "visits" / f"hospital-{number:0{digits}d}.parquet" for number in range(1, hospitals + 1)]
    (folder / "visits").mkdir(parents=True)
    for number, path in enumerate(files, 1):
        pq.write_table(visits(number, patients, seed), path)
    silos = hospitals if hospitals > 20 else f"[{', '.join([str(patients)] * hospitals)}]"
    said = RUN.format(hospitals=hospitals, patients=patients, users=hospitals * patients, silos=silos)
    (folder / "run.toml").write_text(said, encoding="utf-8")
    return (*files, folder / "run.toml")


def main() -> None:
    """Write what the command line asks for, and print the paths."""
    parser = argparse.ArgumentParser(description="Visits of made-up hospitals, and a run to submit.")
    parser.add_argument("--out", type=Path, required=True, help="a folder without any")
    parser.add_argument("--hospitals", type=int, default=3)
    parser.add_argument("--patients", type=int, default=300, help="of each hospital")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for path in write_hospitals(asked.out, hospitals=asked.hospitals, patients=asked.patients, seed=asked.seed):
        print(path)


if __name__ == "__main__":
    main()
