"""Who is where: the users of a folder of Parquet files numbered once, in the order of their names, as of a table.

    index = opened("visits/", "patient")          # made by `quoron index visits/ --user patient`, or here and now
    index.users
    ranks, lengths = index.runs(index.pieces[0])  # rows 0 .. lengths[0] - 1 are of user ranks[0], and so on

Rows have to be sorted by user over all files, or every user's rows have to be in one file, in any order within it (a
bucket of a hash). A user in two files that are not sorted is refused, with both files' names: such a folder is two
tables, or has been written twice.

The index is made in one pass over the user column, piece by piece of a few million rows, and in memory for one piece;
what is done of it stays after a kill. It keeps no name. It holds how many rows each user has, so its files are private.
"""

import hashlib
import io
import json
import shutil
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from platformdirs import user_cache_path

from quoron.datasets._folder import turn, writable
from quoron.datasets.files import Files, Piece
from quoron_client.data import columns
from quoron_privacy.errors import DataError, RunError
from quoron_server.books.durable import PRIVATE, replace_whole

PIECE = 1 << 22  # rows
_VERSION = 2
_DONE = "index.json"
_SAMPLES = 4096  # names of a piece that say where to cut
Ranks = NDArray[np.int64]


class Watcher(Protocol):
    """Is told how far an index is."""

    def __call__(self, done: int, of: int) -> None:
        """So many pieces."""


