"""Files of text, however they are written, at every door: the same users, items and predictions."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import config as configs
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


class TestADialect:
    def test_of_parquet_files_is_refused_before_anything_is_read(self, tmp_path: Path) -> None:
        frame().to_parquet(tmp_path / "rows.parquet")
        with pytest.raises(DataError, match="Expected no separator"):
            hold(configs.parse(CONFIG.format(path="rows.parquet", more='separator = ";"')), tmp_path)
        config = CONFIG.format(path=tmp_path, more='decimal = ","')
        (tmp_path / "config.toml").write_text(config)
        with pytest.raises(ConfigError, match=r"Expected no separator, decimal, .* of the Parquet files"):
            quoron.plan(tmp_path / "config.toml")
