"""Who is where: the users of a folder of Parquet files numbered once, in the order of their names, as of a table.

    index = opened("visits/", "patient")          # made by `quoron admin index visits/ --user patient`, or here and now
    index.users
    ranks, lengths = index.runs(index.pieces[0])  # rows 0 .. lengths[0] - 1 are of user ranks[0], and so on

Rows have to be sorted by user over all files, or every user's rows have to be in one file, in any order within it (a
bucket of a hash), of every hive partition in one. A user in two files of one partition that are not sorted is refused,
with both files' names: such a folder is two tables, or has been written twice. In which partitions a user has rows is a
matter of its values, and no error.

The index is made in one pass over the user column, piece by piece of a few million rows, and in memory for one piece;
what is done of it stays after a kill. It keeps no name. It holds how many rows each user has, so its files are private.

A promise to every user stands on it: that no user's rows count as several users'. So nothing of it is believed as it
lies there:

| what could be wrong                            | what stands against it                                              |
| ---------------------------------------------- | ------------------------------------------------------------------- |
| somebody else wrote it                         | it lies in the user's own cache, never with the data (`_folder`)    |
| a byte of it has changed                       | BLAKE2b of every file of it, checked whenever one is read           |
| it is of other files, or of files since changed | names, sizes and times of change, checked when it is opened        |
| the user column has changed nevertheless       | a digest of it, row group by row group, checked by whoever reads    |
|                                                | rows (`rows`), so before anything that depends on them is released  |

The digests have no key: whoever can write in the user's own place could as well change the program.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.datasets._folder import fingerprint, place, read, turn
from quoron.datasets._indexing import DONE, VERSION, IndexWatcher, Ranks, make, name_of, told_of, unsealed
from quoron_client.data.files import Files, Piece, without_values
from quoron_privacy.errors import DataError


@dataclass(frozen=True, eq=False)
class Index:
    """The users of files, numbered."""

    files: Files
    user: str  # column
    users: int
    sorted: bool  # by user over all files
    pieces: tuple[Piece, ...]
    digest: str  # of all that it says: of another index another
    folder: Path = field(repr=False)
    whose: tuple[tuple[str, ...], ...] = field(repr=False)  # digests of the user column, by piece and row group
    _counts: tuple[int, ...] = field(repr=False)  # runs of each piece
    _firsts: tuple[int, ...] = field(repr=False)  # the number of its first user
    _lengths: tuple[str, ...] = field(repr=False)  # digests of files
    _ranks: tuple[str, ...] = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be read again."""
        return {name: value for name, value in vars(self).items() if name not in ("order", "_here")}

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(piece.rows for piece in self.pieces)

    def runs(self, piece: Piece) -> tuple[Ranks, NDArray[np.int32]]:
        """Whose the rows of a piece are: numbers of users, and how many rows in a row each has there."""
        number, whole = piece.number, self.pieces[piece.number].rows
        lengths: NDArray[np.int32] = np.frombuffer(self._checked(number, "lengths", self._lengths[number]), "<i4")
        if self.sorted:
            ranks = np.arange(self._firsts[number], self._firsts[number] + len(lengths))
        else:
            ranks = np.frombuffer(self._checked(number, "ranks", self._ranks[number]), "<i8")
        if piece.rows == whole:
            return ranks, lengths
        ends = np.cumsum(lengths, dtype=np.int64)
        among = np.clip([ends - lengths, ends], piece.skipped, piece.skipped + piece.rows)
        left = (among[1] - among[0]).astype(np.int32)
        return ranks[left > 0], left[left > 0]

    def part_with(self, piece: Piece, wanted: NDArray[np.bool_]) -> Piece | None:
        """The row groups from the first to the last with rows of a `wanted` user (users,); None if there is none."""
        if self.sorted:  # over all files, so it has whoever is between
            first = self._firsts[piece.number]
            own = wanted[first : first + self._counts[piece.number]]
            if not own.any():
                return None
            if own[0] and own[-1]:
                return piece
        ranks, lengths = self.runs(piece)
        found, ends = np.flatnonzero(wanted[ranks]), np.cumsum(lengths, dtype=np.int64)
        if not len(found):
            return None
        return piece.between(int(ends[found[0]] - lengths[found[0]]), int(ends[found[-1]]))

    def whose_rows(self, piece: Piece, group: int) -> str:
        """The digest that the user column of a row group must have (`_names`)."""
        return self.whose[piece.number][group - self.pieces[piece.number].first]

    def check(self) -> None:
        """Read all of it once. DataError if anything is not as it was written."""
        for piece in self.pieces:
            self.runs(piece)

    def _checked(self, piece: int, what: str, digest: str) -> bytes:
        path = self._here / name_of(piece, what)
        try:
            data = read(path)
        except OSError as error:
            raise _unreadable(self.files, path, type(error).__name__) from None
        if fingerprint(data) != digest:
            raise _unreadable(self.files, path, "another")
        return data

    @cached_property
    def _here(self) -> Path:
        """Its folder; on another machine, which has none, one with the same index, made there."""
        if (self.folder / DONE).is_file():
            return self.folder
        own = opened(self.files.source, self.user)
        if own.digest != self.digest:
            raise DataError(
                f"Expected {self.files.source!r} to be the same on every machine, but one finds other users or times "
                "of change there than that which began the run."
            )
        return own.folder

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


