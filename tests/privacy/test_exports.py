"""What others are given of a pair is certified from both sides, and theirs to compose."""

import json

import pytest

from quoron_privacy.accounts import exports
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError

PAIRS = {
    "gaussian": Pair.gaussian(0.3),
    "coins and decisions": Pair.sampled(0.2, 0.3, 10, "zero-out").and_(Pair.response(0.05)),
    "of which (ε, δ) is known": Pair.approximate(0.3, 1e-7).and_(Pair.gaussian(0.3, 1e-12)),
}
NEAR = 1e-6


@pytest.mark.parametrize("name", PAIRS)
def test_masses_are_certified_from_above_and_from_below_at_every_epsilon(name: str) -> None:
    pair = PAIRS[name]
    above, below = (exports.lattice(pair, near=NEAR, direction=each) for each in ("pessimistic", "optimistic"))
    for share in (0.3, 1.0):
        epsilon = share * Pair(pair.mu, pair.stages).epsilon(NEAR)
        least, most = pair.least_delta(epsilon, NEAR), pair.delta(epsilon, NEAR)
        assert least <= above.delta(epsilon) < 1.01 * most
        assert 0.97 * least < below.delta(epsilon) <= most


@pytest.mark.parametrize("name", PAIRS)
def test_dp_accounting_composes_what_it_is_given(name: str) -> None:
    pair = PAIRS[name]
    given = exports.lattice(Pair(pair.mu, pair.stages), near=1e-9).distribution()
    twice = given.compose(given)
    epsilon = 1.2 * pair.epsilon(1e-4)
    both = Pair(pair.mu, pair.stages).and_(Pair(pair.mu, pair.stages))
    found = twice.get_delta_for_epsilon(epsilon)
    assert both.least_delta(epsilon, found) <= found < 1.02 * both.delta(epsilon, found)


def test_losses_are_read_back_as_they_were_written() -> None:
    made = exports.lattice(PAIRS["coins and decisions"], near=NEAR)
    read = exports.Lattice.of_json(json.loads(json.dumps(made.as_json())))
    assert read.delta(0.7) == made.delta(0.7)
    assert (read.gap, read.direction, read.lack) == (made.gap, made.direction, made.lack)


@pytest.mark.parametrize("wrong", [{}, {"direction": "both"}, {"masses": 3}])
def test_what_was_not_exported_is_refused(wrong: dict[str, object]) -> None:
    made = exports.lattice(Pair.gaussian(0.3), near=NEAR).as_json()
    with pytest.raises(ConfigError, match="as they are exported"):
        exports.Lattice.of_json({**made, **wrong, **({"orders": []} if "masses" in wrong else {})} if wrong else {})


def test_what_does_not_fit_is_refused_by_its_places() -> None:
    with pytest.raises(ConfigError, match="places"):
        exports.lattice(Pair.gaussian(30.0).and_(Pair.response(1e-6, 100)), near=1e-12)


def test_nothing_has_losses_of_nothing() -> None:
    assert exports.lattice(Pair(), near=NEAR).delta(0.0) == 0


def test_a_bounded_sum_fits_whatever_is_near() -> None:
    pair = Pair.response(1.0)
    above, below = (exports.lattice(pair, near=NEAR, direction=each) for each in ("pessimistic", "optimistic"))
    assert 0.999 * pair.delta(0.5) < below.delta(0.5) <= pair.delta(0.5) <= above.delta(0.5) < 1.001 * pair.delta(0.5)


@pytest.mark.parametrize("value", [float("nan"), -1.0, float("inf")])
def test_numbers_that_no_losses_have_are_refused_by_name(value: float) -> None:
    made = exports.lattice(Pair(), near=NEAR).as_json()
    order = {"first": 0, "masses": [1.0], "infinite": 0.0}
    for name, given in (
        ("infinite", {"orders": [{**order, "infinite": value}]}),
        ("masses", {"orders": [{**order, "masses": [value]}]}),
        ("lack", {"lack": value}),
    ):
        with pytest.raises(ConfigError, match=f"{name} finite"):
            exports.Lattice.of_json({**made, **given})
