"""What commands print, and the files that they write; durations and paths aside."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pandas as pd

from golden.plain import plain
from golden.releases import visits
from quoron.cli.app import invoke

COLUMNS = (
    "--numeric",
    "age=0:100",
    "--categorical",
    "ward=north,south,west",
    "--set",
    "population.columns.missing=midpoint",
)
TABLE = ("visits.csv", "--user", "who", "--label", "ill", "--set", 'population.label.classes=["no", "yes"]', *COLUMNS)
OF_WARDS = ("visits.csv", "--user", "who", "--label", "ward", *COLUMNS[:2])
OF_WARDS += ("--set", 'population.label.classes=["north", "south", "west"]')
RUN = "--epsilon", "8", "--out", "run", "--seed", "3"
COMMANDS: Mapping[str, Sequence[Sequence[str]]] = {
    "algorithms": (("show", "algorithms"), ("show", "presets")),
    "examples": (("example", "scorecard"),),
    "plan": (
        ("plan", *TABLE, "--epsilon", "2"),
        ("train", *TABLE, "--epsilon", "2", "--set", "population.outliers.share=0.3"),
    ),
    "predict": (
        ("simulate", *TABLE, *RUN),
        ("predict", "run", "visits.csv", "--out", "plain.csv"),
        ("predict", "run", "visits.csv", "--out", "scores.csv", "--scores"),
        ("predict", "run", "visits.csv", "--out", "share.csv", "--threshold", "share"),
        ("predict", "run", "odd.csv", "--out", "odd-out.csv", "--threshold", "0.999"),
    ),
    "classes": (
        ("simulate", *OF_WARDS, *RUN, "--set", "algorithm.name=dp-sgd-wor", "--set", "budget.max_rounds=32"),
        ("predict", "run", "visits.csv", "--out", "classes.csv", "--scores"),
    ),
}


def commands(folder: Path, name: str) -> Iterator[tuple[str, object]]:
    """Everything that some commands print, one after the other, and the files beside them."""
    with chdir(folder), mock.patch.dict("os.environ", {"COLUMNS": "120", "QUORON_LEDGER": str(folder / "ledger")}):
        visits(3_000).to_csv("visits.csv", index=False)
        odd = visits(40).assign(ward="unheard of")
        odd.assign(age=odd.age.where(odd.who % 3 == 0)).to_csv("odd.csv", index=False)
        for command in COMMANDS[name]:
            printed, errors = io.StringIO(), io.StringIO()
            with redirect_stdout(printed), redirect_stderr(errors):
                code = invoke(command)
            said = [_kept(text.getvalue().replace(str(folder), ".")) for text in (printed, errors)]
            yield f"{name}: {' '.join(command)}", [code, *said]
        for given in ("visits.csv", "odd.csv"):
            (folder / given).unlink()
        for path in sorted([*folder.glob("*.csv"), *folder.glob("*.toml"), *folder.glob("trial/**/*.*")]):
            yield f"{name}: file {path.relative_to(folder).as_posix()}", _written(path)


def _kept(text: str) -> list[str]:
    lines = re.sub(r"\d[\d.,]* (s|seconds|minutes|[kMG]?B)\b", "N", text).splitlines()
    return [line.rstrip() for line in lines if line.strip() and not line.startswith("round ")]


def _written(path: Path) -> object:
    """A text as it is, of a table the sums of its numbers and how often each word is there."""
    if path.suffix == ".toml":
        return path.read_text(encoding="utf-8").splitlines()
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    words = {
        name: column.value_counts(sort=False).head().to_dict() for name, column in table.select_dtypes("str").items()
    }
    return plain(words | {name: column.dropna().to_numpy() for name, column in table.select_dtypes("number").items()})
