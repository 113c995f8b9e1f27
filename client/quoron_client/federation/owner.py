"""What the owner of a user's data decides, whichever way questions come: which file, and how much may be said of it."""

from dataclasses import dataclass, field
from math import isnan
from pathlib import Path

from quoron_client.data.dialect import Dialect
from quoron_client.protocol.charges import MOST_PEOPLE
from quoron_privacy.errors import ConfigError

TRUST_MODELS = ("central-release", "central-broadcast", "two-servers", "local", "none")
TWO_SERVERS = TRUST_MODELS[2]
PUBLIC_PARTICIPATION = "public-participation"  # beside them: whether this client answers may be told, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be said of one owner's data, whatever is computed on them. ConfigError for what cannot be meant.

    `simulation_seed` lets runs in that call themselves simulations, and is theirs: their noise is known to whoever
    knows it, so they are for made-up data only.
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
        """Whether it can hide answers from each of two servers: a client of `quoron serve` that knows their helper."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner(Limits):
    """One owner's decisions. Raises ConfigError for what cannot be meant."""

    data: Path  # a file, one item a row, all of one user
    dialect: Dialect = field(default_factory=Dialect)  # how its text is written
    one_user: bool = False  # all rows are one user's, however many people they seem to be of
    items_per_user: int | None = None  # what one person holds, as whoever announces runs declares it
    user_column: str | None = None  # of a silo: whose each row is, each person a user of the federation
    people: int | None = None  # of a silo: for how many it answers, for ever; None: as many as are there at first

    def __post_init__(self) -> None:
        Limits.__post_init__(self)
        if self.items_per_user is not None and self.items_per_user < 1:
            raise ConfigError(f"Expected items_per_user >= 1, got items_per_user={self.items_per_user}.")
        if self.user_column is None and self.people is not None:
            raise ConfigError(
                f"Expected a column that says whose each row is (--user COLUMN) with people={self.people}, got none."
            )
        if self.user_column is not None and self.one_user:
            raise ConfigError(
                f"Expected all rows to be one user's (--one-user) or each its person's (--user {self.user_column}), "
                "got both. Leave one out."
            )
        if self.people is not None and not 1 <= self.people <= MOST_PEOPLE:
            raise ConfigError(f"Expected people in [1, {MOST_PEOPLE:,}], got people={self.people}.")

    @property
    def user(self) -> str:
        """Whom promises are about here."""
        return "client" if self.one_user else "user" if self.user_column is None else "person"
