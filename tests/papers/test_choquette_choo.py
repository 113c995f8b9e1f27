"""Accelerated-DP-SRGD as printed: every number and every line against the paper, and what the accountant finds.

Numbers are computed from `choquette_choo_lines`, never from the product's code. Statistical tests raise a false alarm
with probability at most 1e-8 (`audits.harness`).
"""

import math
import re
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from audits.harness import Still, epsilon_lower_bound
from contracts.scenes import Quadratic
from one_epoch_reference import Users, drive
from papers import choquette_choo_lines as lines
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible, RunError, VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.printed.choquette_choo import longest_answer
from quoron_server.plan import Budget, Privacy
from quoron_server.problem import Beliefs, Problem
from quoron_server.rounds import run
from quoron_server.storage.ledger import Ledger
from quoron_server.wording import sentence

INFO = ALGORITHMS["accelerated-srgd"]
PAGE = Path(__file__).parents[2] / "docs/papers/choquette_choo.md"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
PRIVACY = Privacy(1.0, 1e-6)


def problem_of(users, **changed):
    numbers = {"items_per_user": 20, "dimension": 10, "domain": L2Ball(1.0), "lipschitz": 1.0, "smoothness": 1.0}
    return Problem(users=users, **{**numbers, **changed})


@cache
def printed(users, privacy=PRIVACY, problem=None, **options):
    return INFO.plan(problem or problem_of(users), privacy, INFO.printed.options(**options), "paper", 7)


class TestNumbers:
    """Sizes, steps and noise are those of the paper's lines."""

    @pytest.mark.parametrize("users", SIZES)
    @pytest.mark.parametrize("epsilon", [0.5, 4.0])
    @pytest.mark.parametrize(
        ("lipschitz", "smoothness", "radius"), [(1.0, 1.0, 1.0), (2.0, 0.25, 3.0), (0.5, 0.1, 2.0)]
    )
    def test_theorem_14(self, users, epsilon, lipschitz, smoothness, radius):
        constants = {"lipschitz": lipschitz, "smoothness": smoothness, "domain": L2Ball(radius)}
        problem = problem_of(users, **constants)
        p = printed(users, Privacy(epsilon, 1e-6), problem).parameters
        c_m = max(1.0, smoothness * radius / lipschitz)
        batch = math.floor(lines.batch_14(users, 10, smoothness, epsilon))
        assert p.rounds == users // batch
        assert p.batch_size == batch
        assert p.beta == pytest.approx(lines.theorem_14(users, batch, c_m, lipschitz, radius), rel=1e-12)
        noise = lines.corollary_13(c_m, lipschitz, p.rounds, epsilon, 1e-6)
        assert p.node_scale == pytest.approx(noise / (p.batch_size * p.beta), rel=1e-12)
        assert p.noise.scale == pytest.approx(noise / p.batch_size, rel=1e-12)
        assert p.noise.factorisation == "tree"

    @pytest.mark.parametrize(
        ("users", "epsilon", "p_"), [(600_000, 1.0, 10), (1_000_000, 0.01, 1_000), (2_000_000, 4.0, 3)]
    )
    def test_equation_19_and_corollary_9(self, users, epsilon, p_):
        problem = problem_of(users, dimension=p_, lipschitz=2.0, domain=L2Ball(3.0))
        p = printed(users, Privacy(epsilon, 1e-6), problem, realizable=True).parameters
        beta, steps = lines.equation_19(users, p_, 2.0, 3.0, epsilon, 1e-6)
        assert p.rounds == round(steps)
        assert p.batch_size == users // p.rounds
        assert p.beta == pytest.approx(beta, rel=1e-12)
        noise = lines.corollary_9(lines.c_dp(users, 1e-6) * 2.0, p.rounds, epsilon, 1e-6)
        assert p.node_scale * p.batch_size * p.beta == pytest.approx(noise, rel=1e-12)

    def test_open_constants_are_options_and_named(self):
        filled = "; ".join(printed(10_000).parameters.filled_in)
        for constant in ("c_M = 1 ", "polylog(n/B, 1/δ) = 1 ", "log T in σ is the binary one", "rounded to integers"):
            assert constant in filled
        p = printed(10_000, smoothness_ratio=3.0, batch_size=25).parameters
        assert (p.rounds, p.batch_size) == (400, 25)
        assert printed(10_000, batch_size=3_000).schedule.cohorts == (3_000,) * 3
        assert p.beta == pytest.approx(lines.theorem_14(10_000, 25, 3.0, 1.0, 1.0))
        assert "c_M = 3 " in p.filled_in[0]
        small = printed(10_000, polylog=1e5).parameters
        assert small.rounds == 10_000 // math.floor(lines.batch_14(10_000, 10, 1.0, 1.0, 1e5))
        linear = printed(10_000, problem=problem_of(10_000, smoothness=0.0)).parameters
        assert linear.batch_size == 100
        with pytest.raises(ConfigError, match="Expected options of kind PrintedSRGDOptions"):
            INFO.plan(problem_of(10_000), PRIVACY, INFO.options(rounds=3), "paper", 7)

    def test_too_few_users_for_the_printed_steps_name_the_least_n(self):
        with pytest.raises(Infeasible, match=r"T = c_DP n\^\(1/4\)") as refused:
            printed(100_000, realizable=True)
        least = refused.value.users
        assert lines.equation_19(least, 10, 1, 1, 1, 1e-6)[1] <= least + 0.5
        assert lines.equation_19(least - 1, 10, 1, 1, 1, 1e-6)[1] > least - 0.5
        printed(least, realizable=True)
        with pytest.raises(Infeasible, match=f"n >= {least:,}"):  # whose logarithm is 0
            printed(1, realizable=True)
        with pytest.raises(Infeasible, match=f"at most 1,000,000 steps, as with n = {least:,}"):
            printed(10_000_000, realizable=True)
        with pytest.raises(Infeasible, match="makes 1 steps; needs batch_size from 1 to 5,000"):
            printed(10_000, batch_size=6_000)


