"""What a one-pass run says of itself where columns stayed uneven or its radius never settled: from what it released."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import quoron
from quoron import Method
from quoron.training.result import (
    OUTGROWN,
    outgrown,
)
from quoron_privacy.noise.ahead import StartedNoise
from quoron_privacy.noise.sources import SecureNoise


def pilot(*found: float) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"public": {"phase": "pilot", "unevenness": each}} for each in found]
    return [{"public": {}}, *events, {"public": {"phase": "main", "radius": 1.0}}, {}]


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
