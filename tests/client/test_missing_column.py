"""A column that is not there is told with the fix, in a line, and without what may be somebody's row."""

import gzip

import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from quoron_client.data import tables
from quoron_privacy.errors import DataError


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("who, Age ", "got columns who,  Age . Did you mean ' Age '? Names are compared letter by letter"),
        ("who,agee", "got columns who, agee. Did you mean 'agee'?"),
        ("who,43,1.75", "got columns whose names are numbers. The table's first row has to name its columns"),
        ("who," + ",".join(f"x{each}" for each in "abcdefghijklmnopqrstuvwxyz"), "xs and 7 more. The table's"),
    ],
)
def test_a_column_that_is_not_there_is_told_with_the_fix(header, said, tmp_path):
    (tmp_path / "t.csv").write_text(header + "\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="Expected column 'age' in the table, got ") as caught:
        tables.read(tmp_path / "t.csv", ("who", "age"))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("how", ["csv", "tsv", "csv.gz", "feather", "parquet", "pandas", "arrow"])
@pytest.mark.parametrize("row", ["Ann,AGEE,secret", " Who , Age ,secret", "agee,agee,secret"])
def test_a_first_row_without_any_wanted_name_is_somebodys_and_not_shown(row, how, tmp_path):
    """Not even what is nearly a name: whose names a table's columns have is said by the row itself."""
    path, cells = tmp_path / f"t.{how}", row.split(",")
    frame = pd.DataFrame([["1", "2", "3"]], columns=cells)
    source = {"pandas": frame, "arrow": None}.get(how, path)
    if how == "arrow":
        source = pa.table([pa.array(["1"])] * 3, names=cells)
    elif how == "feather":
        pyarrow.feather.write_feather(pa.table([pa.array(["1"])] * 3, names=cells), path)
    elif how == "parquet":
        pq.write_table(pa.table([pa.array(["1"])] * 3, names=cells), path)
    elif how != "pandas":
        text = (row.replace(",", "\t") if how == "tsv" else row) + "\n1\t2\t3\n"
        path.write_bytes(gzip.compress(text.encode()) if how == "csv.gz" else text.encode())
    for wanted in (("who", "age"), ("age",), ("ward", "who")):
        with pytest.raises(DataError, match=r"none of the wanted columns in its header.* above the rows") as caught:
            tables.read(source, wanted)
        assert not any(cell.strip() in str(caught.value) for cell in cells)
        assert ("upper and lower case" in str(caught.value)) == (row[0] == " " and wanted[0] != "ward")
