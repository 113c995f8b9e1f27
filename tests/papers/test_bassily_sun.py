"""Bassily & Sun (2023) as printed: numbers and lines against the paper, computed here from its formulas alone.

Formulas are those of the paper's text: "line" is a line of the algorithm that is named, "proof of" a displayed step.
"""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from privacy import first_account
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, RangeReport, VectorReport
from quoron_client.protocol.smoothing import Moreau
from quoron_client.randomisers import RangeBits, SeededRandomness, VectorNoise, rotated_coordinates
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy

CENTRAL, LOCAL = ALGORITHMS["mean-sgd"], ALGORITHMS["local-model"]
DELTA = 1e-6
# users, items of one, columns, ε
SIZES = [
    (1_000, 16, 10, 0.5),
    (10_000, 16, 10, 0.9),
    (100_000, 100_000, 10, 0.9),
    (30_000, 100_000, 100, 0.9),
]


def problem(users, items, dimension, lipschitz=1.0, radius=2.0, smoothness=0.25):
    return problem_of(
        users=users,
        items_per_user=items,
        dimension=dimension,
        domain=L2Ball(radius),
        lipschitz=lipschitz,
        smoothness=smoothness,
    )


@cache
def central(n, m, d, epsilon, **options):
    return CENTRAL.plan(problem(n, m, d), Privacy(epsilon, DELTA), CENTRAL.printed.options(**options), "paper", 7)


@cache
def local_model(n, m, d, epsilon, **options):
    return LOCAL.plan(problem(n, m, d), Privacy(epsilon, DELTA), LOCAL.printed.options(**options), "paper", 7)


def spread_as_printed(m, n, rounds, gamma):
    """Proof of Lemma 5.1: {g_i} is (L √(2 log(8eTn/γ)/m), γ/(4eT))-concentrated; L = 1."""
    return math.sqrt(2 * math.log(8 * math.e * rounds * n / gamma) / m)


def radius_as_printed(tau, n, d, failure):
    """Theorem 4.3, ii: C = τ √log(dn/γ)."""
    return tau * math.sqrt(math.log(d * n / failure))


def bins_as_printed(tau, users, d, failure):
    """Algorithms 2 and 6, line 1: L/τ′ intervals of width 2τ′; proof of Lemma 4.2: τ′ = 10 τ √log(4kd/γ)/√d."""
    length = 2 ** math.ceil(math.log2(d))
    return math.ceil(1 / (10 * tau * math.sqrt(math.log(4 * users * length / failure)) / math.sqrt(length)))


@pytest.mark.parametrize(("n", "m", "d", "epsilon"), SIZES)
def test_numbers_of_algorithm_4_are_those_of_its_lines(n, m, d, epsilon):
    p = central(n, m, d, epsilon).parameters
    c = math.log(n) * math.log(1 / DELTA)  # line 2: c_{n,δ} = Θ(log n log(1/δ))
    rounds = math.floor(n**2 * epsilon**2 / (c**2 * d))  # line 2: T = n²ε²/(c² d)
    assert p.rounds == max(1, rounds)
    step = 2.0 * (d * math.sqrt(m) / (n**1.5 * epsilon**2) + c * math.sqrt(m * d) / (n * epsilon))  # line 2: R/L (…)
    assert p.step_size == pytest.approx(step, rel=1e-12)
    # line 2 and proof of Lemma 5.1: B = nε/((e - 1) √(2T log(2/δ)))
    cohort = math.floor(n * epsilon / ((math.e - 1) * math.sqrt(2 * p.rounds * math.log(2 / DELTA))))
    assert p.cohort_size == cohort
    assert p.round_epsilon == 1.0  # line 2: ε_0 = 1
    assert p.round_delta == pytest.approx(n * DELTA / (2 * p.rounds * cohort), rel=1e-12)  # line 2: δ_0 = nδ/(2TB)
    gamma = 1 / math.sqrt(m * n)  # Lemma 5.1: γ = 1/√(mn), shared out to T rounds: γ/2T
    tau, own = spread_as_printed(m, n, p.rounds, gamma), gamma / (2 * p.rounds)
    assert p.radius == pytest.approx(radius_as_printed(tau, n, d, own), rel=1e-12)
    # Theorem 4.1: σ² = O(τ² log(dn/γ) log(1/δ)/(k² ε²))
    variance = tau**2 * math.log(d * n / own) * math.log(1 / p.round_delta) / cohort**2
    assert p.noise_scale == pytest.approx(math.sqrt(variance), rel=1e-12)
    assert p.bins == bins_as_printed(tau, cohort, d, own)
    assert p.half_width == 1.0


