"""The page of the tables' rows: its text is that of the rows, its figures are those of plans."""

import importlib.util
from pathlib import Path

import pytest

from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.refused import REFUSED

ROOT = Path(__file__).parent.parent


def script():
    spec = importlib.util.spec_from_file_location("gen_tables_page", ROOT / "scripts" / "gen_tables_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = script()
ROWS = {GENERATOR.key(row): row for table in GENERATOR.TABLES for row in table.rows}


def test_the_text_is_up_to_date():
    assert GENERATOR.page(GENERATOR.known()) == GENERATOR.PAGE.read_text(encoding="utf-8")


def test_every_row_of_the_registry_has_figures_and_only_those_have():
    figures = GENERATOR.known()
    for name, row in ROWS.items():
        empty = figures[name] == ("—",) * len(GENERATOR.USERS)
        assert empty == (not row.there and row.name not in REFUSED), name


@pytest.mark.parametrize(("name", "at"), [("`ghazi-2023`", 1), ("`phased-sgd`", 0), ("`accelerated-srgd`", 0)])
def test_figures_are_those_of_plans(name, at):
    assert GENERATOR.figure(ROWS[name], GENERATOR.USERS[at]) == GENERATOR.known()[name][at]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_all_figures_are_those_of_plans(name):
    assert tuple(GENERATOR.figure(ROWS[name], users) for users in GENERATOR.USERS) == GENERATOR.known()[name]


def test_the_papers_methods_here_are_named_on_the_page():
    text = GENERATOR.PAGE.read_text(encoding="utf-8")
    ours = {"tracking-srgd", "sgd", "srgd", "accelerated-sgd", "dp-ftrl", "one-pass-dp-sgd", "dp-sgd-poisson"}
    ours |= {"group-dp-sgd-zero-out", "median-sgd", "whitened-tracking", "one-round-least-squares"}
    assert all(f"`{name}`" in text for name in ALGORITHMS if name not in ours)
