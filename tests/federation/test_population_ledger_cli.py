"""`quoron ledger` on both kinds of database: what it prints is what the chain holds."""

import json

import pytest

from operators import before, reaching
from quoron.cli.app import app
from quoron_privacy.errors import (
    BudgetExceeded,
    ConfigError,
)
from quoron_server.storage.database import Database
from quoron_server.storage.lifetime_ledger import PopulationLedger


def invoke(*arguments: str) -> None:
    app(args=before(["ledger", *arguments]), prog_name="quoron", standalone_mode=False)


@pytest.fixture
def filled(database_url):
    with Database(database_url) as database:
        ledger = PopulationLedger(database)
        ledger.charge("spring [1]", "everyone", epsilon=0.5, delta=1e-6)
        ledger.charge("summer", "phones", epsilon=0.25, delta=1e-6, mu=0.05, variation=1e-13)
    return database_url


def test_what_fits_is_what_a_charge_then_takes(filled, capsys):
    everyone = (*reaching(database=filled), "--population", "everyone")
    invoke("charge", "--dry-run", *everyone, "--epsilon", "7")
    assert "fits, as there is no limit" in capsys.readouterr().out
    invoke("limit", *everyone, "--epsilon", "0.8", "--delta", "1e-5")
    invoke("charge", "--dry-run", *everyone, "--epsilon", "0.3", "--delta", "9e-6")
    assert "fits; counted so far: ε = 0.5 of 0.8, δ = 1e-06 of 1e-05. What fits" in capsys.readouterr().out
    for numbers, each in (
        (("--epsilon", "0.31"), "ε = 0.3 at most"),
        (("--epsilon", "0.1", "--delta", "9.1e-6"), "Nothing fits with δ = 9.1e-06"),
        (("--epsilon", "0.2", "--adjacency", "zero-out"), "ε = 0.15 at most"),
    ):
        for command in (("charge", "--dry-run", *everyone), ("charge", "other", *everyone)):
            with pytest.raises(BudgetExceeded, match=each):
                invoke(*command, *numbers)
    invoke("charge", "opendp", *everyone, "--epsilon", "0.3", "--delta", "9e-6", "--note", "counts by ward")
    assert "everyone: opendp charged with ε = 0.3, δ = 9e-06 (replace-one)" in capsys.readouterr().out
    invoke("show", *reaching(database=filled), "--population", "everyone")
    assert "another tool's" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(BudgetExceeded, match="Nothing fits"):
        invoke("charge", "more", *everyone, "--epsilon", "0.1")
    invoke("charge", "more", *everyone, "--epsilon", "0.1", "--spent")
    with pytest.raises(ConfigError, match="--exceeded"):
        invoke("limit", *everyone, "--epsilon", "0.5", "--delta", "1e-5")
    invoke("limit", *everyone, "--epsilon", "0.5", "--delta", "1e-5", "--exceeded")
    invoke("show", *reaching(database=filled), "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["everyone"]["fits"]["epsilon"] == 0.0
