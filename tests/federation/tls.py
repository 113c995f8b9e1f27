"""Certificates of one authority for tests over TLS, and the doors that they open."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from federation.crowd import Peer
from quoron_client.federation import ClientConfig
from quoron_server.service import Transport

USERS = 20


def transport(issued: Path) -> Transport:
    return Transport(issued / "coordinator/certificate.pem", issued / "coordinator/key.pem", issued / "authority.pem")


def channel(where: str, issued: Path, name: str | None, authority: str = "authority") -> grpc.aio.Channel:
    """A client's secure channel, with its certificate if it has one."""
    pair = (
        [None, None]
        if name is None
        else [(issued / f"{name}/{end}.pem").read_bytes() for end in ("key", "certificate")]
    )
    credentials = grpc.ssl_channel_credentials((issued / f"{authority}.pem").read_bytes(), *pair)
    return grpc.aio.secure_channel(where, credentials)


@contextlib.asynccontextmanager
async def greeted(where: str, issued: Path, name: str) -> AsyncIterator[Peer]:
    """A client with a certificate that has enrolled and said hello."""
    async with channel(where, issued, name) as own:
        peer = Peer(own)
        await peer.enrol()
        await peer.hello()
        yield peer


async def refused(where: str, issued: Path, name: str | None) -> grpc.StatusCode:
    async with channel(where, issued, name) as own:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Peer(own).enrol()
    return caught.value.code()


def own_authority(issued: Path, to: Path) -> Path:
    """The same authority and first client in a folder of one's own."""
    (to / "client-0").mkdir()
    for name in ("authority.pem", "authority.key", "client-0/certificate.pem", "client-0/key.pem"):
        (to / name).write_bytes((issued / name).read_bytes())
    return to


def client_config(where: str, folder: Path, name: str, data: Path, record: Path, **changes: object) -> ClientConfig:
    """A client with the certificate of that name in a folder, and its authority."""
    options: dict[str, object] = {
        "coordinator": where,
        "data": data,
        "record": record,
        "lifetime_epsilon": 1.0,
        "lifetime_delta": 1e-6,
        "certificate": folder / f"{name}/certificate.pem",
        "key": folder / f"{name}/key.pem",
        "authority": folder / "authority.pem",
    }
    return ClientConfig(**(options | changes))
