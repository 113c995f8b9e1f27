"""Workers as actors of a Ray cluster (extra `ray`): spread over its nodes, each reading its own part of the files.

Nodes need this version of quoron, and the files under the same path or URL. They are trusted as this machine is: users'
items are there in the clear. An actor whose node dies is replaced on another.
"""

import logging
import os
from importlib.util import find_spec
from typing import Any

from quoron.sharding.engine import Died, Worker, own_error
from quoron.simulation.pieces import Told
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import ConfigError, QuoronError, RunError


class Shard:
    """What runs in an actor."""

    def __init__(self, letter: bytes) -> None:
        from quoron.sharding.shard import opened

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


def starter(address: str | None) -> Any:
    """Starts workers on the cluster at `address`; without one, on a cluster of this machine for the time of the run."""
    if find_spec("ray") is None:
        raise ConfigError(
            "Expected Ray for the engine ray, found none. Install it: pip install '.[ray]' in the repository."
        )
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")  # nothing is told to anybody, and no warning about that
    import ray

    if not ray.is_initialized():
        alone: dict[str, Any] = {} if address else {"include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **alone)
        except (ConnectionError, ValueError, ray.exceptions.RayError) as error:
            raise ConfigError(f"Expected a Ray cluster at address={address!r}, got {type(error).__name__}.") from None

    def start(number: int, letter: bytes) -> Worker:
        del number
        return Actor(letter)

    return start
