"""What a plan says it releases in dp-accounting's words: an accountant that is not ours finds the promise kept."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from contracts.scenes import PRIVACY, PROBLEM, SMALL, make_plan
from contracts.test_gaussian_promises import EVERYBODY, GAUSSIAN, everybody, shrunk
from cover import by_default
from quoron_privacy.errors import UsageError, VerificationError
from quoron_privacy.noise.streams import total_variation
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan

MIN_COHORT = Privacy(PRIVACY.epsilon, PRIVACY.delta, min_cohort=0.5, min_cohort_epsilon=1.7)
WITHOUT_REPLACEMENT = FIXED_SIZE = ("dp-sgd-wor", "mean-sgd")
QUORATE = ("dp-ftrl", "tracking-srgd", "dp-sgd-poisson")  # a minimum cohort adds the same decisions to any other event
INEXPRESSIBLE = (
    "filtered-sgd",
    "median-sgd",
    "outlier-iterates",
    "accelerated-erm",
    "outlier-gd",
    "local-model",
)
NOISE = ("noise_scale", "release_scale", "pilot_scale", "length_scale", "moment_scale", "scale", "sensitivity")


def expressible() -> list[Any]:
    """All plans that dp-accounting's exact accountant understands, with and without a minimum cohort."""
    names = [*GAUSSIAN, "dp-sgd-poisson"]
    plans = [pytest.param(lambda name=name: make_plan(name), id=name) for name in names]
    plans += [
        pytest.param(
            lambda name=name: make_plan(name, None, MIN_COHORT),
            id=f"{name}/minimum cohort",
            marks=() if name in QUORATE else pytest.mark.slow,
        )
        for name in names
    ]
    return plans + [pytest.param(lambda name=name: everybody(name), id=f"{name}/everybody") for name in EVERYBODY]


def event_of(plan: RunPlan) -> Any:
    """What a run of the plan releases, in dp-accounting's words."""
    return ALGORITHMS[plan.algorithm].dp_event(plan)


def left_of_delta(plan: RunPlan) -> float:
    """δ less what the samplers of a whole run may lack, its minimum cohort's included."""
    vectors = 10 * plan.cost.rounds * plan.problem.dimension**2
    slack = total_variation(gaussians=vectors, laplaces=2 * plan.cost.rounds)
    return plan.guarantee.delta - (1 + math.exp(plan.guarantee.epsilon)) * slack


GRID = 1e-3  # of losses; ten times finer finds the same ε to 1e-8, in ten times the time


def exact(event: dp_event.DpEvent, delta: float) -> float:
    """ε by privacy loss distributions, for the relation in which one user moves a value by one unit."""
    return PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, GRID).compose(event).get_epsilon(delta)


@cache
def epsilon_of(name: str) -> float:
    """What a Gaussian run is worth; two tests ask."""
    plan = make_plan(name)
    return exact(event_of(plan), left_of_delta(plan))


def with_half_the_noise(event: Any) -> dp_event.DpEvent:
    """What is released if the sensitivity that noise was made for is half of the true one."""
    if isinstance(event, dp_event.GaussianDpEvent):
        return dp_event.GaussianDpEvent(event.noise_multiplier / 2)
    if isinstance(event, dp_event.ComposedDpEvent):
        return dp_event.ComposedDpEvent([with_half_the_noise(each) for each in event.events])
    inner = getattr(event, "event", None)
    return event if inner is None else type(event)(**{**_fields(event), "event": with_half_the_noise(inner)})


def _fields(event: Any) -> dict[str, Any]:
    return {item.name: getattr(event, item.name) for item in event.__attrs_attrs__}


@pytest.mark.parametrize("plan_of", expressible())
def test_an_accountant_of_others_finds_the_promise_kept(plan_of: Any) -> None:
    plan = plan_of()
    asked_twice = plan.algorithm in GAUSSIAN and plan is make_plan(plan.algorithm)
    found = epsilon_of(plan.algorithm) if asked_twice else exact(event_of(plan), left_of_delta(plan))
    assert found <= plan.guarantee.epsilon * (1 + 1e-6)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_gaussian_runs_are_worth_exactly_their_promise_to_an_accountant_of_others(name: str) -> None:
    plan = make_plan(name)
    assert isinstance(event_of(plan), dp_event.GaussianDpEvent)
    assert epsilon_of(name) == pytest.approx(plan.guarantee.epsilon, rel=5e-6)


