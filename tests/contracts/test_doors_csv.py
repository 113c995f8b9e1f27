"""Whatever one user's cells hold in a CSV file: everybody else's rows, as `test_doors` says it of all doors."""

import csv

import numpy as np
import pytest

from contracts.doors import (
    CHANGES,
    USERS,
    WRITERS,
    as_csv,
    base,
    every_change,
    outcome,
    spread,
)
from contracts.odd_values import TEXTS
from quoron.releases import bounds
from quoron_client.data import tables, text_files
from quoron_privacy.errors import DataError


class TestCSV:
    """With pieces so short that many changes lie over their ends."""

    @pytest.mark.parametrize("count", spread(CHANGES))
    def test_a_users_cells_are_its_own(self, count, tmp_path, monkeypatch):
        monkeypatch.setattr(text_files, "_PIECE", 512)
        expected = {}
        for how in WRITERS:
            as_csv(base(), how, tmp_path / "base.csv")
            expected[how] = outcome("base.csv", tmp_path)
            assert expected[how] == expected["minimal"]
        for number, table in every_change(count, lambda name: TEXTS):
            how = WRITERS[number % len(WRITERS)]
            path = as_csv(table, how, tmp_path / "table.csv")
            assert outcome(path.name, tmp_path) == expected["minimal"], (number, how)
            assert bounds.read(path, "who", ["age", "ward"])[2] == USERS

    def test_a_note_over_the_first_mebibytes_adds_no_users(self, tmp_path):
        """A quoted cell with line ends, like other people's rows, wherever a reader may cut the file."""
        rows = [(f"u{row // 3:05}", row % 97, "no", "n" * 60) for row in range(15_000)]
        forged = "\n".join(f"x{each},5,yes,forged" for each in range(20)) + "\n"
        ends = np.cumsum([len(",".join(map(str, row))) + 2 for row in rows])
        for shift in range(0, len(forged) + 200, 97):
            noted, place = list(rows), int(np.searchsorted(ends, (1 << 20) - shift))
            noted[place] = (*rows[place][:3], forged)
            with (tmp_path / "notes.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("who", "age", "sick", "note"), *noted])
            table = tables.read(tmp_path / "notes.csv", ("who", "age"))
            assert table.column("who").to_pylist() == [row[0] for row in rows]

    @pytest.mark.parametrize("size", [900_000, 5_000_000])
    def test_a_long_cell_is_one_cell(self, size, tmp_path):
        cell = ("x,1\n" * size)[:size]
        with (tmp_path / "long.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("who", "note", "age"), ("a", cell, 1), ("b", "", 2)])
        table = tables.read(tmp_path / "long.csv", ("who", "note", "age"))
        assert table.to_pydict() == {"who": ["a", "b"], "note": [cell, ""], "age": ["1", "2"]}

    @pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
    @pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
    def test_a_row_with_another_number_of_cells_is_one_skipped_row(self, piece, ending, tmp_path, monkeypatch):
        monkeypatch.setattr(text_files, "_PIECE", piece)
        rows = ["who,note,age", 'a,"1\n""2""",1', "b,x", "b,x,2,3", '"b"', "", 'c,"y,\r\n,",3', "", "d,,4"]
        for text in (
            ending.join(rows),
            ending.join(rows) + ending,
            ending + ending.join(rows),
            "\ufeff" + ending.join(rows),
        ):
            (tmp_path / "ragged.csv").write_bytes(text.encode())
            table = tables.read(tmp_path / "ragged.csv", ("age", "who", "note"))
            assert table.to_pylist() == [
                {"age": "1", "who": "a", "note": '1\n"2"'},
                {"age": "3", "who": "c", "note": "y,\r\n,"},
                {"age": "4", "who": "d", "note": ""},
            ]

    def test_a_header_is_read_as_rows_are(self, tmp_path):
        path = tmp_path / "names.csv"
        path.write_bytes(b'\r\n"two\nlines","a ""b""",who,who\n1,2,3,4\n')
        assert tables.opened(path).empty().column_names == ["two\nlines", 'a "b"', "who", "who"]
        assert tables.read(path, ('a "b"', "two\nlines")).to_pylist() == [{'a "b"': "2", "two\nlines": "1"}]
        assert tables.read(path).num_columns == 4
        with pytest.raises(DataError, match="one column 'who' in the table, got 2"):
            tables.read(path, ("who",))
        path.write_text("who,age\na,1\n", encoding="utf-16")
        assert tables.read(path).to_pylist() == [{"who": "a", "age": "1"}]

    def test_a_skipped_row_may_hold_any_bytes(self, tmp_path):
        (tmp_path / "bytes.csv").write_bytes(b"who,age\na,1\n\xff\xc3\n\xf0\x9f,\xff,9\nb\xe2\x82,2\n")
        table = tables.read(tmp_path / "bytes.csv", ("who", "age"))
        assert table.to_pydict() == {"who": ["a", "b\uf7e2\uf782"], "age": ["1", "2"]}

    @pytest.mark.parametrize("piece", [1, 40, 1 << 20])
    @pytest.mark.parametrize(
        ("row", "said"),
        [
            ('a,5" pipe,2', ""),  # by what comes later, as of any odd number of quotes
            ('a,5"" pipe,2', "a quote within a cell without quotes"),
            ('a, "x",2', "a quote within a cell without quotes"),
            ('a,"x" ,2', "something between a closing quote and the next comma"),
            ('a,"x"y,2', "something between a closing quote and the next comma"),
            ('a,"x"\r,2', "something between a closing quote and the next comma"),
            ('a,"x,2', ""),
        ],
    )
    def test_a_malformed_file_is_refused_whole_and_without_a_value(self, row, said, piece, tmp_path, monkeypatch):
        monkeypatch.setattr(text_files, "_PIECE", piece)
        for rest in ("", "b,x,2\n", 'b,"x",2\n' * 9):
            (tmp_path / "bad.csv").write_bytes(b"who,note,age\nq,q,1\n" + row.encode() + b"\n" + rest.encode())
            with pytest.raises(DataError, match="correctly quoted CSV file, got .*" + said) as caught:
                tables.read(tmp_path / "bad.csv", ("who", "age"))
            assert "pipe" not in str(caught.value)

    def test_a_row_without_an_end_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(text_files, "_PIECE", 100)
        monkeypatch.setattr(text_files, "LONGEST", 1000)
        (tmp_path / "bad.csv").write_text('who,age\na,"' + "1\n" * 10_000)
        with pytest.raises(DataError, match="a row of more than 256 MiB, or a quote that is never closed"):
            tables.read(tmp_path / "bad.csv", ("who",))
        (tmp_path / "bad.csv").write_text('"who,age\na,b' + "1\n" * 10_000)
        with pytest.raises(DataError, match="a first row that does not end"):
            tables.opened(tmp_path / "bad.csv").empty()

    def test_every_cell_is_what_a_reader_of_its_own_says(self, tmp_path, monkeypatch):
        """Against csv.reader, cell by cell, with pieces of any length."""
        draw = np.random.default_rng(2)
        for number in range(60):
            monkeypatch.setattr(text_files, "_PIECE", int(draw.integers(1, 400)))
            table = {name: [str(draw.choice(TEXTS)) for _ in range(9)] for name in ("a", "b", "c")}
            how = ("minimal", "all", "unix", "arrow")[number % 4]
            path = as_csv(table, how, tmp_path / "table.csv")
            with path.open(newline="", encoding="utf-8") as file:
                expected = list(csv.reader(file))[1:]
            found = tables.read(path, ("c", "a", "b")).select(["a", "b", "c"]).to_pylist()
            assert [[*row.values()] for row in found] == expected

    @pytest.mark.parametrize("count", [60, pytest.param(4000, id="all", marks=pytest.mark.slow)])
    def test_any_bytes_are_what_a_reader_of_one_letter_at_a_time_says(self, count, tmp_path, monkeypatch):
        """The same rows, or the same refusal, wherever pieces end."""
        draw, path = np.random.default_rng(7), tmp_path / "any.csv"
        parts = [*'a,,,"""\n\nb', '""', '"\n"', '"a,b"', "\r\n", "\r"]
        accepted = 0
        for _ in range(count):
            body = "".join(draw.choice(parts, draw.integers(0, 24)))
            path.write_bytes(("x,y\n" + body).encode())
            expected = letter_by_letter(body)
            accepted += expected is not None
            for piece in (1, 2, 5, 1 << 20):
                monkeypatch.setattr(text_files, "_PIECE", piece)
                try:
                    batches = tables.opened(path).batches()
                    found = [[*row.values()] for batch in batches for row in batch.to_pylist()]
                except DataError:
                    found = None
                assert found == expected, body
        assert 0.1 * count < accepted < 0.9 * count


def letter_by_letter(body: str) -> list[list[str]] | None:
    """The rows of two cells below a header that LF ends; None where the file is malformed."""
    body += "\n" if body and body[-1] != "\n" else ""
    rows, row, cell, state, place = [], [], "", "start", 0
    while place < len(body):
        letter, rest = body[place], body[place:]
        place += 1
        if state == "quoted":
            if letter != '"':
                cell += letter
            elif rest[1:2] == '"':
                cell, place = cell + '"', place + 1
            else:
                state = "closed"
        elif letter in ",\n" or rest.startswith(("\r\n", "\r\r\n")):
            row, cell, state = [*row, cell], "", "start"
            if letter != ",":
                rows, row, place = [*rows, row], [], place + rest.index("\n")
        elif state == "closed" or (letter == '"' and state == "plain"):
            return None
        else:
            state = "quoted" if letter == '"' else "plain"
            cell += "" if letter == '"' else letter.replace("\r", "\uf7ff")
    return None if state == "quoted" else [each for each in rows if len(each) == 2]
