"""Golden results: what plans, runs, tables, databases and run folders look like today.

A golden file says *that* something changed, never what is right. `scripts/regold` writes the files and prints what
changed, so that the commit can say why. Numbers have twelve digits and are compared to a relative 1e-9, since other
processors round sums differently.
"""

import ast
import hashlib
import inspect
import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import quoron
from contracts import doors, scenes
from golden.commands import COMMANDS, commands
from golden.constants import PROBLEMS as CONSTANTS
from golden.constants import constants
from golden.judged import JUDGED, judged
from golden.mechanisms import MECHANISMS, mechanisms
from golden.plain import plain
from golden.releases import RELEASES, releases
from golden.verdicts import SLOW, options, verdicts
from quoron.cli.app import invoke
from quoron.training.table import load_rows
from quoron_client.data.items import ItemBatch
from quoron_client.federation.client_state import ClientState
from quoron_client.protocol import wire as wires
from quoron_client.protocol.questions import Status
from quoron_privacy.errors import QuoronError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Adjacency
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.two_servers import BothServers, WithServers
from quoron_server.plan import Privacy, RunPlan
from quoron_server.second_server import runs as helped_store
from quoron_server.service import second_server_client
from quoron_server.storage import lifetime_ledger, registry, store
from quoron_server.wording import plan_json

FOLDER = Path(__file__).parent
TOLERANCE = 1e-9
ROUNDED = {"models": 1e-6, "releases": 1e-5}  # sums of many items, which processors round in orders of their own
VARIANTS = tuple(dict.fromkeys((*ALGORITHMS, *scenes.SMALL)))
WHOLE = (*VARIANTS, *scenes.TWO_SERVERS)
ABSENT_TOO = tuple(  # variants that are planned as zero-out, too
    f"{name}, zero-out"
    for name in (
        *(
            "one-round-least-squares",
            "winsorised-erm",
            "tracking-srgd",
        ),
        *("whitened-tracking", "whitened-tracking/classes", "whitened-tracking/parts"),
        *(name for name in scenes.TWO_SERVERS if name.startswith(("one-round", "tracking", "whitened", "recentred"))),
    )
)
AS_PRINTED = {f"{name}, printed": 300 for name in ("accelerated-srgd", "accelerated-erm", "mean-sgd", "local-model")}
AS_PRINTED["median-sgd, printed"] = 1_200
# What follows from a plan's rounds, and what its parameters say beside them.
FOLLOWING = (
    "cohorts",
    "participations",
    "answer_length",
    "reads_sums",
    "gradients_asked",
    "smooths_loss",
    "count_leakage",
)
SAID = "poisson_sampling", "long_once", "assumptions", "simulation_only"
UNTRAINED = ("median-sgd",)  # refused on every ball, as `plans` has it
SCHEMAS = (lifetime_ledger, registry, helped_store, second_server_client, store)

# Settings laid over the preset `quickstart`; every algorithm is planned for each.
PROBLEMS: Mapping[str, Sequence[str]] = {
    "ten thousand users": ("population.users=10_000", "population.items_per_user=20"),
    "five hundred users of one item, epsilon 8": (
        "population.users=500",
        "population.items_per_user=1",
        "population.dimension=3",
        "privacy.epsilon=8.0",
        "privacy.delta=1e-4",
    ),
    "a million users, epsilon 0.4": (
        "population.users=1_000_000",
        "population.items_per_user=100",
        "privacy.epsilon=0.4",
        "privacy.delta=1e-8",
        "budget.rounds=48",
    ),
    "least squares": ('population.family="least_squares"', "population.users=5_000", "population.items_per_user=5"),
    "linear": (
        'population.family="linear"',
        "population.signal_norm=0.5",
        "population.users=40_000",
        "privacy.epsilon=4.0",
        'problem.user_smoothness="item"',
    ),
    "a box": ('domain.kind="box"', "population.users=100_000", "budget.rounds=12"),
    "zero-out": ('privacy.adjacency="zero-out"', "population.users=20_000", "population.items_per_user=10"),
    "two servers": ('privacy.trust_model="two-servers"', "population.users=20_000", "population.items_per_user=10"),
    "a minimum cohort": ("privacy.min_cohort=0.8", "population.users=30_000", "population.items_per_user=10"),
    "one item from each user": ("budget.answers_per_user=1", "population.users=60_000", "population.items_per_user=8"),
    "ten silos": ("population.silos=10", "population.users=40_000", "population.items_per_user=10"),
    "two servers, groups of three": (
        'privacy.trust_model="two-servers"',
        "privacy.two_servers.groups=3",
        "population.users=40_000",
        "population.items_per_user=10",
    ),
    "nine in ten answer": ("problem.participation=0.9", "population.users=40_000", "population.items_per_user=10"),
}
PRINTED = 'algorithm.constants="paper"'
# users; fewer where rounds as printed grow with them, beyond what plans have
PRINTED_USERS = dict.fromkeys(("mean-sgd", "local-model"), 100_000)
MEANS = *PROBLEMS["linear"][:2], 'domain.kind="box"', "problem.user_smoothness=item"
PRINTED_ON = {"median-sgd": MEANS}  # of those whose paper's assumptions the quickstart does not keep
PLANNED = {**PROBLEMS} | {
    f"{name} as printed": (
        PRINTED,
        f"population.users={PRINTED_USERS.get(name, 4_000_000)}",
        *PRINTED_ON.get(name, ()),
        f'algorithm.name="{name}"',
    )
    for name, info in ALGORITHMS.items()
    if info.printed is not None
}
# So many that all are planned, and so few that conditions of the papers do not hold.
PLANNED["as printed, few users"] = (
    *(PRINTED, 'algorithm.name="accelerated-srgd"', "algorithm.options.realizable=true"),
    *("privacy.epsilon=2.0", "privacy.delta=1e-3"),
    *("population.users=300_000", "population.items_per_user=3", "population.dimension=40"),
)


