"""What is asked of a table that nobody declared, and what is read off the noisy answers, whatever they say."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quoron import config as configs
from quoron.config import is_wanted
from quoron.training import buying, votes
from quoron.training.found import Declarations, Found
from quoron.training.votes import Want
from quoron.training.wanted import Wanted, wanted
from quoron_client.data import row_kinds, tables
from quoron_privacy.counts.bought import Bought
from quoron_privacy.counts.marks import KINDS
from quoron_privacy.errors import ConfigError, DataError, NothingReleased
from quoron_privacy.noise.sources import SeededNoise
from undeclared import crowd


@pytest.fixture
def people() -> pd.DataFrame:
    return crowd()


def test_types_that_a_schema_declares_are_bought_nothing_for(people):
    table = pa.Table.from_pandas(people.assign(smokes=people.age > 50), preserve_index=False)
    table = table.append_column("visits", pa.array([[1]] * len(people)))
    table = table.append_column("bytes", pa.array([b"north", b"south", b"7"] * (len(people) // 3)))
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "smokes"}})
    found = wanted(config, Path(), tables.opened(table))
    assert [(each.column, each.what) for each in found.features] == [
        ("age", "number"),
        ("dose", "number"),
        ("ward", "any"),
        ("ill", "any"),
        ("bytes", "any"),
    ]
    assert found.label is None
    assert found.left_out[0].startswith("Column 'visits' is left out: Expected column 'visits' to hold numbers or text")
    asked = {"kind": "table", "path": "-", "user": "who", "label": "smokes", "buy": {"visits": "number"}}
    with pytest.raises(DataError, match="visits"):
        wanted(configs.from_tree({"population": asked}), Path(), tables.opened(table))


def test_columns_whose_names_read_as_patterns_are_left_out_before_the_charge(people):
    odd = {"*": people.age, "x*": people.age, "y[0:3]": people.dose}
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "ill"}})
    found = wanted(config, Path(), tables.opened(people.assign(**odd)))
    assert [each.column for each in found.features] == ["age", "dose", "ward"]
    assert len(found.left_out) == 3
    assert all("its name reads as a pattern of columns. Rename it." in each for each in found.left_out)


@pytest.mark.parametrize("held", [{"who": ["a"], "x": [1.0], "w": ["b"]}, {"who": [], "x": [], "w": []}])
def test_whether_anybody_who_is_drawn_is_there_is_told_by_noise_alone(held):
    """Under zero-out a slot may hold nobody, and so may all that are drawn: that was an error, which told of it."""
    kinds = {"who": pa.string(), "x": pa.float64(), "w": pa.string()}
    table = pa.table({name: pa.array(values, kinds[name]) for name, values in held.items()})
    paid = Bought.calibrate(users=100, columns=3, names=1, epsilon=1.0, delta=1e-6, share=0.5, adjacency="zero-out")
    wants = [Want("x", "number"), Want("w", "label"), Want("items per user", "items")]
    owners = np.arange(table.num_rows)
    for seed in range(8):  # of whom some draw the one that is there, and some do not
        found, entries = votes.release(paid, wants, tables.opened(table), owners, 300, SeededNoise(seed))
        assert set(found) == {"x", "w", "items per user"}
        assert len(entries) >= 3


def test_what_one_user_holds_changes_what_is_counted_by_one_users_marks(people):
    """The counts that are released, of tables that differ in one user: by what the theorem says, whatever it holds."""
    table = pa.Table.from_pandas(people.astype(str), preserve_index=False)
    hostile = people.astype(str)
    hostile.loc[7, ["age", "dose", "ward", "ill"]] = ["1e308", "north", "\x00", "nan"]
    other = pa.Table.from_pandas(hostile, preserve_index=False)
    for name in ("age", "dose", "ward", "ill"):
        apart = row_kinds.kinds(table, name) != row_kinds.kinds(other, name)
        assert set(np.flatnonzero(apart)) <= {7}


WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6) | st.sampled_from(
    ["0", "1", "-1", "true", "no", "07"]
)
ENDS = st.floats(-(4.0**32), 4.0**32)
SAID = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS[:-1]),
        "votes": st.lists(st.floats(-2000, 3000), min_size=len(KINDS), max_size=len(KINDS)),
    },
    optional={
        "range": st.lists(ENDS, min_size=2, max_size=2),
        "around": st.lists(ENDS, min_size=2, max_size=2).map(sorted),
        "names": st.lists(st.tuples(WORDS, st.floats(20, 3000)).map(list), max_size=25, unique_by=lambda each: each[0]),
    },
)


@given(SAID, SAID, SAID, SAID)
def test_whatever_noise_says_is_a_configuration_or_a_statement(age, ward, ill, items):
    """What is read off released numbers raises nothing that would end a run that has been charged."""
    config = configs.from_tree({"population": {"kind": "table", "path": "-", "user": "who", "label": "ill"}})
    wants = [Want("age", "any"), Want("ward", "any"), Want("ill", "label"), Want("items per user", "items")]
    asked = Wanted(tuple(wants[:2]), {}, wants[2], wants[3], ())
    released = dict(zip(("age", "ward", "ill", "items per user"), (age, ward, ill, items), strict=True))
    for said_ in released.values():
        if "range" in said_:
            said_["held"] = 1500.0
            said_["range"].sort()
    paid = Bought.calibrate(users=1500, columns=4, names=3, epsilon=4.0, delta=1e-6, share=0.1)
    try:
        found = Found.of(asked, released, paid=paid, widest=8, known=False)
        declared = buying.configured(config, asked, found)
    except (NothingReleased, ConfigError):
        return
    assert not is_wanted(declared)
    text = Declarations(paid, found, asked).toml(declared)
    assert configs.parse(text).population == declared.population


def declared_by(ill: dict[str, Any], *, text: bool = False) -> Found:
    """What is read off releases in which `age` is a number and the label has these names with these votes."""
    votes_ = [1900.0, 0.0, 0.0, 0.0, 40.0]
    released = {"age": {"kind": "number", "votes": votes_, "range": [0.0, 90.0], "held": 1900.0}}
    released["ill"] = {"kind": "number", "votes": votes_, "names": [[name, held] for name, held in ill.items()]}
    asked = Wanted((Want("age", "any"),), {}, Want("ill", "label"), None, ())
    paid = Bought.calibrate(users=2000, columns=2, names=2, epsilon=4.0, delta=1e-6, share=0.1)
    return Found.of(asked, released, paid=paid, widest=8, known=False, text=text)


def test_a_label_that_is_rare_is_trained_on_where_its_other_value_is_known_and_said_to_be_rare():
    for name in ("0", "1", "-1", "False", "true"):
        found = declared_by({name: 1930.0})
        assert found.label == {}
        assert f"label 'ill' is {name!r} for all users but" in " ".join(found.missing)
    found = declared_by({"no": 1930.0})
    assert found.label == {"positive": "no"}
    assert "nothing if there are none" in " ".join(found.missing)
    assert declared_by({"0": 1900.0, "1": 60.0}).missing == ()


@pytest.mark.parametrize(
    ("names", "said"),
    [("10 20 30", "[10, 30], or wider"), ("1 2 3 4 5", "[1, 5]"), ("0 1 2", ""), ("2 7", ""), ("a 1 2", "")],
)
def test_classes_that_are_numbers_are_said_to_be_classes(names, said):
    each = names.split()
    found = declared_by(dict.fromkeys(each, 1930.0 / len(each)))
    assert len(found.label["classes"]) == len(each)
    assert [said in line for line in found.missing] == [True] * bool(said)
