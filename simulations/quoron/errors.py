"""The exceptions that quoron raises on purpose, to catch by name: see `quoron_privacy.errors` for the tree."""

from quoron_privacy.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    IdentityError,
    Infeasible,
    LedgerError,
    LedgerUnavailable,
    NothingReleased,
    OtherVersion,
    QuoronError,
    RunError,
    UsageError,
    VerificationError,
    WireError,
    WithoutQuorum,
)

__all__ = [
    "BudgetExceeded",
    "ConfigError",
    "DataError",
    "IdentityError",
    "Infeasible",
    "LedgerError",
    "LedgerUnavailable",
    "NothingReleased",
    "OtherVersion",
    "QuoronError",
    "RunError",
    "UsageError",
    "VerificationError",
    "WireError",
    "WithoutQuorum",
]
