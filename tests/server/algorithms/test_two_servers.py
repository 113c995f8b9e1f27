"""Plans and runs of two servers, neither of which sees an answer: docs/privacy/two-servers.md."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, TWO_SERVERS, Quadratic, make, make_plan
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible, RunError, VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import RandomStream, SecureNoise, SeededNoise, StartedNoise
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_privacy.release import Adjacency, NoisySums
from quoron_privacy.two_servers import noise
from quoron_privacy.two_servers.noise import ServerNoise
from quoron_privacy.two_servers.rows import RingSums
from quoron_privacy.two_servers.specification import Block, MechanismSpec, RoundSpec, Servers
from quoron_server.algorithms import ALGORITHMS, two_servers
from quoron_server.algorithms.registered import derived
from quoron_server.algorithms.two_servers import BothServers, WithServers, server_mu, with_second_server
from quoron_server.plan import Privacy, RunPlan
from quoron_server.runs import charge_of
from quoron_server.wording import sentence

TWO = replace(PRIVACY, trust_model="two-servers")
SCENES = list(TWO_SERVERS)
ABLE = [name for name, info in ALGORITHMS.items() if info.guarantees.one_server is None]


def planned(name: str, privacy: Privacy = TWO, **options: Any) -> RunPlan:
    info = ALGORITHMS[name]
    return info.plan(PROBLEMS.get(name, PROBLEM), privacy, info.options(**options), "calibrated", 7)


@pytest.mark.parametrize("name", ABLE)
def test_every_method_without_a_reason_against_it_has_a_plan_that_costs_each_server_what_is_promised(name: str) -> None:
    plan = planned(name)
    ALGORITHMS[name].verify(plan)
    allowed, promise = gdp.mu_for(PRIVACY.epsilon, PRIVACY.delta), ALGORITHMS[name].gaussian(plan)
    assert promise is not None
    assert 0.999 * allowed <= promise.mu <= allowed
    assert charge_of(plan)["epsilon"] == PRIVACY.epsilon  # a lifetime's limit holds against each server
    assert charge_of(plan)["mu"] >= promise.mu
    again = MechanismSpec.read(plan.schedule.spec().as_json())
    assert server_mu(again) == pytest.approx(noise.server_mu(again), rel=1e-6)  # one plays the sampler


def test_a_tiny_epsilon_whose_rows_are_few_steps_long_has_a_plan_that_keeps_both_promises() -> None:
    """A unit is a whole number: of two millions of steps, so that a relative 10⁻⁸ less is not always less."""
    problem = replace(PROBLEM, users=20_000, items_per_user=50)
    for name in ("online-to-batch", "recentred-sgd"):
        for epsilon in (0.05, 0.0213):
            plan = ALGORITHMS[name].plan(problem, Privacy(epsilon, 1e-9, trust_model="two-servers"))
            ALGORITHMS[name].verify(plan)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("name", SCENES)
def test_without_noise_two_servers_release_what_one_does(
    name: str, adjacency: Adjacency, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, units, divisors and the root of two: all of the arithmetic but the noise is the same."""
    base = name.partition("/")[0]
    if adjacency not in ALGORITHMS[base].guarantees.adjacency:
        return
    info, problem = ALGORITHMS[base], make_plan(name).problem
    plan = info.plan(problem, replace(TWO, adjacency=adjacency), info.options(**TWO_SERVERS[name]), "calibrated", 7)
    monkeypatch.setattr(ServerNoise, "of", lambda self, t, *_: np.zeros(self.spec.rounds[t].length, np.uint64))
    monkeypatch.setattr(RandomStream, "gaussian_steps", lambda self, shape: np.zeros(shape, np.int64))
    models = []
    for own in (plan.without("servers"), plan):
        algorithm, noise, engine = ALGORITHMS[base].maker(plan.without("servers")), SeededNoise(11), Quadratic()
        algorithm = algorithm if own is not plan else WithServers(plan, algorithm)
        asked = BothServers(engine, plan, b"11") if own is plan else engine
        state = algorithm.init()
        while (question := algorithm.request(state, noise)) is not None:
            state = algorithm.update(state, asked.ask(question), noise).state
        models.append(algorithm.model(state))
    largest = np.abs(models[0]).max()
    assert largest > 0
    np.testing.assert_allclose(models[1], models[0], rtol=0, atol=1e-3 * largest)


def steps(name: str, noise: Any, chain: bytes = b"c" * 32, total: int = 0) -> np.ndarray:
    """What the first release of a scene is when nobody holds anything, and the helper adds `total` to every number."""
    algorithm = make(name)
    state = algorithm.init()
    question = algorithm.request(state, noise)
    zero = RingSums(np.full(question.reduction.spec.length, total, np.uint64), chain, 0)
    seen: list[np.ndarray] = []
    algorithm.inner.update = lambda state, sums, noise: seen.append(sums.total) or _stop()
    with pytest.raises(StopIteration):
        algorithm.update(state, zero, noise)
    return seen[0]


