"""Tables of 20 numbers from files, to float64 columns batch by batch, beside pyarrow's own read of the same CSV file.

    python benchmarks/reading.py                           # 5,000,000 rows of 17 digits, 2 GB of CSV: some minutes
    python benchmarks/reading.py --rows 500_000 --digits 3
    python benchmarks/reading.py --kinds csv parquet csv.gz

Each is read in a process of its own, the best of some repeats, from a file that the system has in memory. pyarrow's is
`read_csv(newlines_in_values=True)`, which infers that the columns are numbers; ours are those of `columns.numbers`, all
batches in turn. Told are seconds, processor seconds of all threads (on a busy machine only these compare) and the peak
of memory beyond imports. Goal: 1.5 times pyarrow's.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

COLUMNS = [f"x{each}" for each in range(20)]
BLOCK = 100_000  # rows that are made at a time


def write(path: Path, rows: int, digits: int) -> None:
    """A file of such rows; Parquet is made of the whole table."""
    draw = np.random.Generator(np.random.Philox(1))

    def block(many: int) -> pa.Table:
        numbers = draw.standard_normal((len(COLUMNS), many))
        return pa.table(list(numbers if digits > 16 else np.round(numbers, digits)), COLUMNS)

    sizes = [min(BLOCK, rows - first) for first in range(0, rows, BLOCK)]
    if path.name.endswith(("csv", "csv.gz")):
        with pa.output_stream(path, compression="gzip" if path.suffix == ".gz" else None) as out:
            for number, many in enumerate(sizes):
                pa.csv.write_csv(block(many), out, pa.csv.WriteOptions(include_header=not number))
        return
    pq.write_table(pa.concat_tables([block(many) for many in sizes]), path)


def read(path: Path, who: str) -> dict[str, float]:
    """What one reading takes, in this process."""
    if who == "quoron":
        from quoron_client.data import columns, tables

        columns.numbers(pa.table({"x": ["1"] * 10_000}), "x")  # the loop is loaded
    before, began, used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter(), time.process_time()
    if who == "pyarrow":
        pa.csv.read_csv(path, parse_options=pa.csv.ParseOptions(newlines_in_values=True))
    else:
        for batch in tables.opened(path).batches(COLUMNS):
            for name in COLUMNS:
                columns.numbers(batch, name)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": time.perf_counter() - began, "processor": time.process_time() - used, "gigabytes": peak / 2**20}


def main() -> None:
    """Write, read in turns, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(text.replace("_", "")), default=5_000_000)
    parser.add_argument("--digits", type=int, default=17, help="after the point; 17: all that a float64 has")
    parser.add_argument("--kinds", nargs="+", default=["csv"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(read(Path(given.one[0]), given.one[1])))
        return
    with TemporaryDirectory(dir=given.folder) as folder:
        for kind in given.kinds:
            path = Path(folder) / f"rows.{kind}"
            write(path, given.rows, given.digits)
            runs: dict[str, list[dict[str, float]]] = {"pyarrow": [], "quoron": []}
            for who in [*runs] * given.repeats:
                if who == "quoron" or kind == "csv":
                    command = [sys.executable, __file__, "--one", str(path), who]
                    runs[who].append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            print(f"{kind}, {given.rows:,} rows, {path.stat().st_size / 1e9:.2f} GB")
            for who, took in runs.items():
                if took:
                    best = {key: min(each[key] for each in took) for key in took[0]}
                    print(f"  {who:8}" + "".join(f"  {value:7.2f} {key}" for key, value in best.items()), flush=True)


if __name__ == "__main__":
    main()
