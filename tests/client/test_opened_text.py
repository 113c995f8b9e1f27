"""Text as rows: its dialect, where its rows end, JSON lines, and that nobody's bytes are in another's row."""

import codecs
import csv
import gzip
import io
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.opened import csv_text
from quoron_client.data import cells, columns, csv_file, json_lines, tables
from quoron_client.data.dialect import Dialect
from quoron_privacy.errors import ConfigError, DataError


class TestDialect:
    def test_is_told_from_the_header_and_the_name_and_never_from_a_row(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        for text, names in [
            ("a;b\n1,2,3\n", ("a", "b")),
            ("a,b\n1;2;3\n", ("a", "b")),
            ('"a;x",b\n', ("a;x", "b")),
            ("a\tb\n", ("a", "b")),
            ("a|b\n", ("a", "b")),
            ("alone\n1,2\n", ("alone",)),
        ]:
            path.write_text(text)
            assert tables.opened(path).names == names
        (tmp_path / "t.tsv").write_text("a,b\tc;d\n")
        assert tables.opened(tmp_path / "t.tsv").names == ("a,b", "c;d")

    def test_of_a_header_that_may_be_two_is_asked_for(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text("a;b,c\n1;2,3\n")
        with pytest.raises(DataError, match=r"got ',' and ';'\. Declare separator"):
            tables.opened(path)
        assert tables.opened(path, Dialect(separator=";")).names == ("a", "b,c")
        assert tables.opened(path, Dialect(separator=",")).names == ("a;b", "c")

    @pytest.mark.parametrize(
        "wrong", [{"separator": '"'}, {"separator": ";;"}, {"decimal": ";"}, {"encoding": "ebcdic"}, {"quoting": "all"}]
    )
    def test_that_none_can_be_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=f"Expected {next(iter(wrong))} to be"):
            Dialect(**wrong)

    def test_that_contradicts_the_first_bytes_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("a,b\n", encoding="utf-16")
        with pytest.raises(DataError, match="to be latin-1, as declared, got what begins like UTF-16"):
            tables.opened(tmp_path / "t.csv", Dialect(encoding="latin-1"))


class TestEdges:
    """Of files and of pieces."""

    @pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
    @pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
    def test_of_a_csv_file_lose_no_row(self, ending: str, mark: bytes, tmp_path: Path, pieces: None) -> None:
        path, body = tmp_path / "t.csv", ["1,x", "2,", ",", "3,y"]
        expected = [("1", "x"), ("2", ""), ("", ""), ("3", "y")]
        for text in (
            ending.join(["a,b", *body]),
            ending.join(["a,b", "", *body, "", ""]),
            ending * 2 + ending.join(["a,b", *body]),
        ):
            path.write_bytes(mark + text.encode())
            found = [row for batch in tables.opened(path).batches() for row in batch.to_pylist()]
            assert [tuple(row.values()) for row in found] == expected

    def test_of_cells_at_the_border_of_a_piece(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "t.csv"
        rows = [["a", "b"], *([f'{each}\n"', "é,"] for each in range(9))]
        path.write_bytes(csv_text(rows).encode())
        for piece in range(1, 90):
            monkeypatch.setattr(csv_file, "_PIECE", piece)
            assert [[*row.values()] for row in tables.read(path).to_pylist()] == rows[1:]

    def test_of_a_mark_at_the_beginning_of_a_piece(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is a letter of its cell, wherever others' rows have moved it."""
        path = tmp_path / "t.csv"
        path.write_text("a,b\n" + "\ufeffx,1\n" * 9, "utf-8")
        for piece in (4, 8, 9, 1 << 20):
            monkeypatch.setattr(csv_file, "_PIECE", piece)
            assert tables.read(path)["a"].to_pylist() == ["\ufeffx"] * 9

    def test_of_a_long_row_are_no_longer_pieces_of_short_ones(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_file, "_PIECE", 50)
        path = tmp_path / "t.csv"
        for long in (300, 500, 700, 900):
            rows = [["a", "b"], *[["1", "2"]] * 20, ['\n"' * long, ","], *[["3", "\n"]] * 500]
            path.write_bytes(csv_text(rows).encode())
            batches = list(tables.opened(path).batches())
            assert [[*row.values()] for row in pa.concat_tables(batches).to_pylist()] == rows[1:]
            assert max(batch.num_rows for batch in batches) <= 25


class TestJSONLines:
    def test_of_any_line_are_a_row_of_its_own_or_none(self, tmp_path: Path, pieces: None) -> None:
        lines = [
            b'{"who": "a", "n": 1, "x": true}',
            b'{"who": 7, "n": 1.0}',
            b"no json",
            b"[1, 2]",
            b'{"who": "b", "n": {"n": 1}, "x": [1]}',
            b"",
            b'{"who": "c\xff\\ud800", "n": -0, "n": 1e400}',
            b"[" * 100_000,
            b'{"who": null, "n": ' + b"9" * 5000 + b"}",
            b'{"who": "d"} {"who": "e"}',
            b'{"who": "d", "n": NaN, "x": "1"}',
        ]
        (tmp_path / "t.jsonl").write_bytes(b"\n".join(lines))
        found = tables.read(tmp_path / "t.jsonl", ["who", "n", "nowhere"]).to_pylist()
        assert [row["who"] for row in found] == ["a", "7", "b", "c\uf7ff\uf7ed\uf7a0\uf780", None, "d"]
        assert [row["n"] for row in found] == ["1", "1", None, "inf", "9" * 5000, None]
        assert {row["nowhere"] for row in found} == {None}

    @given(numbers=st.lists(st.floats() | st.decimals(-1000, 1000, places=6).map(float) | st.integers(), min_size=1))
    def test_numbers_are_text_as_those_of_any_table(self, numbers: list[float]) -> None:
        for style in (repr, "{:.6f}".format, "{:.3e}".format):
            texts = [style(each) if math.isfinite(each) else json.dumps(each) for each in numbers]
            found = json_lines.table(b"".join(b'{"x": %s}\n' % each.encode() for each in texts), ["x"])["x"]
            read = [int(each) if each.lstrip("-").isdigit() else float(each) for each in texts]
            assert found.to_pylist() == [cells.text(each) for each in read]

    def test_of_more_values_than_memory_are_no_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_lines, "MOST", 50)
        lines = ['{"a": 1, "b": [' + "{}," * 60 + "1]}", '{"a": "' + r"\\\",:[{" * 60 + '"}', '{"a": 3}']
        path = tmp_path / "a.jsonl"
        path.write_bytes("\n".join(lines).encode())
        assert tables.read(path, ["a"])["a"].to_pylist() == ['\\",:[{' * 60, "3"]

    def test_have_no_header(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        path.write_text('{"a": 1}\n')
        for wrong in (tables.names, tables.read):
            with pytest.raises(DataError, match="Expected declared columns of JSON lines, got none"):
                wrong(path)

    def test_of_a_line_without_an_end_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_lines, "_PIECE", 100)
        monkeypatch.setattr(json_lines, "LONGEST", 1000)
        (tmp_path / "t.jsonl").write_text('{"a": "' + "x" * 9000 + '"}')
        with pytest.raises(DataError, match="a line of more than 256 MiB"):
            tables.read(tmp_path / "t.jsonl", ["a"])


CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ['"', ",", ";", "\n", "\r", "\r\n", '","', "\0", "\ufeff", "1,5", "1e5", "x,1\ny,2\n", '""', "\x85", "\u2028"]
)


OTHERS = [["who", "x", "note"], *([f"u{each}", f"{each}.5", "n\n,"] for each in range(12))]


class TestOthersRows:
    """One user's cells are others, as a correct writer writes them; everybody else's batches are the same bits."""

    @staticmethod
    def of_others(held: tables.Opened) -> list[Any]:
        table = pa.concat_tables([held.empty(("who", "x")), *held.batches(("who", "x"))])
        texts, numbers = columns.texts(table, "x").to_pylist(), columns.numbers(table, "x")
        found = zip(columns.texts(table, "who").to_pylist(), texts, numbers.view(np.int64).tolist(), strict=True)
        return [row for row in found if row[0] != "me"]

    @given(cells=st.lists(st.tuples(CELLS, CELLS), max_size=4), place=st.integers(1, 12), piece=st.integers(1, 80))
    @settings(max_examples=25)  # of each in ten ways of writing them
    def test_stay_as_they_are(self, cells: list[tuple[str, str]], place: int, piece: int) -> None:
        mine = [["me", *both] for both in cells]
        rows = [*OTHERS[:place], *mine, *OTHERS[place:]]
        expected = [(who, x, np.float64(x).view(np.int64)) for who, x, _ in OTHERS[1:]]
        for name, dialect, data in self.written(rows):
            file = f"/{name}"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(csv_file, "_PIECE", piece)
                patch.setattr(json_lines, "_PIECE", piece)
                path = Path(os.environ["QUORON_TEST_FOLDER"] + file)
                path.write_bytes(data)
                assert self.of_others(tables.opened(path, dialect)) == expected, name

    @staticmethod
    def written(rows: list[list[str]]) -> Iterator[tuple[str, Dialect, bytes]]:
        for separator in ",;\t":
            text = csv_text(rows, separator, quoting=csv.QUOTE_MINIMAL if separator == ";" else csv.QUOTE_ALL)
            yield "t.csv", Dialect(), text.encode()
            yield "t.csv.gz", Dialect(separator), gzip.compress(text.encode(), 1)
            yield "t.csv", Dialect(), codecs.BOM_UTF16_LE + text.encode("utf-16-le")
            yield "t.csv", Dialect(encoding="cp1252"), text.encode("cp1252", "replace")
        held = pa.table(dict(zip(rows[0], map(list, zip(*rows[1:], strict=True)), strict=True)))
        yield "t.jsonl", Dialect(), "".join(json.dumps(row) + "\n" for row in held.to_pylist()).encode()
        plain = [[cell.translate({ord(each): "." for each in ",\n\r"}) for cell in row] for row in rows]
        yield "t.csv", Dialect(quoting="none"), "".join(",".join(row) + "\n" for row in plain).encode()
        sink = io.BytesIO()
        pyarrow.feather.write_feather(held, sink)
        yield "t.feather", Dialect(), sink.getvalue()

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QUORON_TEST_FOLDER", str(tmp_path_factory.mktemp("others")))
            yield

    @given(mine=st.lists(st.binary(max_size=30), max_size=5), piece=st.integers(1, 60))
    @settings(max_examples=60)
    def test_of_json_lines_stay_whatever_bytes_a_line_has(self, mine: list[bytes], piece: int) -> None:
        others = [json.dumps({"who": who, "x": x}).encode() for who, x, _ in OTHERS[1:]]
        lines = [*others[:5], *(line.replace(b"\n", b"") for line in mine), *others[5:]]
        path = Path(os.environ["QUORON_TEST_FOLDER"] + "/u.jsonl")
        path.write_bytes(b"\n".join(lines))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_lines, "_PIECE", piece)
            found = self.of_others(tables.opened(path))
        assert [row for row in found if row[0] is not None] == [
            (who, x, np.float64(x).view(np.int64)) for who, x, _ in OTHERS[1:]
        ]
