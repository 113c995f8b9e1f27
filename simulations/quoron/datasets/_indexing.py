"""How an index is made: one pass over the user column, piece by piece, and then the numbers of all users.

What is done of a piece stays after a kill, with digests of what was written: what no longer has its own is done again.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron.datasets._folder import fingerprint, mapped, read, write
from quoron.datasets._names import Names, column, runs
from quoron_client.data import columns
from quoron_client.data.files import Files, Piece
from quoron_privacy.errors import DataError

PIECE = 1 << 22  # rows
VERSION = 4
DONE = "index"
SEAL = 64  # digits before what they are the digest of
_SAMPLES = 4096  # names of a piece that say where to cut
Ranks = NDArray[np.int64]
IndexWatcher = Callable[[int, int], None]  # is told so many pieces that are done, of so many


def sealed(data: bytes) -> bytes:
    """Data behind its own digest."""
    return fingerprint(data).encode() + data


def unsealed(kept: bytes) -> bytes:
    """The data; ValueError if it is not what was sealed."""
    if fingerprint(kept[SEAL:]).encode() != kept[:SEAL]:
        raise ValueError("another digest")
    return kept[SEAL:]


def make(files: Files, user: str, folder: Path, watcher: IndexWatcher | None) -> None:
    """Write the index of files into a folder; whoever calls has it alone. DataError for rows without a user, and for a
    user in two files that are not sorted."""
    _begin(files, folder)
    pieces = _cut(files)
    tails = []
    for piece in pieces:
        tails.append(_pass(files, user, piece, folder))
        if watcher is not None:
            watcher(piece.number + 1, len(pieces))
    disorder = _disorder(files, pieces, tails)
    users, firsts, ranks = _number(files, user, pieces, tails, folder, disorder)
    contents = {
        "version": VERSION,
        "user": user,
        "users": users,
        "sorted": disorder is None,
        "digest": files.digest,
        "files": told_of(files),
        "pieces": [asdict(piece) for piece in pieces],
        "runs": [tail.runs for tail in tails],
        "firsts": firsts,
        "lengths": [tail.lengths for tail in tails],
        "ranks": ranks,
        "names": [tail.whose for tail in tails],
    }
    write(folder / DONE, sealed(json.dumps(contents).encode()))
    for piece in pieces:
        for what in ("names", "codes", "groups", "tail"):
            (folder / name_of(piece.number, what)).unlink(missing_ok=True)


def told_of(files: Files) -> list[list[Any]]:
    """Names, sizes and times of change, to say which has changed."""
    return [[part.name, part.size, part.modified] for part in files.parts]


def name_of(piece: int, what: str) -> str:
    """The file of a piece."""
    return f"piece-{piece:06}.{what}"


def _begin(files: Files, folder: Path) -> None:
    """Throw away what was begun for files as they no longer are."""
    begun, stamp = folder / "begun", f"{VERSION} {files.digest}".encode()
    try:
        going_on = read(begun) == stamp
    except (OSError, DataError):
        going_on = False
    if not going_on:
        for path in folder.glob("piece-*"):
            path.unlink()
        write(begun, stamp)


def _cut(files: Files) -> tuple[Piece, ...]:
    """Neighbouring row groups together, up to a piece's rows."""
    pieces: list[Piece] = []
    for number, part in enumerate(files.parts):
        first = rows = 0
        sizes = files.rows(part)
        for group, size in enumerate(sizes):
            if rows and rows + size > PIECE:
                pieces.append(Piece(len(pieces), number, first, sizes[first:group]))
                first, rows = group, 0
            rows += size
        if rows:
            pieces.append(Piece(len(pieces), number, first, sizes[first:]))
    if not pieces:
        raise DataError(f"Expected rows in {files.source!r}, got empty files.")
    return tuple(pieces)


@dataclass(frozen=True, slots=True)
class _Tail:
    """What the order over pieces is judged by, and what was written of a piece."""

    broken: int | None  # the first row group in which names go down or come again
    first: Any
    last: Any
    runs: int
    whose: list[str]  # digest of the user column of each row group
    names: str  # digests of files
    codes: str
    lengths: str
    groups: str


