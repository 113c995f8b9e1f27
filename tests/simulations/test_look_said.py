"""What a report says of a look at the table: what is beyond its noise, and nothing else."""

import json
from typing import Any

import numpy as np
import pytest

from quoron.reports import health as words
from quoron_client.data.encoding import Categorical, Classes, Encoding, Numeric, Range, Signs
from quoron_client.data.misfits import declared_columns, declared_labels
from quoron_privacy.counts.table_health import Shares, TableHealth

USERS = 1000


def a_report(
    shares: dict[str, Any], rules: Encoding, users: int = USERS, mu: float = 0.053, wider: Any = None
) -> words.Health:
    columns, labels = declared_columns(rules), declared_labels(rules)
    health = TableHealth.for_mu(users=users, columns=len(columns), labels=len(labels), mu=mu, share=0.05)
    even = np.full(len(labels), 1 / max(1, len(labels)))
    given = {"unusable": 0.0, "labels": even, "values": 0.0, "columns": np.zeros(len(columns))}
    return words.read(health, Shares(**given | shares), rules, wider=wider)


TWO = Encoding((Numeric("age", 0, 100), Categorical("ward", ("a", "b"))), label=Signs("ill"))
PRICE = Encoding((Numeric("age", 0, 100),), label=Range("price", 0, 10))


@pytest.mark.parametrize(
    ("shares", "rules", "said"),
    [
        ({}, TWO, []),
        ({"unusable": 0.14, "values": 0.2, "columns": np.full(3, 0.15)}, TWO, []),
        ({"unusable": 0.5}, TWO, ["about 500 of 1,000 users (± 42) have no row that can be used"]),
        ({"unusable": 1.04}, TWO, ["about 1,000 of 1,000 users"]),
        ({"columns": np.array([0.0, 0.4, 0.0])}, TWO, ["column 'ward' is in none of the declared categories"]),
        ({"columns": np.array([0.0, 0.0, 0.9])}, TWO, ["column 'ill' is no true/false, 0/1 or -1/+1"]),
        ({"values": 0.6}, TWO, ["about 60 % (± 6 %) of all values do not fit"]),
        ({"labels": np.array([0.0, 0.7])}, PRICE, ["about 70 % (± 4.2 %) of the labels are 'price' above 10"]),
    ],
)
def test_what_is_beyond_the_noise_is_said_and_nothing_else(shares, rules, said):
    found = a_report(shares, rules).warnings
    if not shares or "labels" not in shares:
        found = tuple(each for each in found if "of the labels are" not in each)
    assert len(found) == len(said)
    for each, begins in zip(found, said, strict=True):
        assert each.startswith(begins)


def test_labels_beyond_a_range_that_was_bought_are_told_a_range_that_would_do_as_far_as_it_is_released():
    (said,) = a_report({"labels": np.array([0.0, 0.7])}, PRICE).warnings
    assert said.endswith("Declare a wider label_range.")
    (said,) = a_report({"labels": np.array([0.0, 0.7])}, PRICE, wider=(0.0, 64.0)).warnings
    assert said.endswith("Declare a wider label_range: [0, 64] had nearly all labels when it was bought, coarsely.")


def test_with_many_unfit_columns_some_are_named_together_and_all_are_in_the_table():
    rules = Encoding(tuple(Numeric(f"x{place}", 0, 1) for place in range(30)), label=Signs("y"))
    found = a_report({"values": 0.9, "columns": np.append(np.linspace(0.5, 0.9, 30), 0.0)}, rules)
    (said,) = found.warnings
    assert "about 90 % (± 6 %) of all values" in said
    assert [name for name in said.split("'") if name.startswith("x")] == [f"x{place}" for place in range(29, 21, -1)]
    assert "and 22 more columns" in said
    assert len(found.table()) == 2 + 31 + 2
    assert words.Health.from_json(json.loads(json.dumps(found.as_json()))) == found
    (said,) = a_report({"values": 0.1, "columns": np.append(np.full(5, 0.4), np.zeros(26))}, rules).warnings
    assert said.startswith("many values do not fit their declarations, most in 'x0', 'x1', 'x2', 'x3', 'x4': declare")


def test_rows_that_only_their_label_can_spoil_are_said_to_lack_it():
    """Where all else that is missing is filled in; no single column was said to stand out of the noise."""
    rules = Encoding((Numeric("age", 0, 100),), label=Classes("ill", ("no", "yes")), missing="middle")
    (said,) = a_report({"unusable": 0.3}, rules).warnings
    assert "their label 'ill' is none of the declared classes, or missing" in said
    (said,) = a_report({"unusable": 0.3}, TWO).warnings
    assert "no single column stands out of the noise" in said


@pytest.mark.parametrize(
    ("users", "said"),
    [(50, "too few for it to see"), (400, "too few users to see less than"), (10**6, "may go unsaid")],
)
def test_the_report_says_what_so_few_users_cannot_show(users, said):
    assert said in words.unseen(a_report({}, TWO, users=users), None)
