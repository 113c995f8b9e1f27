"""What a report says of a look at the table: what is beyond its noise, and nothing else."""

import json
from typing import Any

import numpy as np

from quoron.reports import health as words
from quoron_client.data.encoding import Categorical, Encoding, Numeric, Range, Signs
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
