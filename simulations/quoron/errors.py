"""The exceptions that quoron raises on purpose, to catch by name: see `quoron_privacy.errors` for the tree."""

from quoron_privacy.errors import BelowMinCohort as BelowMinCohort
from quoron_privacy.errors import BudgetExceeded as BudgetExceeded
from quoron_privacy.errors import ConfigError as ConfigError
from quoron_privacy.errors import DataError as DataError
from quoron_privacy.errors import IdentityError as IdentityError
from quoron_privacy.errors import Infeasible as Infeasible
from quoron_privacy.errors import LedgerError as LedgerError
from quoron_privacy.errors import LedgerUnavailable as LedgerUnavailable
from quoron_privacy.errors import NothingReleased as NothingReleased
from quoron_privacy.errors import OtherVersion as OtherVersion
from quoron_privacy.errors import QuoronError as QuoronError
from quoron_privacy.errors import RunError as RunError
from quoron_privacy.errors import Unreachable as Unreachable
from quoron_privacy.errors import UsageError as UsageError
from quoron_privacy.errors import VerificationError as VerificationError
from quoron_privacy.errors import WireError as WireError
