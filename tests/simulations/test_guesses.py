"""What nobody has measured is a guess by name at every door, over the whole registry."""

from dataclasses import replace

import pytest

from contracts.scenes import make_plan
from quoron.cli.showing import plan_rows
from quoron.operate.submission import promised
from quoron.planning.choosing import Candidate, automatic, risk_words
from quoron.planning.plans import Planned
from quoron.planning.questions import EpsilonPoint
from quoron.reports.summary import Summary
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.allowance import Allowance
from quoron_server.wording import plan_json
from summaries import EXAMPLE


def sentences(name: str) -> list[str]:
    """What each door says of a plan's risk."""
    plan = make_plan(name)
    candidate = Candidate(name, plan)
    summary = replace(
        Summary(**EXAMPLE),
        predicted_excess_risk=plan.predicted_excess_risk,
        guessed_excess_risk=plan.guessed_excess_risk,
    )
    _, choice = automatic([candidate], ALGORITHMS, plan.problem, allowed=Allowance())
    rows = dict(plan_rows(Planned(plan, (candidate,))))
    return [
        choice,
        promised(plan).splitlines()[0],
        rows.get("predicted excess risk", ""),
        dict(summary.rows())["excess risk"],
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_door_shows_a_guess_as_a_bound(name: str) -> None:
    plan = make_plan(name)
    said = sentences(name)
    if plan.predicted_excess_risk is not None:
        assert all("at most" in each for each in said)
        assert not any("guess" in each for each in said)
        return
    assert not any("nine of ten" in each or "predicted at most" in each for each in said)
    assert plan_json(plan)["predicted_excess_risk"] is None
    assert EpsilonPoint.of(1.0, plan).predicted_excess_risk is None
    if plan.guessed_excess_risk is not None:
        assert all("guess" in each for each in said)
        assert risk_words(None, plan.guessed_excess_risk).startswith("guess: ")