@dataclass(frozen=True, eq=False)
class Index:
    """The users of files, numbered."""

    files: Files
    user: str  # column
    users: int
    sorted: bool  # by user over all files
    pieces: tuple[Piece, ...]
    folder: Path = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be read again."""
        return {name: value for name, value in vars(self).items() if name != "order"}

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(piece.rows for piece in self.pieces)

    def runs(self, piece: Piece) -> tuple[Ranks, NDArray[np.int32]]:
        """Whose the rows of a piece are: numbers of users, and how many rows in a row each has there."""
        try:
            ranks, lengths = (np.load(self.folder / _name(piece.number, what)) for what in ("ranks", "lengths"))
            ends, whole = np.cumsum(lengths, dtype=np.int64), self.pieces[piece.number].rows
            if len(ranks) != len(lengths) or ends[-1] != whole:
                raise ValueError
        except (OSError, ValueError, EOFError, IndexError) as error:
            raise self._unreadable(error) from None
        if piece.rows == whole:
            return ranks, lengths
        among = np.clip([ends - lengths, ends], piece.skipped, piece.skipped + piece.rows)
        left = (among[1] - among[0]).astype(np.int32)
        return ranks[left > 0], left[left > 0]

    def part_with(self, piece: Piece, wanted: NDArray[np.bool_]) -> Piece | None:
        """The row groups from the first to the last with rows of a `wanted` user (users,); None if there is none."""
        if self.sorted:
            try:
                ranks = np.load(self.folder / _name(piece.number, "ranks"), mmap_mode="r")
            except (OSError, ValueError, EOFError) as error:
                raise self._unreadable(error) from None
            own = wanted[ranks[0] : ranks[-1] + 1]  # sorted over all files, it has whoever is between
            if not own.any():
                return None
            if own[0] and own[-1]:
                return piece
        ranks, lengths = self.runs(piece)
        found, ends = np.flatnonzero(wanted[ranks]), np.cumsum(lengths, dtype=np.int64)
        if not len(found):
            return None
        return piece.between(int(ends[found[0]] - lengths[found[0]]), int(ends[found[-1]]))

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(
            f"Expected the index of {self.files.source!r} in {self.folder}, got {type(error).__name__}. Make it again "
            "with `quoron index`."
        )

    def owners(self, piece: Piece) -> Ranks:
        """The user of every row of a piece, (rows,)."""
        ranks, lengths = self.runs(piece)
        return np.repeat(ranks, lengths)

    def held(self, pieces: Sequence[Piece] | None = None) -> NDArray[np.int32]:
        """Rows of every user in these pieces, or in all, (users,). Private."""
        counts = np.zeros(self.users, np.int32)
        for piece in self.pieces if pieces is None else pieces:
            ranks, lengths = self.runs(piece)
            np.add.at(counts, ranks, lengths)
        return counts

    @cached_property
    def order(self) -> Ranks:
        """All users in the order in which the files first have them, (users,): neighbours there are read together."""
        if self.sorted:
            return np.arange(self.users)
        first, row = np.full(self.users, -1, np.int64), 0
        for piece in self.pieces:
            ranks, _ = self.runs(piece)
            fresh = first[ranks] < 0
            first[ranks[fresh][::-1]] = row + np.flatnonzero(fresh)[::-1]  # of several runs the first stays
            row += len(ranks)
        return np.argsort(first, kind="stable")


def opened(source: str | Path, user: str, *, watcher: Watcher | None = None) -> Index:
    """The index of a source, made if there is none yet. DataError if files have changed since it was made."""
    files = Files.found(source)
    files.check([user])
    for folder in _folders(files, user):
        if (folder / _DONE).is_file():
            return _read(files, user, folder)
    return _made(files, user, watcher)


def renewed(source: str | Path, user: str, *, watcher: Watcher | None = None) -> Index:
    """The index of a source as it is now: one of older files is thrown away, one that was interrupted goes on."""
    files = Files.found(source)
    files.check([user])
    for folder in _folders(files, user):
        if (folder / _DONE).is_file() and json.loads((folder / _DONE).read_text())["digest"] != files.digest:
            shutil.rmtree(folder)
    return opened(source, user, watcher=watcher)


def _folders(files: Files, user: str) -> list[Path]:
    """Where an index may be: in the folder itself, which readers of Parquet pass over; else where caches are."""
    own, local = hashlib.sha256(user.encode()).hexdigest()[:16], files.local
    named = hashlib.sha256(json.dumps([files.source, user]).encode()).hexdigest()[:32]
    kept = user_cache_path("quoron") / "indices" / named
    return [kept] if local is None else [local / "_quoron" / own, kept]


def _read(files: Files, user: str, folder: Path) -> Index:
    try:
        told = json.loads((folder / _DONE).read_text(encoding="utf-8"))
        if told["version"] != _VERSION or told["user"] != user:
            raise ValueError
        pieces = tuple(Piece(**{**each, "sizes": tuple(each["sizes"])}) for each in told["pieces"])
    except (ValueError, KeyError, TypeError, OSError):
        raise DataError(f"Expected an index of this version in {folder}, got another. Delete that folder.") from None
    if told["digest"] != files.digest:
        raise DataError(_changed(files, told["files"]))
    return Index(files, user, told["users"], told["sorted"], pieces, folder)


def _changed(files: Files, indexed: Sequence[Sequence[Any]]) -> str:
    before, now = ({name: at for name, *at in each} for each in (indexed, _told(files)))
    named = next((name for name in sorted({**before, **now}) if before.get(name) != now.get(name)), files.source)
    what = "is gone" if named not in now else "is new" if named not in before else "has changed"
    return (
        f"Expected {files.source!r} as it was indexed, but {named!r} {what} since. Put it back, or run `quoron index` "
        "again and begin a new run."
    )


def _told(files: Files) -> list[list[Any]]:
    return [[part.name, part.size, part.modified] for part in files.parts]


def _made(files: Files, user: str, watcher: Watcher | None) -> Index:
    folder = writable(_folders(files, user))
    with turn(folder):
        if (folder / _DONE).is_file():  # somebody else has made it meanwhile
            return _read(files, user, folder)
        _begin(files, folder)
        pieces = _cut(files)
        tails = []
        for piece in pieces:
            tails.append(_pass(files, user, piece, folder))
            if watcher is not None:
                watcher(piece.number + 1, len(pieces))
        disorder = _disorder(files, pieces, tails)
        users = _number(files, user, pieces, folder, disorder)
        told = {
            "version": _VERSION,
            "user": user,
            "users": users,
            "sorted": disorder is None,
            "digest": files.digest,
            "files": _told(files),
            "pieces": [asdict(piece) for piece in pieces],
        }
        _write(folder / _DONE, json.dumps(told).encode())
        for piece in pieces:
            for what in ("names", "codes", "groups", "tail"):
                (folder / _name(piece.number, what)).unlink(missing_ok=True)
        return Index(files, user, users, disorder is None, pieces, folder)


def _begin(files: Files, folder: Path) -> None:
    """Throw away what was begun for files as they no longer are."""
    begun = folder / "begun"
    if not begun.is_file() or begun.read_text(encoding="utf-8") != files.digest:
        for path in folder.glob("piece-*"):
            path.unlink()
        _write(begun, files.digest.encode())


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
    """What the order over pieces is judged by."""

    broken: int | None  # the first row group in which names go down or come again
    first: Any
    last: Any


def _pass(files: Files, user: str, piece: Piece, folder: Path) -> _Tail:
    """Write whose rows follow each other in a piece, by name: what is there already is taken as it is."""
    tail = folder / _name(piece.number, "tail")
    if tail.is_file():
        with pa.ipc.open_stream(tail.read_bytes()) as stored:
            return _Tail(**stored.read_all().to_pylist()[0])
    names, lengths, groups = _runs(files, user, piece)
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
    _write(folder / _name(piece.number, "names"), _arrow(pa.table({"name": distinct})))
    for what, values in (("codes", codes.astype(np.int64)), ("lengths", lengths), ("groups", seen)):
        _write_array(folder / _name(piece.number, what), values)
    ends = {"first": names[:1], "last": names[-1:], "broken": pa.array([broken], pa.int64())}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.table(ends).schema) as stream:
        stream.write_table(pa.table(ends))
    _write(tail, bytes(sink.getvalue()))  # last: the piece is done
    return _Tail(broken, names[0].as_py(), names[-1].as_py())


def _runs(files: Files, user: str, piece: Piece) -> tuple[pa.Array, NDArray[np.int32], NDArray[np.int32]]:
    """Names of neighbouring rows of one user, how many, and in which row group they begin."""
    part = files.parts[piece.part]
    names: list[pa.Array] = []
    lengths: list[NDArray[np.int64]] = []
    groups: list[NDArray[np.int32]] = []
    for group, table in files.batches(part, [user], piece.groups):
        values = columns.column(table, user)
        if (unnamed := columns.unnamed(values)) > 0:
            raise DataError(
                f"Expected a user in every row of column {user!r}, got {unnamed} null or empty in row group {group} "
                f"of {part.name!r}."
            )
        changes = pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
        starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
        found, counts = values.take(pa.array(starts)), np.diff(starts, append=len(values))
        where = np.full(len(found), group, np.int32)
        if names and names[-1][-1] == found[0]:
            lengths[-1][-1] += counts[0]
            found, counts, where = found[1:], counts[1:], where[1:]
        if len(found):
            names.append(found)
            lengths.append(counts)
            groups.append(where)
    return pa.concat_arrays(names), np.concatenate(lengths).astype(np.int32), np.concatenate(groups)


def _disorder(files: Files, pieces: Sequence[Piece], tails: Sequence[_Tail]) -> tuple[str, int] | None:
    """File and row group in which the rows first are not sorted by user; None if they are."""
    last = None
    for piece, tail in zip(pieces, tails, strict=True):
        if last is not None and tail.first < last:
            return files.parts[piece.part].name, piece.first
        if tail.broken is not None:
            return files.parts[piece.part].name, tail.broken
        last = tail.last
    return None


def _number(files: Files, user: str, pieces: Sequence[Piece], folder: Path, disorder: tuple[str, int] | None) -> int:
    """Number all users in the order of their names, range of names by range; how many there are."""
    names = [_mapped(folder / _name(piece.number, "names")) for piece in pieces]
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
            _refuse_split(files, user, pieces, folder, counts, starts, order, again, disorder)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = users + np.concatenate([[0], np.cumsum(~again)])
        users = int(ranks[order[-1]]) + 1
        for each, low, high, own in zip(numbers, starts, ends, np.split(ranks, np.cumsum(counts)[:-1]), strict=True):
            each[low:high] = own
    for piece, own in zip(pieces, numbers, strict=True):
        codes = np.load(folder / _name(piece.number, "codes"))
        _write_array(folder / _name(piece.number, "ranks"), own[codes])
    return users


def _refuse_split(
    files: Files,
    user: str,
    pieces: Sequence[Piece],
    folder: Path,
    counts: Sequence[int],
    starts: Sequence[int],
    order: Ranks,
    again: NDArray[np.bool_],
    disorder: tuple[str, int],
) -> None:
    """DataError for a user in two files; pieces of one file may share it."""
    whose = np.repeat(np.arange(len(pieces)), counts)
    parts = np.array([piece.part for piece in pieces])[whose[order]]
    apart = np.flatnonzero(again & (parts[1:] != parts[:-1]))
    if not len(apart):
        return
    told, begins = [], np.concatenate([[0], np.cumsum(counts)])
    for at in order[apart[0] : apart[0] + 2]:
        piece = pieces[whose[at]]
        groups = np.load(folder / _name(piece.number, "groups"))
        row_group = groups[starts[piece.number] + at - begins[piece.number]]
        told.append(f"row group {row_group} of {files.parts[piece.part].name!r}")
    name, group = disorder
    raise DataError(
        f"Expected all rows of a user of column {user!r} in one file, or all files sorted by it, got a user in "
        f"{told[0]} and in {told[1]}, and the order ends in row group {group} of {name!r}. Sort the rows by {user!r} "
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


def _name(piece: int, what: str) -> str:
    return f"piece-{piece:06}.{what}"


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _mapped(path: Path) -> pa.Array:
    """The names of a piece, left on disk."""
    with pa.memory_map(str(path)) as stored:
        values = pa.ipc.open_file(stored).read_all().column("name")
    return values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)


def _write_array(path: Path, values: NDArray[Any]) -> None:
    sink = io.BytesIO()
    np.save(sink, values, allow_pickle=False)
    _write(path, sink.getvalue())


def _write(path: Path, data: bytes) -> None:
    try:
        replace_whole(path, data, mode=PRIVATE)
    except OSError as error:
        raise RunError(
            f"Cannot write the index {path}: {error.strerror}. Make room, and give the command again."
        ) from None
