"""Files of text, however they are written, at every door: the same users, items and predictions."""

import gzip
import io
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.declare import declare
from quoron.model import Model
from quoron.sections import Privacy
from quoron.simulation.run import fingerprint
from quoron.simulation.scene import encoding_of, loss_of
from quoron.training.table import hold
from quoron_privacy.errors import ConfigError, DataError

CONFIG = """
[population]
kind = "table"
path = "{path}"
user = "who"
label = "sick"
numeric = {{ age = [0, 100] }}
categorical = {{ ward = ["Süd", "Nord"] }}
{more}
[privacy]
epsilon = 2.0
"""
WAYS: dict[str, tuple[Callable[[pd.DataFrame, Path], object], str]] = {
    "plain.csv": (lambda frame, path: frame.to_csv(path, index=False), ""),
    "german.csv": (
        lambda frame, path: frame.to_csv(path, index=False, sep=";", decimal=",", encoding="cp1252"),
        'decimal = ","\nencoding = "cp1252"',
    ),
    "wide.tsv": (lambda frame, path: frame.to_csv(path, index=False, sep="\t", encoding="utf-16"), ""),
    "packed.csv.gz": (lambda frame, path: frame.to_csv(path, index=False, sep="^"), 'separator = "^"'),
    "bare.csv": (lambda frame, path: frame.to_csv(path, index=False, sep="|"), 'quoting = "none"'),
    "rows.jsonl.gz": (
        lambda frame, path: path.write_bytes(
            gzip.compress(frame.to_json(orient="records", lines=True, double_precision=15).encode())
        ),
        "",
    ),
    "rows.feather": (lambda frame, path: frame.to_feather(path), ""),
}


def frame() -> pd.DataFrame:
    rows = np.arange(400)
    draw = np.random.Generator(np.random.Philox(5))
    return pd.DataFrame(
        {
            "who": [f"u{row // 4}" for row in rows],
            "age": draw.integers(0, 10_000, 400) / 100,
            "ward": np.where(rows % 3 == 0, "Süd", "Nord"),
            "sick": draw.integers(0, 2, 400),
        }
    )


def written(name: str, folder: Path) -> tuple[Path, configs.Config]:
    write, more = WAYS[name]
    write(frame(), folder / name)
    return folder / name, configs.parse(CONFIG.format(path=name, more=more))


@pytest.mark.parametrize("name", WAYS)
class TestOfAnyWay:
    def test_items_are_the_same(self, name: str, tmp_path: Path) -> None:
        _, config = written(name, tmp_path)
        _, plain = written("plain.csv", tmp_path)
        found, wanted = hold(config, tmp_path), hold(plain, tmp_path)
        assert found.declared.users == wanted.declared.users == 100
        for each in ("features", "labels", "offsets"):
            np.testing.assert_array_equal(getattr(found.items(), each), getattr(wanted.items(), each))
        assert len(fingerprint(config, tmp_path)) == 64

    def test_predictions_and_declarations_are_the_same_at_the_command_line(
        self, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, config = written(name, tmp_path)
        section, loss = config.population, loss_of(config.loss)
        assert isinstance(section, configs.TableSection)
        model = Model(np.array([1.0, -2.0, 0.5, 0.1]), encoding_of(section, loss), loss, None)
        model.save(tmp_path / "model.json")
        options = [each for key, value in section.dialect.declared().items() for each in (f"--{key}", value)]
        assert invoke(["predict", str(tmp_path / "model.json"), str(path), "--scores", *options]) == 0
        said = pd.read_csv(io.StringIO(capsys.readouterr().out))
        np.testing.assert_array_equal(said["sick"], model.predict(frame()))
        asked = {"user": "who", "privacy": Privacy(20.0, 1e-6, simulation_seed=1), "categorical": ["ward"]}
        declared = declare(quoron.opened(path, **section.dialect.declared()), **asked)
        plain = declare(frame(), **asked)
        assert declared.declared == plain.declared
        told = tomllib.loads(declared.toml())["population"]
        assert told["path"] == str(path)
        assert section.dialect.declared().items() <= told.items()


class TestADialect:
    def test_of_parquet_files_is_refused_before_anything_is_read(self, tmp_path: Path) -> None:
        frame().to_parquet(tmp_path / "rows.parquet")
        with pytest.raises(DataError, match="Expected no separator"):
            hold(configs.parse(CONFIG.format(path="rows.parquet", more='separator = ";"')), tmp_path)
        config = CONFIG.format(path=tmp_path, more='decimal = ","')
        (tmp_path / "config.toml").write_text(config)
        with pytest.raises(ConfigError, match=r"Expected no separator, decimal, .* of the Parquet files"):
            quoron.plan(tmp_path / "config.toml")
