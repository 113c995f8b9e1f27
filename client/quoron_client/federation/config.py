"""What the owner of a client decides: which coordinator, which data, and how much may ever be said about them.

What the owner of a user's data decides, whichever way questions come: which file, and how much may be said of it.
"""

import re
from dataclasses import dataclass, field
from math import isfinite, isnan
from pathlib import Path

from quoron_client.data.formats import Dialect
from quoron_client.protocol import MAX_PEOPLE, check_plaintext
from quoron_privacy.errors import ConfigError

TRUST_MODELS = ("central-release", "central-broadcast", "two-servers", "local", "none")
TWO_SERVERS = TRUST_MODELS[2]
PUBLIC_PARTICIPATION = "public-participation"  # beside them: whether this client answers may be public, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of what is released of one owner's data in all runs. Raises ConfigError for an impossible value.

    With `simulation_seed` the client takes part in runs that call themselves simulations and have this seed. A party
    that knows the seed knows their noise, so they are for made-up data only.
    """

    record: Path  # SQLite file, made if there is none
    lifetime_epsilon: float  # the sum over all runs, as is that of δ
    lifetime_delta: float
    accept_trust_models: tuple[str, ...] = ("central-broadcast", "local")
    simulation_seed: int | None = None
    new_record: bool = False  # the record is all that there is, though older than its count or than what is known

    def __post_init__(self) -> None:
        for name, limit in (("lifetime_epsilon", self.lifetime_epsilon), ("lifetime_delta", self.lifetime_delta)):
            if isnan(limit) or limit < 0:
                raise ConfigError(f"Expected {name} >= 0, got {name}={limit}.")
        for trust_model in self.accept_trust_models:
            if trust_model not in (*TRUST_MODELS, PUBLIC_PARTICIPATION):
                known = ", ".join((*TRUST_MODELS, PUBLIC_PARTICIPATION))
                raise ConfigError(f"Expected accept_trust_models among {known}, got {trust_model!r}.")

    @property
    def masks(self) -> bool:
        """Whether it can hide answers from each of two servers: a client of `quoron serve` that knows the second."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner(Limits):
    """One owner's decisions. Raises ConfigError for what cannot be meant."""

    data: Path  # a file, one item a row, all of one user
    dialect: Dialect = field(default_factory=Dialect)  # how its text is written
    one_user: bool = False  # all rows are one user's, however many people they seem to be of
    user_column: str | None = None  # of a silo: whose each row is, each person a user of the federation
    people: int | None = None  # of a silo: its fixed number of users; None: as many as its file has at first

    def __post_init__(self) -> None:
        Limits.__post_init__(self)
        if self.user_column is None and self.people is not None:
            raise ConfigError(
                f"Expected a column that says whose each row is (--user COLUMN) with people={self.people}, got none."
            )
        if self.user_column is not None and self.one_user:
            raise ConfigError(
                f"Expected all rows to be one user's (--one-user) or each its person's (--user {self.user_column}), "
                "got both. Leave one out."
            )
        if self.people is not None and not 1 <= self.people <= MAX_PEOPLE:
            raise ConfigError(f"Expected people in [1, {MAX_PEOPLE:,}], got people={self.people}.")

    @property
    def user(self) -> str:
        """Whom promises are about here."""
        return "client" if self.one_user else "user" if self.user_column is None else "person"


_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
_NAME = re.compile(r"[\w.@-]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(Owner):
    """One owner's client. Raises ConfigError for what cannot be meant.

    The connection is TLS, and the certificate says who the client is. With `insecure` it is plain text and
    `client_name` says so, for trials on one machine.
    """

    coordinator: str  # "host:port"
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None  # whose certificates are trusted, the coordinator's and this client's
    insecure: bool = False
    client_name: str | None = None
    second_server_key: Path | None = None  # long-lived and public, of two servers' second, from its own operator
    other_database: bool = False  # the coordinator's is older than the one seen, or another, and all there is
    retry_seconds: float = field(default=0.5)  # before the first attempt to connect again; doubles up to a minute

    def __post_init__(self) -> None:
        Owner.__post_init__(self)
        address = _ADDRESS.fullmatch(self.coordinator)
        if address is None or not 0 < int(address[2]) < 1 << 16:
            raise ConfigError(f"Expected a coordinator host:port, got {self.coordinator!r}.")
        if not (isfinite(self.retry_seconds) and self.retry_seconds > 0):
            raise ConfigError(f"Expected retry_seconds > 0, got retry_seconds={self.retry_seconds}.")
        self._check_identity()
        if TWO_SERVERS in self.accept_trust_models and self.user_column is not None:
            raise ConfigError(
                f"Expected a client of one user with {TWO_SERVERS}, got user_column={self.user_column!r}: it masks one "
                "row. Run a client for each person, with a certificate of its own."
            )
        if TWO_SERVERS in self.accept_trust_models and not self.masks:
            raise ConfigError(
                f"Expected certificates and second_server_key with {TWO_SERVERS}, got none: answers go by TLS to "
                "the coordinator, and whose second server it is its operator says (--second-server-key)."
            )

    @property
    def masks(self) -> bool:
        """See Limits."""
        return self.second_server_key is not None and not self.insecure and self.user_column is None

    def _check_identity(self) -> None:
        given = [path is not None for path in (self.certificate, self.key, self.authority)]
        if self.insecure and (any(given) or self.client_name is None):
            raise ConfigError("Expected a client_name and no certificate with insecure=True, got others.")
        if not self.insecure and not (all(given) and self.client_name is None):
            raise ConfigError(
                "Expected certificate, key and authority, got not all of them (or a client_name, which only goes with "
                "insecure=True). `quoron admin certs` makes them for a trial."
            )
        check_plaintext(self.coordinator, insecure=self.insecure)
        if self.client_name is not None and not _NAME.fullmatch(self.client_name):
            raise ConfigError(
                f"Expected a client_name of letters, digits and . _ @ - only, got {self.client_name[:200]!r}."
            )


def read_limit(text: str) -> tuple[float, float]:
    """Return ε and δ of a limit; ConfigError for another text."""
    try:
        epsilon, delta = map(float, text.split(","))
    except ValueError:
        raise ConfigError(f"Expected limit EPSILON,DELTA, such as 1,1e-5, got {text!r}.") from None
    return epsilon, delta
