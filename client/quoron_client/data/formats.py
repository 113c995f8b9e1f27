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
        raise DataError(f"Expected a table that ends in {SAID}, got {name_of(name)!r}. Write it so.")
    return found


def _known(name: str) -> Format | None:
    whole = name_of(name).casefold()
    plain = whole.removesuffix(".gz")
    zipped = plain != whole
    for suffix, kind in KINDS.items():
        if plain.endswith(suffix) and not (zipped and kind in ("parquet", "arrow")):
            return Format(kind, zipped, "\t" if suffix in (".tsv", ".tab") else None)
    return None
