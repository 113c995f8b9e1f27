"""The one-epoch family: the algorithm box, the sensitivity of a round, the noise of all rounds, refused plans."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audits.harness import Still
from contracts.scenes import PRIVACY, PROBLEM, Quadratic
from one_epoch_reference import FAMILY, Users, drive, made, planned, reference, released_sums, strategy
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.errors import VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.prefix.noise import Factorisation
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms import one_epoch as planning
from quoron_server.plan import Privacy

SUMMED = [name for name in FAMILY if name != "accelerated-sgd"]  # their noise is correlated over rounds
every_algorithm = pytest.mark.parametrize("name", FAMILY)

CASES = [(name, how) for name in SUMMED for how in ("blt", "banded", "tree")]


@pytest.mark.parametrize("noise", [Still(), SeededNoise(3)], ids=["without noise", "with noise"])
@pytest.mark.parametrize(("name", "factorisation"), [*CASES, ("accelerated-sgd", "blt")])
def test_each_algorithm_is_its_box(name, factorisation, noise):
    # the clip cuts some users, the projection is active, one in ten is absent
    problem = replace(PROBLEM, users=140, domain=L2Ball(0.4))
    options = {"rounds": 7, "clip_norm": 0.1, "inverse_step": 0.25, "factorisation": factorisation}
    plan = planned(name, problem, **options)
    engine = Users(140, 3, absent=range(0, 140, 10))
    algorithm = made(plan)
    states = drive(algorithm, engine, noise)
    path, model = reference(plan, engine, noise)
    np.testing.assert_allclose([state.iterate for state in states], path, atol=1e-6 * plan.parameters.noise_scale)
    np.testing.assert_allclose(algorithm.model(states[-1]), model, atol=1e-6 * plan.parameters.noise_scale)
    assert np.linalg.norm(path[-1]) > 0.1


@every_algorithm
def test_the_noise_of_every_round_and_between_rounds_is_what_the_factorisation_says(name):
    # 20,000 coordinates are as many runs. A false alarm needs one of 36 covariances 7 standard deviations off.
    runs, rounds = 20_000, 6
    plan = planned(name, replace(PROBLEM, users=12, dimension=runs, domain=Box(1e9)), rounds=rounds)
    p = plan.parameters

    class Nothing:
        def ask(self, question):
            return Answers(np.zeros((len(question.cohort), runs)), np.zeros(len(question.cohort), np.uint8))

    sums = released_sums(plan, drive(made(plan), Nothing(), SeededNoise(8)))
    if p.gradients == "independent":
        factor = np.diag(np.arange(1.0, rounds + 1))
    else:
        factor = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(strategy(p.factorisation, rounds))
    expected = p.noise_scale**2 * factor @ factor.T
    variances = np.diag(expected)
    margin = 7 * np.sqrt((np.outer(variances, variances) + expected**2) / runs)
    assert (np.abs(sums @ sums.T / runs - expected) <= margin).all()


@pytest.mark.parametrize(
    ("rounds", "factorisation", "last_sum", "last_gradient"),
    [
        (16, "banded", 0.01314, 8.21e-4),
        (316, "blt", 0.3869, 1.226e-3),
        (16, "tree", 0.0151, None),
        (316, "tree", 0.401, None),
    ],
)
def test_the_noise_of_online_to_batch_is_what_was_computed_apart(rounds, factorisation, last_sum, last_gradient):
    # n = 100,000, d = 10, epsilon = 1, delta = 1e-6 and the clip L + 4 M R = 5 that no smooth user reaches
    problem = replace(PROBLEM, users=100_000, dimension=10, domain=L2Ball(1.0), smoothness=1.0)
    info = ALGORITHMS["online-to-batch"]
    options = info.options(rounds=rounds, clip_norm=5.0, inverse_step=1.0, factorisation=factorisation)
    p = info.plan(problem, Privacy(1.0, 1e-6), options, "calibrated", 1).parameters
    rows = np.linalg.norm(np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(strategy(factorisation, rounds)), axis=1)
    if last_gradient is None:  # the noise of one node
        assert p.noise_scale == pytest.approx(last_sum, rel=3e-3)
    else:
        assert rows[-1] * p.noise_scale == pytest.approx(last_sum, rel=2e-3)
        assert rows[-1] * p.noise_scale / rounds == pytest.approx(last_gradient, rel=2e-3)


@given(
    beta=st.floats(0.2, 20),
    data=st.lists(st.lists(st.floats(-30, 30), min_size=2, max_size=2), min_size=2, max_size=12),
)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_no_answer_of_online_to_batch_is_longer_than_its_bound(beta, data):
    # weights times distances between neighbouring points stay below 4 R, whatever the sums: no convexity, no smoothness
    domain, radius = L2Ball(1.5), 1.5
    x = z = np.zeros(2)
    for t, summed in enumerate(data):
        z = domain.project(z - np.array(summed) / (2 * beta))
        before, x = x, (1 - 2 / (t + 3)) * x + 2 / (t + 3) * z
        assert (t + 1) * np.linalg.norm(x - before) <= 4 * radius


class TestSeveralEpochs:
    """dp-ftrl goes through its cohorts several times, in one order."""

    @staticmethod
    def planned(**options):
        info = ALGORITHMS["dp-ftrl"]
        options = {"rounds": 11, "epochs": 3, "inverse_step": 5.0} | options
        return info.plan(PROBLEM, PRIVACY, info.options(**options), "calibrated", 7)

    @pytest.mark.parametrize("rounds", [3, 4, 11, 12])
    def test_a_user_is_asked_at_most_k_times_and_its_rounds_are_b_apart(self, rounds):
        plan = self.planned(rounds=rounds)
        p, algorithm = plan.parameters, ALGORITHMS["dp-ftrl"].make(plan)
        state, noise, asked = algorithm.init(), SeededNoise(1), {}
        while (question := algorithm.request(state, noise)) is not None:
            for user in question.cohort.tolist():
                asked.setdefault(user, []).append(question.round)
            answers = Answers(np.zeros((len(question.cohort), 3)), np.zeros(len(question.cohort), np.uint8))
            state = algorithm.update(state, answers, noise).state
        assert max(map(len, asked.values())) <= p.epochs == plan.schedule.participations
        assert all(set(np.diff(rounds)) <= {p.batches} for rounds in asked.values())
        assert (p.noise.participations, p.noise.separation) == (p.epochs, p.batches)

    @pytest.mark.parametrize("name", ["banded", "blt"])
    def test_a_column_norm_that_forgets_returns_does_not_pass_verification(self, name, monkeypatch):
        """Noise and μ of one wrong norm: the second account plays the user's rounds through the stream."""
        plan = self.planned(rounds=9, epochs=3, factorisation=name)
        noise, scale = plan.parameters.noise, plan.parameters.noise_scale
        once = noise.factors.column_norm / noise.column_norm * scale
        plan = replace(plan, parameters=replace(plan.parameters, noise_scale=once))
        monkeypatch.setattr(
            Factorisation, "participation_norm", lambda self, participations, separation: self.column_norm
        )
        with pytest.raises(VerificationError):
            ALGORITHMS["dp-ftrl"].make(plan)

    def test_the_band_is_as_wide_as_the_memory_and_the_store_allow_or_there_is_none(self, monkeypatch):
        """Three columns, 20 cohorts: 19 vectors of 24 bytes."""
        many = {"rounds": 60, "epochs": 3}
        assert self.planned(**many, noise_memory=456).parameters.factorisation == "banded"
        assert self.planned(**many, noise_memory=455).parameters.factorisation == "blt"
        monkeypatch.setattr(planning, "MAX_STATE", 456 + 240)
        assert self.planned(**many, noise_memory=2**29).parameters.factorisation == "banded"
        monkeypatch.setattr(planning, "MAX_STATE", 456 + 239)
        assert self.planned(**many, noise_memory=2**29).parameters.factorisation == "blt"  # which the store takes
        assert self.planned(**many, noise_memory=0, factorisation="banded").parameters.factorisation == "banded"
        assert self.planned(rounds=6, epochs=6, noise_memory=0).parameters.factorisation == "banded"  # it keeps nothing

    def test_steps_along_differences_of_sums_are_those_along_the_sums(self):
        """Inside the domain, momentum zero is plain ftrl."""
        models = []
        for options in ({}, {"optimiser": "momentum", "momentum": 0.0, "suffix": 1}):
            plan = self.planned(inverse_step=500.0, **({"suffix": 1} | options))
            algorithm, noise = ALGORITHMS["dp-ftrl"].make(plan), SeededNoise(1)
            state, engine = algorithm.init(), Quadratic()
            while (question := algorithm.request(state, noise)) is not None:
                state = algorithm.update(state, engine.ask(question), noise).state
            models.append(algorithm.model(state))
        np.testing.assert_allclose(*models, rtol=1e-9)
