"""Which integer rows a question of the plan of one server asks for, where two servers sum them."""

from typing import Any

from quoron_privacy.errors import VerificationError
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.free_presence import LengthSum, ShapedMomentSum
from quoron_privacy.means.moment import MomentSum
from quoron_privacy.means.norm_counts import NormCountSum
from quoron_privacy.two_servers import rows
from quoron_privacy.two_servers.sheet import RoundSheet


def rows_of(reduction: Any, sheet: RoundSheet, chains: tuple[bytes, ...]) -> rows.RingReduction:
    """As the algorithm's own reduction of the round, on the plan's grid. VerificationError for one with no rows."""
    match reduction:
        case MomentSum():
            return rows.MomentRows(sheet, reduction.dimension, reduction.norm, chains)
        case ClippedSum() if len(sheet.blocks) == 1:
            return rows.ClippedRows(sheet, reduction.norm, reduction.centre, chains)
        case ClippedSum():  # with the shares that an adaptive clip follows
            return rows.NormCountRows(sheet, reduction.norm, None, reduction.centre, chains)
        case NormCountSum():
            return rows.NormCountRows(sheet, reduction.radius, reduction.transform, reduction.centre, chains)
        case LengthSum():
            return rows.LengthRows(sheet, reduction.transform, reduction.top, False, chains)
        case ShapedMomentSum():
            return rows.ShapedMomentRows(sheet, reduction.transform, reduction.radius, chains)
    raise VerificationError(f"Expected a question whose answers two servers may sum, got one with {reduction!r:.99}.")
