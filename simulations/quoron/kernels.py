"""Compile the loops of quoron before anybody waits for them, on all processors: `python -m quoron.kernels`.

Loops are compiled when they are first called and kept on disk, in NUMBA_CACHE_DIR or beside the source. Here every
algorithm runs once over a few made-up users, every loss is made ready, and what only far more users reach is called.
With `--ship` that is done for a level of processors, into the installation itself (`quoron_privacy.kernels.compiled`):
what a wheel carries, the container image, and what `scripts/quickstart` sets up.
"""

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from numba.core.caching import UserProvidedCacheLocator

import quoron
import quoron_client
import quoron_privacy
import quoron_server
from quoron.engine.processors import processors
from quoron.simulation.sources import write_example
from quoron_client.compute.user_loops import UserLoop
from quoron_client.data.encoding import Encoding, Signs, Weight
from quoron_client.data.features import Categorical, Numeric
from quoron_client.data.fused import Block, Gathering, RowCounts, encoded, put_in_order
from quoron_privacy.kernels.compiled import Pointwise
from quoron_privacy.kernels.prebuilt import LEVELS, PREBUILT, Target, fits, here
from quoron_privacy.means.clipping import ClippedSum
from quoron_server.algorithms import ALGORITHMS

# So generous a promise that filters and smooth tests are feasible with these users.
SMALL = (
    "population.users=2400",
    "population.items_per_user=4",
    "population.dimension=3",
    "privacy.epsilon=8.0",
    "privacy.delta=1e-3",
    "privacy.trust_model=central-release",
)
NEEDS = {"median-sgd": ("domain.kind=box", "loss.ridge=0.2")}  # what an algorithm asks of a problem
TRAINED: tuple[tuple[str | None, str, dict[str, Any]], ...] = (  # a preset, or the shipped table as a person has it
    ("scorecard", "auto", {}),
    ("storms", "auto", {}),
    ("scorecard", "one-round-least-squares", {}),
    ("storms", "tracking-srgd", {}),
    (None, "auto", {"user": "unitid", "label": "earnings_med"}),
    (None, "auto", {"user": "unitid", "label": "pred_degree_awarded_ipeds"}),
)


def compile_all(part: int = 0, parts: int = 1) -> None:
    """Compile what a client, a coordinator, a simulation and a run on a table use: one of so many parts of it."""
    with TemporaryDirectory(prefix="quoron-kernels-") as folder:
        runs: list[tuple[str, tuple[str, ...]]] = [(name, ()) for name in ALGORITHMS]
        runs.append(("one-pass-dp-sgd", ("population.outliers.share=0.05",)))  # loops that default options do not reach
        works: list[Callable[[], object]] = [
            _make_all_ready,
            partial(_gather_and_train, Path(folder, "tables")),
            *(partial(_simulate, Path(folder, str(number)), *run) for number, run in enumerate(runs)),
        ]
        for work in works[part::parts]:
            work()


def ship() -> None:
    """Compile everything into the installation, for a level of processors where this is one of it; once a source."""
    if prebuilt():
        return
    rmtree(PREBUILT, ignore_errors=True)
    _, name, features = _target()
    with TemporaryDirectory(prefix="quoron-kernels-") as compiled:
        _on_all_processors({"NUMBA_CACHE_DIR": compiled, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features})
        for root in _packages():
            for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
                cached = Path(compiled, UserProvidedCacheLocator.get_suitable_cache_subpath(str(folder / "module.py")))
                if cached.is_dir():
                    copytree(cached, PREBUILT / ".".join(folder.relative_to(root.parent).parts))
    (PREBUILT / "made-of").write_text(_made_of())


def prebuilt() -> bool:
    """Return whether what the installation has was compiled of its source, for this processor's level."""
    done = PREBUILT / "made-of"
    return done.exists() and done.read_text() == _made_of()


