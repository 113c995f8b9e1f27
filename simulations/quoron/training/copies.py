"""A run in a folder whose ledger was put back from a copy: one more copy, charged as the run was, before it goes on.

Why, and by how much: docs/privacy/restored-books.md.
"""

import json
from dataclasses import asdict
from pathlib import Path

from quoron.run_folder import RECORD, ROWS, RunFolder
from quoron.training import lifetime
from quoron_privacy.errors import LedgerError
from quoron_server.books import backup


def charge_copy(path: Path, incarnation: str) -> None:
    """Charge the run in a run folder once more; nothing for a simulation, which promises nothing.

    LedgerError if the lifetime ledger, of the folder or the usual one, has no such charge; BudgetExceeded if there is
    no room.
    """
    found = _charged(RunFolder(path))
    if found is None:
        return
    run, stated = found
    place = lifetime.place(stated)
    with lifetime.opened(place, create=False) as kept:
        charge = kept.charged(run)
        if charge is None:
            raise LedgerError(
                f"Expected the charge of run {run} in the lifetime ledger {place}, found none: one more copy costs as "
                "much. Name the ledger that it was charged to (QUORON_LEDGER), or begin a new run."
            )
        (copy,) = backup.copies(run, incarnation)
        backup.charge_copy(kept, run, copy, asdict(charge))


def _charged(folder: RunFolder) -> tuple[str, str | None] | None:
    """Name of a run that promises something, and where it was charged if that is written there."""
    if folder.is_training:
        return str(folder.read_json(RECORD)["run"]), folder.config().train.ledger
    if not (folder.path / ROWS).is_file():
        return None
    contents = folder.read_json(ROWS)
    simulated = json.loads(contents["setting"])["simulation_seed"] is not None
    return None if simulated else (str(contents["identity"]["run"]), None)
