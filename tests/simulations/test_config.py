"""Every wrong configuration is refused with its key, its value and the fix; every right one survives a round trip."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron import config as configs
from quoron import toml_text
from quoron.cli.app import invoke
from quoron.config import Config
from quoron.presets import presets
from quoron_privacy.errors import ConfigError

TABLE = 'population={kind="table", path="rows.csv", user="who", label="late > 15", %s}'

WRONG = [
    ("population.usres=3", "Unknown key population.usres; did you mean population.users?"),
    ("population={kind='table', user='who'}", "Missing key population.path ("),
    (TABLE % "numeric={a=[3, 1]}", "with low < high for numeric column 'a'"),
    ("privacy.epsilon=0", "Expected privacy.epsilon > 0, got privacy.epsilon=0."),
    ("privacy.epsilon=nan", "Expected privacy.epsilon"),
    ("problem.user_smoothness=itme", "to be 'item', 'isotropic' or a number > 0, got problem.user_smoothness='itme'."),
    ("algorithm.options={rounds=3", "Expected a dotted key, '=' and a TOML value"),
    ("=3", "Expected key=value, such as privacy.epsilon=2, got '=3'."),
]


@pytest.mark.parametrize(("setting", "message"), WRONG, ids=[setting for setting, _ in WRONG])
def test_a_wrong_key_or_value_is_named_with_its_fix(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.parse("", settings=[setting])
    assert message in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "noise.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        configs.read(tmp_path / "noise.toml")


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_a_resolved_configuration_reads_back_as_itself(preset: object) -> None:
    config = configs.parse(preset.text)  # type: ignore[attr-defined]
    assert configs.parse(config.as_toml()) == config
    assert configs.parse(config.as_toml()).digest() == config.digest()


def test_the_digest_ignores_where_run_and_table_are_kept_and_nothing_else() -> None:
    base = Config()
    here, there = (
        configs.parse("", settings=[(TABLE % "seed=1").replace("rows.csv", name)]) for name in ("here", "there")
    )
    assert here.digest() == there.digest() != base.digest()
    assert configs.parse("", settings=["run.out=elsewhere"]).digest() == base.digest()
    for setting in (
        "run.seed=1",
        "run.simulation_seed=1",
        "privacy.epsilon=2",
        "population.users=7",
        "algorithm.options.rounds=3",
    ):
        assert configs.parse("", settings=[setting]).digest() != base.digest()


plain = st.one_of(
    st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"))
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3)
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.dictionaries(st.text(min_size=1), st.dictionaries(st.text(min_size=1), values, max_size=3), max_size=3))
def test_every_tree_survives_being_written_and_read(tree: dict[str, dict[str, object]]) -> None:
    assert toml_text.parse(toml_text.dumps(tree), "a test") == tree


DEEP = {
    "lists": "a = " + "[" * 5000 + "]" * 5000,
    "inline tables": "a = " + "{x = " * 5000 + "1" + "}" * 5000,
    "a table's name": "[" + ".".join(["a"] * 3000) + "]\nx = 1",
}


@pytest.mark.parametrize("name", DEEP)
def test_values_nested_too_deep_are_refused_in_a_sentence(name, tmp_path, capsys):
    (tmp_path / "deep.toml").write_text(DEEP[name])
    assert invoke(["plan", str(tmp_path / "deep.toml")]) == 2
    assert "valid TOML, got: tables or lists nested more than 100 deep" in " ".join(capsys.readouterr().err.split())
    if "\n" not in DEEP[name]:
        assert invoke(["plan", "quickstart", "--set", DEEP[name].replace(" = ", "=")]) == 2
        said = capsys.readouterr().err
        assert "Expected a dotted key" in said
        assert len(said) < 500
