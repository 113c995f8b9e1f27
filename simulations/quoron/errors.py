"""The exceptions that quoron raises on purpose, to catch by name: see `quoron_protos.errors` for the tree."""

from quoron_protos.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    IdentityError,
    Infeasible,
    LedgerError,
    LedgerUnavailable,
    OtherVersion,
    QuoronError,
    RunError,
    UsageError,
    VerificationError,
    WireError,
)

__all__ = [
    "BudgetExceeded",
    "ConfigError",
    "DataError",
    "IdentityError",
    "Infeasible",
    "LedgerError",
    "LedgerUnavailable",
    "OtherVersion",
    "QuoronError",
    "RunError",
    "UsageError",
    "VerificationError",
    "WireError",
]
