"""A coordinator's writes from the first enrolment to the end of a run, repeatable from wherever they stopped; killed.

As a program: kill it at every write and commit of the database in the list of arguments, carry it on, print what is
stored in the end. A process of its own, with one thread, so that it may fork.
"""

import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psycopg

from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.release import Release
from quoron_server.federation import RunStore
from quoron_server.storage.database import Database, parse
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.registry import OPEN, Registry

ROUNDS = 2
WRITES = ("INSERT", "UPDATE", "DELETE", "CREATE")
EXECUTE, BEGUN = Database._execute, Database._begun
TIMES = ("enrolled_at", "seen", "time", "created", "owner", "acknowledged", "incarnation")


def carry_out(url: str) -> None:
    """Everything a coordinator writes, skipping nothing by memory: what is done is known from the database only."""
    with Database(url) as database:
        store = RunStore(database)
        registry = store.registry
        population = store.population = PopulationLedger(database, clock=lambda: "then")
        store.settle()
        for name in ("ada", "ben"):
            registry.enrol(name)
        registry.add_run("run", "{}")
        registry.fix_members("run", 2)
        registry.enrol("eve")
        registry.retire([0])
        registry.back(0)
        population.limit("everyone", epsilon=1.0, delta=1e-5)
        population.charge("run", "everyone", epsilon=0.5, delta=1e-6)
        words = {"plan": "p", "config_digest": "c", "noise_key": b"k"}
        started = Ledger.begun(database, "run")
        ledger = Ledger.within(database, "run") if started else Ledger.begin(database, "run", **words)
        if registry.run("run").state in OPEN:
            registry.set_state("run", "running")
        if not ledger.finished:
            if ledger.resume_point() is None:
                ledger.commit(-1, b"state -1", (), {})
            last, state = ledger.resume_point()
            assert state == f"state {last}".encode()
            tasks = [AverageGradient(np.full((1, 2), float(round_)), (1.0,)) for round_ in range(ROUNDS)]
            asked = [(Question(round_, np.arange(2), task), 2, 4) for round_, task in enumerate(tasks)]
            if last + 1 < ROUNDS:
                ledger.spend(*asked[last + 1])
            for round_ in range(last + 1, ROUNDS):
                release, following = Release("gaussian", {"scale": 1.0}), asked[round_ + 1 : round_ + 2]
                ledger.commit(round_, f"state {round_}".encode(), (release,), {"round": round_}, *following)
            ledger.finish(np.ones(2))
        if registry.run("run").state in OPEN:
            store.end("run", "complete")


def stored(url: str) -> dict[str, list[str]]:
    """Every row of every table, but for times."""
    with Database(url, sole=False) as database, database.writing():
        found = {}
        for table in database.tables:
            rows = database.rows(f"SELECT * FROM {table}")
            kept = [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
            found[table] = sorted(map(repr, kept))
        return found


def at_point(number: int, act) -> None:
    """From now on call `act` at point `number` of this process.

    Points are: between any two writes of one transaction, before a transaction is made durable, and just after.
    """
    seen = 0

    def passed() -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            act()

    wrote = False

    def execute(self, connection, sql, parameters=()):
        nonlocal wrote
        if sql.startswith(WRITES):
            if wrote and not sql.startswith("CREATE"):
                passed()
            wrote = True
        return EXECUTE(self, connection, sql, parameters)

    @contextmanager
    def begun(self, connection):
        nonlocal wrote
        wrote = False
        with BEGUN(self, connection):
            yield
            told, wrote = wrote, False
            if told:
                passed()
        if told:
            passed()

    Database._execute, Database._begun = execute, begun


def forked(work) -> int:
    """The exit status of a child that does `work`."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def empty(url: str) -> None:
    """As if nothing had ever been there."""
    if (file := parse(url)) is not None:
        for ending in ("", "-wal", "-journal", "-shm", "-acknowledged"):
            Path(f"{file}{ending}").unlink(missing_ok=True)
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS quoron CASCADE")


def main(url: str, first: int = 1) -> None:
    """Kill at the first point and each after it, until there is none or what is stored in the end is not the whole."""
    carry_out(url)  # here: children find every statement compiled
    whole = stored(url)
    number, wrong = first - 1, []
    while not wrong:
        number += 1
        empty(url)

        def dying(number: int = number) -> None:
            at_point(number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            carry_out(url)

        status = forked(dying)
        if status == 0:
            break
        again = forked(lambda: carry_out(url))
        if status != -signal.SIGKILL or again != 0 or stored(url) != whole:
            wrong.append([number, status, again])
    print(json.dumps({"points": number - 1, "wrong": wrong, "tables": sorted(whole)}))


def torn(url: str) -> None:
    """The same for a ledger whose commit is two transactions: the sweep must find it."""
    whole = Ledger.commit

    def commit(self, round_, state, *more) -> None:
        self._database.rows("UPDATE unreleased SET round = ?, state = ?", [round_ - 1, state])
        whole(self, round_, state, *more)

    Ledger.commit = commit
    main(url, first=48)  # before that everything is written as ever


def commit_for_ever(url: str) -> None:
    """Commit large rounds, and say the number of each on standard output once it is durable."""
    with Database(url) as database:
        ledger = Ledger.begin(database, "run", plan="p", config_digest="c", noise_key=b"k")
        for round_ in range(-1, 10**6):
            ledger.commit(round_, bytes([round_ % 251]) * 300_000, (), {"round": round_, "padding": "x" * 2000})
            os.write(1, f"{round_}\n".encode())


def begin_and_die(url: str) -> None:
    """Three users, a charge and a run's beginning, then a kill: the journal is not folded."""
    database = Database(url)
    registry = Registry(database)
    for name in ("ada", "bob", "eve"):
        registry.enrol(name)
    PopulationLedger(database).charge("spring", group="everyone", epsilon=1.0, delta=1e-6, statement="a guarantee")
    Ledger.begin(database, "spring", plan="{}", config_digest="c", noise_key=bytes(range(32)))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    programs = {each.__name__: each for each in (main, torn, commit_for_ever, begin_and_die)}
    programs[sys.argv[1]](sys.argv[2])