def _pass(files: Files, user: str, piece: Piece, folder: Path) -> _Tail:
    """Write whose rows follow each other in a piece, by name: what is there already is taken as it is."""
    done = folder / name_of(piece.number, "tail")
    try:
        with pa.ipc.open_stream(unsealed(read(done))) as stored:
            return _Tail(**stored.read_all().to_pylist()[0])
    except (OSError, ValueError, DataError):
        done.unlink(missing_ok=True)
    names, lengths, groups, whose = _runs(files, user, piece)
    climbs = pc.greater(names[1:], names[:-1]).to_numpy(zero_copy_only=False)
    broken = None if climbs.all() else int(groups[1:][~climbs][0])
    if broken is None:
        distinct, codes, seen = names, np.arange(len(names)), groups
    else:
        distinct = pc.unique(names)
        order = pc.sort_indices(distinct).to_numpy()
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        codes = place[pc.index_in(names, value_set=distinct).to_numpy(zero_copy_only=False)]
        distinct = distinct.take(pa.array(order))
        seen = np.empty(len(order), np.int32)
        seen[codes[::-1]] = groups[::-1]  # the first row group of each
    written = {
        "names": _arrow(pa.table({"name": distinct})),
        "codes": codes.astype("<i8").tobytes(),
        "lengths": lengths.astype("<i4").tobytes(),
        "groups": seen.astype("<i4").tobytes(),
    }
    for what, data in written.items():
        write(folder / name_of(piece.number, what), data)
    digests = {what: fingerprint(data) for what, data in written.items()}
    ends = {"first": names[:1], "last": names[-1:], "broken": pa.array([broken], pa.int64())}
    ends |= {name: pa.array([digest]) for name, digest in (digests | {"runs": len(lengths), "whose": whose}).items()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.table(ends).schema) as stream:
        stream.write_table(pa.table(ends))
    write(done, sealed(sink.getvalue().to_pybytes()))  # last: the piece is done
    return _Tail(broken, names[0].as_py(), names[-1].as_py(), len(lengths), whose, **digests)


def _runs(files: Files, user: str, piece: Piece) -> tuple[pa.Array, NDArray[np.int32], NDArray[np.int32], list[str]]:
    """Names of neighbouring rows of one user, how many, in which row group they begin; and each row group's digest."""
    part = files.parts[piece.part]
    names: list[pa.Array] = []
    lengths: list[NDArray[np.int64]] = []
    groups: list[NDArray[np.int32]] = []
    whose = {group: Names() for group in piece.groups}
    for group, table in files.batches(part, [user], piece.groups):
        values = column(table, user)
        columns.check_users(values, user)
        whose[group].add(values)
        found, counts = runs(values)
        where = np.full(len(found), group, np.int32)
        if names and names[-1][-1] == found[0]:
            lengths[-1][-1] += counts[0]
            found, counts, where = found[1:], counts[1:], where[1:]
        if len(found):
            names.append(found)
            lengths.append(counts)
            groups.append(where)
    digests = [each.digest() for each in whose.values()]
    return pa.concat_arrays(names), np.concatenate(lengths).astype(np.int32), np.concatenate(groups), digests


def _disorder(files: Files, pieces: Sequence[Piece], tails: Sequence[_Tail]) -> tuple[str, int] | None:
    """File and row group in which the rows first are not sorted by user; None if they are."""
    last = None
    for piece, tail in zip(pieces, tails, strict=True):
        if last is not None and tail.first < last:
            return files.parts[piece.part].shown, piece.first
        if tail.broken is not None:
            return files.parts[piece.part].shown, tail.broken
        last = tail.last
    return None