@pytest.mark.parametrize(("n", "m", "d", "epsilon"), SIZES)
def test_numbers_of_algorithm_5_are_those_of_its_lines(n, m, d, epsilon):
    p = local_model(n, m, d, epsilon).parameters
    steps = math.floor(n * epsilon**2 / d)  # line 2: T = nε²/d
    assert p.steps == steps
    assert p.users_a_step == n // steps  # line 5: n_0 = ⌊n/T⌋
    gamma = math.sqrt(d / (m * n * epsilon**2))  # proof of Theorem 3.2
    tau, own = spread_as_printed(m, n, steps, gamma), gamma / (2 * steps)
    assert p.radius == pytest.approx(radius_as_printed(tau, n, d, own), rel=1e-12)
    # Theorem 4.3, iii: σ = C √(8 log(1.25/δ))/ε; clients compute it by themselves from what they are asked
    sigma = p.radius * math.sqrt(8 * math.log(1.25 / DELTA)) / epsilon
    assert p.noise_scale == pytest.approx(sigma, rel=1e-6)
    assert VectorNoise(p.vector_epsilon, p.vector_delta, p.radius).scale(d) == pytest.approx(sigma, rel=1e-6)
    assert p.range_epsilon == epsilon / 2  # Theorem 4.3, i
    assert p.bins == bins_as_printed(tau, p.users_a_step, d, own)
    # Proof of Theorem 3.2: ν² = L²/n_0 + dσ², σ² of the mean; and the steps that stand for those of Lemma 6.1
    nu = math.sqrt(1 / p.users_a_step + d * sigma**2 / p.users_a_step)
    assert p.inverse_step == pytest.approx(
        0.25 + nu * math.sqrt(steps * (steps + 1) * (steps + 2) / 12) / 2.0, rel=1e-6
    )


def test_open_constants_scale_what_they_stand_for():
    usual, other = central(10_000, 16, 10, 0.9), central(10_000, 16, 10, 0.9, rounds_factor=2.0, noise_factor=3.0)
    assert other.parameters.rounds == pytest.approx(usual.parameters.rounds / 4, abs=1)
    assert any("c_{n,δ} = 2 ln n ln(1/δ)" in said for said in other.parameters.filled_in)
    alone = central(10_000, 16, 10, 0.9, noise_factor=3.0).parameters
    assert alone.noise_scale == pytest.approx(3 * usual.parameters.noise_scale, rel=1e-12)
    slow = local_model(10_000, 16, 10, 0.9, step_factor=2.0).parameters.inverse_step - 0.25
    assert slow == pytest.approx(2 * (local_model(10_000, 16, 10, 0.9).parameters.inverse_step - 0.25), rel=1e-12)


class Users:
    """User u's loss is (β/2) ‖x - c_u‖², β = 0.2: an obvious engine."""

    def __init__(self, users, dimension):
        self.centres = 0.3 + 0.1 * np.random.default_rng(5).standard_normal((users, dimension)) / math.sqrt(dimension)

    def gradients(self, point, users):
        return 0.2 * (point - self.centres[users])

    def ask(self, question):
        task, users = question.task, question.cohort
        if isinstance(task, RangeReport | VectorReport):
            rows = self.gradients(task.gradient.points[0], users)
            own = SeededRandomness(13)
            if isinstance(task, RangeReport):
                rotated = rotated_coordinates(rows, task.signs, task.coordinates)
                bits = RangeBits(task.epsilon, task.bins, task.half_width)
                rows = bits.randomise(rotated, own, round=question.round, users=users).astype(np.float64)
            else:
                noise = VectorNoise(task.epsilon, task.delta, task.radius)
                rows = noise.randomise(rows, task.centre, own, round=question.round, users=users)
        else:
            assert (task.weights, task.user_smoothness, task.centre) == ((1.0,), None, None)
            rows = self.gradients(task.points[0], users)
        return Answers(rows, np.zeros(len(rows), np.uint8))


def carried_out(info, plan, engine):
    algorithm, noise = info.make(plan), SeededNoise(3)
    state, asked, entries = algorithm.init(), [], []
    while (question := algorithm.request(state, noise)) is not None:
        asked.append((question, engine.ask(question)))
        update = algorithm.update(state, asked[-1][1], noise)
        state, entries = update.state, [*entries, *update.releases]
    return algorithm.model(state), asked, entries