@pytest.mark.parametrize(
    "plan_of",
    [
        one if at % 3 == 2 else pytest.param(*one.values, id=one.id, marks=pytest.mark.slow)
        for at, one in enumerate(expressible())
    ],
)
def test_an_accountant_of_others_notices_half_the_sensitivity(plan_of: Any) -> None:
    plan = plan_of()
    assert exact(with_half_the_noise(event_of(plan)), left_of_delta(plan)) > 1.5 * plan.guarantee.epsilon


@pytest.mark.parametrize("plan_of", expressible())
def test_a_plan_with_too_little_noise_has_no_event(plan_of: Any) -> None:
    plan = plan_of()
    wrong = replace(plan, parameters=shrunk(plan.parameters, NOISE))
    assert wrong != plan
    with pytest.raises(VerificationError):
        event_of(wrong)


def test_no_relation_of_theirs_finds_less_than_what_is_promised() -> None:
    """Whoever reads a replace-one plan as values in a ball, of which a replacement moves two radii, finds too much."""
    plan = make_plan("one-pass-dp-sgd")
    accountants = [
        accountant
        for relation in NeighboringRelation
        for accountant in (PLDAccountant(relation, GRID), RdpAccountant(neighboring_relation=relation))
    ]
    found = [each.compose(event_of(plan)).get_epsilon(plan.guarantee.delta) for each in accountants]
    assert min(found) > plan.guarantee.epsilon * (1 - 1e-6)


def test_coins_are_accounted_under_replace_one_too() -> None:
    """A zero-out plan's values lie in a ball of one unit, as their accountant takes it for replacements."""
    plan = make_plan("dp-sgd-poisson")
    replaced = PLDAccountant(NeighboringRelation.REPLACE_ONE, GRID).compose(event_of(plan))
    assert plan.guarantee.adjacency == "zero-out"
    assert 1 < replaced.get_epsilon(plan.guarantee.delta) / plan.guarantee.epsilon < 2


@pytest.mark.parametrize("name", by_default(FIXED_SIZE, ("dp-sgd-wor",)))
def test_renyi_divergences_of_fixed_size_cohorts_are_never_below_the_promise_and_near_it(name: str) -> None:
    """Their one accountant of such cohorts is looser than the exact one; it still tells half the noise."""
    plan = make_plan(name)
    sampled = event_of(plan).event
    assert (sampled.sample_size, sampled.source_dataset_size) == (plan.parameters.cohort_size, PROBLEM.users - 1)

    def renyi(event: dp_event.DpEvent) -> float:
        return RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE).compose(event).get_epsilon(1e-3)

    assert 1 < renyi(event_of(plan)) / plan.guarantee.epsilon < 2
    assert renyi(with_half_the_noise(event_of(plan))) > 2.5 * plan.guarantee.epsilon


REPLACED = ("dp-sgd-poisson/replaced", "recentred-sgd")


@pytest.mark.parametrize("name", by_default(REPLACED, ["dp-sgd-poisson/replaced"]))
def test_coins_of_a_replace_one_plan_are_read_under_replace_one(name: str) -> None:
    """Their accountant's pair of values in a ball is that of subsampling#k3: it finds the very promise."""
    plan = make_plan(name)
    event = event_of(plan)
    assert event.event.sampling_probability == 0.1
    assert event.event.event.noise_multiplier == pytest.approx(1 / plan.parameters.round_mu, rel=1e-8)

    def found(event: dp_event.DpEvent) -> float:
        accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE, GRID)
        return accountant.compose(event).get_epsilon(left_of_delta(plan))

    assert 0.99 * plan.guarantee.epsilon < found(event) <= plan.guarantee.epsilon * (1 + 1e-6)
    assert found(with_half_the_noise(event)) > 1.5 * plan.guarantee.epsilon


def test_counts_beside_coins_are_a_part_of_their_rounds() -> None:
    """And all of the promise is spent, neither more nor less."""
    for adjacency, relation in (
        ("zero-out", NeighboringRelation.ADD_OR_REMOVE_ONE),
        ("replace-one", NeighboringRelation.REPLACE_ONE),
    ):
        plan = make_plan("dp-sgd-poisson", None, replace(MIN_COHORT, adjacency=adjacency))
        event, each = event_of(plan), plan.guarantee.min_cohort.each
        together = math.hypot(plan.parameters.round_mu, each)
        assert event.event.event.noise_multiplier == pytest.approx(1 / together, rel=1e-6)
        found = PLDAccountant(relation, GRID).compose(event).get_epsilon(left_of_delta(plan))
        assert 0.99 * plan.guarantee.epsilon < found <= plan.guarantee.epsilon * (1 + 1e-6)


