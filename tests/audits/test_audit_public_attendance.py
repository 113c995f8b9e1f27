"""An audit of public attendance: all that is told without noise, in neighbouring worlds, and what broken twins show.

What is told (who answered, how many, whether the run ended) is a function of who is there. So worlds that differ in one
user's items have to tell the same, word for word; a twin that tells anything else once is told from it for sure.
"""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audits.harness import delta_bounds
from federation.crowd import specification
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import ANSWERED, MISSING, Answers, Question
from quoron_privacy.accounts import gdp
from quoron_privacy.counts.quorum import Quorum, exact
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithm import Update
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms import quorum as rules
from quoron_server.algorithms.quorum import WithQuorum
from quoron_server.parameters import Assumption, Attendance, Kind
from quoron_server.plan import Privacy
from quoron_server.rounds import attendance_of
from quoron_server.specification import make_plan

PROBLEM = specification("one-pass-dp-sgd").problem
USERS, ROUNDS = 6, 3
QUORUM = exact(0.5, (USERS,) * ROUNDS, participations=ROUNDS, rest=(1.0, 1e-6))
SENDS = {
    "fine": ([1.0], ANSWERED),
    "nothing": ([0.0], MISSING),
    "broken": ([np.nan], ANSWERED),
    "far": ([1e300], ANSWERED),
}


def told(there: list[list[bool]], sent: list[str], quorum: Quorum = QUORUM, twin: str = "") -> list[dict[str, Any]]:
    """What a run tells without noise, of users who are `there` in each round, and whose items make what is `sent`."""
    cohort = np.arange(USERS)
    inner: Any = SimpleNamespace(
        init=lambda: 0,
        request=lambda state, noise: Question(state, cohort, AverageGradient(np.zeros((1, 1)), (1.0,))),
        update=lambda state, answers, noise: Update(state + 1, (), {}, {}),
    )
    parameters = SimpleNamespace(cohorts=lambda: (USERS,) * ROUNDS)
    plan: Any = SimpleNamespace(
        parameters=parameters,
        attendance=lambda: (Attendance(math.inf),) * ROUNDS,
        guarantee=SimpleNamespace(servers=None),
    )
    run = WithQuorum(plan, quorum, inner)
    state, noise, events = run.init(), SeededNoise(1), []
    while state.round < ROUNDS and (question := run.request(state, noise)) is not None:
        here = np.array(there[state.round])
        rows = [SENDS[each] for each in sent]
        # A client that is there sends zeros, as an answer, where it has none; a broken one says so.
        status = [own if twin == "status" else ANSWERED for _, own in rows]
        values = np.array([value for value, _ in rows], np.float64)
        came = np.where(here, np.array(status), MISSING).astype(np.uint8)
        answers = Answers.checked(values, came, largest=10.0)
        answers = answers if twin == "usable" else answers.attended()
        update = run.update(state, answers, noise)
        events.append({**update.public, **attendance_of(question, answers)})
        state = update.state
    return events


def patterns() -> list[list[list[bool]]]:
    drawn = np.random.default_rng(7).random((40, ROUNDS, USERS)) < 0.6
    return [*drawn.tolist(), [[True] * USERS] * ROUNDS, [[False] * USERS] * ROUNDS]


def differ(sent: str, other: str, twin: str = "") -> bool:
    """Whether some attendance tells one user's items from others."""
    rest = ["fine"] * (USERS - 1)
    return any(told(there, [sent, *rest], twin=twin) != told(there, [other, *rest], twin=twin) for there in patterns())


@pytest.mark.parametrize("sent", SENDS)
def test_what_is_told_is_the_same_whatever_one_user_holds(sent: str) -> None:
    assert not differ(sent, "fine")
    assert any(event["quorum"] == "not met" for there in patterns() for event in told(there, [sent] * USERS))


@pytest.mark.parametrize(("twin", "sent"), [("status", "nothing"), ("usable", "broken"), ("usable", "far")])
def test_the_audit_catches_a_status_that_data_move_and_a_count_of_usable_answers(twin: str, sent: str) -> None:
    assert differ(sent, "fine", twin)