def _number(
    files: Files,
    user: str,
    pieces: Sequence[Piece],
    tails: Sequence[_Tail],
    folder: Path,
    disorder: tuple[str, int] | None,
) -> tuple[int, list[int], list[str]]:
    """Number all users in the order of their names, range of names by range; how many there are, the number of each
    piece's first user, and digests of what was written of others: none where rows are sorted, as numbers then climb.
    """
    kept = [_Kept(folder, piece.number, tail) for piece, tail in zip(pieces, tails, strict=True)]
    names = [each.names() for each in kept]
    cuts = _cuts(names)
    numbers = [np.empty(len(each), np.int64) for each in names]
    ends, users = [0] * len(names), 0
    for cut in [*cuts, None]:
        starts = ends
        ends = [
            len(each) if cut is None else bisect_left(range(len(each)), cut, lo=low, key=lambda i, e=each: e[i].as_py())  # type: ignore[misc]
            for each, low in zip(names, starts, strict=True)
        ]
        span = [each[low:high] for each, low, high in zip(names, starts, ends, strict=True)]
        counts = [len(each) for each in span]
        if not any(counts):
            continue
        together = pa.concat_arrays(span)
        order = (
            pc.sort_indices(together).to_numpy().astype(np.int64)
        )  # stable: of one name the earlier piece comes first
        ordered = together.take(pa.array(order))
        again = pc.equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
        if disorder is not None and again.any():
            _refuse_split(files, user, pieces, kept, counts, starts, order, again, disorder)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = users + np.concatenate([[0], np.cumsum(~again)])
        users = int(ranks[order[-1]]) + 1
        for each, low, high, own in zip(numbers, starts, ends, np.split(ranks, np.cumsum(counts)[:-1]), strict=True):
            each[low:high] = own
    firsts, digests = [], []
    for of_piece, own in zip(kept, numbers, strict=True):
        if disorder is None:
            firsts.append(int(own[0]))
            continue
        ranks = own[of_piece.codes()]
        firsts.append(int(ranks[0]))
        data = ranks.astype("<i8").tobytes()
        write(folder / name_of(of_piece.piece, "ranks"), data)
        digests.append(fingerprint(data))
    return users, firsts, digests


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was written of a piece, until the index is done."""

    folder: Path
    piece: int
    tail: _Tail

    def names(self) -> pa.Array:
        """Its names, left on disk."""
        with pa.ipc.open_file(pa.py_buffer(self._checked("names", self.tail.names))) as stored:
            values = stored.read_all().column("name")
        return values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)

    def codes(self) -> Ranks:
        """Which of its names each run has."""
        return np.frombuffer(self._checked("codes", self.tail.codes), "<i8")

    def groups(self) -> NDArray[np.int32]:
        """In which row group each name is first."""
        return np.frombuffer(self._checked("groups", self.tail.groups), "<i4")

    def _checked(self, what: str, digest: str) -> Any:
        path = self.folder / name_of(self.piece, what)
        try:
            data = mapped(path)
        except OSError:
            data = b""
        if fingerprint(data) != digest:
            (self.folder / name_of(self.piece, "tail")).unlink(missing_ok=True)  # it is done again
            raise DataError(f"Expected {path} as it was written, got another. Give the command again.")
        return data


def _refuse_split(
    files: Files,
    user: str,
    pieces: Sequence[Piece],
    kept: Sequence[_Kept],
    counts: Sequence[int],
    starts: Sequence[int],
    order: Ranks,
    again: NDArray[np.bool_],
    disorder: tuple[str, int],
) -> None:
    """DataError for a user in two files of one partition; pieces of one file may share it."""
    whose = np.repeat(np.arange(len(pieces)), counts)
    parts = np.array([piece.part for piece in pieces])[whose[order]]
    numbers: dict[Any, int] = {}  # of partitions, which are a matter of users' values
    within = np.array([numbers.setdefault(part.keys, len(numbers)) for part in files.parts])[parts]
    apart = np.flatnonzero(again & (parts[1:] != parts[:-1]) & (within[1:] == within[:-1]))
    if not len(apart):
        return
    where, begins = [], np.concatenate([[0], np.cumsum(counts)])
    for at in order[apart[0] : apart[0] + 2]:
        piece = pieces[whose[at]]
        groups = kept[piece.number].groups()
        row_group = groups[starts[piece.number] + at - begins[piece.number]]
        where.append(f"row group {row_group} of {files.parts[piece.part].shown!r}")
    name, group = disorder
    raise DataError(
        f"Expected all rows of a user of column {user!r} in one file, or all files sorted by it, got a user in "
        f"{where[0]} and in {where[1]}, and the order ends in row group {group} of {name!r}. Sort the rows by {user!r} "
        f"over all files, in the order of their names, or write them in buckets by a hash of {user!r}."
    )


def _cuts(names: Sequence[pa.Array]) -> list[Any]:
    """Names between which there are about as many as are sorted at a time."""
    total = sum(map(len, names))
    ranges = -(-total // PIECE)
    if ranges <= 1:
        return []
    sample = sorted(each[i].as_py() for each in names for i in range(0, len(each), max(1, len(each) // _SAMPLES)))
    return list(dict.fromkeys(sample[len(sample) * k // ranges] for k in range(1, ranges)))


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
