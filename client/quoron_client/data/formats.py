"""What a table's name says of how it is read: the one place where suffixes, folders and URLs mean something.

    >>> format_of("visits.CSV.gz")
    Format(kind='csv', zipped=True, separator=None)
    >>> is_folder("s3://bucket/visits"), is_folder("s3://bucket/visits.csv")
    (True, False)

| a name that ends in                | is                                                                       |
| ---------------------------------- | ------------------------------------------------------------------------ |
| .csv, .csv.gz                      | text whose cells are separated as `dialect` says                         |
| .tsv, .tab, .tsv.gz, .tab.gz       | the same, separated by tabs                                              |
| .jsonl, .ndjson, .jsonl.gz, ...    | JSON lines: an object a line                                             |
| .parquet                           | one Parquet file                                                         |
| .feather, .arrow, .ipc             | Arrow's own format: a Feather file, or a file or stream of Arrow batches |
| anything else, as a folder or URL  | all Parquet files below it                                               |
"""

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from quoron_privacy.errors import DataError

Kind = Literal["csv", "json", "parquet", "arrow"]
KINDS: dict[str, Kind] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".feather": "arrow",
    ".arrow": "arrow",
    ".ipc": "arrow",
}
SAID = ".csv, .tsv, .jsonl, .parquet or .feather"  # of them to people; text may end in .gz, too
_PACKED = "Unpack it; text may stay packed as .gz."
_SHEET = "Save its sheet as CSV."
_FIXES = {
    **dict.fromkeys((".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz", ".gz"), _PACKED),
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), _SHEET),
    **dict.fromkeys(
        (".txt", ".dat", ".asc", ".data"), "Of rows of text rename it to .csv, or to .tsv if tabs part their cells."
    ),
    ".json": "Of an object a line rename it to .jsonl; else write it so.",
}
# How files of other formats begin, and what they are; some begin like text.
_MAGIC = (
    (b"\x1f\x8b", "a gzip file", "Rename it to .csv.gz, or unpack it."),
    (b"PK\x03\x04", "a zip file or a spreadsheet", "Unpack it, or save its sheet as CSV."),
    (b"\xd0\xcf\x11\xe0", "an old spreadsheet", _SHEET),
    (b"BZh", "a bzip2 file", _PACKED),
    (b"\xfd7zXZ", "an xz file", _PACKED),
    (b"\x28\xb5\x2f\xfd", "a zstd file", _PACKED),
    (b"PAR1", "a Parquet file", "Rename it to .parquet."),
    (b"ARROW1", "a Feather file", "Rename it to .feather."),
    (b"SQLite format 3", "a database", "Write its table as CSV."),
    (b"%PDF-", "a PDF", "Write its table as CSV."),
)


@dataclass(frozen=True, slots=True)
class Format:
    """How a file is read, as far as its name says."""

    kind: Kind
    zipped: bool = False
    separator: str | None = None  # of cells, where the name says it


def is_url(source: object) -> bool:
    """Whether it says how to reach a store."""
    return isinstance(source, str) and "://" in source


def name_of(source: str) -> str:
    """The name of a file, here or by a URL, for people: the address of its store is not part of it."""
    path = source.partition("?")[0] if is_url(source) else source
    return PurePath(path).name


def is_folder(source: str | Path) -> bool:
    """Whether it is the Parquet files of a folder or of a URL, which may be a single one."""
    if not is_url(source):
        return Path(source).is_dir()
    known = _known(str(source))
    return known is None or known.kind == "parquet"


def is_table(source: str | Path) -> bool:
    """Whether it names a table: by its end, as a URL, or because a folder is there."""
    return _known(str(source)) is not None or is_folder(source)


def is_text(source: str | Path) -> bool:
    """Whether its cells are text, which declares no types."""
    known = _known(str(source))
    return known is not None and known.kind in ("csv", "json")


def format_of(name: str) -> Format:
    """Of a file of that name. DataError for a name that says nothing."""
    found = _known(name)
    if found is None:
        fix = _FIXES.get(PurePath(name_of(name)).suffix.casefold(), "Write it so.")
        raise DataError(f"Expected a table that ends in {SAID}, got {name_of(name)!r}. {fix}")
    return found


def check_text(first: bytes, called: str) -> None:
    """DataError for a file said to be text whose first row, up to a line end, begins like one of another format."""
    for begin, what, fix in _MAGIC:
        if first.startswith(begin) and (begin != b"BZh" or first[4:10] == b"1AY&SY"):
            raise DataError(f"Expected {called!r} to be text, as its name says, got {what}. {fix}")


def _known(name: str) -> Format | None:
    whole = name_of(name).casefold()
    plain = whole.removesuffix(".gz")
    zipped = plain != whole
    for suffix, kind in KINDS.items():
        if plain.endswith(suffix) and not (zipped and kind in ("parquet", "arrow")):
            return Format(kind, zipped, "\t" if suffix in (".tsv", ".tab") else None)
    return None
