"""Which integer rows a question of the plan of one server asks for, where two servers sum them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import VerificationError
from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.contrasts import ContrastSum
from quoron_privacy.means.free_presence import LengthSum, ShapedMomentSum, VectorLengthSum
from quoron_privacy.means.free_presence_columns import ColumnSum
from quoron_privacy.means.moment import MomentSum
from quoron_privacy.means.norm_counts import NormCountSum
from quoron_privacy.two_servers import rows as made
from quoron_privacy.two_servers.rows import RingReduction, RingSums
from quoron_privacy.two_servers.sheet import RoundSheet
from quoron_server.algorithms.slots import first_answered

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class FirstRows:
    """Rows of which only the first so many count whose answer came, in slot order: the coordinator cuts its list."""

    own: RingReduction
    most: int

    @property
    def sheet(self) -> RoundSheet:
        """See RingReduction."""
        return self.own.sheet

    @property
    def chains(self) -> tuple[bytes, ...]:
        """See RingReduction."""
        return self.own.chains

    def rows(self, values: Matrix, answered: Mask) -> Integers:
        """See RingReduction: a user does not know who else answered."""
        return self.own.rows(values, answered)

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """Of a whole cohort."""
        return self.own.of(values, first_answered(answered, self.most))


def rows_of(reduction: Any, sheet: RoundSheet, chains: tuple[bytes, ...]) -> RingReduction:
    """As the algorithm's own reduction of the round, on the plan's grid. VerificationError for one with no rows."""
    match reduction:
        case MomentSum():
            return made.MomentRows(sheet, reduction.dimension, reduction.norm, chains)
        case ClippedSum() if len(sheet.blocks) == 1:
            return made.ClippedRows(sheet, reduction.norm, reduction.centre, chains)
        case ClippedSum():  # with the shares that an adaptive clip follows
            return made.NormCountRows(sheet, reduction.norm, None, reduction.centre, chains)
        case NormCountSum():
            return made.NormCountRows(sheet, reduction.radius, reduction.transform, reduction.centre, chains)
        case ContrastSum():  # the gradients of several classes: one matrix makes their contrasts and whitens them
            own: Any = reduction.own.transform
            whole: Matrix = np.kron(reduction.contrasts.matrix(), own)
            return rows_of(replace(reduction.own, transform=whole), sheet, chains)
        case ColumnSum():
            return made.ColumnRows(sheet, reduction.windows, reduction.scale, reduction.constant, chains)
        case LengthSum():
            return made.LengthRows(sheet, reduction.transform, reduction.top, False, chains)
        case VectorLengthSum():
            return made.LengthRows(sheet, reduction.transform, reduction.top, True, chains)
        case ChangeSum():
            return made.ClippedRows(sheet, reduction.own.norm, None, chains, change=True)
        case ShapedMomentSum():
            return made.ShapedMomentRows(sheet, reduction.transform, reduction.radius, chains)
    raise VerificationError(f"Expected a question whose answers two servers may sum, got one with {reduction!r:.99}.")
