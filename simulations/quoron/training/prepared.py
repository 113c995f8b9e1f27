"""A curator's run before it begins: named, planned and within every limit."""

import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from quoron.config import Config
from quoron.planning.plans import Planned
from quoron.populations.users import Declared
from quoron.training import lifetime
from quoron.training.table import Held, HeldFiles
from quoron_server.budget import Budget
from quoron_server.runs import Run


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run this is: public, and fixed when it begins."""

    run: str  # its name in the lifetime ledger
    seed: int  # public randomness of the plan: partition and rotations, never noise
    began: str  # the day, in UTC

    @classmethod
    def fresh(cls, name: str) -> "Identity":
        """Of a run that begins now."""
        day = datetime.now(UTC).date().isoformat()
        return cls(f"{name}-{secrets.token_hex(6)}", secrets.randbits(62), day)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A run that is planned and within every limit, with nothing written and no value of the table looked at."""

    config: Config
    held: Held | HeldFiles
    declared: Declared
    planned: Planned
    identity: Identity
    unlooked: str | None = None  # why nobody looks at how well the table fits; None: somebody does

    @property
    def shown(self) -> Planned:
        """The plan to look at, which says too why nobody looks at the table."""
        if self.unlooked is None:
            return self.planned
        why = f"Nobody looks at how well the table fits its declarations: {self.unlooked}."
        return replace(self.planned, remarks=(*self.planned.remarks, why))

    @property
    def run(self) -> Run:
        """What begins, is charged and is carried out."""
        return Run(
            name=self.identity.run,
            plan=self.planned.plan,
            digest=self.config.digest(),
            group=self.config.train.group,
            account=lifetime.account(self.ledger),
            trust_clients=True,
            budget=Budget(**self.config.budget.model_dump()),
        )

    @property
    def ledger(self) -> Path:
        """The lifetime ledger that it is charged to."""
        return lifetime.place(self.config.train.ledger)
