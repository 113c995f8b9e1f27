"""The first row of a file without a header is somebody's: whatever is asked of it, no command shows a cell."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron.cli.app import invoke
from quoron.model import Model
from quoron.sklearn import PrivateLogisticRegression
from quoron.training.items import items_of
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Categorical, Numeric
from quoron_client.losses import make_loss
from quoron_privacy.errors import DataError, QuoronError

CELLS = ["Annika", "Agee", "Harlem", "Whom"]  # three are nearly a name of a column
ASKED = "--user who --label ill"
FEATURES = "--numeric age=0:100 --categorical ward=north"
PRIVATE = "--epsilon 8 --delta 1e-3 --set privacy.allow_large_delta=true"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows of forty people, of whom the first is where names should be, and a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    rows = [",".join(CELLS), *(f"u{each},{each},north,{each % 2}" for each in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "t.tsv").write_text("\n".join(rows).replace(",", "\t") + "\n")
    (tmp_path / "t.toml").write_text(
        '[population]\nkind = "table"\npath = "t.csv"\nuser = "who"\nlabel = "ill"\nnumeric = "*"\nranges = [0, 1]\n'
    )
    encoding = Encoding((Numeric("age", 0, 100), Categorical("ward", ("north",))), label=read_label("ill"))
    Model(np.zeros(encoding.dimension), encoding, make_loss("logistic"), None).save(tmp_path / "model.json")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        f"train t.csv {ASKED} {FEATURES} {PRIVATE}",
        f"train t.tsv {ASKED} {FEATURES} {PRIVATE} --dry-run",
        f"train t.csv {ASKED} {PRIVATE}",
        f"train t.csv {ASKED} --numeric * --ranges 0:1 {PRIVATE}",
        f"train t.csv {ASKED} --numeric age --ranges *=0:1 --exclude A* {PRIVATE}",
        f"train t.toml {PRIVATE} --dry-run",
        f"plan t.csv {ASKED} {FEATURES} --epsilon 8",
        "plan t.toml",
        f"simulate t.csv {ASKED} {FEATURES}",
        f"tune t.csv {ASKED} {FEATURES} --epsilon 1 --vary domain.radius=[1,2]",
        "declare t.csv --user who --numeric age --epsilon 1",
        "declare t.csv --user who --numeric a* --epsilon 1",
        "statistics t.csv 'mean of age' --user who --numeric age=0:100 --epsilon 1",
        "statistics t.csv 'count by ward' --user who --epsilon 1",
        "evaluate model.json t.csv --user who --epsilon 1",
        "predict model.json t.csv",
        "client --check --data t.csv --user who",
    ],
)
def test_no_command_shows_a_cell_of_the_first_row(command, place, capsys):
    assert invoke(shlex.split(command)) != 0
    said = capsys.readouterr()
    assert not [cell for cell in CELLS if cell in said.out + said.err], said
    assert "is not shown. Write the names of the columns above the rows" in said.err


def test_nor_does_a_function_of_a_frame(place):
    frame = pd.read_csv("t.csv")
    columns = {"user": "who", "label": "ill"}
    asked = [
        lambda: quoron.train(frame, **columns, numeric={"age": (0, 100)}, epsilon=8.0),
        lambda: quoron.train(frame, **columns, numeric="*", ranges=(0, 1), epsilon=8.0),
        lambda: quoron.simulate(frame, **columns, categorical=["ward"]),
        lambda: quoron.load("model.json").predict(frame),
        lambda: PrivateLogisticRegression(epsilon=8.0, bounds={"age": (0, 100), "dose": (0, 1)}).fit(
            frame, np.arange(40) % 2, groups=np.arange(40)
        ),
    ]
    for each in asked:
        with pytest.raises(QuoronError) as error:
            each()
        assert not [cell for cell in CELLS if cell in str(error.value)], error.value


def test_nor_does_a_feature_that_is_no_number():
    """numpy's own words quote the text that it cannot read."""
    columns = {"who": np.arange(2), "age": np.array(["7", "Annika"])}

    class Frame(dict):  # as a library gives columns of text with a type of their own
        """Columns by their names."""

        columns = ("who", "age")

    with pytest.raises(DataError, match="Expected features of numbers, got a column with some that are none") as error:
        items_of(Frame(columns), user="who", features=["age"])
    assert "Annika" not in str(error.value)