def _stop() -> None:
    raise StopIteration


def test_the_coordinators_noise_is_that_of_its_key_and_the_lists_and_of_no_start() -> None:
    """A crash does not make a second release of the same list; another list does, and another key."""
    name, source = "one-round-least-squares/two-servers", SecureNoise(b"k" * 32)
    first = steps(name, StartedNoise.fresh(source))
    np.testing.assert_array_equal(steps(name, StartedNoise.fresh(source)), first)
    others = steps(name, source, b"d" * 32), steps(name, SecureNoise(b"l" * 32))
    assert all(np.mean(other == first) < 0.5 for other in others)


def test_whoever_takes_the_helpers_noise_off_is_left_with_a_whole_servers() -> None:
    """Of 400 keys: the deviation of one server's noise is within 8 % of 2³⁰ steps, missed less often than 1e-6."""
    name = "one-round-least-squares/two-servers"
    left = np.concatenate([steps(name, SecureNoise(bytes([i, j]) * 16)) for i in range(1, 21) for j in range(20)])
    assert abs(np.std(left) / 2.0**30 - 1) < 0.08


def test_a_coordinator_that_adds_nothing_is_caught_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_servers, "added", lambda total, own: total)
    assert not steps("one-round-least-squares/two-servers", SecureNoise(b"k" * 32)).any()


def test_a_sum_that_the_helper_brings_to_the_edge_of_the_ring_is_released_with_the_same_noise() -> None:
    """The broken twin clamps, divides or compares before its noise is in, and so says which side a row is on."""
    name, noise = "one-round-least-squares/two-servers", SecureNoise(b"k" * 32)
    plain = steps(name, noise)
    for edge in (2**63 - 1, 2**63, 2**64 - 1):
        moved = steps(name, noise, total=edge).astype(np.uint64) - plain.astype(np.uint64)
        assert (moved == np.uint64(edge)).all()


@pytest.mark.parametrize("make_noise", [lambda: GaussianNoise(1.0, 0.3), lambda: PrefixNoise(3, 1.0, 0.3)])
def test_what_two_servers_release_is_as_loud_as_forecasts_say(make_noise: Any) -> None:
    """Of 20,000 numbers: the deviation is within 4 % of the scale, missed less often than 1e-12; √2 would be 41 %."""
    spec = MechanismSpec((RoundSpec((Block("sums", 20_000, 1, "clipped"),)),))
    both = sum(ServerNoise(bytes([key]) * 32, "", bytes(32), spec).of(0, [b"c" * 32]) for key in (1, 2))
    noised, mechanism = NoisySums.of(both.view(np.int64), 1), make_noise()
    if isinstance(mechanism, PrefixNoise):
        released, _ = mechanism.release(mechanism.start(20_000), noised, SeededNoise(1))
    else:
        released = mechanism.release(noised, SeededNoise(1).stream("release", 0))
    assert abs(np.std(released) / 0.3 - 1) < 0.04


def test_a_sum_without_the_helpers_noise_is_never_made_a_number() -> None:
    name = "tracking-srgd/two-servers"
    algorithm, noise = make(name), SeededNoise(1)
    state = algorithm.init()
    question = algorithm.request(state, noise)
    with pytest.raises(RunError, match="with the noise of both servers, got one without"):
        algorithm.update(state, Quadratic().ask(question), noise)
    answers = Quadratic().ask(question)
    with pytest.raises(RunError, match="got one without"):
        algorithm.update(state, question.reduction.of(answers.values, answers.answered), noise)


def test_nobody_is_asked_through_an_engine_that_sees_answers() -> None:
    plan, engine = make_plan("tracking-srgd/two-servers"), Quadratic()
    with pytest.raises(RunError, match="an engine of two servers"):
        with_second_server(engine, plan, None)
    assert engine.asked == []
    assert isinstance(with_second_server(engine, plan, 3), BothServers)
    engine.hides_answers = True
    assert with_second_server(engine, plan, None) is engine


@pytest.mark.parametrize("name", SCENES)
def test_a_plan_whose_second_noise_was_forgotten_is_refused(name: str) -> None:
    """The broken twin: the plan of one server, whose noise two then halve between them."""
    plan, one = make_plan(name), replace(TWO, trust_model=None)
    info, more = ALGORITHMS[plan.algorithm], {"rate": 1.0} if "mean" in name else {}
    more |= {"parts": True} if "whitened" in name else {}
    whole = info.plan(plan.problem, one, info.options(**TWO_SERVERS[name] | more), "calibrated", 7)
    assert plan.guarantee.servers is not None
    for together in (plan.guarantee.servers.together_epsilon, plan.guarantee.epsilon):
        servers = replace(plan.guarantee.servers, together_epsilon=together)
        twin = replace(plan, parameters=whole.parameters, guarantee=replace(plan.guarantee, servers=servers))
        with pytest.raises(VerificationError):
            ALGORITHMS[plan.algorithm].verify(twin)


