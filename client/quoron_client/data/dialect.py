"""How a table's text is written: declared, or told from its header and its name, and never from a row.

    >>> Dialect().of_header(b'"weight, kg";age', "visits.csv")[1].separator
    ';'

| what                    | declared as                          | told from                                         |
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
from typing import Literal

from quoron_privacy.errors import ConfigError, DataError

DECIMAL = b"quoron.decimal"  # in the metadata of a table's schema: what its texts write before the parts of a number
SEPARATORS = ",;\t|"
ENCODINGS = ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252")
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def can_separate(one: str) -> bool:
    """Whether a text can be what separates cells."""
    return len(one) == 1 and one.isascii() and one not in '"\r\n\0'


@dataclass(frozen=True, slots=True)
class Dialect:
    """As declared; None is to be told. ConfigError for what none can be."""

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
        """What differs from what is told."""
        given, told = asdict(self), asdict(Dialect())
        return {name: value for name, value in given.items() if value != told[name]}

    def of_bytes(self, first: bytes, called: str) -> str:
        """The encoding of a file that begins so. DataError where it begins like another than is declared."""
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
        found = [each for each in SEPARATORS if each in plain]
        if len(found) > 1:
            said = " and ".join("tabs" if each == "\t" else repr(each) for each in found)
            raise DataError(
                f"Expected the header of {called!r} to tell what separates its cells, got {said}. Declare separator, "
                "or put names that have one of them in quotes."
            )
        return header, replace(self, separator=found[0] if found else ",")

    def check_unwritten(self, called: str) -> None:
        """DataError where something is declared that only files of text have."""
        if (self.separator, self.encoding, self.quoting) != (None, None, "double"):
            raise DataError(
                f"Expected no separator, encoding or quoting of {called!r}, which is no text, got some. Leave them out."
            )