def plans(_: Path, problem: str) -> Iterator[tuple[str, Any]]:
    """Every algorithm on a problem: all public numbers, or why it is infeasible."""
    planned = quoron.plan("quickstart", settings=PLANNED[problem])
    yield f"{problem}: chosen", planned.plan.algorithm
    for candidate in planned.candidates:
        if candidate.plan is None:
            yield f"{problem}: {candidate.algorithm}", candidate.reason
            continue
        found = plan_json(candidate.plan)
        numbers = {key: part for key, part in found.items() if key not in ("algorithm", "problem", "statement")}
        yield f"{problem}: {candidate.algorithm}", plain(numbers)


def guarantees(_: Path, name: str) -> Iterator[tuple[str, Any]]:
    """The guarantee sentence of a variant of the contracts, what its mechanisms cost, and what its rounds are."""
    plan = _planned(name)
    releases, pair = plain(plan.releases()), ALGORITHMS[plan.algorithm].gaussian(plan)
    gaussian = pair and {"mu": plain(pair.mu), "lack": plain(pair.variation)}
    said = {what: plain(getattr(plan.schedule, what)) for what in FOLLOWING} | {"masked": None}
    for what in SAID:
        value = getattr(plan.parameters, what)
        of_problem = callable(value) and inspect.signature(value).parameters
        said[what] = plain((value(plan.problem) if of_problem else value()) if callable(value) else value)
    if plan.schedule.rows is not None:
        said["masked"] = [[each.count, plain(each.rows)] for each in plan.schedule.stretches]
    yield name, {"guarantee": plan_json(plan)["statement"], "releases": releases, "gaussian": gaussian, "rounds": said}


def _planned(name: str) -> RunPlan:
    bare = name.partition(", ")[0]
    if name in AS_PRINTED:
        small = replace(scenes.PROBLEMS.get(bare, scenes.PROBLEM), users=AS_PRINTED[name])
        return ALGORITHMS[bare].plan(small, Privacy(8.0, 1e-3), None, "paper", 7)
    adjacency: Adjacency = scenes.PRIVACY.adjacency if name not in ABSENT_TOO else "zero-out"
    return scenes.make_plan(bare, privacy=replace(scenes.PRIVACY, adjacency=adjacency))


def runs(_: Path, name: str) -> Iterator[tuple[str, Any]]:
    """A whole run of a variant of the contracts, some users absent: rounds, releases and models."""
    plan, noise, draws = _planned(name), SeededNoise(3), np.random.default_rng(3)
    info = ALGORITHMS[plan.algorithm]
    made = info.make(plan) if name in AS_PRINTED else info.maker(plan.without("servers"))
    servers = plan.guarantee.servers is not None
    algorithm = WithServers(plan, made) if servers else made
    state, cohorts, released, iterates = algorithm.init(), [], 0, []
    while (question := algorithm.request(state, noise)) is not None:
        absent = draws.random(len(question.cohort)) < (0.1 if name in ABSENT_TOO else 0.02)
        engine: Any = scenes.Quadratic(_without(absent))
        engine = BothServers(engine, plan, b"11") if servers else engine
        update = algorithm.update(state, engine.ask(question), noise)
        state, released = update.state, released + len(update.releases)
        cohorts.append(len(question.cohort))
        iterates.append(float(np.sum(algorithm.model(state))))
    yield name, plain({"cohorts": cohorts, "releases": released, "iterates": iterates, "model": algorithm.model(state)})