class TestLines:
    """A run is Algorithm 1, one user and one node of the tree at a time."""

    @staticmethod
    def reference(plan, engine, noise):
        p, project, d = plan.parameters, plan.problem.domain.project, plan.problem.dimension
        sigma_beta = p.node_scale * p.beta
        seeds = [noise.stream("prefix", t).gaussian_steps(d) * (sigma_beta * 2.0**-30) for t in range(p.rounds)]
        order = np.random.Generator(np.random.Philox(key=plan.seed)).permutation(plan.problem.users)
        x = z = before = y = np.zeros(d)
        path, differences = [x], []
        for t in range(p.rounds):
            eta, earlier = t + 1, t
            batch = order[t * p.batch_size : (t + 1) * p.batch_size]
            rows = [
                eta * engine.gradient(user, x) - earlier * engine.gradient(user, before)
                for user in batch
                if user not in engine.absent
            ]
            differences.append(sum(rows) / p.batch_size)
            nabla = sum(differences) / eta
            b = -sum(seeds[last - 1] for last, _ in lines.nodes(t + 1)) / p.beta
            z = project(z - eta / p.beta * nabla + b)
            y = project(x - nabla / p.beta + b / eta)
            tau = (t + 2) / sum(range(1, t + 3))  # η_{t+1}/η_{0:t+1}
            before, x = x, (1 - tau) * y + tau * z
            path.append(x)
        return np.array(path), y

    @pytest.mark.parametrize("noise", [Still(), SeededNoise(3)], ids=["without noise", "with noise"])
    def test_a_run_is_the_printed_loop(self, noise):
        # the projection is active, one in ten is absent, and answers are several times as long as Corollary 12 says
        plan = printed(130, Privacy(8.0, 1e-2), problem_of(130, dimension=3, domain=L2Ball(0.4), smoothness=0.2))
        quick = replace(plan, parameters=replace(plan.parameters, beta=0.25, node_scale=1e-3, longest=1e-3))
        engine = Users(130, 3, absent=range(0, 130, 10))
        algorithm = INFO.printed.maker(quick)
        states = drive(algorithm, engine, noise)
        path, model = self.reference(quick, engine, noise)
        np.testing.assert_allclose([state.x for state in states], path, atol=1e-9)
        np.testing.assert_allclose(algorithm.model(states[-1]), model, atol=1e-9)
        assert len(states) == 12
        assert np.linalg.norm(path[-1]) > 0.1
        assert max(np.linalg.norm(state.x) for state in states) == pytest.approx(0.4, abs=0.02)

    def test_nothing_is_clipped(self):
        plan = printed(1_000)
        plan = replace(plan, problem=replace(plan.problem, domain=Box(1e9)))
        algorithm, far = INFO.printed.maker(plan), 1e3
        values = np.zeros((plan.parameters.batch_size, 10))
        values[0, 0] = far
        answers = Answers(values, np.zeros(len(values), np.uint8))
        after = algorithm.update(algorithm.init(), answers, Still()).state
        assert -after.z[0] * plan.parameters.beta == pytest.approx(far / plan.parameters.batch_size, rel=1e-6)

    def test_the_tree_has_each_round_in_one_node_of_every_level(self):
        """Lemma 8, so that a user of the first round is in 1 + ⌊log T⌋ of them."""
        for rounds in (2, 7, 8, 100):
            found = {node for t in range(1, rounds + 1) for node in lines.nodes(t)}
            first = [node for node in found if node[0] - node[1] < 1 <= node[0]]
            assert len(first) == 1 + int(math.log2(rounds))
            assert {size for _, size in first} == {2**k for k in range(len(first))}
            norm = replace(printed(10_000).parameters, rounds=rounds).noise.column_norm
            assert norm == pytest.approx(math.sqrt(len(first)))


