"""Where a round's time goes: the kernel, the engine around it, the store, and the loop; of users kept in memory.

    python benchmarks/engine.py [--users 10000] [--cohort 1000] [--items 20] [--features 100] [--rounds 100]
    python benchmarks/engine.py --table --rounds 60                 # of a table in memory: the whole beside its rounds

A whole simulated run of DP-SGD, every part timed where it happens: medians of a round in milliseconds, and the least.
Evaluation for the report, which only a simulation does, and the durable commit of a round are apart. To aim at:
all else within 0.3 of the kernel from 10,000 users a round up, and below 0.5 ms at 1,000.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import quoron
from quoron.engine import inline
from quoron_client.compute.gradients import gradient_sums
from quoron_server import rounds
from quoron_server.storage.ledger import Ledger

Times = dict[str, list[float]]


def timed(times: Times, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which adds to the last round's time under `name`."""

    def run(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            times[name][-1] += time.perf_counter() - began

    return run


def table(users: int, items: int, features: int) -> dict[str, Any]:
    """Arguments of `quoron.simulate` for a table whose labels a model of its columns draws."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((users * items, features), dtype=np.float32).clip(-3, 3)
    scores = rows @ (2 * rng.standard_normal(features, dtype=np.float32) / np.float32(np.sqrt(features)))
    names = [f"x{place}" for place in range(features)]
    columns = dict(zip(names, rows.T, strict=True)) | {"label": rng.logistic(size=len(rows)) < scores}
    made = pa.table(columns | {"user": np.repeat(np.arange(users), items)})
    return {"source": made, "user": "user", "label": "label", "columns": {"numeric": {name: [-3, 3] for name in names}}}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--cohort", type=int, default=1_000)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--table", action="store_true", help="of a table, not of made-up users")
    given = parser.parse_args()
    # one entry at first, for what is written before any round
    times: Times = {name: [0.0] for name in ("kernel", "asking", "store", "evaluation", "whole")}
    began = 0.0

    def opened(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            nonlocal began
            now = time.perf_counter()
            times["whole"][-1] = now - began
            began = now
            for values in times.values():
                values.append(0.0)
            return function(*arguments, **named)

        return run

    inline.gradient_sums = timed(times, "kernel", gradient_sums)  # type: ignore[attr-defined]
    inline.InlineEngine.ask = timed(times, "asking", inline.InlineEngine.ask)  # type: ignore[method-assign]
    rounds._diagnose = timed(times, "evaluation", rounds._diagnose)
    Ledger.commit = timed(times, "store", Ledger.commit)  # type: ignore[method-assign]
    rounds._expect = opened(rounds._expect)  # the first that happens in a round, once it is spent
    settings = [f"algorithm.options={{rounds={given.rounds}, rate={given.cohort / given.users}}}"]
    if given.table:
        source = table(given.users, given.items, given.features) | {"epsilon": 2.0, "delta": 1e-7}
    else:
        source = {"source": "quickstart"}
        settings += [f"population.users={given.users}", f"population.items_per_user={given.items}"]
        settings += [f"population.dimension={given.features}"]
    for evaluate in (False, True):
        first, processor = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            own = [*settings, f"run.evaluate={str(evaluate).lower()}"]
            quoron.simulate(**source, algorithm="dp-sgd-wor", out=Path(folder) / "run", settings=own)
        spent, processor = time.perf_counter() - first, time.process_time() - processor
        said = "measured" if evaluate else "not measured"
        print(
            f"the whole, {said}: {spent:.2f} s, {processor:.2f} of processors; rounds {sum(times['whole'][1:-1]):.2f} s"
        )
        if not evaluate:
            times |= {name: [0.0] for name in times}
    kept = {name: values[3:-1] for name, values in times.items()}  # the first make users and compile
    kept["engine around the kernel"] = [a - b for a, b in zip(kept["asking"], kept["kernel"], strict=True)]
    parts = zip(kept["whole"], kept["asking"], kept["store"], kept["evaluation"], strict=True)
    kept["loop around the engine"] = [whole - asking - store - each for whole, asking, store, each in parts]
    kept["all but store and evaluation"] = [
        a + b for a, b in zip(kept["asking"], kept["loop around the engine"], strict=True)
    ]
    print(f"{given.users:,} users in memory, {given.cohort:,} a round, {given.items} items x {given.features} features")
    for name in (
        "kernel",
        "engine around the kernel",
        "loop around the engine",
        "all but store and evaluation",
        "store",
        "evaluation",
    ):
        print(f"{name:30s}{1e3 * statistics.median(kept[name]):9.2f} ms{1e3 * min(kept[name]):9.2f} at least")
    whole, kernel = (min(kept[name]) for name in ("all but store and evaluation", "kernel"))
    print(f"a round is {whole / kernel:.2f} times its kernel; {given.cohort / whole:,.0f} users/s")


if __name__ == "__main__":
    main()
