"""Two values for one thing are refused with both named, wherever they were given; never is one of them taken silently.

Equal values are one. A simulation may be of a preset or a file with other settings; where noise is secret the ε and the
δ of a file stand.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
import typer.main

import quoron
from contracts.test_epsilon_is_given import FEDERATED
from quoron import config as configs
from quoron.cli.app import app, invoke
from quoron.sklearn import PrivateLogisticRegression
from quoron_privacy.errors import ConfigError

FILE = f"{FEDERATED}\n[privacy]\nepsilon = 1.0\ndelta = 1e-4\n"
ROWS = pd.DataFrame({"who": np.arange(600), "age": np.arange(600) % 90, "ill": np.arange(600) % 2})
TABLE: dict[str, Any] = {"user": "who", "label": "ill", "columns": {"numeric": {"age": (0, 100)}}}


def fit(**more: Any) -> Any:
    estimator = PrivateLogisticRegression(bounds=(0, 1), classes=[0, 1], **more)
    return estimator.fit(np.zeros((9, 1)), np.arange(9) % 2, groups=np.arange(9))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a keyword and a setting": (
        lambda: quoron.plan(epsilon=5.0, settings=["privacy.epsilon=1"]),
        r"value of privacy\.epsilon, got 1 \(settings, --set\) and 5\.0 \(arguments, options\)",
    ),
    "a value and a section": (
        lambda: quoron.plan(epsilon=5.0, settings={"privacy": {"epsilon": 1}}),
        r"privacy\.epsilon, got 1 .* and 5\.0",
    ),
    "two settings": (
        lambda: quoron.plan(settings=["algorithm.options.rounds=4", "algorithm.options.rounds=5"]),
        r"algorithm\.options\.rounds, got 4 .* and 5",
    ),
    "two keys of one number": (
        lambda: quoron.plan(algorithm="recentred-sgd", options={"rounds": 4}, settings=["budget.rounds=5"]),
        r"budget\.rounds=5 and algorithm\.options\.rounds=4",
    ),
    "a column's range": (
        lambda: quoron.plan(ROWS, **TABLE, settings=["population.columns.numeric.age=[0, 10]"]),
        r"population\.columns\.numeric\.age, got \[0, 100\] .* and \[0, 10\]",
    ),
    "a table's user": (
        lambda: quoron.train(ROWS, **TABLE, epsilon=1.0, settings=["population.user=age"]),
        r"population\.user, got 'who' .* and 'age'",
    ),
    "an estimator": (
        lambda: fit(epsilon=5.0, settings=["privacy.epsilon=1"]),
        r"privacy\.epsilon, got 5\.0 \(constructor\) and 1 \(settings",
    ),
    "an estimator's rounds": (
        lambda: fit(epsilon=5.0, rounds=3, settings=["algorithm.name=recentred-sgd", "algorithm.options.rounds=4"]),
        r"budget\.rounds=3 and algorithm\.options\.rounds=4",
    ),
    "a file": (
        lambda: quoron.train("visits.toml", epsilon=5.0),
        r"privacy\.epsilon, got 1\.0 \(visits\.toml\) and 5\.0 \(arguments, options\)",
    ),
    "a file and a setting": (
        lambda: quoron.train("visits.toml", settings=["privacy.delta=1e-3"], dry_run=True),
        r"privacy\.delta, got 0\.0001 \(visits\.toml\) and 0\.001 \(settings, --set\)",
    ),
    "a file's account": (
        lambda: quoron.train("charged.toml", population="others"),
        r"train\.population, got 'clinic' \(charged\.toml\) and 'others'",
    ),
    "a Config": (
        lambda: quoron.tune(configs.parse(FILE), epsilon=5.0, vary={"loss.ridge": [0, 1]}),
        r"privacy\.epsilon, got 1\.0 \(the Config\) and 5\.0",
    ),
}
TABLED = ["train", "visits.csv", "--user", "who", "--label", "ill"]
TYPED = {
    "an option and --set": (["plan", "--epsilon", "5", "--set", "privacy.epsilon=1"], "1 .* and 5.0"),
    "an option, real": (
        ["train", "visits.csv", "--user", "who", "--label", "ill", "--epsilon", "5", "--set", "privacy.epsilon=1"],
        r"privacy\.epsilon, got 1 .* and 5\.0",
    ),
    "an option twice": (["plan", "--epsilon", "1", "--epsilon=5"], r"--epsilon, got --epsilon 1 and --epsilon=5"),
    "a switch both ways": (
        [*TABLED, "--set", "population.columns.intercept=true", "--set", "population.columns.intercept=false"],
        r"population\.columns\.intercept, got True .* and False",
    ),
    "a list in both grammars": (
        [*TABLED, "--set", 'population.columns.exclude=["a", "b"]', "--set", 'population.columns.exclude=["a"]'],
        r"population\.columns\.exclude, got \['a', 'b'\] .* and \['a'\]",
    ),
    "--csv twice": (
        ["bounds", "visits.csv", "--user", "who", "--epsilon", "1", "--csv", "separator=;", "--csv", "separator=,"],
        r"--csv separator, got separator=; and separator=,",
    ),
    "--set twice": (["plan", "--set", "run.seed=1", "--set", "run.seed=2"], r"run\.seed, got 1 .* and 2"),
    "a file": (["train", "visits.toml", "--epsilon", "5"], r"privacy\.epsilon, got 1\.0 \(visits\.toml\) and 5\.0"),
    "a file of a federation": (
        ["submit", "visits.toml", "--run", "a", "--users", "900", "--set", "privacy.epsilon=5"],
        r"privacy\.epsilon, got 1\.0 \(visits\.toml\) and 5",
    ),
    "a column twice": (
        ["train", "visits.csv", "--numeric", "age=0:10", "--numeric", "age=0:100"],
        r"--numeric of age, got \(0\.0, 10\.0\) and \(0\.0, 100\.0\)",
    ),
    "below a group": (
        ["ledger", "limit", "--population", "a", "--epsilon", "8", "--epsilon", "9", "--delta", "1e-5"],
        r"--epsilon, got --epsilon 8 and --epsilon 9",
    ),
}


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a charge would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    ROWS.to_csv("visits.csv", index=False)
    Path("visits.toml").write_text(FILE)
    Path("charged.toml").write_text(f'{FILE}\n[train]\npopulation = "clinic"\n')
    Path("odd.toml").write_text(f"privacy = 3\n{FILE.partition('[privacy]')[0]}")
    return tmp_path / "lifetime.sqlite"


@pytest.mark.parametrize("case", REFUSED)
def test_two_values_are_refused_in_python_with_both_named(case: str, ledger: Path) -> None:
    call, both = REFUSED[case]
    with pytest.raises(ConfigError, match=f"Expected one .*{both}"):
        call()
    assert not ledger.exists()


@pytest.mark.parametrize("case", TYPED)
def test_two_values_are_refused_on_the_command_line_with_both_named(
    case: str, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, both = TYPED[case]
    assert invoke(words) == 2
    printed = capsys.readouterr()
    with pytest.raises(ConfigError, match=f"Expected one .*{both}"):
        raise ConfigError(printed.err)
    assert not printed.out
    assert not ledger.exists()


def commands(at: Any, name: str = "quoron") -> Iterator[tuple[str, Any]]:
    for own, each in getattr(at, "commands", {}).items():
        yield f"{name} {own}", each
        yield from commands(each, f"{name} {own}")


def test_every_option_of_one_value_is_taken_once_by_every_command() -> None:
    asked = 0
    for name, command in commands(typer.main.get_command(app)):
        for option in command.params:
            if not isinstance(option, click.Option) or option.multiple or option.is_flag or option.is_eager:
                continue
            words = [option.opts[0], "1", option.opts[0], "2"]
            with pytest.raises(click.UsageError, match=f"Expected one {option.opts[0]}, got .* 1 and .* 2"):
                command.make_context(name, words)
            asked += 1
    assert asked > 120


def test_equal_values_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["privacy.epsilon=2.0"]
    planned = quoron.train(ROWS, **TABLE, epsilon=2, delta=1e-4, settings=settings, dry_run=True)
    assert planned.plan.problem.users == 600
    assert quoron.train("visits.toml", epsilon=1.0, delta=1e-4, dry_run=True).plan.problem.users == 600
    assert invoke(["train", "visits.toml", "--dry-run", "--epsilon", "1", "--epsilon", "1"]) == 0
    assert "error" not in capsys.readouterr().err


def test_a_default_that_nobody_gave_is_no_value() -> None:
    text = FILE.partition("[privacy]")[0]
    planned = quoron.train(configs.parse(text), epsilon=1.0, delta=1e-4, population="clinic", dry_run=True)
    assert planned.plan.problem.users == 600
    with pytest.raises(ConfigError, match="Expected privacy to be a section"):
        quoron.train("odd.toml", epsilon=1.0, dry_run=True)


def test_a_simulation_may_have_another_promise_than_its_preset_or_file() -> None:
    quick = ["algorithm.name=one-pass-dp-sgd", "algorithm.options.rounds=2"]
    for source, more in (("quickstart", ["population.users=2000"]), ("visits.toml", [])):
        run = quoron.simulate(source, epsilon=3.0, settings=[*quick, *more])
        assert run.plan.guarantee.epsilon == 3.0
