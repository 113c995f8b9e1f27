"""Files as strangers bring them: of other formats, packed, broken, and with names that nobody can read."""

import bz2
import gzip
import lzma
import uuid
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from quoron_client.data import cells, columns, tables
from quoron_client.data.dialect import Dialect
from quoron_client.data.users import group
from quoron_privacy.errors import DataError

TEXT = b"who,age\na,1\nb,2\n"


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("t.csv", TEXT)


BYTES = {
    "a gzip file": lambda path: path.write_bytes(gzip.compress(TEXT)),
    "a bzip2 file": lambda path: path.write_bytes(bz2.compress(TEXT)),
    "an xz file": lambda path: path.write_bytes(lzma.compress(TEXT)),
    "a zip file or a spreadsheet": zipped,
    "a Parquet file": lambda path: pq.write_table(pa.table({"who": ["a"]}), path),
    "a Feather file": lambda path: pyarrow.feather.write_feather(pa.table({"who": ["a"]}), path, "uncompressed"),
}


class TestNamesThatNobodyCanRead:
    NAMES = (b"M\xfcller", b"M\xf6ller", b"M\xe4ller", b"M\xfcller", b"\xed\xb2\x80", "M\ufffdller".encode())

    def test_of_text_stay_different_users_from_every_source(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_bytes(b"who\n" + b"\n".join(self.NAMES) + b"\n")
        (tmp_path / "t.jsonl").write_bytes(b"\n".join(b'{"who": "%s"}' % each for each in self.NAMES))
        raw = pa.array(self.NAMES)
        pq.write_table(pa.table({"who": raw, "text": raw.view(pa.string())}), tmp_path / "t.parquet")
        found = [group(tables.read(tmp_path / name, ["who"]), "who") for name in ("t.csv", "t.jsonl", "t.parquet")]
        found.append(group(tables.read(tmp_path / "t.parquet", ["text"]), "text"))
        assert {many for many, _ in found} == {5}
        assert len({tuple(owners) for _, owners in found}) == 1

    def test_of_bytes_stay_as_many_users_as_they_are(self) -> None:
        users = [uuid.UUID(int=each * 0x9E3779B97F4A7C15 % 2**64 << 60).bytes for each in range(500)]
        for kind in (pa.binary(16), pa.binary(), pa.large_binary(), *([pa.uuid()] if hasattr(pa, "uuid") else [])):
            assert group(pa.table({"who": pa.array(users * 2, kind)}), "who")[0] == 500
        assert group(pa.table({"who": cells.texts(users)}), "who")[0] == 500


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.month_day_nano_interval()])
def test_a_user_that_is_neither_number_nor_text_is_refused_by_its_type(kind: pa.DataType) -> None:
    with pytest.raises(DataError, match="Expected column 'who' to say whose a row is, as numbers or text, got type"):
        columns.users(pa.table({"who": pa.nulls(2, kind)}), "who")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_that_is_not_as_declared_shows_nobodys_rows(encoding: str, tmp_path: Path) -> None:
    """All of it is one row then, and its header would be told where a column is missing."""
    (tmp_path / "t.csv").write_bytes(TEXT * 9)
    with pytest.raises(DataError, match=rf"to be {encoding}, as declared, got a first row that does not end") as told:
        tables.read(tmp_path / "t.csv", ["age"], dialect=Dialect(encoding=encoding))
    assert str(told.value).isascii()
    (tmp_path / "t.csv").write_bytes(TEXT.decode().encode("utf-16-le"))
    assert tables.opened(tmp_path / "t.csv", Dialect(encoding="utf-16-le")).names == ("who", "age")


def test_a_quote_in_the_header_that_closes_in_a_row_shows_nobodys_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b'who,"age\nSecret,1\nb",x\nc,3,4\n')
    with pytest.raises(DataError, match="got columns who, age, x") as told:
        tables.read(tmp_path / "t.csv", ["who", "ill"])
    assert "Secret" not in str(told.value)


@pytest.mark.parametrize("how", ["t.parquet", "t.feather", "t.arrow", "folder", "a reader"])
def test_names_of_columns_that_are_no_utf8_are_told(how: str, tmp_path: Path) -> None:
    """Bytes of another encoding where a schema has names, which Arrow finds only when one is asked for."""
    table, sink = pa.table({"who": ["a"], "ag--e": [1.0]}), pa.BufferOutputStream()
    if how.endswith((".parquet", "folder")):
        pq.write_table(table, sink)
    else:
        with (pa.ipc.new_file if how == "t.feather" else pa.ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table)
    data = sink.getvalue().to_pybytes().replace(b"ag--e", b"ag\xff\xfee")
    path = tmp_path / ("t.parquet" if how == "folder" else how)
    path.write_bytes(data)
    source = {"folder": tmp_path, "a reader": None}.get(how, path)
    for names in (None, ["who"], ["age"]):
        source = pa.ipc.open_stream(data) if how == "a reader" else source
        with pytest.raises(DataError, match=r"Expected the names of columns in '.*' in UTF-8, got other bytes"):
            tables.read(source, names)


def test_a_declared_name_that_is_no_utf8_is_told(tmp_path: Path) -> None:
    """As a shell gives it to a program, of JSON lines, which have no header."""
    (tmp_path / "t.jsonl").write_text('{"who": 1}\n')
    with pytest.raises(DataError, match="names of columns in 'the declarations' in UTF-8"):
        tables.read(tmp_path / "t.jsonl", ["who", "age\udcff"])