@pytest.mark.parametrize("name", ["server_mu", "outsiders_mu"])
@pytest.mark.parametrize("where", [noise, two_servers])
def test_a_plan_keeps_its_promise_by_both_accounts(where: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, honest = make_plan("dp-ftrl/two-servers"), getattr(where, name)
    monkeypatch.setattr(where, name, lambda spec, *part: 1.001 * honest(spec, *part))
    with pytest.raises(VerificationError):
        ALGORITHMS["dp-ftrl"].verify(plan)


def test_server_epsilon_costs_outsiders_nothing_and_a_server_the_root_of_two() -> None:
    """Both numbers stand in the sentence, and the larger one is what is charged."""
    privacy = Privacy(1.0, 1e-6, trust_model="two-servers", server_epsilon=4.0)
    plan = planned("one-round-least-squares", privacy)
    ALGORITHMS[plan.algorithm].verify(plan)
    alone = planned("one-round-least-squares", Privacy(1.0, 1e-6))
    assert plan.guarantee.epsilon == pytest.approx(1.4547, abs=1e-3)  # no more than it costs
    assert plan.parameters.moment_scale == pytest.approx(alone.parameters.moment_scale, rel=1e-5)
    assert "(1.45" in sentence(plan.guarantee)
    assert "(1, 1e-06) against anyone who" in sentence(plan.guarantee)
    assert charge_of(plan)["epsilon"] == plan.guarantee.epsilon
    assert planned("one-round-least-squares", replace(privacy, server_epsilon=1.2)).guarantee.epsilon <= 1.2
    correlated = planned("tracking-srgd", replace(privacy, epsilon=8.0, server_epsilon=12.0, delta=1e-3))
    ALGORITHMS["tracking-srgd"].verify(correlated)
    assert 8 < correlated.guarantee.epsilon <= 12
    with pytest.raises(ConfigError, match="Expected server_epsilon in"):
        replace(privacy, server_epsilon=0.5)
    with pytest.raises(ConfigError, match="Expected server_epsilon in"):
        replace(privacy, trust_model=None)


def test_a_min_cohort_is_counted_exactly_and_costs_nothing_as_both_servers_see_who_answers() -> None:
    plan = planned("tracking-srgd", replace(TWO, min_cohort=0.5, min_cohort_epsilon=0.4), rounds=13)
    ALGORITHMS["tracking-srgd"].verify(plan)
    assert plan.guarantee.min_cohort is not None
    assert plan.guarantee.min_cohort.epsilon == 0
    algorithm, noise, engine = ALGORITHMS["tracking-srgd"].make(plan), SeededNoise(3), Quadratic()
    state = algorithm.init()
    question = algorithm.request(state, noise)
    assert question is not None
    assert not question.attended  # nobody else is told
    state = algorithm.update(state, BothServers(engine, plan, b"3").ask(question), noise).state
    assert not state.ended
    silent = Quadratic(lambda values, status: status.__setitem__(slice(None, None), 1))
    question = algorithm.request(state, noise)
    assert algorithm.update(state, BothServers(silent, plan, b"3").ask(question), noise).state.ended


def test_a_curator_and_secret_samples_are_refused() -> None:
    plan = make_plan("tracking-srgd/two-servers")
    with pytest.raises(VerificationError, match="two servers and clients of their own"):
        ALGORITHMS["tracking-srgd"].verify(plan.as_curated())
    with pytest.raises(Infeasible, match="cohorts that are drawn in secret"):
        planned("dp-sgd-wor", rounds=5, rate=0.1)
    with pytest.raises(ConfigError, match="its private range reads whole histograms"):
        planned("mean-sgd", rounds=5)


def test_a_promise_of_secret_cohorts_is_no_promise_of_two_servers() -> None:
    """The broken twin: amplification by samples that the coordinator draws, claimed against the coordinator."""
    info = ALGORITHMS["dp-sgd-wor"]
    sampled = info.plan(PROBLEM, PRIVACY, info.options(rounds=5, rate=0.1), "calibrated", 7)
    servers = Servers(PRIVACY.epsilon)
    twin = replace(sampled, guarantee=replace(sampled.guarantee, trust_model="two-servers", servers=servers))
    info.verify(sampled)
    with pytest.raises(VerificationError):
        info.verify(twin)
    both = replace(twin, guarantee=replace(twin.guarantee, assumptions=derived(twin)))
    with pytest.raises(VerificationError, match="cohorts that are public"):
        info.verify(both)
