"""The owner of a table in which people have many rows wants a private model or private figures of it."""

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import quoron as package
from patients import patients
from stories.conftest import DECLARED, ILL, PRIVATE, QUICK, Command, shown_again

KNOWN = {"numeric": {"age": (0, 100), "dose": (0, 5)}}
LABEL = {"column": "ill", "classes": ["no", "yes"]}


def visits() -> pd.DataFrame:
    return pd.read_csv("visits.csv", dtype={"who": str})


def accuracy(predicted: pd.Series) -> float:
    return float((predicted.to_numpy() == visits().ill.to_numpy()).mean())


def test_a_dry_run_states_the_guarantee_and_charges_nothing(quoron: Command, place: Path) -> None:
    said = quoron("train", "visits.csv", *ILL, *PRIVATE, *QUICK, "--dry-run")
    assert said.code == 0
    assert "ε = 8" in said.out
    assert not (place / "runs").exists()
    account = quoron("ledger", "show", "--population", "everyone")
    assert account.code == 0
    assert "visits-" not in account.out
    assert "ε = 8" not in account.out


def test_a_model_is_trained_kept_and_predicts_a_file(quoron: Command, place: Path) -> None:
    assert quoron("train", "visits.csv", *ILL, *PRIVATE, *QUICK).code == 0
    folder = place / "runs" / "visits-1"
    assert {"model.json", "report.html", "plan.json"} <= {path.name for path in folder.iterdir()}
    said = quoron("predict", folder, "visits.csv", "--out", "predicted.csv")
    assert said.code == 0
    predicted = pd.read_csv("predicted.csv")
    assert len(predicted) == 3000
    assert accuracy(predicted.filter(like="ill").iloc[:, -1]) > 0.75  # guessing leaves two thirds or less


def test_what_a_run_did_is_shown_again_from_its_folder_in_ten_lines_or_whole(quoron: Command) -> None:
    assert quoron("train", "visits.csv", *ILL, *PRIVATE, *QUICK, "--out", "run").code == 0
    vary = ("--vary", "loss.ridge=[0,0.1]", "--trials", "mean=2")
    assert quoron("tune", "visits.csv", *ILL, *PRIVATE, *QUICK, *vary, "--out", "search").code == 0
    shown = shown_again(quoron, "run")
    assert re.search("privacy.*theorem|docs/privacy", shown)
    assert "chosen" in shown_again(quoron, "search")
    assert all(name in shown for name in package.load("run").encoding.names)
    assert package.resume("run").statement in " ".join(shown.split())
    assert all(quoron("resume", folder).code == 0 for folder in ("run", "search"))


def test_a_model_file_is_enough_elsewhere(
    quoron: Command, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert quoron("train", "visits.csv", *ILL, *PRIVATE, *QUICK).code == 0
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "model.json"
    shutil.copy(place / "runs" / "visits-1" / "model.json", elsewhere)
    shutil.rmtree(place / "runs")
    model = package.load(elsewhere)
    assert accuracy(pd.Series(model.predict(visits()))) > 0.75
    assert "(8, 0.0001)-differential privacy" in str(model)


def test_python_trains_the_same_kind_of_model(place: Path) -> None:
    run = package.train(
        visits(), user="who", label=LABEL, columns=KNOWN, epsilon=8.0, delta=1e-4, settings=list(QUICK[1::2])
    )
    assert accuracy(pd.Series(run.model.predict(visits()))) > 0.75
    assert "differential privacy" in run.statement
    assert "1,500" in repr(run) or "1500" in repr(run)


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "parquet", "frame", "arrow"])
def test_every_kind_of_table_is_simulated_to_the_same_model(kind: str, place: Path) -> None:
    rows = visits()
    source: object = place / f"again.{kind}"
    if kind == "csv":
        rows.to_csv(source, index=False)
    elif kind == "csv.gz":
        (place / "again.csv.gz").write_bytes(gzip.compress(rows.to_csv(index=False).encode()))
    elif kind == "tsv":
        rows.to_csv(source, sep="\t", index=False)
    elif kind == "parquet":
        rows.to_parquet(source)
    else:
        source = rows if kind == "frame" else pa.Table.from_pandas(rows)
    asked = {
        "user": "who",
        "label": LABEL,
        "columns": KNOWN,
        "epsilon": 8.0,
        "delta": 1e-4,
        "settings": list(QUICK[1::2]),
    }
    assert np.array_equal(package.simulate(source, **asked).weights, package.simulate(rows, **asked).weights)


def test_undeclared_columns_are_estimated_privately_within_the_same_epsilon(quoron: Command, place: Path) -> None:
    said = quoron("train", "visits.csv", "--user", "who", "--label", "ill", *PRIVATE)
    assert said.code == 0
    assert "age" in said.out
    declared = (place / "runs" / "visits-1" / "declared.toml").read_text()
    assert "age" in declared
    assert "dose" in declared
    account = quoron("ledger", "show", "--population", "everyone").out
    assert account.count("visits-") == 1
    assert "no limit 1" in " ".join(account.split())