def opened(source: str | Path, user: str, *, watcher: IndexWatcher | None = None) -> Index:
    """The index of a source, made if there is none yet. DataError if files have changed since it was made."""
    files, folder = _found(source, user)
    with turn(folder):
        if not (folder / DONE).is_file():
            make(files, user, folder, watcher)
        return _read(files, user, folder)


def renewed(source: str | Path, user: str, *, anew: bool = False, watcher: IndexWatcher | None = None) -> Index:
    """The index of a source as it is now: one that was interrupted goes on, one of older files, of another version or
    damaged is thrown away, and `anew` any."""
    files, folder = _found(source, user)
    with turn(folder):
        if (folder / DONE).is_file() or anew:
            try:
                if not anew:
                    _read(files, user, folder).check()
            except DataError:
                anew = True
            if anew:
                for path in [folder / DONE, *folder.glob("piece-*")]:
                    path.unlink(missing_ok=True)
    return opened(source, user, watcher=watcher)


def _found(source: str | Path, user: str) -> tuple[Files, Path]:
    """The files, and the folder of their index."""
    files = Files.found(source)
    files.check([user])
    named = json.dumps([files.source if files.local is None else str(files.local), user])
    return files, place("indices", sha256(named.encode()).hexdigest()[:32])


def _read(files: Files, user: str, folder: Path) -> Index:
    path = folder / DONE
    try:
        data = unsealed(read(path))
    except (ValueError, OSError) as error:
        raise _unreadable(files, path, type(error).__name__) from None
    stored = json.loads(data)
    if stored["version"] != VERSION or stored["user"] != user:
        raise _unreadable(files, path, "one of another version")
    if stored["digest"] != files.digest:
        raise DataError(_changed(files, stored["files"]))
    return Index(
        files,
        user,
        stored["users"],
        stored["sorted"],
        tuple(Piece(**{**each, "sizes": tuple(each["sizes"])}) for each in stored["pieces"]),
        fingerprint(data),
        folder,
        tuple(map(tuple, stored["names"])),
        *(tuple(stored[name]) for name in ("runs", "firsts", "lengths", "ranks")),
    )


def _unreadable(files: Files, path: Path, got: str) -> DataError:
    return DataError(
        f"Expected the index of {files.source!r} in {path} as it was written, got {got}. Make it again with "
        "`quoron admin index`."
    )


def _changed(files: Files, indexed: Sequence[Sequence[Any]]) -> str:
    before, now = ({name: at for name, *at in each} for each in (indexed, told_of(files)))
    named = next((name for name in sorted({**before, **now}) if before.get(name) != now.get(name)), files.source)
    what = "is gone" if named not in now else "is new" if named not in before else "has changed"
    return (
        f"Expected {files.source!r} as it was indexed, but {without_values(named)!r} {what} since. Put it back, or run "
        "`quoron admin index` again and begin a new run."
    )