def test_the_audit_catches_a_user_that_may_be_absent_in_one_world_and_there_in_the_other() -> None:
    """Zero-out: the count tells which world it is, at the edge of a quorum by the end of the run. So it is refused."""
    rest = [True] * (USERS // 2 - 1) + [False] * (USERS // 2)
    there, away = ([[own, *rest]] * ROUNDS for own in (True, False))
    one, other = told(there, ["fine"] * USERS), told(away, ["fine"] * USERS)
    assert len(one) == ROUNDS
    assert len(other) == 1, "for sure"
    assert one[0]["absent"] != other[0]["absent"]
    with pytest.raises(ConfigError, match="zero-out"):
        Privacy(1.0, 1e-6, 0.5, 0.05, "zero-out", "public")
    with pytest.raises(ConfigError, match="no quorum"):
        Privacy(1.0, 1e-6, attendance="public")


MU, RATE, DRAWS = 2.0, 0.1, 20_000


def log_ratios(*, named: bool) -> np.ndarray:
    """Of a secret coin that asks one user or the other: a noisy sum, and who of both is `named` as missing.

    Draws under the user's own items, against those of which nothing is seen.
    """
    rng = np.random.default_rng(1)
    asked = rng.random(DRAWS) < RATE
    seen = asked * MU + rng.standard_normal(DRAWS)
    known = MU * seen - MU**2 / 2
    return np.where(asked, known, 0.0) if named else np.log1p(RATE * np.expm1(known))


def test_the_audit_catches_names_beside_secret_cohorts() -> None:
    """Names tell who was asked, and the round is no more private than one whose cohort is known."""
    inside = 2.0
    epsilon, delta = math.log1p(RATE * math.expm1(inside)), RATE * gdp.delta_for(MU, inside)  # of a coin that is secret
    assert delta_bounds(log_ratios(named=False), epsilon=epsilon)[0] <= delta
    assert delta_bounds(log_ratios(named=True), epsilon=epsilon)[0] > delta


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("dp-sgd-wor", {"rounds": 5, "rate": 0.5}, "secret cohorts"),
        ("dp-sgd-poisson", {"rounds": 5, "rate": 0.5}, "secret cohorts"),
        ("phased-sgd", {"cohort_size": 2}, "true"),
        ("local-model", {"rounds": 6, "estimator": "tracking"}, "private by themselves"),
    ],
)
def test_plans_to_which_the_theorem_does_not_apply_are_refused_by_name(
    name: str, options: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so they are by `verify` where whoever plans them forgot to ask."""
    info = ALGORITHMS[name]
    wanted = Privacy(15.0, 0.1, 0.5, 2.0, "replace-one", "public")
    asked = info.options(**options)
    with pytest.raises(Infeasible, match=why) as refused:
        info.plan(PROBLEM, wanted, asked)
    assert "public attendance" in str(refused.value)
    with monkeypatch.context() as forgetful:
        forgetful.setattr(rules, "told_too_much", lambda plan: None)
        plan = rules.with_public_attendance(
            info.plan(PROBLEM, rules.left_by_quorum(wanted, spent=False), asked), wanted
        )
    with pytest.raises(VerificationError):
        info.verify(plan)


def test_a_plan_that_does_not_say_that_attendance_is_public_is_refused() -> None:
    info = ALGORITHMS["one-pass-dp-sgd"]
    plan = info.plan(PROBLEM, Privacy(15.0, 0.1, 0.5, 2.0, attendance="public"), info.options(rounds=3))
    kept = tuple(each for each in plan.guarantee.assumptions if each.kind is not Kind.PUBLIC_ATTENDANCE)
    with pytest.raises(VerificationError, match="who answers is public"):
        info.verify(replace(plan, guarantee=replace(plan.guarantee, assumptions=kept)))
    loud = replace(plan.guarantee.quorum, count_scale=2.0)
    with pytest.raises(VerificationError):
        info.verify(replace(plan, guarantee=replace(plan.guarantee, quorum=loud)))


def test_a_plan_that_a_zero_out_promise_is_bent_into_is_refused() -> None:
    info = ALGORITHMS["recentred-sgd"]
    own = info.plan(PROBLEM, Privacy(15.0, 0.1, adjacency="zero-out"), info.options(rounds=3, rate=1.0))
    quorum = exact(0.5, own.parameters.cohorts(), participations=3, rest=(14.0, 0.05))
    bent = own.assuming([Assumption(Kind.PUBLIC_ATTENDANCE)])
    with pytest.raises(VerificationError, match="under zero-out whether a user is there"):
        info.verify(replace(bent, guarantee=replace(bent.guarantee, quorum=quorum)))


COVERED = ("one-pass-dp-sgd", "dp-ftrl", "tracking-srgd", "whitened-tracking", "winsorised-erm", "outlier-gd")


@pytest.mark.parametrize("name", COVERED)
def test_it_costs_nothing(name: str) -> None:
    """The plan is that of the algorithm alone for all of ε, and a lifetime is charged the same but for δ's slack."""
    public = make_plan(specification(name, quorum=0.55, quorum_epsilon=1.0, attendance="public"))
    alone = make_plan(specification(name))
    info = ALGORITHMS[name]
    assert public.guarantee.quorum is not None
    assert public.guarantee.quorum.rest_epsilon == alone.guarantee.epsilon
    assert public.cost == alone.cost
    one, other = info.gaussian(public), info.gaussian(alone)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.mu <= other.mu * (1 + 1e-9)
        assert one.variation <= other.variation + 1e-30
    assert all(each.count > 0 for each in public.releases())
