"""A column that is not there is told with the fix, in a line, and without what may be somebody's row."""

import pyarrow as pa
import pytest

from quoron_client.data import tables
from quoron_privacy.errors import DataError


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (" Who , Age ", "got columns  Who ,  Age . Did you mean ' Age '? Names are compared letter by letter"),
        ("who,agee", "got columns who, agee. Did you mean 'agee'?"),
        ("p00000,43,1.75", "got columns whose names are numbers. The table's first row has to name its columns"),
        ("Visits of 2024", "got columns Visits of 2024. The table's first row has to name"),
        (",".join(f"x{each}" for each in "abcdefghijklmnopqrstuvwxyz"), "xt and 6 more. The table's"),
    ],
)
def test_a_column_that_is_not_there_is_told_with_the_fix(header, said, tmp_path):
    (tmp_path / "t.csv").write_text(header + "\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="Expected column 'age' in the table, got ") as caught:
        tables.read(tmp_path / "t.csv", ("age",))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "p00000" not in str(caught.value)


def test_rows_that_all_end_in_a_comma_are_told(tmp_path):
    (tmp_path / "t.csv").write_text("who,age\na,1,\nb,2,\n", encoding="utf-8")
    with pytest.raises(DataError, match="no row has as many cells as the first, which names the columns"):
        tables.read(tmp_path / "t.csv", ("who", "age"))
    with pytest.raises(DataError, match="got an empty one"):
        tables.read(pa.table({"age": pa.array([], pa.int64())}))