ACCOUNTANTS = {
    (kind, relation): (PLDAccountant(relation, GRID) if kind == "PLD" else RdpAccountant(neighboring_relation=relation))
    for kind in ("PLD", "RDP")
    for relation in NeighboringRelation
}
DEFAULT = ("PLD", NeighboringRelation.ADD_OR_REMOVE_ONE)
SPECIAL = ("PLD", NeighboringRelation.REPLACE_SPECIAL)
RENYI = ("RDP", NeighboringRelation.REPLACE_ONE)


@pytest.mark.parametrize("privacy", [PRIVACY, MIN_COHORT], ids=["alone", "min_cohort"])
@pytest.mark.parametrize("name", list({**dict.fromkeys(ALGORITHMS), **SMALL}))
def test_every_event_is_read_by_accountants_of_others(name: str, privacy: Privacy) -> None:
    """Fixed-size cohorts by Rényi divergences under replace-one, all others by loss distributions by default."""
    plan = make_plan(name, None, privacy)
    laplace = name == "dp-sgd-wor/adaptive" and plan.guarantee.min_cohort is not None
    if plan.algorithm in INEXPRESSIBLE or laplace:
        with pytest.raises(
            UsageError, match=rf"one of {plan.algorithm}: its guarantee rests on {plan.guarantee.theorem}"
        ):
            event_of(plan)
        return
    event = event_of(plan)
    if name.startswith(REPLACED):
        assert ACCOUNTANTS["PLD", NeighboringRelation.REPLACE_ONE].supports(event)
        return
    readers = {key for key, accountant in ACCOUNTANTS.items() if accountant.supports(event)}
    fixed = plan.algorithm in WITHOUT_REPLACEMENT and not plan.parameters.poisson_sampling
    assert readers >= ({RENYI} if fixed else {DEFAULT, SPECIAL})


@pytest.mark.parametrize(
    ("name", "kind", "least", "most"),
    [
        # the exact accountant: all that is promised, and no more
        pytest.param("dp-sgd-poisson", DEFAULT, 0.99, 1 + 1e-6, marks=pytest.mark.slow),
        pytest.param("one-pass-dp-sgd", DEFAULT, 0.99, 1 + 1e-6, marks=pytest.mark.slow),
        # Rényi divergences bound the same from above: never below what it costs, and not far from it
        ("dp-sgd-wor", RENYI, 0.85, 2.0),
    ],
)
def test_with_a_min_cohort_what_others_find_is_about_the_promise(
    name: str, kind: Any, least: float, most: float
) -> None:
    plan = make_plan(name, None, MIN_COHORT)
    accountant = (PLDAccountant if kind[0] == "PLD" else RdpAccountant)(neighboring_relation=kind[1])
    found = accountant.compose(event_of(plan)).get_epsilon(left_of_delta(plan))
    assert least < found / plan.guarantee.epsilon <= most
    halved = (PLDAccountant if kind[0] == "PLD" else RdpAccountant)(neighboring_relation=kind[1])
    assert halved.compose(with_half_the_noise(event_of(plan))).get_epsilon(left_of_delta(plan)) > 1.5 * found


@pytest.mark.parametrize("name", [name for name in SMALL if name.partition("/")[0] in INEXPRESSIBLE])
def test_what_has_no_event_is_refused_with_its_name_and_theorem(name: str) -> None:
    plan = make_plan(name)
    with pytest.raises(UsageError, match=rf"one of {plan.algorithm}: its guarantee rests on {plan.guarantee.theorem}"):
        event_of(plan)


def test_what_is_not_private_or_not_proved_is_not_called_private() -> None:
    assert event_of(make_plan("sgd")) == dp_event.NonPrivateDpEvent()
    info = ALGORITHMS["accelerated-srgd"]
    with pytest.raises(UsageError, match="accelerated-srgd"):
        info.dp_event(info.plan(PROBLEM, PRIVACY, None, "paper", 7))


def test_every_algorithm_is_here() -> None:
    named = {name.partition("/")[0] for name in (*GAUSSIAN, *EVERYBODY, *FIXED_SIZE, *INEXPRESSIBLE)}
    assert named | {"sgd"} == set(ALGORITHMS)
