"""From the rows of a table to what is bought of it: the releases one after the other, each in view of those before.

    released, entries = release(bought, wants, table, owners, users, noise)

What is released is JSON-compatible, and all that anybody reads afterwards. The mechanism, and the proof that its
releases may be chosen so: quoron_privacy.counts.bought, docs/privacy/bought-declarations.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from quoron_privacy.counts.bought import Bought, name_counts, ranges
from quoron_privacy.counts.marks import KINDS, MARKS, NUMBER, marks

from quoron_client.data import columns, row_kinds
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release

Integers = NDArray[np.int64]
What = Literal["number", "category", "any", "label", "items"]
Released = dict[str, Any]  # by column: kind, votes of each kind, range, names


@dataclass(frozen=True, slots=True)
class Want:
    """A fact to be bought: the range of a number, the values of a category, any of these; a label, or rows a user."""

    column: str
    what: What

    @property
    def may_be_number(self) -> bool:
        """Whether numbers are looked at."""
        return self.what != "category"

    @property
    def may_be_text(self) -> bool:
        """Whether names are."""
        return self.what in ("category", "any", "label")


def release(
    bought: Bought, wants: Sequence[Want], table: pa.Table, owners: Integers, users: int, noise: NoiseSource
) -> tuple[Released, tuple[Release, ...]]:
    """What the releases say, by column, and their ledger entries; row i is of user owners[i] < users.

    Where there are more users than are looked at, these are drawn in secret. Under zero-out whoever has no row is
    nobody, and counts nowhere.
    """

    def stream(what: str) -> Any:
        return noise.stream("bought", what)

    seats = np.full(users, -1, np.int64)
    chosen = np.arange(users) if users <= bought.users else stream("users").subset(users, bought.users)
    if bought.adjacency == "zero-out":
        chosen = chosen[np.isin(chosen, owners)]
    seats[chosen] = np.arange(len(chosen))
    if len(chosen) < users:
        rows = np.flatnonzero(seats[owners] >= 0)
        table, owners = table.take(pa.array(rows)), owners[rows]
    seat, many = seats[owners], len(chosen)
    entries = dict(
        zip(("places", "cells", "closer", "names") if bought.columns else ("names",), bought.entries(), strict=False)
    )
    found: Released = {want.column: {} for want in wants}
    made = [entries["places"], entries["cells"]] if bought.columns else []
    numeric = [want for want in wants if want.may_be_number]
    if numeric:
        numbers = np.empty((many, len(numeric), MARKS))
        kinds = np.empty((many, len(numeric), MARKS), np.int8)
        for place, want in enumerate(numeric):
            numbers[:, place], kinds[:, place] = _marks(want, table, seat, many)
        shapes = bought.shapes(bought.release_places(bought.place_counts(numbers, kinds), stream("places")))
        for want, kind, votes in zip(numeric, shapes.kinds, shapes.counts.tolist(), strict=True):
            found[want.column] |= {"kind": kind, "votes": votes}
        at = np.flatnonzero(
            [want.what in ("number", "items") or found[want.column]["kind"] == KINDS[NUMBER] for want in numeric]
        )
        if len(at):
            around = shapes.windows.where(at)
            near = bought.near(
                bought.release_cells(bought.cell_counts(numbers[:, at], around), stream("cells")), around
            )
            closer, window = bought.closer(near)
            if len(closer):
                counts = bought.cell_counts(numbers[:, at[closer]], window)
                near = near.but(closer, bought.nearer(bought.release_closer(counts, stream("closer")), window))
                made.append(entries["closer"])
            for place, low, high, held in zip(
                at.tolist(), *(each.tolist() for each in ranges(near)), near.held.tolist(), strict=True
            ):
                found[numeric[place].column] |= {"range": [low, high], "held": held}
        else:
            made.remove(entries["cells"])
    named = [
        want
        for want in wants
        if (want.may_be_text and found[want.column].get("kind") != KINDS[NUMBER]) or want.what == "label"
    ]
    if named:
        counts_ = [_names(want, table, seat, many) for want in named]
        for want, names in zip(named, bought.release_names(counts_, stream("names")), strict=True):
            found[want.column]["names"] = [[str(name), votes] for name, votes in names.items()]
        made.append(entries["names"])
    return found, tuple(made)


def _marks(want: Want, table: pa.Table, seat: Integers, many: int) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    if want.what == "items":
        return marks(np.bincount(seat, minlength=many).astype(np.float64), np.arange(many), many)
    values, kinds = columns.numbers(table, want.column), row_kinds.kinds(table, want.column)
    return marks(values, seat, many, kinds if want.what != "number" else None)


def _names(want: Want, table: pa.Table, seat: Integers, many: int) -> dict[str | int, int]:
    codes, names = row_kinds.codes(table, want.column)
    own, _ = marks(codes, seat, many)
    return name_counts(np.where(np.isnan(own), -1, own).astype(np.int64), names)
