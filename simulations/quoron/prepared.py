"""A run before it begins: checked, planned and within every limit, with nothing written yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quoron.config import Config
from quoron.planning.plans import Plan, budget_of
from quoron.run_folder import RECORD, RunFolder
from quoron.toml_text import comment

if TYPE_CHECKING:  # planning needs no database
    from quoron_server.books.ledger import Ledger
    from quoron_server.runs import Account, Run

S = TypeVar("S")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared(Generic[S]):
    """Of a simulation, or for real, of users in a `scene` of its kind."""

    config: Config
    scene: S
    planned: Plan
    digest: str  # of everything that decides the run's bits
    name: str = "simulation"  # in the lifetime account
    account: "Account | None" = None  # that it is charged to; None: a simulation, which promises nothing
    began: float = field(default_factory=perf_counter)
    remark: str = ""  # on where the configuration comes from, for whoever takes it from the folder

    @property
    def run(self) -> "Run":
        """What begins, is charged and is carried out."""
        from quoron_server.runs import Run  # it brings the database

        simulated, config = self.account is None, self.config
        return Run(
            name=self.name,
            plan=self.planned.plan,
            digest=self.digest,
            group=config.train.population,
            account=self.account,
            simulation_seed=config.run.seed if simulated else None,
            trust_clients=config.privacy.trusts_clients if simulated else True,  # a curator answers for all
            budget=budget_of(config),
        )

    def begin(self, folder: RunFolder, record: Mapping[str, Any] | None = None) -> "Ledger":
        """The run's ledger in a folder; before there is one, what was fixed, and a `record` that it is for real.

        OtherVersion if it began with another plan or other data.
        """
        with folder.alone():
            if not folder.ledger.is_file():
                if record is not None:
                    folder.write_json(RECORD, record)
                said = f"{comment(self.remark)}\n" if self.remark else ""
                folder.write_text("config.toml", said + self.config.as_toml())
                folder.write_json("plan.json", self.planned.as_json())
            return self.run.begin(folder.ledger)