class TestAccountant:
    """What is found for the printed scales is by docs/privacy/srgd.md#sp1."""

    @staticmethod
    def by_theorem(p, problem, delta):
        """srgd#sp1, from its statement: the better of (a) and (b) with p = δ/100."""
        n, d, m, ell, r = p.rounds, problem.dimension, problem.smoothness, problem.lipschitz, problem.radius
        always = ell + 2 * (n - 1) * min(ell, m * r)
        deviation = p.node_scale * p.beta * math.sqrt(max(len(lines.nodes(t)) for t in range(1, n + 1)))
        nu = deviation * (math.sqrt(d) + math.sqrt(2 * math.log(n / (0.01 * delta))))
        mostly = (ell + 4 * m * r + m / p.beta * nu) / (1 - m * (n - 1) / p.beta)
        kappa, scale = math.sqrt(1 + int(math.log2(n))), p.node_scale * p.beta
        found = (
            gdp.epsilon_for(kappa * 2 * c / p.batch_size / scale, left)
            for c, left in ((always, delta), (mostly, 0.99 * delta))
        )
        return min(found)

    @pytest.mark.parametrize("users", SIZES)
    @pytest.mark.parametrize("smoothness", [0.001, 1.0])
    def test_the_epsilon_of_a_plan_is_that_of_the_theorem(self, users, smoothness):
        plan = printed(users, problem=problem_of(users, smoothness=smoothness))
        found = self.by_theorem(plan.parameters, plan.problem, 1e-6)
        assert plan.guarantee.epsilon == pytest.approx(found, rel=1e-4)
        assert (plan.guarantee.adjacency, plan.guarantee.proved) == ("replace-one", False)
        assert "by our accountant; the paper claims ε = 1" in repr(plan)

    def test_no_answer_is_longer_than_the_theorem_says(self):
        """Honest users whose loss is as steep and as curved as can be, sums that are as long as noise may make them."""
        plan = printed(1_000, Privacy(8.0, 1e-2), problem_of(1_000, dimension=2))
        quick = replace(plan.parameters, beta=2.5 * plan.parameters.rounds)
        plan = replace(plan, parameters=quick)

        class Steep:
            """Huber losses of slope 1 and curvature 1, whose centres lie on both sides."""

            longest = 0.0

            def ask(self, question):
                task, rows = question.task, []
                for centre in np.random.default_rng(question.round).choice([-0.9, 0.9], (len(question.cohort), 2)):
                    parts = [
                        w * (x - centre) / max(1.0, np.linalg.norm(x - centre))
                        for w, x in zip(task.weights, task.points, strict=True)
                    ]
                    rows.append(sum(parts))
                self.longest = max(self.longest, *np.linalg.norm(rows, axis=1))
                return Answers(np.array(rows), np.zeros(len(rows), np.uint8))

        always, mostly = longest_answer(quick, plan.problem, 1e-4)
        engine = Steep()
        for seed in range(5):
            drive(INFO.printed.maker(plan), engine, SeededNoise(seed))
        assert 1.0 < engine.longest <= min(always, mostly)

    @pytest.mark.parametrize("rounds", [2, 1_000, 100_000])
    def test_the_longest_answer_counts_what_floats_and_the_grid_round(self, rounds):
        """A user's 2T + 1 roundings of a gradient, T contributions on a grid of σβ/2³⁰ and as many predictions."""
        plan = printed(10_000)
        scale, beta, d, m = plan.parameters.node_scale * plan.parameters.beta, 2.0 * rounds, 10, 1.0
        p = replace(plan.parameters, rounds=rounds, beta=beta, node_scale=scale / beta)
        row = math.sqrt(max(len(lines.nodes(t)) for t in range(1, rounds + 1)))
        nu = scale * row * (math.sqrt(d) + math.sqrt(2 * math.log(rounds / 1e-8)))
        nu += scale * math.sqrt(d) * 2.0**-30 * (rounds / 2 + row * 1.5 * math.sqrt(rounds))
        own = 1 + (2 * rounds + 1) * 2.0**-52
        always, mostly = longest_answer(p, plan.problem, 1e-8)
        assert own + 2 * (rounds - 1) <= always < 2.001 * rounds
        longest = (own + 4 * m + m / beta * nu) / (1 - m * (rounds - 1) / beta)
        assert longest <= mostly < 1.001 * longest

    def test_corollary_9_would_be_worth_more_than_it_claims_and_the_plan_says_how_much(self):
        p = printed(1_000_000, realizable=True).parameters
        levels = 1 + int(math.log2(p.rounds))
        mu = math.sqrt(levels) / lines.corollary_9(1.0, p.rounds, 1.0, 1e-6)
        worth = gdp.epsilon_for(mu, 5e-7)
        assert 1.15 < worth < 1.35
        assert any(f"worth ε = {worth:.3g} and not 1 (zero-out, at δ/2)" in said for said in p.void)

    def test_lemma_7_is_void_where_beta_is_below_c_dp_times_the_smoothness(self):
        c = lines.c_dp(1_000_000, 1e-6)
        for smoothness, holds in ((0.99 * c, True), (1.01 * c, False)):  # β = c_DP² L/R with L = R = 1
            p = printed(1_000_000, problem=problem_of(1_000_000, smoothness=smoothness), realizable=True).parameters
            assert holds != any("Lemma 7 takes β >= c_DP M" in said for said in p.void)

    def test_corollary_13_is_enough_for_lemma_8(self):
        for users in SIZES:
            p = printed(users).parameters
            mu = math.sqrt(1 + int(math.log2(p.rounds))) * 12 / lines.corollary_13(1.0, 1.0, p.rounds, 1.0, 1e-6)
            assert 0.3 < gdp.epsilon_for(mu, 5e-7) < 1
            assert not any("Corollary 9" in said for said in p.void)

    BROKEN: ClassVar = {
        "half the noise": lambda p: replace(p, node_scale=p.node_scale / 2),
        "a smaller batch": lambda p: replace(p, batch_size=p.batch_size // 2),
        "overlapping batches": lambda p: replace(p, batch_size=p.batch_size + 1),
        "more steps": lambda p: replace(p, rounds=4 * p.rounds, batch_size=p.batch_size // 4),
        "no noise": lambda p: replace(p, node_scale=1e-30),
    }

    @pytest.mark.parametrize("how", BROKEN)
    def test_a_broken_plan_is_refused(self, how):
        plan = printed(10_000)
        INFO.verify(plan)
        with pytest.raises((VerificationError, ConfigError)):
            INFO.make(replace(plan, parameters=self.BROKEN[how](plan.parameters)))

    def test_a_plan_that_promises_less_is_refused(self):
        plan = printed(10_000)
        less = replace(plan.guarantee, epsilon=plan.guarantee.epsilon * 0.999)
        with pytest.raises(VerificationError, match="Expected epsilon of at least"):
            INFO.verify(replace(plan, guarantee=less))
        with pytest.raises(VerificationError, match="prove nothing"):
            INFO.verify(replace(plan, guarantee=replace(plan.guarantee, proved=True)))

    def test_numbers_that_no_theorem_covers_promise_nothing_and_run(self):
        """A tenth of β, so that answers feed on each other."""
        problem = problem_of(10_000, smoothness=1e4)
        plan = printed(10_000, Privacy(15.0, 1e-2), problem, smoothness_ratio=1e-3)
        assert plan.guarantee.epsilon == math.inf
        assert "no theorem of ours covers these numbers" in plan.parameters.void[-1]
        assert "our accountant finds: no guarantee" in sentence(plan.guarantee)
        INFO.make(plan)


class TestRuns:
    """Audits, bits and stores of whole runs."""

    ROUNDS, EPSILON, DELTA = 8, 4.0, 1e-2
    FEWER = 1 / 15  # of the printed noise, which is made for answers 12 long: here they are 1 long

    def plan(self, runs=1):
        """Linear losses of slope 1: Δ_t(u) is the slope in every round, so that srgd#sp1 (a) is exact."""
        problem = problem_of(16, dimension=runs, domain=Box(1e9), smoothness=0.0)
        p = printed(16, Privacy(self.EPSILON, self.DELTA), replace(problem, dimension=1), batch_size=2)
        assert p.parameters.rounds == self.ROUNDS
        quieter = replace(p.parameters, node_scale=p.parameters.node_scale * self.FEWER)
        return replace(p, problem=problem, parameters=quieter)

    def promised(self):
        plan = self.plan()
        return INFO.printed.epsilon(plan.parameters, plan.problem, self.DELTA)

    def found(self, noise_factor=1.0, moment=0):
        """What the observer of all points learns of a user whose slope is 1 or -1; one run a coordinate."""
        plan, runs = self.plan(80_000), 80_000
        numbers = replace(plan.parameters, node_scale=plan.parameters.node_scale * noise_factor)
        wide = replace(plan, parameters=numbers)
        tree = np.array([[float(t - k < (t + 1 & -(t + 1))) if k <= t else 0.0 for k in range(8)] for t in range(8)])

        def world(own, seed):
            class Others:
                def ask(self, question):
                    rows = np.zeros((2, runs))
                    rows[0] = own * (question.round == moment)
                    return Answers(rows, np.zeros(2, np.uint8))

            def draw(_):
                states = drive(INFO.printed.maker(wide), Others(), SeededNoise(seed))
                sums = numbers.beta * -np.array([after.z - before.z for before, after in pairwise(states)])
                added = np.diff(sums, axis=0, prepend=0.0)
                return tree[:, moment] @ (tree @ added)

            return draw

        return epsilon_lower_bound(world(1.0, 5), world(-1.0, 6), delta=self.DELTA, draws=runs)

    def test_an_audit_finds_no_more_than_the_accountant(self):
        promised = self.promised()
        assert 0.6 * promised < self.found() <= promised
        assert self.found(moment=5) <= promised

    def test_the_audit_catches_half_the_noise(self):
        assert self.found(0.5) > self.promised()

    def test_the_ledger_equals_the_plan_and_the_seed_gives_the_bits(self, tmp_path):
        plan = printed(2_400, Privacy(8.0, 1e-3), problem_of(2_400, dimension=3, items_per_user=4))
        models = []
        for name in ("one", "other"):
            ledger = Ledger.create(tmp_path / name, plan="{}", config_digest="c", noise_key=b"11")
            with ledger:
                models.append(
                    run(INFO.make(plan), Quadratic(), ledger, SeededNoise(11), budget=Budget(), simulation=True)
                )
                spent, releases = ledger.spent(), ledger.releases()
            assert spent["rounds"] == plan.cost.rounds == len(releases)
            assert spent["users"] == plan.cost.messages
            assert spent["gradient_evaluations"] == plan.cost.gradient_evaluations
            assert all(entry == plan.parameters.entry() for _, entry in releases)
        np.testing.assert_array_equal(*models)

    def test_a_run_that_stops_goes_on_to_the_same_bits(self, tmp_path):
        plan, models = printed(240, Privacy(8.0, 1e-2), problem_of(240, dimension=3)), []

        class Stops(Quadratic):
            def ask(self, question):
                if question.round == 7:
                    raise RunError("Stopped.")
                return super().ask(question)

        for name, engines in (("whole", [Quadratic()]), ("stopped", [Stops(), Quadratic()])):
            Ledger.create(tmp_path / name, plan="{}", config_digest="c", noise_key=b"11").close()
            for engine in engines:
                with Ledger.open(tmp_path / name) as ledger, suppress(RunError):
                    algorithm, noise = INFO.make(plan), SeededNoise(11)
                    models.append(run(algorithm, engine, ledger, noise, budget=Budget(), simulation=True))
        np.testing.assert_array_equal(*models)

    def test_what_users_send_may_be_no_number(self):
        plan = printed(2_400, Privacy(8.0, 1e-3), problem_of(2_400, dimension=3))

        def broken(values, status):
            values[0], values[1] = np.nan, 1e300

        algorithm = INFO.make(plan)
        states = drive(algorithm, Quadratic(broken), SeededNoise(1))
        assert np.isfinite(algorithm.model(states[-1])).all()

    def test_it_is_for_simulations_only(self, tmp_path):
        plan = printed(2_400)
        with pytest.raises(ConfigError, match="calibrated constants"):
            plan.require_deployable(trust_clients=True)
        assert INFO.gaussian(plan) is None


def test_the_printed_potential_grows_without_noise_and_falls_with_the_halved_step():
    """Lemma 4 with Q = b = 0 says that Φ_t = η_{0:t-1} (F(y_t) - F*) + 2β ‖z_t - x*‖² never grows."""
    curvature, best, beta = np.array([1.0, 0.63696169]), np.array([-0.13210486, 0.64042265]), 1.01

    def growth(step, weight):
        """The largest growth of η_{0:t-1} (F(y_t) - F*) + weight β ‖z_t - x*‖² with z-steps of `step` η_t/β."""
        x = z = y = np.zeros(2)
        potentials, total = [], 0.0
        for t in range(30):
            potentials.append(total * curvature @ (y - best) ** 2 / 2 + weight * beta * np.sum((z - best) ** 2))
            gradient, eta, tau = curvature * (x - best), t + 1, 2 / (t + 3)
            z, y = z - step * eta / beta * gradient, x - gradient / beta
            x, total = (1 - tau) * y + tau * z, total + eta
        return np.diff(potentials).max()

    assert growth(1.0, 2.0) > 5e-4  # Algorithm 1
    assert growth(0.5, 2.0) > 1e-8  # the step of the proof, with the printed potential
    assert growth(0.5, 1.0) < 0  # the recommended version: docs/privacy/srgd.md#u1
    assert growth(0.25, 2.0) < 0


class TestPage:
    """Tables of docs/papers/choquette_choo.md, computed again."""

    OPTIMUM = np.full(10, 0.5 / math.sqrt(10))

    class Population:
        """User u's loss is ½ ‖x - c_u‖², c_u half a radius around the optimum."""

        def __init__(self, seed):
            self.random = np.random.default_rng(seed)

        def ask(self, question):
            around = self.random.standard_normal((len(question.cohort), 10))
            centres = TestPage.OPTIMUM + 0.5 * around / np.linalg.norm(around, axis=1, keepdims=True)
            task = question.task
            values = sum(weight * (x - centres) for weight, x in zip(task.weights, task.points, strict=True))
            return Answers(values, np.zeros(len(centres), np.uint8))

    @staticmethod
    def problem(users):
        beliefs = Beliefs(gradient_deviation=0.5, curvature="isotropic", typical_curvature=1.0, distance=0.5)
        return problem_of(users, items_per_user=1, lipschitz=2.0, beliefs=beliefs)

    def excess(self, plan):
        algorithm, found = INFO.make(plan), []
        for seed in range(3):
            model = algorithm.model(drive(algorithm, self.Population(seed), SeededNoise(seed))[-1])
            found.append(np.sum((model - self.OPTIMUM) ** 2) / 2)
        return float(np.mean(found))

    def theorem_14(self, users):
        problem, row = self.problem(users), [users]
        for constants in ("paper", "calibrated"):
            plan = INFO.plan(problem, PRIVACY, None, constants, 7)
            p = plan.parameters
            batch = p.batch_size if constants == "paper" else p.cohort_size
            row += [p.rounds, batch, p.beta, p.noise.scale * p.noise.factors.row_norms[-1] / p.rounds]
            row += [plan.guarantee.epsilon] if constants == "paper" else []
            row.append(self.excess(plan))
        return row

    @staticmethod
    def equation_19(users):
        beta, steps = lines.equation_19(users, 10, 2.0, 1.0, 1.0, 1e-6)
        return [users, lines.c_dp(users, 1e-6), steps, users / steps, beta]

    @staticmethod
    def claims(rounds, claimed):
        levels = 1 + int(math.log2(rounds))
        scales = (
            lines.corollary_9(1.0, rounds, claimed, 1e-6),
            lines.corollary_9(1.0, rounds, claimed, 1e-6, math.log),
            lines.corollary_13(1.0, 1.0, rounds, claimed, 1e-6) / 12,
        )
        return [rounds, claimed, *(gdp.epsilon_for(math.sqrt(levels) / scale, 5e-7) for scale in scales)]

    def tables(self):
        """The rows of each table, in the order of the page."""
        yield [self.theorem_14(users) for users in SIZES]
        yield [self.equation_19(users) for users in SIZES]
        yield [self.claims(rounds, claimed) for claimed in (1.0, 4.0) for rounds in (2, 8, 1024)]

    def test_every_number_of_the_page_is_computed(self):
        digits = r"[\d,.]+(?:e[+-]?\d+)?"
        written = re.findall(rf"^\| {digits} (?:\| {digits} )+\|$", PAGE.read_text(), re.MULTILINE)
        numbers = [[float(cell.replace(",", "")) for cell in row.strip("| ").split(" | ")] for row in written]
        computed = [row for table in self.tables() for row in table]
        assert len(numbers) == len(computed)
        for row, expected in zip(numbers, computed, strict=True):
            assert row == pytest.approx(expected, rel=0.02)  # three digits on the page

    def test_where_equation_19_can_be_carried_out(self):
        for users, batch in ((589_716, 1.0), (754_716_769, 100.0)):
            assert users / lines.equation_19(users, 10, 1, 1, 1, 1e-6)[1] == pytest.approx(batch, rel=1e-5)
        text = " ".join(PAGE.read_text().split())
        with pytest.raises(Infeasible) as refused:
            printed(1_000, realizable=True)
        assert f"Below n = {refused.value.users:,} there" in text
        plan = INFO.plan(self.problem(1_000_000), PRIVACY, INFO.printed.options(realizable=True), "paper", 7)
        assert f"the accountant finds ε = {plan.guarantee.epsilon:.2g}" in text
        _, mostly = longest_answer(plan.parameters, plan.problem, 1e-8)
        assert f"answers are at most {mostly:.2f} long" in text
        for users, holds in ((1e28, False), (1e29, True)):
            steps = lines.equation_19(users, 10, 1, 1, 1, 1e-6)[1]
            left = 2 * lines.c_dp(users, 1e-6) * math.sqrt(6 * math.log(24 * steps / 1e-6))
            assert (left <= users**0.25) == holds
