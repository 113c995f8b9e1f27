"""Which engine carries a run out: this process, workers beside it, a Ray cluster, or nodes of Flower: the same bits.

carry_out(EngineChoice.of("flower", nodes=50), prepared, folder, base)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from quoron.prepared import Prepared
from quoron.processors import processors
from quoron.run_folder import RunFolder
from quoron.sharding.choice import Sharing, shared
from quoron.simulation import run as runs
from quoron.simulation.run import RunResult
from quoron.simulation.scene import Setup
from quoron_privacy.errors import ConfigError
from quoron_server.rounds import Observer

ENGINES = ("inline", "flower", "ray")


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine and where it runs. Flower and Ray are imported only when they are chosen."""

    name: str = "inline"
    nodes: int | None = None  # simulated SuperNodes; default 50
    cpus: int | None = None  # for them; default all
    superlink: str | None = None  # host:port of a running federation whose SuperNodes compute instead
    authority: Path | None = None  # that signed the SuperLink's certificate
    insecure: bool = False
    workers: int | None = None  # processes, each with its share of the users; of Ray by default one a processor
    address: str | None = None  # of a Ray cluster; default: one of this machine's own

    @classmethod
    def of(
        cls,
        name: str = "inline",
        *,
        nodes: int | None = None,
        cpus: int | None = None,
        superlink: str | None = None,
        authority: str | Path | None = None,
        insecure: bool = False,
        workers: int | None = None,
        address: str | None = None,
    ) -> "EngineChoice":
        """A choice that makes sense; ConfigError otherwise."""
        if name not in ENGINES:
            raise ConfigError(f"Expected the engine to be inline, ray or flower, got {name!r}.")
        if name == "flower" and find_spec("quoron.flower") is None:
            raise ConfigError(
                "Expected quoron with its network for the engine flower, got quoron-core. pip install quoron."
            )
        if address is not None and name != "ray":
            raise ConfigError(f"Expected an address with the engine ray only, got the engine {name}.")
        if workers is not None and name == "flower":
            raise ConfigError("Expected no workers with the engine flower, got some: choose nodes and cpus.")
        given = {"nodes": nodes, "cpus": cpus, "superlink": superlink, "authority": authority}
        named = [key for key, value in given.items() if value is not None] + ["insecure"] * insecure
        if name != "flower" and named:
            raise ConfigError(f"Expected {' and '.join(named)} with the engine flower only, got the engine {name}.")
        for key, value in (("nodes", nodes), ("cpus", cpus), ("workers", workers)):
            if value is not None and value < 1:
                raise ConfigError(f"Expected {key} >= 1, got {key}={value}.")
            if value is not None and superlink is not None:
                raise ConfigError(f"Expected no {key} with a superlink, got {key}={value}: its SuperNodes are there.")
        if superlink is None and (authority is not None or insecure):
            raise ConfigError("Expected a superlink with authority or insecure, got none: ours is on this machine.")
        if superlink is not None and (authority is None) is not insecure:
            raise ConfigError(
                f"Expected one of authority (a certificate) and insecure (plaintext) for the SuperLink {superlink}, "
                f"got {'none' if not insecure else 'both'}."
            )
        if superlink is not None:
            from quoron_client.federation.config import check_plaintext  # it brings gRPC

            check_plaintext(superlink, insecure=insecure, anywhere=False)
        if authority is not None and not Path(authority).is_file():
            raise ConfigError(f"Expected authority to be a certificate's file, got {authority}.")
        where = None if authority is None else Path(authority).resolve()  # Flower reads it from another folder
        return cls(name, nodes, cpus, superlink, where, insecure, workers, address)

    @property
    def sharing(self) -> Sharing | None:
        """The workers; None where this process does the work."""
        if self.name == "ray":
            return Sharing(self.workers or processors(), ray=True, address=self.address)
        return None if self.workers is None else Sharing(self.workers)


def carry_out(
    engine: EngineChoice, prepared: Prepared[Setup], folder: RunFolder, base: Path, observers: Sequence[Observer] = ()
) -> RunResult:
    """A simulation in `folder`, from wherever its ledger stands; a table's relative path is relative to `base`."""
    if engine.name != "flower":
        with shared(prepared, engine.sharing) as prepared:
            return runs.carry_out(prepared, folder, observers)
    from quoron.flower import simulation

    if engine.superlink is None:
        nodes = engine.nodes or simulation.NODES
        return simulation.simulate(prepared, folder, base, observers, nodes=nodes, cpus=engine.cpus)
    return simulation.elsewhere(prepared, folder, base, observers, at=engine.superlink, authority=engine.authority)


def comparison_sharing(choice: EngineChoice) -> Sharing | None:
    """The workers of each run of a comparison, which are then one at a time; None for runs side by side.

    ConfigError for the engine flower, whose nodes hold the users of one run.
    """
    if choice.name == "flower":
        raise ConfigError(
            "Expected the engine inline or ray for a comparison, got flower, whose nodes are those of one run. "
            "Simulate each with --engine flower."
        )
    return choice.sharing if choice.name == "ray" else None


def training_sharing(choice: EngineChoice) -> Sharing | None:
    """The workers of a curator's run. ConfigError for the engine flower, whose nodes hold data of their own."""
    if choice.name == "flower":
        raise ConfigError("Expected the engine inline or ray for training, got flower: submit to a federation.")
    return choice.sharing
