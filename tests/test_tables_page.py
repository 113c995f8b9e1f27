"""The page of the tables' rows: its text is that of the rows, its figures are those of plans."""

import gen_tables_page as generator
import pytest

from quoron_server.algorithms import ALGORITHMS

ROWS = {generator.key(row): row for table in generator.TABLES for row in table.rows}


def test_the_text_is_up_to_date():
    assert generator.page(generator.known()) == generator.PAGE.read_text(encoding="utf-8")


def test_every_row_of_the_registry_has_figures_and_only_those_have():
    figures = generator.known()
    for name, row in ROWS.items():
        empty = figures[name] == ("—",) * len(generator.USERS)
        assert empty == (not row.there), name


@pytest.mark.parametrize(("name", "at"), [("`phased-sgd`", 0), ("`accelerated-srgd`", 0)])
def test_figures_are_those_of_plans(name, at):
    assert generator.figure(ROWS[name], generator.USERS[at]) == generator.known()[name][at]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_all_figures_are_those_of_plans(name):
    assert tuple(generator.figure(ROWS[name], users) for users in generator.USERS) == generator.known()[name]


def test_the_papers_methods_here_are_named_on_the_page():
    text = generator.PAGE.read_text(encoding="utf-8")
    ours = {"tracking-srgd", "sgd", "srgd", "accelerated-sgd", "dp-ftrl", "one-pass-dp-sgd", "dp-sgd-poisson"}
    ours |= {"median-sgd", "whitened-tracking", "one-round-least-squares"}
    assert all(f"`{name}`" in text for name in ALGORITHMS if name not in ours)
