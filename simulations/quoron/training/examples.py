"""A shipped table as files of one's own, as a user of quoron would bring; and visits of made-up hospitals.

Of hospitals there are visits of patients, one file a hospital, whose mix of cases differs. No patient of them exists.

    write_hospitals(Path("trial"), hospitals=3, patients=300)     # trial/visits/hospital-1.parquet, ..., trial/run.toml

A visit ends with or without another one within thirty days (`readmitted`), by a logistic model that is the same
everywhere, of what is known of the visit and of how frail the patient is, which no column says. How many visits a
patient has is uneven: most one or two, some twenty.
"""

import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quoron import config as configs
from quoron.config import TableSection
from quoron.paths import PACKAGED, table_file
from quoron.presets import preset, presets
from quoron.run_folder import as_parquet, write
from quoron.simulation.wildcards import KINDS, roles
from quoron_client.data import tables
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


def write_example(name: str, folder: Path) -> tuple[Path, Path]:
    """NAME.csv and NAME.toml in `folder`; ConfigError for a preset without a shipped table, or files that are there.

    Rows with an empty cell in a column that is described, or a number outside its range, are left out, so that the
    description fits. Makes the folder if there is none.
    """
    import pyarrow.compute as pc
    import pyarrow.csv

    source = _shipped(preset(name).text)
    if source is None:
        known = ", ".join(each.name for each in presets() if _shipped(each.text))
        raise ConfigError(f"Expected a preset over a table that ships with quoron ({known}), got {name!r}.")
    table, description = folder / f"{name}.csv", folder / f"{name}.toml"
    for path in (table, description):
        if path.exists():
            raise ConfigError(f"Expected no file {path}, found one. Choose another folder with --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Expected a folder at {folder}, cannot make it: {error.strerror}. Choose another with --out."
        ) from None
    rows = io.BytesIO()
    shipped = tables.read(table_file(source.path, folder))
    read = {name for kind in KINDS for name in getattr(source.columns, kind)} | roles(source)
    fits = shipped.select([name for name in shipped.column_names if name in read])
    checks = [pc.is_valid(column) for column in fits.columns]
    for column, (low, high) in source.columns.numeric.items():
        checks += [pc.greater_equal(fits[column], low), pc.less_equal(fits[column], high)]
    pyarrow.csv.write_csv(shipped.filter(functools.reduce(pc.and_, checks)), rows)
    write(table, rows.getvalue(), advice="Choose another folder with --out.")
    text = preset(name).text.replace(f'"{source.path}"', f'"{table.name}"')
    write(description, text.encode(), advice="Choose another folder with --out.")
    return table, description


def _shipped(text: str) -> TableSection | None:
    """The shipped table of a preset."""
    population = configs.parse(text).population
    return population if isinstance(population, TableSection) and population.path.startswith(PACKAGED) else None


CASES = ("heart", "lung", "kidney", "infection", "injury", "other")
RISK = dict(zip(CASES, (0.9, 0.6, 0.7, 0.1, -0.9, -0.4), strict=True))  # of another visit, on the scale of the logistic
MOST_VISITS = 20
ADVICE = "Choose another folder with --out."

RUN = """\
# {hospitals} made-up hospitals of {patients} patients each: does a patient come back within thirty days?
#
# MADE UP by `quoron example hospitals`: no patient of them exists. A user is a patient, with all of its visits.
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


def visits(hospital: int, patients: int, seed: int) -> "pa.Table":
    """The visits of one hospital, numbered from 1: what it has depends on its number, its patients and the seed."""
    import pyarrow as pa

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
    of_case: NDArray[np.float64] = np.array([RISK[each] for each in CASES])[case]
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
    """The files of all hospitals and run.toml, in `folder`. ConfigError for numbers that make none, or files there."""
    for name, value, most in (("hospitals", hospitals, 10_000), ("patients", patients, 10_000_000)):
        if not 1 <= value <= most:
            raise ConfigError(f"Expected {name} from 1 to {most:,}, got {name}={value}.")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"Expected seed in [0, 2^63), got seed={seed}.")
    digits = len(str(hospitals))
    files = [folder / "visits" / f"hospital-{number:0{digits}d}.parquet" for number in range(1, hospitals + 1)]
    for path in (run := folder / "run.toml", folder / "visits"):
        if path.exists():
            raise ConfigError(f"Expected no {path}, found one. {ADVICE}")
    (folder / "visits").mkdir(parents=True)
    for number, path in enumerate(files, 1):
        write(path, as_parquet(visits(number, patients, seed)), advice=ADVICE)
    silos = hospitals if hospitals > 20 else f"[{', '.join([str(patients)] * hospitals)}]"
    said = RUN.format(hospitals=hospitals, patients=patients, users=hospitals * patients, silos=silos)
    write(run, said.encode(), advice=ADVICE)
    return (*files, run)
