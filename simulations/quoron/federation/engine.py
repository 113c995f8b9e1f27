"""A simulation carried out by a federation on this machine: a coordinator and real clients, over mutual TLS.

    result = simulate(prepared, folder, base)

The bits are those of the inline engine: the same plan, the same seeds, and every client answers what its user would.
An interrupted run begins again, to the same bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from quoron.engine.choice import Service
from quoron.engine.processors import free_ports
from quoron.federation import programs
from quoron.federation.client_items import require_one_file
from quoron.federation.control import check_end, followed
from quoron.federation.folder import PASSING, Folder, Order
from quoron.federation.launch import Local
from quoron.federation.submission import specification_of
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation.problem import Setup, columns_of
from quoron.simulation.run import SimulatedRun
from quoron_privacy.errors import ConfigError
from quoron_server.rounds import Observer, RoundEvent
from quoron_server.specification import RunSpecification
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger

SECONDS = 600.0  # of a round without a timeout: it ends once all have answered
ATTENDED = 4.0  # the same where who answers is public: then it ends after half of that
NAME = "simulation"  # of the run, in the federation's store
LOOK, AWAY = 0.2, 120.0  # seconds between two tries to reach a coordinator, and of them after which it is gone
_EVENT = {field.name for field in fields(RoundEvent)}


def order_of(service: Service, prepared: Prepared[Setup]) -> Order:
    """Return the order of a federation for the users of a run.

    Raises ConfigError for more clients than a coordinator takes, and under trust model two-servers.
    """
    if prepared.planned.plan.guarantee.servers is not None:
        raise ConfigError(
            "Expected a run of one coordinator with --engine service, got trust model two-servers: the second server "
            "is another operator's. Simulate both by --engine inline, or see docs/two-servers.md."
        )
    run, population = prepared.config.run, prepared.setup.population
    listen, control = free_ports(2)
    return Order(
        clients=population.users,
        processes=service.workers or 0,
        listen=f"127.0.0.1:{listen}",
        control=f"127.0.0.1:{control}",
        simulation_seed=run.seed,
    )


def simulate(
    prepared: Prepared[Setup],
    folder: RunFolder,
    base: Path,
    observers: Sequence[Observer] = (),
    service: Service | None = None,
) -> SimulatedRun:
    """Carry a run out on a federation of this machine and return it; a table's relative path is relative to `base`.

    Raises ConfigError for more clients than a coordinator takes, RunError, with nothing left running, if it fails.
    """
    service = Service() if service is None else service
    order = order_of(service, prepared)
    if runs.begin(prepared, folder):
        return runs.carry_out(prepared, folder, observers)  # complete: nobody is asked
    require_one_file(prepared.config, base)
    place = Folder(Path(mkdtemp(prefix=PASSING)))
    with Local(place, order) as local:
        place.make(order.clients)
        place.enrol(order.clients)
        programs.write(place, prepared, (service.slow or 0) / 1000)
        local.begin()
        local.ready(partial(runs.notify, observers))
        _carry_out(local, prepared, observers, service.timeout)
        local.stop()
        with Database(place.database_url) as database, Ledger.within(database, NAME) as ledger:
            result = runs.written(prepared, folder, ledger)
    for observer in observers:
        observer.finished(result.model)
    return result


def specification(prepared: Prepared[Setup], timeout: int | None = None) -> RunSpecification:
    """Return the run as an operator would submit it; rounds end once everybody has answered."""
    config, plan, population = prepared.config, prepared.planned.plan, prepared.setup.population
    seconds = ATTENDED if config.privacy.min_cohort.participation == "public" else SECONDS
    return specification_of(
        config,
        replace(plan, guarantee=replace(plan.guarantee, seeded=False)),
        loss=population.loss,
        columns=columns_of(config, population),
        run=NAME,
        seconds=seconds if timeout is None else timeout,
        simulation_seed=config.run.seed,
        early_ends=True,
    )


def _carry_out(local: Local, prepared: Prepared[Setup], observers: Sequence[Observer], timeout: int | None) -> None:
    """Submit the run and tell observers of its rounds until it is complete, through every death of its coordinator."""
    for observer in observers:
        observer.started(prepared.planned.plan)
    wanted, submitted, ended = specification(prepared, timeout).as_text(), False, dict[str, Any]()

    def watch() -> Iterator[dict[str, Any]]:
        nonlocal submitted
        with local.operator() as control:
            if submitted:
                control.runs()
            submitted = submitted or bool(control.submit(wanted))
            yield {"kind": "there"}  # a round may last longer than it may be away
            yield from control.watch(NAME)

    for event in followed(watch, timeout=AWAY, check=local.check, pauses=LOOK):
        ended = event
        if event["kind"] == "round":
            for observer in observers:
                known = {key: value for key, value in event.items() if key in _EVENT}
                figures = {key: value for key, value in event.items() if key not in _EVENT and key != "kind"}
                observer.round_finished(RoundEvent(**known, diagnostics=figures))
    local.check()
    check_end(NAME, ended)