def _made_of() -> str:
    sources = b"".join(path.read_bytes() for root in _packages() for path in sorted(root.rglob("*.py")))
    return f"{sha256(sources).hexdigest()} for {' '.join(_target())}\n"


def _packages() -> list[Path]:
    return [Path(package.__path__[0]) for package in (quoron_privacy, quoron_client, quoron_server, quoron)]


def _target() -> Target:
    level = next((name for name in LEVELS if fits((here()[0], name, ""), here())), None)
    return here() if level is None else (here()[0], level, "")


def _on_all_processors(environment: Mapping[str, str]) -> None:
    """Both halves of a machine with two processors, and so on; raises where one of them fails."""
    parts = processors()
    command = [sys.executable, "-m", "quoron.kernels"]
    variables = os.environ | environment
    begun = [subprocess.Popen([*command, str(part), str(parts)], env=variables) for part in range(parts)]
    ended = [process.wait() for process in begun]
    if any(ended):
        raise RuntimeError("The loops were not all compiled: see above.")


def _simulate(folder: Path, name: str, options: tuple[str, ...]) -> None:
    zero_out = ("privacy.adjacency=zero-out",) if ALGORITHMS[name].guarantees.adjacency == ("zero-out",) else ()
    settings = (*SMALL, *NEEDS.get(name, ()), *zero_out, *options)
    quoron.simulate("quickstart", algorithm=name, out=folder, settings=settings)


def _make_all_ready() -> None:
    for found in pkgutil.walk_packages(quoron_client.__path__, "quoron_client."):
        if ".flower" not in found.name and ".federation" not in found.name:  # what belongs to a network
            for held in vars(importlib.import_module(found.name)).values():
                _make_ready(held)
    ClippedSum(1.0, 2).of(np.zeros((2, 2), np.float32), np.ones(2, np.bool_))  # rows of a module
    quoron.mean(np.zeros((1000, 2)), epsilon=8.0, bound=1.0, seed=0)


def _gather_and_train(folder: Path) -> None:
    """Rows of every kind, in an order that has to be changed, and runs on tables by what `auto` chooses."""
    rules = Encoding((Numeric("a", 0, 1), Categorical("b", ("x",))), Signs("c"), weight=Weight("d", 1.0))
    rows = Gathering(rules, "b", most=1)
    for kind in (pa.string(), pa.float64()):
        number = pa.array([1, 0, 2]).cast(kind)
        rows.add(pa.table({"a": number, "b": ["y", "y", "x"], "c": number, "d": number}))
    RowCounts(rules, 2).add((gathered := rows.end()).owners, gathered.block.marks)
    gathered.items(2)
    encoded(replace(rules, curves=2, pairs=1), pa.table({"a": [1.0], "b": ["x"], "c": [1], "d": [1.0]}))
    places = np.arange(100_000, dtype=np.int32)  # more than are put in order at a time
    for to in (places[::-1].copy(), np.roll(places, 1)):  # of no order; in order but for one row
        put_in_order(to, Block.of(rules, len(to)))
    folder.mkdir()
    table, _ = write_example("scorecard", folder)
    for number, (source, algorithm, columns) in enumerate(TRAINED):
        given, out, ledger = table if source is None else source, folder / str(number), folder / "lifetime.sqlite"
        quoron.train(given, epsilon=8.0, algorithm=algorithm, out=out, ledger=ledger, progress=False, **columns)


def _make_ready(value: Any) -> None:
    """A loop over users in both precisions; the scalar functions of a loss."""
    if isinstance(value, UserLoop):
        value.compile()
    if isinstance(value, type):
        for member in vars(value).values():
            if isinstance(member, Pointwise):
                member(0.0, 0.0, 0.0)


def main(arguments: Sequence[str]) -> None:
    """`--ship`, a part and how many there are, or nothing: all of it, into numba's own folder."""
    if arguments == ["--ship"]:
        ship()
    elif arguments:
        compile_all(*map(int, arguments))
    else:
        _on_all_processors({})


if __name__ == "__main__":
    main(sys.argv[1:])