HADAMARD = np.array([[(-1) ** (i & j).bit_count() for j in range(4)] for i in range(4)]) / 2
SMALL = 500, 4_000_000, 4, 0.9  # so many items that the bins of Algorithms 2 and 6 are several


def test_a_run_of_algorithm_4_is_what_its_lines_say():
    plan, engine = central(*SMALL, rounds_factor=0.2), Users(500, 4)
    p, d, noise = plan.parameters, 4, SeededNoise(3)
    assert p.bins > 1
    assert p.rounds > 1
    model, asked, entries = carried_out(CENTRAL, plan, engine)
    theta, total = np.zeros(d), np.zeros(d)  # line 1
    for t in range(p.rounds):  # line 3
        cohort = noise.stream("cohort", t).subset(500, p.cohort_size)  # line 4
        assert asked[t][0].cohort.tolist() == cohort.tolist()
        assert len(set(cohort.tolist())) == p.cohort_size
        rows = engine.gradients(theta, cohort)  # line 5
        signs = np.where(SeededNoise(plan.seed).stream("public signs", t).bernoulli(0.5, d), 1.0, -1.0)
        rotated, width, stream = rows * signs @ HADAMARD, 2 / p.bins, noise.stream("range", t)
        middles = []
        for j in range(d):  # Algorithm 6, lines 2 to 4
            held = np.clip(np.floor((rotated[:, j] + 1) / width), 0, p.bins - 1)
            cost = [max((held < x).sum(), (held > x).sum()) for x in range(p.bins)]
            chosen = p.crude.choose(np.array([(held == x).sum() for x in range(p.bins)]), stream)
            assert cost[chosen] <= p.cohort_size
            middles.append((chosen + 0.5) * width - 1)
        crude = HADAMARD @ np.array(middles) * signs
        differences = rows - crude  # Algorithm 1, line 2
        shorter = np.minimum(1, p.radius / np.maximum(np.linalg.norm(differences, axis=1, keepdims=True), 1e-300))
        drawn = noise.stream("release", t).gaussian_steps(d) * 2.0**-30 * p.noise_scale
        gradient = crude + (differences * shorter).mean(axis=0) + drawn
        theta = plan.problem.domain.project(theta - p.step_size * gradient)  # line 7
        total = total + theta
    np.testing.assert_allclose(model, total / p.rounds, atol=1e-6)  # line 9
    assert len(asked) == p.rounds
    assert [entry.mechanism for entry in entries[:2]] == ["private-range", "gaussian"]


def test_a_run_of_algorithm_5_is_what_its_lines_say():
    plan, engine = local_model(*SMALL), Users(500, 4)
    p, d = plan.parameters, 4
    assert p.bins > 1
    model, asked, _ = carried_out(LOCAL, plan, engine)
    theta, aggregate, users = np.zeros(d), np.zeros(d), []  # line 1
    for t in range(p.steps):  # line 3
        middle = theta * 2 / (t + 2) + (1 - 2 / (t + 2)) * aggregate  # line 4
        (ranged, bits), (vectors, reports) = asked[2 * t], asked[2 * t + 1]
        assert ranged.cohort.tolist() == vectors.cohort.tolist()  # Algorithm 1: both of X^k
        assert len(ranged.cohort) == 500 // p.steps  # line 5
        users += ranged.cohort.tolist()
        np.testing.assert_allclose(ranged.task.gradient.points[0], middle, rtol=1e-9, atol=1e-9)  # line 6
        np.testing.assert_allclose(vectors.task.gradient.points[0], middle, rtol=1e-9, atol=1e-9)
        votes = np.zeros((4, p.bins))
        for report, group in zip(bits.values, ranged.task.coordinates, strict=True):  # Algorithm 3, lines 2 and 3
            votes[group] += report  # Algorithm 2, line 3
        middles = (votes.argmax(axis=1) + 0.5) * 2 / p.bins - 1  # Algorithm 2, line 4
        middles = np.where(votes.any(axis=1), middles, 0.0)
        crude = HADAMARD @ middles * ranged.task.signs  # Algorithm 3, line 4
        np.testing.assert_allclose(vectors.task.centre, crude, atol=1e-12)
        gradient = reports.values.mean(axis=0)  # line 7: Algorithm 1, line 2
        theta = middle - (t + 1) / (2 * p.inverse_step) * gradient  # line 8
        aggregate = theta * 2 / (t + 2) + (1 - 2 / (t + 2)) * aggregate  # line 9
    np.testing.assert_allclose(model, aggregate, rtol=1e-9)  # line 11
    assert len(set(users)) == len(users)  # fresh batches


