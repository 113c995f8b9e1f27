"""Labels: the values that each kind has, and what it is called."""

import pytest

from quoron_client.data.encoding import Classes, Comparison, Positive, Range, Signs, meaning, outcomes

TWO = Classes("ill", ("no", "yes"))


@pytest.mark.parametrize(
    ("label", "values", "said"),
    [
        (TWO, ("no", "yes"), "ill"),
        (Classes("k", (False, True)), (False, True), "k"),
        (Signs("k", truth=True), (False, True), "k"),
        (Comparison("delay", ">", 15.0), (False, True), "delay > 15"),
        (Positive("r2", "Y"), (False, True), "r2 = Y"),
        (Range("cost", 0, 9), (), "cost"),
    ],
)
def test_every_kind_of_label_has_values_of_its_own_and_a_name(label, values, said):
    assert outcomes(label) == values
    assert [*map(type, outcomes(label))] == [*map(type, values)]
    assert meaning(label) == said
