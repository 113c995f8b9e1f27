"""Users in files: what a pass over them costs beside what pyarrow alone needs to read and decode the same columns.

    python benchmarks/large_data.py --users 1_000_000 --folder /var/tmp/visits

Made-up rows (m = 10 items, d = 20 features, float32, no compression) are written once. Then, in turns within one run:
pyarrow alone; `quoron train` with one pass, from the charge to the model, its peak of memory that of a process of its
own; the same with one worker and with four. Seconds are told, and processor seconds, those of all processes together:
on a busy machine only these compare. The page that a run ends with takes as long whatever the number of users, and is
not counted. The projection to more users is (processor seconds a user) times users, from a tenth of them; how far it is
off at all of them is told. The machine's load is told beside.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ITEMS, FEATURES, FILE = 10, 20, 100_000  # FILE: users a file
COLUMNS = [f"x{j}" for j in range(FEATURES)]
TOML = """
[population]
kind = "table"
items_per_user = 10
path = "{path}"
user = "user"
label = "y"
columns.numeric = {{ {numeric} }}
[privacy]
trust_model = "central-release"
epsilon = 1.0
delta = 1e-8
[algorithm]
name = "{algorithm}"
options = {{ {options} }}
"""


def write(folder: Path, users: int) -> None:
    """Sorted by user, a file for every hundred thousand."""
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, users, FILE):
        path = folder / f"part-{first // FILE:06}.parquet"
        if path.is_file():
            continue
        own = min(FILE, users - first)
        draw = np.random.Generator(np.random.Philox(first))
        features = draw.standard_normal((FEATURES, own * ITEMS), dtype=np.float32)
        table = {
            "user": np.repeat(np.arange(first, first + own), ITEMS),
            **dict(zip(COLUMNS, features, strict=True)),
            "y": draw.integers(0, 2, own * ITEMS, np.int8),
        }
        pq.write_table(pa.table(table), path, row_group_size=250_000, compression="none", use_dictionary=False)


def alone(folder: Path) -> dict[str, float]:
    """Seconds in which pyarrow reads and decodes the columns."""
    began, spent, read = time.perf_counter(), time.process_time(), 0
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1 << 16, columns=[*COLUMNS, "y"]):
            read += batch.num_rows
    assert read
    return {"train": time.perf_counter() - began, "processors": time.process_time() - spent}


def trained(folder: Path, algorithm: str, workers: int | None) -> dict[str, float]:
    """Seconds of planning and of training, of processors too, and the peak of memory in MB, of a process of its own."""
    words = [sys.executable, __file__, "--train", "--folder", str(folder), "--algorithm", algorithm]
    words += [] if workers is None else ["--workers", str(workers)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def train(folder: Path, algorithm: str, workers: int | None) -> None:
    """What `trained` starts."""
    from quoron import config as configs
    from quoron.engine.choice import Inline
    from quoron.run_folder import claim
    from quoron.training import run as training

    with TemporaryDirectory() as scratch:
        numeric = ", ".join(f"{name} = [-3, 3]" for name in COLUMNS)
        options = "rounds = 20" if algorithm in ("one-pass-dp-sgd", "tracking-srgd") else ""
        text = TOML.format(path=folder, numeric=numeric, algorithm=algorithm, options=options)
        config = configs.parse(text, "here", [f"run.out={scratch}/run", f"train.ledger={scratch}/l.sqlite"])
        began = time.perf_counter()
        prepared = training.prepare(config, Path.cwd(), name="large")
        planned, spent = time.perf_counter(), time.process_time()
        ended: dict[str, float] = {}

        class Watch:
            """Looks at the clock when the model is there."""

            def started(self, plan: object) -> None:
                """Not yet."""

            def round_finished(self, event: object) -> None:
                """Not yet."""

            def finished(self, model: object) -> None:
                """Now."""
                ended.update(train=time.perf_counter() - planned, processors=time.process_time() - spent)

        training.carry_out(prepared, claim(config, "large"), [Watch()], engine=Inline(workers=workers))
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended["processors"] += others.ru_utime + others.ru_stime
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps({"plan": planned - began, **ended, "MB": own, "MB of the largest worker": others.ru_maxrss / 1024})
    )


def shared(users: int) -> dict[str, float]:
    """Seconds of the same rounds over made-up users with no, one and four workers, started before."""
    from quoron.data import Synthetic
    from quoron.engine.choice import ShardedEngine, of_processes
    from quoron.engine.inline import InlineEngine
    from quoron_client.protocol.domains import L2Ball
    from quoron_client.protocol.questions import AverageGradient, Question
    from quoron_privacy.means.clipping import ClippedSum

    crowd = Synthetic(family="logistic", users=users, items_per_user=ITEMS, dimension=FEATURES, domain=L2Ball(3.0))
    task = AverageGradient(np.zeros((1, FEATURES)), (1.0,))
    order = np.random.Generator(np.random.Philox(1)).permutation(users)
    asked = [
        Question(k, own, task, reduction=ClippedSum(1.0, users)) for k, own in enumerate(np.array_split(order, 10))
    ]
    warm = Question(0, order[:1000], task, reduction=ClippedSum(1.0, users))
    engines = {"one process": InlineEngine(crowd)}
    for workers in (1, 4):
        engines[f"{workers} workers"] = of_processes(InlineEngine(crowd), workers)
    took = dict.fromkeys(engines, np.inf)
    for _ in range(3):  # in turns
        for name, engine in engines.items():
            engine.ask(warm)
            began = time.perf_counter()
            for question in asked:
                engine.ask(question)
            took[name] = min(took[name], time.perf_counter() - began)
    for engine in engines.values():
        if isinstance(engine, ShardedEngine):
            engine.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--algorithm", default="tracking-srgd")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.folder, given.algorithm, given.workers)
        return
    from quoron.data.index import opened

    cost = {}
    for users in (given.users // 10, given.users):
        folder = given.folder / str(users)
        write(folder, users)
        began = time.perf_counter()
        index = opened(folder, "user")
        print(f"{users:,} users, {index.rows:,} rows; index: {time.perf_counter() - began:.1f} s")
        took: dict[str, list[dict[str, float]]] = {"pyarrow alone": [], "one process": []}
        took |= {f"{workers} workers": [] for workers in (1, 4)}
        for _ in range(given.repeats):
            took["pyarrow alone"].append(alone(folder))
            took["one process"].append(trained(folder, given.algorithm, None))
            for workers in (1, 4):
                took[f"{workers} workers"].append(trained(folder, given.algorithm, workers))
        best = {
            name: {key: min(each[key] for each in text) for key in ("train", "processors")}
            for name, text in took.items()
        }
        cost[users] = best["one process"]["processors"]
        for name, text in best.items():
            shares = ", ".join(f"{best['pyarrow alone'][key] / text[key]:.2f}" for key in ("train", "processors"))
            largest = max(max(each.get("MB", 0), each.get("MB of the largest worker", 0)) for each in took[name])
            print(
                f"  {name:13} {text['train']:7.2f} s, {text['processors']:7.2f} of processors; of pyarrow's rate "
                f"{shares}; {largest:.0f} MB in the largest process"
            )
        for key in ("train", "processors"):
            lost = best["4 workers"][key] / best["1 workers"][key] - 1
            print(f"  four workers lose {lost:+.0%} to one ({key})")
        print(f"  load {os.getloadavg()[0]:.1f}")
    few, many = sorted(cost)
    projected = cost[few] * many / few
    print(
        f"processor seconds projected from {few:,} users: {projected:.1f}, measured {cost[many]:.1f}; "
        f"10^8 users: {cost[many] * 1e8 / many:.0f}"
    )
    of_rounds = shared(min(given.users, 1_000_000))
    text = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in of_rounds.items())
    print(f"made-up users: {text}; four lose {of_rounds['4 workers'] / of_rounds['1 workers'] - 1:+.0%} to one")


if __name__ == "__main__":
    main()
