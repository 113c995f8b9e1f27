"""Engines carry a run out: this process, a Ray cluster, nodes of Flower, or a federation on this machine.

The bits are the same.

quoron.simulate("quickstart", engine=Service(clients=20))
quoron.simulate("quickstart", engine="service:clients=20")
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from quoron.arguments import shortened
from quoron.engine.inline import InlineEngine
from quoron.engine.processors import processors
from quoron.engine.sharded import ShardedEngine, of_processes
from quoron.toml_text import pairs
from quoron_privacy.errors import ConfigError, count, nearest

if TYPE_CHECKING:
    from quoron.planning.plans import Prepared
    from quoron.simulation.problem import Setup


def _check_fields(engine: "Engine", *, needs: str | None = None, extra: str = "") -> None:
    """Raise ConfigError for a field of another kind, or where the package that the engine `needs` is not installed."""
    for field in fields(engine):
        name, value = field.name, getattr(engine, field.name)
        if field.type == int | None and value is not None:
            count(**{name: value})
        if field.type == str | None and (value == "" or not isinstance(value, str | None)):
            raise ConfigError(f"Expected {name} as a text, got {name}={value!r}.")
    if needs is not None and find_spec(needs) is None:
        raise ConfigError(
            f"Expected {needs} for the engine {type(engine).__name__}, got none. pip install 'quoron[{extra}]'."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inline:
    """This process, or worker processes that share the users."""

    workers: int | None = None  # None: no workers; in a comparison the number of runs at once

    def __post_init__(self) -> None:
        _check_fields(self)

    def over(self, engine: InlineEngine) -> InlineEngine | ShardedEngine:
        """Return the engine, or the same over workers; the caller closes that."""
        return engine if self.workers is None else of_processes(engine, self.workers)


INLINE = Inline()  # without workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """Workers on a Ray cluster that share the users."""

    workers: int | None = None  # default: one a processor
    address: str | None = None  # HOST:PORT, or auto; default: the cluster that this process is part of

    def __post_init__(self) -> None:
        _check_fields(self)

    def over(self, engine: InlineEngine) -> ShardedEngine:
        """Return the same engine over workers; the caller closes it."""
        from quoron.engine import on_ray

        return ShardedEngine(engine, self.workers or processors(), on_ray.Actor, after=on_ray.joined(self.address))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A coordinator and a client for each user on this machine."""

    clients: int | None = None  # the first users; default: all users
    workers: int | None = None  # processes of clients; default: as many as three quarters of the free memory allow
    slow: str | None = None  # share of slow clients and their delay, as 10%:2s
    timeout: int | None = None  # seconds that a round waits for a client that is missing; default 600

    def __post_init__(self) -> None:
        _check_fields(self, needs="grpc", extra="federation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flower:
    """Simulated SuperNodes of Flower on this machine."""

    nodes: int | None = None  # default 50
    cpus: int | None = None  # processors for them; default all

    def __post_init__(self) -> None:
        _check_fields(self, needs="flwr", extra="flower")


Engine = Inline | Ray | Flower | Service
ENGINES: dict[str, type[Engine]] = {"inline": Inline, "ray": Ray, "flower": Flower, "service": Service}


def from_spec(engine: str | Engine) -> Engine:
    """Return the engine that a text such as `ray:address=auto,workers=8` means; an engine itself as it is.

    A name, and behind a colon its fields as KEY=VALUE with commas between them.

    >>> from_spec("inline:workers=4")
    Inline(workers=4)

    Raises:
        ConfigError: for an unknown name, a key that the engine does not have, and a value that it refuses.
    """
    if not isinstance(engine, str):
        if not isinstance(engine, Engine):
            raise ConfigError(f"Expected engine as a text or as Inline(workers=...), got engine={shortened(engine)}.")
        return engine
    name, colon, listed = engine.partition(":")
    if name not in ENGINES:
        close = nearest(name, ENGINES, "Write NAME:KEY=VALUE.")
        raise ConfigError(f"Expected the engine inline, ray, flower or service, got {name!r}. {close}")
    keys = {other: {field.name: field.type for field in fields(kind)} for other, kind in ENGINES.items()}
    kinds, typed = keys[name], listed.split(",") if colon else ()
    listing = (" ".join((other, ", ".join(of))) for other, of in keys.items())
    otherwise = f"Engines and their keys: {'; '.join(listing)}."
    given = pairs(f"the engine {name}", typed, kinds, otherwise=otherwise)
    given |= {key: int(value) for key, value in given.items() if kinds[key] == int | None and value.isdecimal()}
    try:
        return ENGINES[name](**given)
    except ConfigError as error:
        error.add_note(f"This is of the engine {engine!r}.")
        raise


def inline_or_ray(engine: str | Engine) -> Inline | Ray:
    """Return the engine, as `from_spec`. Raises ConfigError for one whose nodes or clients hold the users."""
    chosen = from_spec(engine)
    if isinstance(chosen, Flower | Service):
        raise ConfigError(
            f"Expected the engine inline or ray for training and comparisons, got {type(chosen).__name__}, whose nodes "
            "or clients are those of one run. Simulate with it, or submit to a federation."
        )
    return chosen


@contextmanager
def shared(prepared: "Prepared[Setup]", engine: Inline | Ray) -> "Iterator[Prepared[Setup]]":
    """The same run with the engine's workers for its users, for as long as it takes; without any, in this process."""
    scene = prepared.scene
    if isinstance(engine, Inline) and engine.workers is None:
        yield replace(prepared, scene=scene.remembering(prepared.planned.plan))
        return
    assert isinstance(scene.engine, InlineEngine)
    workers = engine.over(scene.engine)
    assert isinstance(workers, ShardedEngine)
    with workers:
        yield replace(prepared, scene=replace(scene, engine=workers))
