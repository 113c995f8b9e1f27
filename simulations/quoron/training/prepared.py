"""A curator's run before it begins: named, planned and within every limit."""

from dataclasses import dataclass, replace
from pathlib import Path

from quoron.config import Config
from quoron.planning.plans import Planned
from quoron.populations.users import Declared
from quoron.training import lifetime
from quoron.training.start import Identity
from quoron.training.table import Held, HeldFiles
from quoron_server.budget import Budget
from quoron_server.runs import Run


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