def models(folder: Path, name: str) -> Iterator[tuple[str, Any]]:
    """The model of an algorithm on the shipped table, its rounds and its ledger, or why there is none."""
    settings = [f'algorithm.name="{name}"', "run.seed=3", "budget.max_rounds=10"]
    with chdir(folder):
        invoke(["example", "scorecard"])
        try:
            made = quoron.simulate("scorecard.toml", epsilon=8.0, settings=settings, out=name)
        except QuoronError as error:
            yield name, str(error).split(" Feasible here")[0]
        else:
            found = {"rounds": made.summary.rounds, "model": made.weights}
            yield name, plain(found | {"table": _columns(made.directory), "ledger": _entries(made.directory)})


def _columns(run: Path) -> dict[str, float]:
    """The sums of the rounds table's columns, but for times."""
    table = pd.read_parquet(run / "rounds.parquet")
    return {
        name: math.fsum(numbers.dropna())
        for name, numbers in table.select_dtypes("number").items()
        if "seconds" not in name
    }


def _entries(run: Path) -> list[Any]:
    """What a run's ledger says of every round: users asked, gradient evaluations, releases."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as opened:
        rows = opened.execute(
            "SELECT users, gradient_evaluations, releases FROM spent LEFT JOIN commits USING (run, round)"
        )
        return [(users, evaluations, json.loads(releases)) for users, evaluations, releases in rows]


def wire(_: Path, name: str) -> Iterator[tuple[str, Any]]:
    """The bytes of one question of a variant of the contracts and of an answer to it."""
    algorithm = scenes.make(name)
    question = algorithm.request(algorithm.init(), SeededNoise(3))
    assert question is not None
    title = wires.task_name(question.task)
    # The last bit of a planned number is the processor's: NumPy has other exponentials for wider registers.
    floats = {field.name: getattr(question.task, field.name) for field in fields(question.task)}
    rounded = {key: float(f"{number:.9g}") for key, number in floats.items() if isinstance(number, float)}
    question = replace(question, task=replace(question.task, **rounded))
    message = wires.question_to_wire(question, 0, run="run", user=int(question.cohort[0]), seconds=60)
    values = scenes.Quadratic().ask(question).values[0].round(6)
    answer = wires.answer_to_wire("run", question.round, message.digest, values, Status.ANSWERED)
    yield f"{name}: {title}", [part.SerializeToString(deterministic=True).hex()[:200] for part in (message, answer)]


def errors(*_: object) -> Iterator[tuple[str, Any]]:
    """The text of every error that the product raises, as its source has it."""
    found = {}
    for package in ("building", "client", "privacy", "server", "simulations"):
        for path in sorted((FOLDER.parent.parent / package).rglob("*.py")):
            for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                    found[ast.unparse(node.exc)] = True
    yield from sorted(found.items())


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below `node`: the expressions in them, most of a source, are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from _statements(child)


def _without(absent: np.ndarray) -> Callable[[np.ndarray, np.ndarray], None]:
    def tamper(values: np.ndarray, status: np.ndarray) -> None:
        values[absent], status[absent] = 0.0, 1

    return tamper


def tables(folder: Path, _: str) -> Iterator[tuple[str, Any]]:
    """The items of one table by every path of data in: users, and digests of features, labels and weights."""
    table = pa.table(doors.base())
    sources: dict[str, Any] = {"DataFrame": pd.DataFrame(doors.base()), "Arrow table": table}
    for writer in doors.WRITERS:
        doors.as_csv(doors.base(), writer, folder / f"{writer}.csv")
        sources[f"CSV by {writer}"] = f"{writer}.csv"
    for name, separator in (("tab", "\t"), ("semicolon", ";"), ("pipe", "|")):
        pyarrow.csv.write_csv(table, folder / f"{name}.csv", pyarrow.csv.WriteOptions(delimiter=separator))
        sources[f"CSV with {name}"] = f"{name}.csv"
    pq.write_table(table, folder / "t.parquet")
    sources |= {"Parquet": "t.parquet"}
    for name, source in sources.items():
        path = source if isinstance(source, str) else "frame"
        held = load_rows(doors.described(path, "drop"), folder, None if isinstance(source, str) else source)
        items = held.items
        assert isinstance(items, ItemBatch)
        yield name, {"users": held.declared.users, "items": _digest(items.features, items.labels, items.weights)}


def _digest(*arrays: Any) -> str:
    """Of numbers to seven digits, which encoding and processors leave alone."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update("".join(f"{number:.7g}\n" for number in np.ravel(array)).encode())
    return whole.hexdigest()


