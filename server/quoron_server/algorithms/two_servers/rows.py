"""Which integer rows a question of the plan of one server asks for, where two servers sum them."""

from typing import Any

from quoron_privacy.errors import VerificationError
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.moment import MomentSum
from quoron_privacy.two_servers import rows
from quoron_privacy.two_servers.sheet import RoundSheet


def rows_of(reduction: Any, sheet: RoundSheet) -> rows.RingReduction:
    """As the algorithm's own reduction of the round, on the plan's grid. VerificationError for one with no rows."""
    match reduction:
        case MomentSum():
            return rows.MomentRows(sheet, reduction.dimension, reduction.norm)
        case ClippedSum() if len(sheet.blocks) == 1:
            return rows.VectorRows(sheet, reduction.norm, reduction.centre)
    raise VerificationError(f"Expected a question whose answers two servers may sum, got one with {reduction!r:.99}.")