def test_held_out_people_tell_how_good_the_model_is(quoron: Command) -> None:
    said = quoron("train", "visits.csv", *ILL, *PRIVATE, *QUICK, "--holdout", "0.3")
    assert said.code == 0
    assert "accuracy" in said.out
    assert "95 %" in said.out


def test_a_model_is_evaluated_on_other_people_with_a_guarantee_of_its_own(quoron: Command, place: Path) -> None:
    assert quoron("train", "visits.csv", *ILL, *PRIVATE, *QUICK).code == 0
    others = patients(3000, spread=8.0, seed=9)
    others.assign(ill=others.ill.map({True: "yes", False: "no"})).to_csv("others.csv", index=False)
    said = quoron("evaluate", place / "runs" / "visits-1", "others.csv", "--user", "who", *PRIVATE)
    assert said.code == 0
    assert "accuracy" in said.out
    found = package.evaluate(place / "runs" / "visits-1", "others.csv", user="who", epsilon=8.0, delta=1e-4)
    assert found.statement.startswith("(8, 0.0001)-differential privacy for all items of any one user")


def test_private_figures_of_a_table(quoron: Command) -> None:
    asked = ("histogram of age", "mean of age", "quantiles of dose")
    said = quoron("stats", "visits.csv", *asked, "--user", "who", *DECLARED[2:], *PRIVATE)
    assert said.code == 0
    assert "mean of age" in said.out
    found = package.statistics(
        "visits.csv", ["mean of age"], user="who", numeric={"age": (0, 100)}, epsilon=8.0, delta=1e-4
    )
    assert abs(found.figures[0].value - visits().age.mean()) < 5


def test_a_private_mean_needs_no_spread() -> None:
    values = np.random.default_rng(1).normal(3.0, 1.0, size=(20_000, 4))
    found = package.mean(values, epsilon=2.0, bound=1000.0)
    assert np.abs(found.value - 3.0).max() < 0.2


def test_a_search_of_settings_is_charged_once(quoron: Command) -> None:
    said = quoron("tune", "visits.csv", *ILL, *PRIVATE, *QUICK, "--vary", "loss.ridge=[0,0.1]", "--trials", "mean=2")
    assert said.code == 0
    account = quoron("ledger", "show", "--population", "everyone").out
    assert "no limit 1" in " ".join(account.split())


def test_missing_cells_do_not_change_the_guarantee(quoron: Command) -> None:
    rows = visits()
    rows.loc[::7, "age"] = np.nan
    rows.to_csv("gaps.csv", index=False)
    said = quoron("train", "gaps.csv", *ILL, *PRIVATE, *QUICK)
    assert said.code == 0
    assert "ε = 8" in said.out


def test_people_with_many_rows_and_with_few_are_protected_alike(place: Path) -> None:
    rows = visits()
    uneven = pd.concat([rows, *[rows[rows.who.astype(int) < 50]] * 20])
    run = package.train(
        uneven, user="who", label=LABEL, columns=KNOWN, epsilon=8.0, delta=1e-4, settings=list(QUICK[1::2])
    )
    assert accuracy(pd.Series(run.model.predict(visits()))) > 0.75


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--user", "whom"), "whom"),
        (("--label", "sick"), "sick"),
        (("--numeric", "age=100:0"), "low < high for numeric column 'age', got [100, 0]"),
        (("--epsilon", "-1"), "epsilon"),
        (("--delta", "2"), "delta"),
    ],
)
def test_a_wrong_word_is_named_before_anything_is_charged(
    wrong: tuple[str, str], named: str, quoron: Command, place: Path
) -> None:
    option, value = wrong
    asked = [*ILL, *PRIVATE]
    asked[asked.index(option) + 1] = value
    said = quoron("train", "visits.csv", *asked, *QUICK)
    assert said.code == 2
    assert named in said.err
    assert not (place / "runs").exists()
    assert not (place / "lifetime.sqlite").exists()


def test_without_an_epsilon_nothing_real_is_trained(quoron: Command, place: Path) -> None:
    said = quoron("train", "visits.csv", *ILL, *QUICK)
    assert said.code == 2
    assert "epsilon" in said.err
    assert not (place / "runs").exists()


def test_a_broken_row_does_not_fail_a_run(quoron: Command, place: Path) -> None:
    """Whether there is one is a user's secret: the count of unusable users is a noisy one."""
    lines = (place / "visits.csv").read_text().splitlines()
    (place / "broken.csv").write_text("\n".join([*lines[:10], lines[10] + ",one,too,many", *lines[11:]]))
    said = quoron("train", "broken.csv", *ILL, *PRIVATE, *QUICK)
    assert said.code == 0
    whole = quoron("show", "runs/broken-1", "--details").out
    assert re.search(r"users without a row that can be used +\S+ % ±", whole)


def test_a_plan_can_be_read_by_a_program(quoron: Command) -> None:
    said = quoron("plan", "visits.csv", *ILL, "--epsilon", "8", "--set", "privacy.delta=1e-4", *QUICK, "--json")
    assert said.code == 0
    assert json.loads(said.out)
