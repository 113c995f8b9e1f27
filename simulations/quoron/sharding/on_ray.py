"""Workers as actors of a Ray cluster (extra `ray`): spread over its nodes, each reading its own part of the files.

Nodes need this version of quoron, and the files under the same path or URL. They are trusted as this machine is: users'
items are there in the clear. So a cluster asks for a secret, ours and yours (`guarded_ray`). An actor whose node dies
is replaced on another.
"""

import logging
from dataclasses import dataclass
from typing import Any

from quoron.populations.users import Answering
from quoron.sharding import guarded_ray
from quoron.sharding.engine import Died, ShardedEngine, Worker, own_error
from quoron.sharding.shard import Settings, opened
from quoron.simulation.pieces import Told
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import ConfigError, QuoronError, RunError


class Shard:
    """What runs in an actor."""

    def __init__(self, letter: bytes) -> None:
        self._engine = opened(letter)

    def ask(self, question: Question) -> tuple[Any, ...]:
        """("told", the answer), or ("error", its kind and words)."""
        try:
            return "told", self._engine.ask(question)
        except QuoronError as error:
            return "error", type(error).__name__, str(error)


class Actor:
    """One worker on the cluster."""

    def __init__(self, letter: bytes) -> None:
        import ray

        # No processor is asked for: where a node has died, the others take its workers.
        kind: Any = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(Shard)
        self._actor: Any = kind.remote(letter)

    def ask(self, question: Question, most: int) -> Told:
        """Its answer. Raises Died."""
        del most
        import ray

        try:
            kind, *rest = ray.get(self._actor.ask.remote(question))
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.NodeDiedError):
            raise Died("A worker has ended.") from None
        except ray.exceptions.RayError as error:
            raise RunError(
                f"Expected an answer from the Ray cluster, got {type(error).__name__}. Nothing is lost: the run can be "
                "resumed, with Ray or without."
            ) from None
        if kind == "error":
            raise own_error(*rest)
        return rest[0]  # type: ignore[no-any-return]

    def close(self) -> None:
        """End it."""
        import ray

        if ray.is_initialized():
            ray.kill(self._actor)


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts workers on a cluster; `close` ends it if it is our own, and else leaves it."""

    cluster: guarded_ray.Own | None  # None: of others
    joined: bool  # by us, not by whoever calls

    def __call__(self, number: int, letter: bytes) -> Worker:
        """A worker, on whichever node Ray finds."""
        del number
        return Actor(letter)

    def close(self) -> None:
        """Nothing of ours is left there."""
        if self.cluster is not None:
            self.cluster.close()
        elif self.joined:
            import ray

            ray.shutdown()


def engine(population: Answering, workers: int, settings: Settings, address: str | None) -> ShardedEngine:
    """An engine over a population whose workers `starter` starts; whoever has it closes it."""
    start = starter(address)
    return ShardedEngine.of(population, workers, start, settings, start.close)


def starter(address: str | None) -> Starter:
    """Starts workers on the cluster at `address`; without one, on a cluster of this machine for the time of the run.

    A cluster that this process is already part of is taken as it is. ConfigError for one that asks for no secret.
    """
    guarded_ray.require_tokens()
    import ray

    if ray.is_initialized():
        guarded_ray.require_guarded(address)
        return Starter(None, joined=False)
    if address is None:
        return Starter(guarded_ray.Own.begun(), joined=True)
    if "://" in address:
        raise ConfigError(f"Expected HOST:PORT or auto as the address of a Ray cluster, got {address!r}.")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"Expected a Ray cluster at address={address!r}, got {type(error).__name__}. One that asks for a token "
            "wants RAY_AUTH_MODE=token here, and its token in RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token."
        ) from None
    try:
        guarded_ray.require_guarded(address)
    except BaseException:
        ray.shutdown()
        raise
    return Starter(None, joined=True)
