"""A table on its way to a model, beside pyarrow's own read of the same rows: time, processors and the peak of memory.

    python benchmarks/one_way_in.py                     # 5,000,000 rows of 100,000 users, 20 numbers: some ten minutes
    python benchmarks/one_way_in.py --small             # 200,000 rows of 4,000 users
    python benchmarks/one_way_in.py --door csv --order shuffled --ids text --repeats 3

Made-up rows are written once, into a folder that is kept (`--folder`). Then in turns, each in a process of its own and
from files that the system has in memory: pyarrow alone (a CSV file with newlines in values, a DataFrame by
`Table.from_pandas`), and `quoron.train` from its call to the model, the best of some repeats.

Not counted: the interpreter's start, imports (told apart), compiling (a small run comes before, so that loops lie on
disk; loading them is counted) and the files of a run that is over. The peak of memory is that of the whole process,
libraries and all; of a DataFrame, what is beyond the frame itself. Items take 4 bytes a feature and 8 a row.

Goals: at most twice pyarrow's read and 2 s; a peak of at most 1.5 times the items and 0.4 GB. Processor seconds, those
of all threads, compare on a busy machine too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, SECONDS, TIMES, GIGABYTES, OF_ITEMS = 20, 2.0, 2.0, 0.4, 1.5
COLUMNS = [f"x{j}" for j in range(FEATURES)]
DOORS, ORDERS = ("csv", "parquet", "frame", "folder"), ("sorted", "shuffled")
Took = dict[str, float]


def written(place: Path, rows: int, order: str, ids: str) -> Path:
    """The folder of a table of so many rows, some fifty a user: as CSV, as Parquet, and as a folder of Parquet."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    folder = place / f"{rows}-{order}-{ids}"
    if (folder / "done").is_file():
        return folder
    (folder / "folder").mkdir(parents=True, exist_ok=True)
    draw = np.random.Generator(np.random.Philox(rows))
    users = np.sort(draw.integers(0, rows // 50, rows))
    whose = users if order == "sorted" else users[draw.permutation(rows)]
    columns: dict[str, Any] = {"user": whose}
    if ids == "text":
        columns["user"] = pa.array(whose).cast(pa.string()).cast(pa.large_string())
        columns["user"] = pa.compute.binary_join_element_wise("person-", columns["user"], "")
    score = np.zeros(rows)
    for j, name in enumerate(COLUMNS):  # three decimals, so that a CSV file says the same numbers
        columns[name] = np.round(draw.standard_normal(rows), 3)
        score += columns[name] * (j % 3 - 1)
    columns["label"] = (score + 3 * draw.standard_normal(rows) > 0).astype(np.int64)
    table = pa.table(columns)
    pa.csv.write_csv(table, folder / "table.csv")
    pq.write_table(table, folder / "table.parquet")
    os.link(folder / "table.parquet", folder / "folder" / "part-0.parquet")
    (folder / "done").touch()
    return folder


def read(folder: Path, door: str) -> Took:
    """Pyarrow alone."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    frame = framed(folder) if door == "frame" else None
    in_memory(folder, door)
    began, spent = time.perf_counter(), time.process_time()
    if frame is not None:
        table = pa.Table.from_pandas(frame)
    elif door == "csv":
        options = pa.csv.ParseOptions(newlines_in_values=True)
        table = pa.csv.read_csv(folder / "table.csv", parse_options=options)
    else:
        table = pq.read_table(folder / "table.parquet")
    took = {"seconds": time.perf_counter() - began, "processors": time.process_time() - spent}
    return took | {"rows": table.num_rows, "peak": peak() - (0 if frame is None else frame.memory_usage().sum())}


def train(folder: Path, door: str, quality: float | None) -> Took:
    """From the call to the model."""
    began = time.perf_counter()
    import quoron
    import quoron.reports.progress
    import quoron.training.run
    from quoron.config import from_tree

    frame = framed(folder) if door == "frame" else None
    imported = time.perf_counter() - began
    given: dict[str, Any] = {"user": "user", "label": "label"}
    columns: dict[str, Any] = {"numeric": dict.fromkeys(COLUMNS, (-4.0, 4.0))}
    source: Any = frame if door == "frame" else str(folder / f"table.{door}")
    if door == "folder":  # its place is said by a configuration
        source = from_tree(
            {"population": {"kind": "table", "path": str(folder / "folder"), **given, "columns": columns}}
        )
        given = {}
    else:
        given |= {"columns": columns}
    in_memory(folder, door)
    ended: Took = {}

    class Watch:
        """Looks at the clock when the model is there."""

        def started(self, plan: Any) -> None:
            """The plan is made, and the rows are grouped, or not yet."""

        def round_finished(self, event: Any) -> None:
            """The first comes when there are items."""
            ended.setdefault("first round", time.perf_counter() - began)

        def finished(self, model: Any) -> None:
            """Now."""
            ended.update(seconds=time.perf_counter() - began, processors=time.process_time() - spent, peak=peak())

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["QUORON_CACHE"] = scratch  # an index is made anew, and counted
        shown = {"out": f"{scratch}/run", "ledger": f"{scratch}/lifetime.sqlite"}
        asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, **shown}
        asked |= {"items_per_user": 50, "observers": [Watch()], "progress": False, "data_quality": quality}
        began, spent = time.perf_counter(), time.process_time()
        quoron.train(source, **asked, **given)
    ended["peak"] -= 0 if frame is None else frame.memory_usage().sum()
    return ended | {"imports": imported}


def framed(folder: Path) -> Any:
    """The rows as a DataFrame of float64, and nothing else: the peak of memory begins anew."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(folder / "table.parquet")
    values = np.empty((FEATURES, file.metadata.num_rows))
    for j, name in enumerate(COLUMNS):
        values[j] = file.read([name]).column(0).to_numpy()
    frame = pd.DataFrame(values.T, columns=COLUMNS, copy=False)
    for name in ("user", "label"):
        frame[name] = file.read([name]).to_pandas()[name]
    del file
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    return frame


def in_memory(folder: Path, door: str) -> None:
    """A file that has been read just now."""
    if door != "frame":
        with open(folder / ("table.csv" if door == "csv" else "table.parquet"), "rb") as file:
            while file.read(1 << 24):
                pass


def peak() -> int:
    """Bytes that this process had in memory at most."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def apart(what: str, folder: Path, door: str, quality: float | None) -> Took:
    """The figures of a process of its own."""
    words = [sys.executable, __file__, "--alone", what, "--folder", str(folder), "--door", door]
    words += [] if quality is None else ["--data-quality", str(quality)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def best(found: list[Took]) -> Took:
    """The least of each figure."""
    return {name: min(each[name] for each in found) for name in found[0]}


def measured(folder: Path, rows: int, door: str, repeats: int, quality: float | None) -> dict[str, Any]:
    """Figures, and ratios to what they may be."""
    pairs = [(apart("read", folder, door, quality), apart("train", folder, door, quality)) for _ in range(repeats)]
    alone, ours = best([pair[0] for pair in pairs]), best([pair[1] for pair in pairs])
    items = rows * (4 * FEATURES + 8)
    return {
        "door": door,
        "table": folder.name,
        "read s": round(alone["seconds"], 2),
        "read processor s": round(alone["processors"], 2),
        "train s": round(ours["seconds"], 2),
        "of which to the first round's end": round(ours["first round"], 2),
        "train processor s": round(ours["processors"], 2),
        "time / (2 read + 2 s)": round(ours["seconds"] / (TIMES * alone["seconds"] + SECONDS), 2),
        "items GB": round(items / 1e9, 3),
        "peak GB": round(ours["peak"] / 1e9, 2),
        "peak / (1.5 items + 0.4 GB)": round(ours["peak"] / (OF_ITEMS * items + GIGABYTES * 1e9), 2),
        "read peak GB": round(alone["peak"] / 1e9, 2),
        "imports s": round(ours["imports"], 2),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Print one JSON object a table and door."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="200,000 rows")
    parser.add_argument("--rows", type=int, help="any other number of rows, fifty a user")
    parser.add_argument("--door", action="append", choices=DOORS, help="by default all")
    parser.add_argument("--order", action="append", choices=ORDERS, help="rows by user, or not; by default both")
    parser.add_argument("--ids", choices=("number", "text"), default="number")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--data-quality", type=float, help="share of μ² for the check of the table; 0: none")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "quoron-one-way-in")
    parser.add_argument("--alone", choices=("read", "train"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    doors = given.door or list(DOORS)
    if given.alone:
        took = (
            read(given.folder, doors[0]) if given.alone == "read" else train(given.folder, doors[0], given.data_quality)
        )
        print(json.dumps({name: float(value) for name, value in took.items()}))
        return
    rows = given.rows or (200_000 if given.small else 5_000_000)
    few = written(given.folder, 50_000, "sorted", "number")
    for door in doors:  # compiles
        apart("train", few, door, given.data_quality)
    for order in given.order or ORDERS:
        folder = written(given.folder, rows, order, given.ids)
        for door in doors:
            print(json.dumps(measured(folder, rows, door, given.repeats, given.data_quality)), flush=True)


if __name__ == "__main__":
    main()