def stored(folder: Path, _: str) -> Iterator[tuple[str, Any]]:
    """The files of a run's folder, and the tables of every database in it."""
    run = quoron.simulate(
        "quickstart",
        epsilon=8.0,
        settings=[
            "population.users=2_000",
            "population.dimension=3",
            'algorithm.name="dp-sgd-wor"',
            "budget.max_rounds=8",
            f"run.out={json.dumps(str(folder / 'run'))}",
        ],
    )
    yield "run folder", sorted(path.relative_to(run.directory).as_posix() for path in run.directory.rglob("*"))
    ClientState(folder / "client's record.sqlite", epsilon=1.0, delta=1e-6, new_record=True).close()
    for path in sorted(folder.rglob("*.sqlite")):
        with closing(sqlite3.connect(path)) as opened:
            rows = opened.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name")
            yield f"database {path.name}", [" ".join(sql.split()) for (sql,) in rows]
    for module in SCHEMAS:
        tables = [table.sql.split() for table in sorted(module.SCHEMA, key=lambda table: table.name)]
        yield f"schema {module.__name__.removeprefix('quoron_server.')}", [" ".join(words) for words in tables]


# What is recorded, and the parts of it that are compared one at a time.
RECORDERS: Mapping[str, tuple[Sequence[str], Callable[[Path, str], Iterator[tuple[str, Any]]]]] = {
    "plans": (tuple(PLANNED), plans),
    "constants": (tuple(CONSTANTS), constants),
    "guarantees": ((*WHOLE, *ABSENT_TOO, *AS_PRINTED), guarantees),
    "mechanisms": (tuple(MECHANISMS), mechanisms),
    "judged": (JUDGED, judged),
    "verdicts": (tuple(name for name in VARIANTS if name not in SLOW), verdicts),
    "options": (tuple(ALGORITHMS), options),
    "runs": ((*WHOLE, *ABSENT_TOO, *AS_PRINTED), runs),
    "models": (tuple(name for name in ALGORITHMS if name not in UNTRAINED), models),
    "releases": (tuple(RELEASES), releases),
    "commands": (tuple(COMMANDS), commands),
    "wire": (VARIANTS, wire),
    "errors": (("",), errors),
    "tables": (("",), tables),
    "stored": (("",), stored),
}


def part_of(name: str, title: str) -> str:
    """The part to which a result belongs."""
    part = title.partition(": ")[0]
    return part if len(RECORDERS[name][0]) > 1 else ""


def read(name: str) -> dict[str, Any]:
    """The golden results of one kind, by their titles."""
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return {title: value for line in lines for title, value in json.loads(line).items()}


def write(name: str, found: Mapping[str, Any]) -> None:
    """One JSON object a line, so that a change shows as one line."""
    text = "".join(json.dumps({title: value}, ensure_ascii=False) + "\n" for title, value in found.items())
    (FOLDER / f"{name}.jsonl").write_text(text, encoding="utf-8")


def differences(golden: Any, found: Any, at: str = "", tolerance: float = TOLERANCE) -> Iterator[str]:
    """What is not the same, each with its place; numbers may differ by the tolerance."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*golden, *found)):
            if key not in golden or key not in found:
                yield f"{at}.{key}: {'appeared' if key in found else 'is gone'}"
            else:
                yield from differences(golden[key], found[key], f"{at}.{key}", tolerance)
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        for place, (one, other) in enumerate(zip(golden, found, strict=True)):
            yield from differences(one, other, f"{at}[{place}]", tolerance)
    elif isinstance(golden, float) or isinstance(found, float):
        numbers = all(isinstance(number, int | float) for number in (golden, found))
        if not numbers or not math.isclose(golden, found, rel_tol=tolerance, abs_tol=1e-12):
            yield f"{at}: {golden!r}, now {found!r}"
    elif golden != found:
        yield f"{at}: {golden!r}, now {found!r}"
