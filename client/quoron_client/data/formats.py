"""What a table's name says of how it is read: the one place where suffixes, folders and URLs mean something.

    >>> format_of("visits.CSV.gz")
    Format(kind='csv', zipped=True, separator=None)
    >>> is_folder("s3://bucket/visits"), is_folder("s3://bucket/visits.csv")
    (True, False)

| a name that ends in                | is                                                  |
| ---------------------------------- | --------------------------------------------------- |
| .csv, .csv.gz                      | text whose cells are separated as a `Dialect` says  |
| .tsv, .tab, .tsv.gz, .tab.gz       | the same, separated by tabs                         |
| .parquet                           | one Parquet file                                    |
| anything else, as a folder or URL  | all Parquet files below it                          |

How a table's text is written is declared, or read off its header and its name, and never off a row:

    >>> Dialect().of_header(b'"weight, kg";age', "visits.csv")[1].separator
    ';'

| what                    | declared as                          | detected from                                     |
| ----------------------- | ------------------------------------ | ------------------------------------------------- |
| what separates cells    | `separator`, one character           | the name (.tsv), or what the header has           |
| what a number's comma is| `decimal`, `.` or `,`                | nothing: it is `.`                                |
| bytes                   | `encoding`                           | a UTF-16 file's first two; else it is UTF-8       |
| quotes                  | `quoting`, `double` or `none`        | nothing: it is `double`                           |

With `quoting="double"` a cell may stand in quotes, a quote in it being doubled (RFC 4180); with `"none"` a quote is a
letter, and a row ends at the next line end. A header that has two of `,` `;` tab and `|` outside its quotes is refused.
A decimal comma's numbers are `3,14` and `1.234,5`: points may stand between groups of three digits.
"""

import codecs
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from typing import Literal

from quoron_privacy.errors import ConfigError, DataError

DECIMAL = b"quoron.decimal"  # in the metadata of a table's schema: what its texts write before the parts of a number
SEPARATORS = ",;\t|"
ENCODINGS = ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252")
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def can_separate(one: str) -> bool:
    """Return whether a text can be what separates cells."""
    return len(one) == 1 and one.isascii() and one not in '"\r\n\0'


@dataclass(frozen=True, slots=True)
class Dialect:
    """The declared form of a text file; None is to be detected. Raises ConfigError for an impossible value."""

    separator: str | None = None
    decimal: Literal[".", ","] = "."
    encoding: str | None = None
    quoting: Literal["double", "none"] = "double"

    def __post_init__(self) -> None:
        if self.separator is not None and not can_separate(self.separator):
            raise ConfigError(
                f"Expected separator to be one character, such as ';' or a tab ($'\\t' in a shell), got "
                f"{self.separator!r}."
            )
        if self.decimal not in (".", ","):
            raise ConfigError(f"Expected decimal to be '.' or ',', got {self.decimal!r}.")
        if self.encoding is not None and self.encoding not in ENCODINGS:
            raise ConfigError(f"Expected encoding to be one of {', '.join(ENCODINGS)}, got {self.encoding!r}.")
        if self.quoting not in ("double", "none"):
            raise ConfigError(f"Expected quoting to be 'double' or 'none', got {self.quoting!r}.")

    def declared(self) -> dict[str, str]:
        """Return the fields that differ from the defaults."""
        given, default = asdict(self), asdict(Dialect())
        return {name: value for name, value in given.items() if value != default[name]}

    def of_bytes(self, first: bytes, called: str) -> str:
        """Return the encoding of a file that begins so. DataError where it begins like another than is declared."""
        marked = _MARKS.get(first[:2])
        if marked is None:
            return "utf-8" if self.encoding is None else "utf-16-le" if self.encoding == "utf-16" else self.encoding
        if self.encoding not in (None, "utf-16", marked):
            raise DataError(
                f"Expected {called!r} to be {self.encoding}, as declared, got what begins like UTF-16. Declare "
                "encoding = 'utf-16', or write it again."
            )
        return marked

    def of_header(self, first: bytes, called: str) -> tuple[str, "Dialect"]:
        """(the header, with what separates its cells) of a first row. DataError where two may, and for no UTF-8."""
        try:
            header = first.decode()
        except UnicodeDecodeError:
            header = "\0"
        if "\0" in header:
            raise DataError(
                f"Expected the header of {called!r} to be {self.encoding or 'UTF-8'}, got other bytes. Declare "
                "encoding."
            )
        if self.separator is not None:
            return header, self
        plain = "".join(header.split('"')[::2]) if self.quoting == "double" else header
        found = [separator for separator in SEPARATORS if separator in plain]
        if len(found) > 1:
            said = " and ".join("tabs" if separator == "\t" else repr(separator) for separator in found)
            raise DataError(
                f"Expected the header of {called!r} to tell what separates its cells, got {said}. Declare separator, "
                "or put names that have one of them in quotes."
            )
        return header, replace(self, separator=found[0] if found else ",")

    def check_unwritten(self, called: str) -> None:
        """Raise DataError where something is declared that only files of text have."""
        if (self.separator, self.encoding, self.quoting) != (None, None, "double"):
            raise DataError(
                f"Expected no separator, encoding or quoting of {called!r}, which is no text, got some. Leave them out."
            )


Kind = Literal["csv", "parquet"]
KINDS: dict[str, Kind] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".parquet": "parquet",
}
SAID = ".csv, .tsv or .parquet"  # of them to people; text may end in .gz, too
_PACKED = "Unpack it; text may stay packed as .gz."
_SPEC = "Save its sheet as CSV."
_FIXES = {
    **dict.fromkeys((".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz", ".gz"), _PACKED),
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), _SPEC),
    **dict.fromkeys(
        (".txt", ".dat", ".asc", ".data"), "Of rows of text rename it to .csv, or to .tsv if tabs part their cells."
    ),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), "Write it as Parquet."),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "Read it with pandas.read_json, or write it as Parquet."),
}
# How files of other formats begin, and what they are; some begin like text.
_MAGIC = (
    (b"\x1f\x8b", "a gzip file", "Rename it to .csv.gz, or unpack it."),
    (b"PK\x03\x04", "a zip file or a spreadsheet", "Unpack it, or save its sheet as CSV."),
    (b"\xd0\xcf\x11\xe0", "an old spreadsheet", _SPEC),
    (b"BZh", "a bzip2 file", _PACKED),
    (b"\xfd7zXZ", "an xz file", _PACKED),
    (b"\x28\xb5\x2f\xfd", "a zstd file", _PACKED),
    (b"PAR1", "a Parquet file", "Rename it to .parquet."),
    (b"ARROW1", "a Feather file", "Write it as Parquet."),
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
    """Return whether it says how to reach a store."""
    return isinstance(source, str) and "://" in source


def name_of(source: str) -> str:
    """Return the name of a file, here or by a URL, for people: the address of its store is not part of it."""
    path = source.partition("?")[0] if is_url(source) else source
    return PurePath(path).name


def is_folder(source: str | Path) -> bool:
    """Return whether it is the Parquet files of a folder or of a URL, which may be a single one."""
    if not is_url(source):
        return Path(source).is_dir()
    known = _known(str(source))
    return known is None or known.kind == "parquet"


def is_table(source: str | Path) -> bool:
    """Return whether it names a table: by its end, as a URL, or because a folder is there."""
    return _known(str(source)) is not None or is_folder(source)


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
        if plain.endswith(suffix) and not (zipped and kind == "parquet"):
            return Format(kind, zipped, "\t" if suffix in (".tsv", ".tab") else None)
    return None
