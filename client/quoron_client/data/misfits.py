"""What encoding passes over in silence: values that do not fit their declaration, column by column and user by user.

    tally = Tally(rules, users)
    tally.add(owners, block.marks)          # of rows that `fused.encode` has read
    tally.fitting(everybody=True)

A function of each row alone, and private: it is for a release with noise (docs/privacy/table-health.md).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from quoron_client.data import columns
from quoron_client.data.encoding import Encoding, Owners
from quoron_client.data.labels import Classes, Comparison, Positive, Range, Signs
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:  # a plan needs no table
    import pyarrow as pa

    from quoron_client.data import fused_loops as loops
else:
    loops = OnFirstUse("quoron_client.data.fused_loops")  # they bring a compiler

Marks = NDArray[np.uint8]
Kind = Literal["number", "category", "label", "weight"]
Shares = NDArray[np.float64]
Fitting = tuple[Shares, Shares, Shares]  # of users: 1 without a usable row (u,), labels (u, L), unfit columns (u, K)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that was declared, and what of it does not fit."""

    name: str
    kind: Kind
    misfit: str  # such a value, in words
    fix: str


def declared_columns(rules: Encoding) -> tuple[Column, ...]:
    """All columns with a declaration, in the order of their marks: features, the label, the weight."""
    found = [Column(each.title, *each.misfit) for each in rules.features]
    if rules.label is not None:
        found.append(Column(rules.label.column, "label", *_label(rules.label)))
    if rules.weight is not None:
        most = f"outside [0, {rules.weight.most:g}], or no number"
        found.append(Column(rules.weight.column, "weight", most, "Declare the most that a weight can be."))
    return tuple(found)


def declared_labels(rules: Encoding) -> tuple[str, ...]:
    """What labels are told apart, in words: the classes, or the two ends of a range at which they are held."""
    label = rules.label
    if label is None:
        return ()
    name = repr(label.column)
    if isinstance(label, Range):
        return f"{name} below {label.low:g}", f"{name} above {label.high:g}"
    if isinstance(label, Classes):
        return tuple(f"{name} = {value!r}" for value in label.values)
    if isinstance(label, Comparison):
        positive = f"{name} {label.operator} {label.number:g}"
        return f"not {positive}", positive
    if isinstance(label, Positive):
        return f"{name} other than {label.value!r}", f"{name} = {label.value!r}"
    return f"{name} negative", f"{name} positive"


class Tally:
    """Sums over the rows of some users, a block at a time, and what share of their rows they are."""

    def __init__(self, rules: Encoding, users: int) -> None:
        self.rows, self.usable = np.zeros(users, np.int64), np.zeros(users, np.int64)
        self._labelled = np.zeros((users, len(declared_labels(rules))), np.int32)
        self._unfit = np.zeros((users, len(declared_columns(rules))), np.int32)

    def add(self, owners: Owners | NDArray[np.int32], marks: Marks, place: Owners | None = None) -> None:
        """Row i, with marks[i] (`fused`), is of user owners[i], or of place[owners[i]] where that is not -1."""
        own = np.arange(len(self.rows)) if place is None else place
        loops.tally(owners, own, marks, self._unfit.shape[1], self.rows, self.usable, self._unfit, self._labelled)

    def fitting(self, *, everybody: bool) -> Fitting:
        """Of each user: 1 where no row can be used (u,), shares of labels (u, L), of rows with an unfit value (u, K).

        Without `everybody` a user without a row is nobody, and left out.
        """
        there = slice(None) if everybody else self.rows > 0
        none = (self.usable[there] == 0).astype(np.float64)
        labels = self._labelled[there] / np.maximum(self.usable[there], 1)[:, None]
        return none, labels, self._unfit[there] / np.maximum(self.rows[there], 1)[:, None]


def _label(label: Classes | Comparison | Positive | Range | Signs) -> tuple[str, str]:
    """What a row without a label holds there, and the fix."""
    if isinstance(label, Signs):
        return "no true/false, 0/1 or -1/+1", (
            "Declare what it means: positive = value, classes = [values], label_range = [low, high], or a comparison "
            "such as 'delay > 15'."
        )
    if isinstance(label, Classes):
        return "none of the declared classes, or missing", "Declare all classes; texts are compared letter by letter."
    if isinstance(label, Positive):
        return "missing", "If it is missing, all is well."
    return "no number", "Numbers are written with a decimal point, unless a comma is declared."


def label_places(
    label: Classes | Comparison | Positive | Range | Signs, raw: Shares, table: "pa.Table"
) -> NDArray[np.int64]:
    """Place of each row's label `raw` (N,) among `declared_labels`, -1 for none."""
    if isinstance(label, Range):
        values = columns.numbers(table, label.column)
        return np.select([values < label.low, values > label.high], [0, 1], -1)
    signs = not isinstance(label, Classes) or len(label.values) == 2
    whole = np.where(np.isnan(raw), -1.0, raw)
    found = np.where(whole > 0, 1, 0) if signs else whole.astype(np.int64)
    return np.where(np.isnan(raw), -1, found)
