"""The words of a table: one list, shown by every door and every command, and what is said of one that is wrong."""

import inspect
from typing import TYPE_CHECKING, Any

import click
import pytest
import typer

import quoron
from quoron import table_columns
from quoron.cli.app import app
from quoron.config import Simulated, TableSection
from quoron.table_columns import WORDS, TableColumns
from quoron_privacy.errors import ConfigError

DOORS = ("train", "plan_training", "simulate", "compare", "plan", "ask")
COMMANDS = ("train", "simulate", "compare", "plan")


def test_every_word_is_a_key_of_the_configuration_and_every_key_of_a_table_a_word() -> None:
    shared = {*Simulated.model_fields, "kind", "path", "test_fraction"}  # of simulations, or the source itself
    assert set(WORDS) == set(TableColumns.__annotations__) == set(TableSection.model_fields) - shared


@pytest.mark.parametrize("name", DOORS)
def test_a_door_shows_every_word_of_a_table(name: str) -> None:
    shown = inspect.signature(getattr(quoron, name)).parameters
    assert set(WORDS) < set(shown)
    assert all(shown[word].kind is inspect.Parameter.KEYWORD_ONLY and shown[word].default is None for word in WORDS)
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in shown.values())
    assert [*shown][:4] == ["source", "user", "label", "numeric"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_option_for_every_word(name: str) -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, click.Group)
    options = {option for each in command.commands[name].params for option in each.opts}
    assert {f"--{word.replace('_', '-')}" for word in WORDS} < options


@pytest.mark.parametrize("name", DOORS)
def test_a_misspelt_word_is_named_with_the_nearest(name: str) -> None:
    door: Any = getattr(quoron, name)
    with pytest.raises(ConfigError, match=r"Expected one of source, user, .*, got 'categorial'\. Did you mean 'categ"):
        door("visits.csv", user="who", label="ill", categorial=["ward"])


if TYPE_CHECKING:  # a type checker knows the words: it reports an ignore that it does not need
    quoron.train("a.csv", user="who", label="ill", numeric={"age": (0, 100)}, epsilon=2.0)
    quoron.train("a.csv", user="who", categorial=["ward"])  # type: ignore[call-arg]
    quoron.train("a.csv", user=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "typed", "value"),
    [
        ("user", ["patient"], "patient"),
        ("numeric", ["age=0:100", "dose=-1.5:1e3"], {"age": (0, 100), "dose": (-1.5, 1000)}),
        ("numeric", ["age=0:100,dose"], {"age": (0, 100), "dose": None}),
        ("categorical", ["ward=1,2", "zip=01,2"], {"ward": [1, 2], "zip": ["01", "2"]}),
        ("categorical", ["ward,clinic"], ["ward", "clinic"]),
        ("categorical", ['drug="a,b",c', "ward"], {"drug": ["a,b", "c"], "ward": None}),
        ("classes", ["0,1"], [0, 1]),
        ("positive", ["true"], True),
        ("label_range", ["0:80000"], (0, 80000)),
        ("weight", ["nights=14"], {"column": "nights", "most": 14}),
    ],
)
def test_what_is_typed_is_read_as_it_is_meant(word: str, typed: list[str], value: Any) -> None:
    assert table_columns.read(word, typed) == value


@pytest.mark.parametrize(
    ("word", "typed", "said"),
    [
        ("numeric", ["age=0-100"], "Expected --numeric COLUMN=LOW:HIGH,..., got --numeric 'age=0-100'"),
        ("weight", ["nights"], "Expected --weight COLUMN=MOST, got --weight 'nights'"),
        ("user", ["a", "b"], "Expected --user once, got it 2 times"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_option(word: str, typed: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        table_columns.read(word, typed)
