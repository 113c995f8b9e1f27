"""What a one-pass run says of itself where columns stayed uneven or its radius never settled: from what it released."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import quoron
from quoron import Method
from quoron.training.result import (
    OUTGROWN,
    UNEVEN,
    growing,
    outgrown,
    uneven,
    unheard,
    unseen_directions,
    unsettled,
    unsure,
)
from quoron_privacy.noise.ahead import StartedNoise
from quoron_privacy.noise.sources import SecureNoise
from quoron_server.algorithms.tracking.method import TrackingParameters
from quoron_server.plan import Plan


def pilot(*found: float) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"public": {"phase": "pilot", "unevenness": each}} for each in found]
    return [{"public": {}}, *events, {"public": {"phase": "main", "radius": 1.0}}, {}]


def test_only_the_last_pass_of_a_pilot_counts_and_the_remark_has_its_number_and_its_fix() -> None:
    assert uneven(pilot()) == uneven(pilot(30.0, 8.0, UNEVEN)) == ()
    (said,) = uneven(pilot(2.0, 2.0, 7.25))
    assert "differed by a factor of 7.2 " in said
    assert "Declare ranges nearer to where the values are" in said


def test_a_radius_that_ends_at_its_cap_is_remarked_and_one_that_settled_is_not() -> None:
    plan = quoron.plan("one-pass", method=Method("tracking-srgd")).plan
    first = plan.parameters_of(TrackingParameters).first_radius
    alone = replace(plan, parameters=replace(plan.parameters_of(TrackingParameters), variant="independent"))

    def told(of: Plan, radius: float, phase: str = "main") -> tuple[str, ...]:
        return unsettled(of, [{"public": {"phase": "pilot"}}, {"public": {"phase": phase, "radius": radius}}])

    assert unsettled(plan, []) == told(plan, 2.99 * first) == told(plan, 3 * first, "warm-up") == ()
    assert told(alone, 0.99 * first) == ()
    assert unsettled(quoron.plan("million").plan, [{"public": {"phase": "main", "radius": 9.0}}]) == ()
    for (said,) in (told(plan, 3 * first), told(alone, first)):
        assert "still at the most that it may be" in said
        assert "whitened-tracking" in said


def test_columns_that_may_all_be_noise_are_remarked() -> None:
    assert unheard([]) == unheard([{"public": {}}]) == unheard([{"public": {"heard": True}}]) == ()
    (said,) = unheard([{"public": {}}, {"public": {"heard": False}}])
    assert "could not be told from noise" in said
    assert "Declare ranges nearer to where the values are" in said


@pytest.mark.parametrize(
    ("said", "name", "words"),
    [(unseen_directions, "unseen", "more than a quarter of the directions"), (growing, "grows", "told almost exactly")],
)
def test_what_makes_a_released_bound_large_is_remarked_by_name(said: Any, name: str, words: str) -> None:
    assert said([]) == said([{"public": {}}]) == said([{"public": {name: False}}]) == ()
    (told,) = said([{"public": {name: True}}])
    assert words in told


def test_a_plan_is_taken_back_by_a_run_that_tells_more_than_twice_as_much_or_kept_no_model() -> None:
    plan = quoron.plan("few-rounds", method=Method("whitened-tracking")).plan
    predicted = plan.predicted_excess_risk
    assert predicted is not None

    def told(**public: Any) -> bool:
        return outgrown(plan, [{"public": public}])

    assert not outgrown(plan, [])
    assert not told()
    assert not told(left=0.99 * OUTGROWN * predicted, accepted=True)
    assert told(left=1.01 * OUTGROWN * predicted, accepted=True)
    assert told(left=None, accepted=False)


def trained(width: float, method: str, users: int = 6_000) -> Any:
    """On columns that fill one `width`-th of their declared ranges, and a constant."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((users, 2))
    ill = rng.random(users) < 1 / (1 + np.exp(-values @ np.array([1.5, -1.0])))
    table = pa.table({"who": np.arange(users), "x0": values[:, 0], "x1": values[:, 1], "ill": ill})
    ends = (-3.0 * width, 3.0 * width)
    numeric = {"x0": ends, "x1": ends}
    return quoron.train(table, user="who", label="ill", numeric=numeric, epsilon=8.0, method=Method(method))


def test_a_trained_model_says_so_where_columns_fill_a_thousandth_of_their_ranges_and_not_where_they_fill_them() -> None:
    for width, expected in ((1.0, False), (1000.0, True)):
        warnings = trained(width, "tracking-srgd").summary.warnings
        assert any("the pilot could not make the columns even" in each for each in warnings) == expected


def test_a_forecast_that_the_run_has_overtaken_is_not_told_as_if_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureNoise, "fresh", classmethod(lambda cls: cls(bytes(range(32)))))  # so no luck is needed
    monkeypatch.setattr(StartedNoise, "fresh", classmethod(lambda cls, source: cls(source, "a start")))
    monkeypatch.setattr("quoron.training.start.secrets.randbits", lambda bits: 1)
    unseen, seen = (trained(width, "whitened-tracking", 1_000).summary for width in (1e5, 1.0))
    assert "which the run does not confirm" in dict(unseen.rows())["excess risk, predicted"]
    assert "that is" not in dict(unseen.rows())
    assert unseen.foretold() is None
    assert "does not confirm" not in dict(seen.rows()).get("excess risk, predicted", "")
    assert seen.foretold() is not None


def test_a_bound_that_is_no_less_than_what_not_training_leaves_is_remarked() -> None:
    plan = quoron.plan("one-pass", method=Method("one-pass-dp-sgd")).plan
    assert unsure(plan, None) == unsure(replace(plan, predicted_excess_risk=None), None) == unsure(plan, 1e-3) == ()
    for (said,) in (unsure(replace(plan, predicted_excess_risk=7.0), None), unsure(plan, 7.0)):
        assert said.startswith(
            "No better than not training, as far as the bound says: with 100,000 users for 10 coefficients at ε = 1 the"
        )
