"""The account of all releases about the same people."""

import json

from stories.conftest import ILL, PRIVATE, QUICK, Command

OWN = ("--population", "everyone")


def trained(quoron: Command, *more: str) -> int:
    return quoron("train", "visits.csv", *ILL, *PRIVATE, *QUICK, *more).code


def shown(quoron: Command) -> str:
    said = quoron("ledger", "show", *OWN)
    assert said.code == 0
    return said.out


def test_every_release_about_the_same_people_is_on_one_account(quoron: Command) -> None:
    assert trained(quoron) == 0
    alone = shown(quoron)
    assert alone.count("visits-") == 1
    assert trained(quoron) == 0
    asked = ("mean of age", "--user", "who", "--numeric", "age=0:100")
    assert quoron("stats", "visits.csv", *asked, *PRIVATE).code == 0
    assert shown(quoron).count("ε = 8") == 3


def test_a_limit_refuses_what_would_exceed_it_and_says_what_fits(quoron: Command) -> None:
    assert trained(quoron) == 0
    assert quoron("ledger", "limit", *OWN, "--epsilon", "10", "--delta", "1e-3").code == 0
    refused = quoron("train", "visits.csv", *ILL, *PRIVATE, *QUICK)
    assert refused.code == 1
    assert "would exceed the limit" in refused.err
    assert "What fits with δ = 0.0001 is ε = 2 at most" in refused.err
    assert shown(quoron).count("visits-") == 1


def test_the_chain_is_verified_and_exported(quoron: Command) -> None:
    assert trained(quoron) == 0
    assert quoron("ledger", "verify").code == 0
    said = quoron("ledger", "verify", "--out", "-")
    assert said.code == 0
    assert json.loads(said.out)


def test_what_another_tool_spends_counts(quoron: Command) -> None:
    assert trained(quoron) == 0
    assert quoron("ledger", "charge", "a-survey", *OWN, "--epsilon", "1", "--delta", "1e-6").code == 0
    assert "a-survey" in shown(quoron)
