"""Which engine carries a run out: this process, workers, a Ray cluster, nodes of Flower, a local federation.

The bits are the same.

carry_out(EngineChoice.of("flower", nodes=50), prepared, folder, base)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from quoron.config import Config
from quoron.prepared import Prepared
from quoron.processors import processors
from quoron.run_folder import RunFolder
from quoron.sharding.choice import Sharing, shared
from quoron.simulation import run as runs
from quoron.simulation.run import RunResult
from quoron.simulation.scene import Setup
from quoron_privacy.errors import ConfigError, count
from quoron_server.rounds import Observer

if TYPE_CHECKING:  # only a table needs it
    import pyarrow as pa

ENGINES = ("inline", "flower", "ray", "service")
EXTRAS = {"flower": ("flwr", "flower"), "service": ("grpc", "federation")}  # what an engine imports, and what brings it


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
    clients: int | None = None  # of a local federation; default: all users
    kills: tuple[str, ...] = ()  # of its clients, each as CLIENT@ROUND
    slow: str | None = None  # which of them, and how much, as 10%:2s
    keep: bool = False  # leave it, to be operated

    @classmethod
    def of(
        cls,
        name: "str | EngineChoice" = "inline",
        *,
        nodes: int | None = None,
        cpus: int | None = None,
        superlink: str | None = None,
        authority: str | Path | None = None,
        insecure: bool = False,
        workers: int | None = None,
        address: str | None = None,
        clients: int | None = None,
        kills: Sequence[str] = (),
        slow: str | None = None,
        keep: bool = False,
    ) -> "EngineChoice":
        """A choice that makes sense, or the one that is given; ConfigError otherwise."""
        if isinstance(name, EngineChoice):
            return name
        _check_kinds({"superlink": superlink, "address": address, "slow": slow}, kills, insecure=insecure, keep=keep)
        if name not in ENGINES:
            raise ConfigError(f"Expected the engine to be inline, ray, flower or service, got {name!r}.")
        if name in EXTRAS and find_spec(EXTRAS[name][0]) is None:
            raise ConfigError(
                f"Expected {EXTRAS[name][0]} for the engine {name}, got none. pip install 'quoron[{EXTRAS[name][1]}]'."
            )
        served = [
            key for key, value in (("clients", clients), ("kills", kills), ("slow", slow), ("keep", keep)) if value
        ]
        if served and name != "service":
            raise ConfigError(f"Expected {' and '.join(served)} with the engine service only, got the engine {name}.")
        if address is not None and name != "ray":
            raise ConfigError(f"Expected an address with the engine ray only, got the engine {name}.")
        if workers is not None and name == "flower":
            raise ConfigError("Expected no workers with the engine flower, got some: choose nodes and cpus.")
        given = {"nodes": nodes, "cpus": cpus, "superlink": superlink, "authority": authority}
        named = [key for key, value in given.items() if value is not None] + ["insecure"] * insecure
        if name != "flower" and named:
            raise ConfigError(f"Expected {' and '.join(named)} with the engine flower only, got the engine {name}.")
        for key, value in (("nodes", nodes), ("cpus", cpus), ("workers", workers), ("clients", clients)):
            if value is not None:
                count(**{key: value})
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
        local = (clients, tuple(kills), slow, keep)
        return cls(name, nodes, cpus, superlink, where, insecure, workers, address, *local)

    def people(self, config: Config, frame: "pa.Table | None") -> "tuple[Config, pa.Table | None]":
        """The configuration, and the table if there is one, of those who take part: all, or the first of them."""
        if self.name != "service" or self.clients is None:
            return config, frame
        from quoron.local.people import cut

        return cut(config, Path.cwd(), frame, self.clients)

    @property
    def sharing(self) -> Sharing | None:
        """The workers; None where this process does the work."""
        if self.name == "ray":
            return Sharing(self.workers or processors(), ray=True, address=self.address)
        return None if self.workers is None or self.name == "service" else Sharing(self.workers)


def carry_out(
    engine: EngineChoice, prepared: Prepared[Setup], folder: RunFolder, base: Path, observers: Sequence[Observer] = ()
) -> RunResult:
    """A simulation in `folder`, from wherever its ledger stands; a table's relative path is relative to `base`."""
    people = prepared.config.population
    if engine.name in EXTRAS and (people.silos_away or people.silos_hostile):
        raise ConfigError(
            f"Expected no silos_away or silos_hostile with the engine {engine.name}, got some. Leave out --engine, or "
            "end clients while they run."
        )
    if engine.name == "service":
        from quoron.local import engine as local

        ordered = local.Ordered(engine.workers, engine.kills, engine.slow, engine.keep)
        return local.simulate(prepared, folder, base, observers, ordered)
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

    ConfigError for the engines flower and service, whose nodes or clients hold the users of one run.
    """
    if choice.name in EXTRAS:
        raise ConfigError(
            f"Expected the engine inline or ray for a comparison, got {choice.name}, whose nodes are those of one run. "
            f"Simulate each with --engine {choice.name}."
        )
    return choice.sharing if choice.name == "ray" else None


def training_sharing(choice: EngineChoice) -> Sharing | None:
    """The workers of a curator's run. ConfigError for flower and service, whose nodes hold data of their own."""
    if choice.name in EXTRAS:
        raise ConfigError(f"Expected the engine inline or ray for training, got {choice.name}: submit to a federation.")
    return choice.sharing


def _check_kinds(texts: Mapping[str, object], kills: object, **switches: object) -> None:
    """ConfigError where a text, a list of texts or a switch is something else."""
    if isinstance(kills, str) or not isinstance(kills, Sequence):
        raise ConfigError(f"Expected kills as a list of CLIENT@ROUND, got kills={kills!r}.")
    for key, text in {**texts, **{f"kills[{i}]": each for i, each in enumerate(kills)}}.items():
        if not (text is None or isinstance(text, str)):
            raise ConfigError(f"Expected {key} as a text, got {key}={text!r}.")
    for key, switch in switches.items():
        if not isinstance(switch, bool):
            raise ConfigError(f"Expected {key} as true or false, got {key}={switch!r}.")
