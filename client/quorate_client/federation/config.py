"""What the owner of a client decides: which coordinator, which data, and how much may ever be said about them."""

import ipaddress
import re
from dataclasses import dataclass, field
from math import isfinite, isnan
from pathlib import Path

from quorate_protos.errors import ConfigError

EXPOSURES = ("model", "broadcast", "local", "none")

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
_NAME = re.compile(r"[\w.@-]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """One owner's client. Raises ConfigError for what cannot be meant.

    The connection is TLS, and the certificate says who the client is. With `insecure` it is plain text and
    `client_name` says so, for trials on one machine; with `insecure_anywhere` the coordinator may be on another.
    `allow_simulation` lets runs in that call themselves simulations: their noise is known to whoever knows the seed, so
    they are for made-up data only; `seed` is then that of the run.
    """

    coordinator: str  # "host:port"
    data: Path  # CSV or Parquet file, one item a row, all of one user
    record: Path  # SQLite file, made if there is none
    lifetime_epsilon: float  # the sum over all runs, as is that of δ
    lifetime_delta: float
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None  # whose certificates are trusted, the coordinator's and this client's
    insecure: bool = False
    insecure_anywhere: bool = False
    client_name: str | None = None
    accept_exposures: tuple[str, ...] = ("broadcast", "local")
    allow_simulation: bool = False
    seed: int | None = None
    retry_seconds: float = field(default=0.5)  # before the first attempt to connect again; doubles up to a minute

    def __post_init__(self) -> None:
        address = _ADDRESS.fullmatch(self.coordinator)
        if address is None or not 0 < int(address[2]) < 1 << 16:
            raise ConfigError(f"Expected a coordinator host:port, got {self.coordinator!r}.")
        for name, limit in (("lifetime_epsilon", self.lifetime_epsilon), ("lifetime_delta", self.lifetime_delta)):
            if isnan(limit) or limit < 0:
                raise ConfigError(f"Expected {name} >= 0, got {name}={limit}.")
        if not (isfinite(self.retry_seconds) and self.retry_seconds > 0):
            raise ConfigError(f"Expected retry_seconds > 0, got retry_seconds={self.retry_seconds}.")
        for exposure in self.accept_exposures:
            if exposure not in EXPOSURES:
                raise ConfigError(f"Expected accept_exposures among {', '.join(EXPOSURES)}, got {exposure!r}.")
        if self.allow_simulation != (self.seed is not None):
            raise ConfigError("Expected allow_simulation and a seed together, got one of them.")
        self._check_identity()

    @property
    def plaintext(self) -> bool:
        """Whether plain text was asked for."""
        return self.insecure or self.insecure_anywhere

    def _check_identity(self) -> None:
        given = [path is not None for path in (self.certificate, self.key, self.authority)]
        if self.plaintext and (any(given) or self.client_name is None):
            raise ConfigError("Expected a client_name and no certificate with insecure=True, got others.")
        if not self.plaintext and not (all(given) and self.client_name is None):
            raise ConfigError(
                "Expected certificate, key and authority, got not all of them (or a client_name, which only goes with "
                "insecure=True). `quorate certs` makes them for a trial."
            )
        check_plaintext(self.coordinator, insecure=self.insecure, anywhere=self.insecure_anywhere)
        if self.client_name is not None and not _NAME.fullmatch(self.client_name):
            raise ConfigError(
                f"Expected a client_name of letters, digits and . _ @ - only, got {self.client_name[:200]!r}."
            )


def check_plaintext(address: str, *, insecure: bool, anywhere: bool) -> None:
    """ConfigError for plain text to a host:port that is not on this machine."""
    if not insecure or anywhere:
        return
    host = address.rpartition(":")[0].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise ConfigError(
            f"Expected TLS to reach {address}, got --insecure: plaintext is for loopback. Give certificates (`quorate "
            "certs`), or --insecure-anywhere inside a network that you trust."
        )
