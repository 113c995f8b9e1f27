"""Which engine carries a run out: this process, or nodes of Flower. The bits are the same.

EngineChoice.of("flower", nodes=50).carry_out(prepared, folder, base)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from quoron.simulation import run as runs
from quoron.simulation.folder import RunFolder
from quoron.simulation.run import Prepared, RunResult
from quoron_privacy.errors import ConfigError
from quoron_server.rounds import Observer

ENGINES = ("inline", "flower")


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine and where it runs. Flower is imported only when it is chosen."""

    name: str = "inline"
    nodes: int | None = None  # simulated SuperNodes; default 50
    cpus: int | None = None  # for them; default all
    superlink: str | None = None  # host:port of a running federation whose SuperNodes compute instead
    authority: Path | None = None  # that signed the SuperLink's certificate
    insecure: bool = False

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
    ) -> "EngineChoice":
        """A choice that makes sense; ConfigError otherwise."""
        if name not in ENGINES:
            raise ConfigError(f"Expected the engine to be inline or flower, got {name!r}.")
        given = {"nodes": nodes, "cpus": cpus, "superlink": superlink, "authority": authority}
        named = [key for key, value in given.items() if value is not None] + ["insecure"] * insecure
        if name == "inline" and named:
            raise ConfigError(f"Expected {' and '.join(named)} with the engine flower only, got the engine inline.")
        for key, value in (("nodes", nodes), ("cpus", cpus)):
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
        return cls(name, nodes, cpus, superlink, where, insecure)

    def carry_out(
        self, prepared: Prepared, folder: RunFolder, base: Path, observers: Sequence[Observer] = ()
    ) -> RunResult:
        """Run in `folder` from wherever its ledger stands; a table's relative path is relative to `base`."""
        if self.name == "inline":
            return runs.carry_out(prepared, folder, observers)
        from quoron.flower import simulation
        from quoron.flower.commands import Connection

        if self.superlink is None:
            nodes = self.nodes or simulation.NODES
            return simulation.simulate(prepared, folder, base, observers, nodes=nodes, cpus=self.cpus)
        with TemporaryDirectory(prefix="quoron-flower-", ignore_cleanup_errors=True) as home:
            connection = Connection(Path(home), self.superlink, self.authority)
            return simulation.simulate(prepared, folder, base, observers, connection=connection)


INLINE = EngineChoice()
