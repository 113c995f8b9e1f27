"""Workers as actors of a Ray cluster (extra `ray`): spread over its nodes, each reading its own part of the files.

Nodes need this version of quoron, and the files under the same path or URL. They are trusted as this machine is: users'
items are there in the clear. So a cluster asks for a secret. An actor whose node dies is replaced on another.

Any machine that reaches a cluster without a secret can run programs there, and read its memory. Ray's token
authentication (since 2.52, off unless asked for) makes every server of a cluster refuse who does not show its token. A
cluster is asked, as a stranger, whether it answers strangers: a run is not given to one that does. One that Flower
starts for a simulation has a new token, in a private folder that is removed with it (`private_folder`), and listens
on the loopback interface only.

Source: https://docs.ray.io/en/latest/ray-security/token-auth.html.
"""

import logging
import os
import pickle
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quoron.engine.inline import Response
from quoron.engine.processes import Died, Service, reply, result_of
from quoron_client.durable import PRIVATE
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import ConfigError, RunError

FIRST = (2, 52)  # the first Ray with tokens
QUIET = {  # no usage report is sent, no warning about that, and no port with metrics for those without a token
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
}
# What a stranger asks: the list of a cluster's nodes, which every version answers whom it lets in.
QUESTION = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
SECONDS = 20.0
PREFIX = "quoron-ray-"  # and the number of the process whose it is
LONGEST = 10  # characters of a temporary folder: Ray puts sockets 90 characters below it, whose paths have at most 104
TOKENS = "Start it with RAY_AUTH_MODE=token on every node, and give its token here: docs/tables.md#ray."


def require_tokens() -> None:
    """ConfigError without a Ray that has tokens."""
    if find_spec("ray") is None:
        raise ConfigError("Expected Ray, found none. Install it: pip install '.[ray]' in the repository.")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    numbers = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if numbers < FIRST:
        raise ConfigError(
            f"Expected Ray {FIRST[0]}.{FIRST[1]} or newer, whose clusters can ask for a token, got Ray "
            f"{ray.__version__}, whose clusters let everybody in who reaches them. Install it: pip install '.[ray]' in "
            "the repository."
        )


@contextmanager
def private_folder() -> Iterator[tuple[Path, dict[str, str]]]:
    """A private folder for what a cluster of our own writes, its new token beside that; and the environment of all
    processes of the cluster, which has the token nowhere in it, only where it is.
    """
    usual = Path(tempfile.gettempdir())
    root = usual if len(str(usual)) <= LONGEST else Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))
    token, inside = folder / "token", folder / "r"  # which Ray opens to everybody, within a folder of mode 0700
    environment = QUIET | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "",  # it would win over the file
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for the loopback interface, anywhere
        "RAY_ADDRESS": "",  # of no other cluster
        "RAY_TMPDIR": str(inside),
        "RAY_USE_TLS": "0",
    }
    try:
        inside.mkdir()
        with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w") as file:
            file.write(secrets.token_hex(32))
        yield folder, environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_guarded(address: str | None) -> None:
    """Raise ConfigError if the cluster that this process is part of answers strangers."""
    head = _address()
    answers = answers_strangers(head)
    if answers is False or (answers is None and os.environ.get("RAY_USE_TLS") == "1"):  # which is mutual
        return
    what = "answers anyone who reaches it" if answers else "could not be asked whether it answers strangers"
    where = "that this process is part of" if address is None else f"at address={address!r}"
    raise ConfigError(
        f"Expected a Ray cluster that asks for a token, got one {where} ({head}) that {what}: with users' items in "
        f"its memory, everybody who does reads them. {TOKENS}"
    )


def answers_strangers(address: str) -> bool | None:
    """Return whether the cluster whose head is at HOST:PORT answers without a token; None if unknown."""
    import grpc

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary(QUESTION, request_serializer=bytes, response_deserializer=bytes)
        try:
            ask(b"", timeout=SECONDS, wait_for_ready=False)
        except grpc.RpcError as error:
            return False if error.code() == grpc.StatusCode.UNAUTHENTICATED else None
    return True


def _address() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


class ActorService:
    """The service that runs in an actor."""

    def __init__(self, service: bytes) -> None:
        self._service: Service = pickle.loads(service)  # from the process that started this one, and no other

    def ask(self, question: Question) -> tuple[str, Any]:
        """The answer, or its error, for `result_of`."""
        return reply(self._service, question)


class Actor:
    """One worker on the cluster."""

    def __init__(self, service: bytes) -> None:
        import ray

        # No processor is asked for: where a node has died, the others take its workers.
        kind: Any = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(ActorService)
        self._actor: Any = kind.remote(service)

    def ask(self, question: Question, /) -> Response:
        """Its answer. Raises Died."""
        import ray

        try:
            result = ray.get(self._actor.ask.remote(question))
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.NodeDiedError):
            raise Died("A worker has ended.") from None
        except ray.exceptions.RayError as error:
            raise RunError(
                f"Expected an answer from the Ray cluster, got {type(error).__name__}. Nothing is lost: the run can be "
                "resumed, with Ray or without."
            ) from None
        return result_of(result)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End it."""
        import ray

        if ray.is_initialized():
            ray.kill(self._actor)


def joined(address: str | None) -> Callable[[], None]:
    """Join the cluster at `address`, and return what leaves it.

    A cluster that this process is already part of is taken as it is. ConfigError without an address, and for a cluster
    that asks for no secret.
    """
    require_tokens()
    import ray

    if ray.is_initialized():
        require_guarded(address)
        return lambda: None
    if address is None or "://" in address:
        raise ConfigError(
            f"Expected HOST:PORT or auto as the address of a Ray cluster, got {address!r}. On one machine take "
            "--engine inline:workers=N."
        )
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"Expected a Ray cluster at address={address!r}, got {type(error).__name__}. One that asks for a token "
            "wants RAY_AUTH_MODE=token here, and its token in RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token."
        ) from None
    try:
        require_guarded(address)
    except BaseException:
        ray.shutdown()
        raise
    return ray.shutdown  # type: ignore[no-any-return]