class TestWhatOurAccountantFinds:
    @pytest.mark.parametrize(("n", "m", "d", "epsilon"), SIZES[1:3])
    def test_algorithm_4_spends_the_epsilon_that_its_plan_names(self, n, m, d, epsilon):
        plan = central(n, m, d, epsilon)
        p, q = plan.parameters, plan.parameters.cohort_size / (n - 1)
        length = 2 ** math.ceil(math.log2(d))
        choice = 2 * _quantile(1 / (1 + math.exp(-p.range_epsilon / 2))) if p.bins > 1 else 0.0  # private-mean#m1
        mu = math.hypot(math.sqrt(length) * choice, 2 * p.radius / (p.cohort_size * p.noise_scale))
        assert plan.guarantee.epsilon == pytest.approx(first_account.wor_epsilon(q, p.rounds, mu, DELTA), rel=0.02)
        assert (plan.guarantee.proved, plan.guarantee.adjacency) == (False, "replace-one")

    def test_two_reports_of_one_user_spend_more_than_the_paper_claims(self):
        plan = local_model(*SIZES[2])
        assert plan.schedule.participations == 2
        assert 0.9 < plan.guarantee.epsilon <= 1.5 * 0.9
        assert any("1.5 ε in all" in said for said in plan.parameters.void)

    def test_with_too_little_noise_for_any_epsilon_the_plan_says_so_and_runs_in_simulation_only(self):
        plan = central(10_000, 16, 10, 0.9, noise_factor=1e-3)
        assert math.isinf(plan.guarantee.epsilon)
        assert "no ε below 1,000" in plan.parameters.void[-1]
        CENTRAL.make(plan)
        assert plan.parameters.simulation_only()

    def test_a_plan_that_names_less_is_refused(self):
        plan = central(*SIZES[1])
        less = replace(plan, guarantee=replace(plan.guarantee, epsilon=0.9 * plan.guarantee.epsilon))
        with pytest.raises(VerificationError, match="Expected epsilon of at least"):
            CENTRAL.make(less)

    @pytest.mark.parametrize(
        "changed",
        [{"noise_scale": 100.0}, {"radius": 0.01}, {"vector_epsilon": 5.0}, {"vector_delta": 1e4}],
        ids=lambda changed: next(iter(changed)),
    )
    def test_a_plan_whose_clients_add_less_noise_than_it_says_is_refused(self, changed):
        """Clients compute their noise from the (ε, δ) and the radius that they are told."""
        plan = local_model(*SIZES[1])
        p = plan.parameters
        other = replace(p, **{name: factor * getattr(p, name) for name, factor in changed.items()})
        added = VectorNoise(other.vector_epsilon, other.vector_delta, other.radius).scale(10)
        told = gdp.epsilon_for(2 * p.radius / p.noise_scale, DELTA) * 0.99
        assert gdp.epsilon_for(2 * other.radius / added, DELTA) > told
        false = replace(plan, parameters=other, guarantee=replace(plan.guarantee, epsilon=told))
        with pytest.raises(VerificationError, match="Expected epsilon of at least"):
            LOCAL.verify(false)

    @pytest.mark.parametrize("options", [{"range_share": 1e4}, {"noise_factor": 1e-190}], ids=str)
    def test_scales_that_protect_nobody_are_worth_no_epsilon(self, options):
        assert central(*SIZES[2], **options).guarantee.epsilon == math.inf

    def test_a_scale_that_no_noise_has_is_refused(self):
        with pytest.raises(ConfigError, match=r"Expected scale in \(1e-200, 1e200\)"):
            central(*SIZES[2], noise_factor=1e-250)


def _quantile(chance):
    from scipy.special import ndtri

    return float(ndtri(chance))


