"""`quorate ledger` on both kinds of database: what it prints is what the chain holds."""

import json

import click
import pytest

from quorate.cli_ledger import app
from quorate_protos.errors import ConfigError, DataError, LedgerError
from quorate_server.database import Database
from quorate_server.population_ledger import PopulationLedger


def invoke(*arguments: str) -> None:
    app(args=list(arguments), prog_name="ledger", standalone_mode=False)


@pytest.fixture
def filled(database_url):
    with Database(database_url) as database:
        ledger = PopulationLedger(database)
        ledger.charge("spring [1]", "everyone", epsilon=0.5, delta=1e-6)
        ledger.charge("summer", "phones", epsilon=0.25, delta=1e-6, mu=0.05)
    return database_url


def test_a_limit_is_set_shown_and_kept(filled, capsys):
    invoke("limit", "--database", filled, "--epsilon", "0.8", "--delta", "1e-5")
    assert capsys.readouterr().out == "everyone: ε = 0.8, δ = 1e-05\n"
    invoke("show", "--database", filled, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["everyone"] == {"epsilon": 0.5, "delta": 1e-5, "runs": 1, "limit": "ε = 0.8, δ = 1e-05"}
    assert told["phones"]["limit"] is None
    invoke("show", "--database", filled, "--group", "everyone")
    assert "spring [1]" in capsys.readouterr().out
    invoke("show", "--database", filled)
    assert "phones" in capsys.readouterr().out


def test_an_export_is_verified_with_and_without_its_database(filled, capsys, tmp_path):
    out = tmp_path / "export.json"
    invoke("export", "--database", filled, "--out", str(out))
    invoke("export", "--database", filled)
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")
    head = json.loads(out.read_text(encoding="utf-8"))["head"]
    invoke("verify", "--database", filled, "--head", head)
    invoke("verify", "--export", str(out), "--head", head)
    assert capsys.readouterr().out == f"{head}\n{head}\n"
    for where in (("--database", filled), ("--export", str(out))):
        with pytest.raises(LedgerError, match="no row has the hash"):
            invoke("verify", *where, "--head", "f" * 64)


def test_wrong_requests_are_named(filled, tmp_path):
    with pytest.raises(LedgerError, match="found none"):
        invoke("show", "--database", f"sqlite:///{tmp_path}/nothing.sqlite")
    with pytest.raises(ConfigError, match="epsilon=-1"):
        invoke("limit", "--database", filled, "--epsilon", "-1", "--delta", "1e-5")
    with pytest.raises(DataError, match="cannot read it"):
        invoke("verify", "--export", str(tmp_path / "nothing.json"))
    with pytest.raises(click.UsageError):
        invoke("limit", "--database", filled)


def test_postgres_is_read_and_limited_while_its_coordinator_runs(postgres, capsys):
    with Database(postgres) as owner:
        ledger = PopulationLedger(owner)
        ledger.charge("spring", "everyone", epsilon=0.5, delta=1e-6)
        invoke("verify", "--database", postgres)
        assert capsys.readouterr().out.strip() == ledger.verify()
        invoke("limit", "--database", postgres, "--epsilon", "1", "--delta", "1e-5")
        assert ledger.limit_of("everyone").epsilon == 1.0