class TestWhatIsVoid:
    def test_delta_is_far_beyond_what_theorem_3_1_allows(self):
        largest = 10 / (4 * 10_000**2.5 * math.sqrt(16) * 0.9**2)  # Theorem 3.1
        assert any(f"{largest:.2g}" in said for said in central(10_000, 16, 10, 0.9).parameters.void)

    def test_batches_of_algorithm_5_are_too_small_for_its_range_at_every_size(self):
        """Line 2 leaves d/ε² users a step, Lemma 4.2 asks for 4d log(…)/ε²."""
        for size in SIZES:
            assert any("users a step" in said for said in local_model(*size).parameters.void)

    def test_more_rounds_than_plans_have_are_refused_with_what_would_do(self):
        with pytest.raises(Infeasible, match=r"takes [0-9,]+ rounds.*a smaller epsilon or a larger rounds_factor"):
            central(10_000_000, 16, 10, 0.9)
        assert central(10_000_000, 16, 10, 0.9, rounds_factor=30.0).parameters.rounds < 10**6

    def test_a_cohort_of_more_than_all_users_is_refused(self):
        with pytest.raises(Infeasible, match=r"draws [0-9,]+ of 5 users"):
            central(5, 16, 10, 15.0)

    def test_a_loss_whose_slope_jumps_is_smoothed_as_section_6_says(self):
        """β_m = (L/R) √(mnε²/d)."""
        rough = problem(10_000, 16, 10, smoothness=None)
        plan = LOCAL.plan(rough, Privacy(0.9, DELTA), None, "paper", 7)
        parameter = 2 * math.sqrt(10 / (16 * 10_000 * 0.9**2))
        assert plan.parameters.smoothing == pytest.approx(parameter, rel=1e-12)
        algorithm = LOCAL.make(plan)
        question = algorithm.request(algorithm.init(), SeededNoise(1))
        assert question.task.gradient.smoothing == Moreau(plan.parameters.smoothing)


def test_the_printed_step_of_algorithm_5_leaves_the_domain_where_the_repaired_one_does_not():
    plan = local_model(*SIZES[1])
    engine = Users(10_000, 10)
    steep = replace(plan, parameters=replace(plan.parameters, inverse_step=plan.parameters.inverse_step / 300))
    model, _, _ = carried_out(LOCAL, steep, engine)
    assert np.linalg.norm(model) > 2.0


def sized(value):
    """Three digits; large whole numbers with commas."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def table_rows():
    """What the printed constants give at four sizes, beside the calibrated ones: β = ¼, L = 1, R = 2, δ = 10⁻⁶."""
    recentred = ALGORITHMS["recentred-sgd"]
    for size in SIZES:
        n, m, d, epsilon = size
        at, same = [sized(n), sized(m), str(d), f"{epsilon:g}"], [""] * 4
        yield at, "4, printed", *_central_row(central(*size))
        for name, info in (("mean-sgd", CENTRAL), ("recentred-sgd", recentred)):
            yield same, f"`{name}`", *_central_row(_calibrated(info, size))
        yield same, "5, printed", *_local_row(local_model(*size))
        yield same, "`local-model`", *_local_row(_calibrated(LOCAL, size))


def _calibrated(info, size):
    n, m, d, epsilon = size
    try:
        return info.plan(problem(n, m, d), Privacy(epsilon, DELTA), None, "calibrated", 7)
    except Infeasible:
        return None


def _central_row(plan):
    if plan is None:
        return ("infeasible", *("",) * 5)
    p = plan.parameters
    printed = p.filled_in if hasattr(p, "filled_in") else ()
    radius = p.radius if printed else p.first_radius
    noise = p.noise_scale if printed else p.noise_scale * radius
    return sized(p.rounds), sized(p.cohort_size), *map(sized, (p.step_size, radius, noise, plan.guarantee.epsilon))


def _local_row(plan):
    if plan is None:
        return ("infeasible", *("",) * 5)
    p = plan.parameters
    printed = hasattr(p, "filled_in")
    users, radius = p.users_a_step, p.radius if printed else p.first_radius
    noise = (p.noise_scale if printed else p.noise_scale * radius) / math.sqrt(users)
    numbers = 1 / (2 * p.inverse_step), radius, noise, plan.guarantee.epsilon
    return sized(p.steps), sized(users), *map(sized, numbers)


def table_lines():
    """The lines of the page's table."""
    return ["| " + " | ".join((*at, *cells)) + " |" for at, *cells in table_rows()]


def test_the_page_tells_what_the_printed_constants_give_beside_the_calibrated_ones():
    page = (Path(__file__).parents[2] / "docs" / "papers" / "bassily_sun.md").read_text(encoding="utf-8")
    _, _, *told = [line for line in page.splitlines() if line.count("|") == 12]
    assert told == table_lines()
