"""Private bounds: what one user moves, against exact references; calibration and its re-check; what is found."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import VerificationError
from quoron_privacy.histograms import private_bounds
from quoron_privacy.histograms.private_bounds import (
    CELLS,
    CLOSE,
    CLOSER,
    HELD,
    MARKS,
    MISSING,
    NUMBER,
    EstimatedBounds,
    Windows,
    marks,
    of_cells,
)
from quoron_privacy.noise.streams import SeededNoise

anything = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1e308, 5e-324, 4.0, -(4.0**31)])
WHOLE = {"epsilon": 2.0, "delta": 1e-6}


def a_plan(users: int = 1000, columns: int = 3, names: int = 2, share: float = 0.3, **given) -> EstimatedBounds:
    return EstimatedBounds.calibrate(users=users, columns=columns, names=names, share=share, **(WHOLE | given))  # type: ignore[arg-type]


def windows(low: list[float], high: list[float]) -> Windows:
    return Windows(np.array(low), np.array(high), np.ones(len(low)), np.ones(len(low), np.int64))


class TestMarks:
    @given(rows=st.lists(st.tuples(st.integers(0, MISSING), anything), max_size=20), more=st.integers(0, 3))
    def test_a_users_marks_are_its_own_sorted_rows_at_even_places_whatever_others_hold(self, rows, more):
        own = [(MISSING if kind == NUMBER and not math.isfinite(value) else kind, value) for kind, value in rows]
        kept = sorted((kind, value if math.isfinite(value) else math.inf) for kind, value in own)
        at = [kept[math.floor(Fraction(2 * i + 1, 2 * MARKS) * len(kept))] for i in range(MARKS)] if kept else []
        owners = np.array([1] * len(rows) + [0] * more, np.int64)
        values = np.array([value for _, value in rows] + [7.0] * more)
        kinds = np.array([kind for kind, _ in rows] + [0] * more, np.int8)
        numbers, found = marks(values, owners, 2, kinds)
        assert found[1].tolist() == ([kind for kind, _ in at] or [MISSING] * MARKS)
        expected = [value if math.isfinite(value) else math.nan for _, value in at] or [math.nan] * MARKS
        np.testing.assert_array_equal(numbers[1], expected)


@st.composite
def rows_of_a_user(draw, columns: int):
    """Marks of one user, true or not."""
    rows = [
        marks(
            np.array(draw(st.lists(anything, min_size=many, max_size=many)), float),
            np.zeros(many, int),
            1,
            np.array(draw(st.lists(st.integers(-2, 9), min_size=many, max_size=many)), np.int8),
        )
        for many in draw(st.lists(st.integers(0, 9), min_size=columns, max_size=columns))
    ]
    return tuple(np.stack(each, axis=1) for each in zip(*rows, strict=True))


@given(data=st.data(), columns=st.integers(1, 4), adjacency=st.sampled_from(["replace-one", "zero-out"]))
def test_no_user_moves_a_release_by_more_than_its_sensitivity(data, columns, adjacency):
    """In whole numbers: a user's counts are not negative and add up to MARKS a column at most."""
    plan = a_plan(users=3, columns=columns, adjacency=adjacency)
    (mine, own), (other, theirs) = (data.draw(rows_of_a_user(columns)) for _ in range(2))
    around = windows([-1e9, 0.0, 3.0, -(4.0**32)][:columns], [1e9, 1e-12, 3.5, 4.0**32][:columns])
    for counted in (
        lambda numbers, kinds: plan.place_counts(numbers, kinds),
        lambda numbers, _: plan.cell_counts(numbers, around),
        lambda numbers, _: plan.cell_counts(numbers, around, CLOSER),
    ):
        one, two = counted(mine, own), counted(other, theirs)
        assert (one >= 0).all()
        assert (one.sum(axis=1) <= MARKS).all()
        moved = int(((one if adjacency == "zero-out" else one - two) ** 2).sum())
        assert moved <= (1 if adjacency == "zero-out" else 2) * MARKS**2 * columns
        unit = MARKS * math.sqrt(columns) * plan.users
        far = math.sqrt(moved) / unit
        assert far <= plan.releases()[0][0].parameters["sensitivity"]


@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324, math.inf, math.nan, 0.0])
def test_three_hundred_thousand_rows_of_one_user_are_eight_marks_and_leave_all_others_where_they_were(value):
    plan, owners = a_plan(columns=1), np.arange(50)
    alone, _ = marks(owners + 1.0, owners, 50)
    values, flooded = np.r_[owners + 1.0, np.full(300_000, value)], np.r_[owners, np.full(300_000, 7)]
    numbers, kinds = marks(values, flooded, 50)
    np.testing.assert_array_equal(np.delete(numbers, 7, axis=0), np.delete(alone, 7, axis=0))
    assert plan.place_counts(numbers[7:8, None], kinds[7:8, None]).sum() == MARKS
    assert plan.cell_counts(numbers[7:8, None], windows([-1e308], [1e307])).sum() <= MARKS


def test_a_number_counts_in_the_cell_that_exact_arithmetic_says():
    plan, low, high = a_plan(columns=1), 2.0, 10.0
    values = np.array([1.999, 2.0, 2.2499, 2.25, 9.999, 10.0, 10.001, np.nan])
    counts = plan.cell_counts(np.repeat(values[:, None, None], MARKS, axis=2), windows([low], [high]))
    exact = Counter(
        min(math.floor((Fraction(value) - 2) / 8 * CELLS), CELLS - 1) for value in values[:-1] if low <= value <= high
    )
    assert {cell: int(counts[0, cell]) // MARKS for cell in np.flatnonzero(counts[0])} == dict(exact)


class TestCalibration:
    @pytest.mark.parametrize(
        "broken",
        [
            lambda plan: (replace(plan, scales=(0.99 * plan.scales[0], *plan.scales[1:])), {}),
            lambda plan: (replace(plan, scales=(*plan.scales[:3], 0.99 * plan.scales[3])), {}),
            lambda plan: (plan, {"users": 999}),
            lambda plan: (replace(plan, adjacency="zero-out"), {}),
            lambda plan: (replace(plan, tail=1e3 * plan.tail), {}),
            lambda plan: (plan, {"own": DominatingPair.gaussian(gdp.mu_for(**WHOLE))}),
            lambda plan: (plan, {"own": DominatingPair.gaussian(gdp.mu_for(plan.rest_epsilon, 1e-6), 1e-7)}),
        ],
    )
    def test_too_little_noise_or_other_numbers_are_refused(self, broken):
        plan, given_ = broken(a_plan())
        rest = DominatingPair.gaussian(gdp.mu_for(plan.rest_epsilon, 1e-6) * (1 - 1e-9), 1e-40)
        asked = {**WHOLE, "users": 1000, "adjacency": "replace-one", "own": rest} | given_
        a_plan().verify(**({**WHOLE, "users": 1000, "adjacency": "replace-one", "own": rest}))
        with pytest.raises(VerificationError, match="private bounds"):
            plan.verify(**asked)

    @pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
    @pytest.mark.parametrize(("columns", "names"), [(1, 0), (0, 1), (12, 1), (2000, 0), (300, 60)])
    @pytest.mark.parametrize("share", [1e-3, 0.3, 1.0])
    def test_what_is_calibrated_is_verified_and_costs_its_share(self, columns, names, share, adjacency):
        for epsilon, delta in ((0.1, 1e-9), (2.0, 1e-6), (10.0, 1e-3)):
            plan = EstimatedBounds.calibrate(
                users=900, columns=columns, names=names, epsilon=epsilon, delta=delta, share=share, adjacency=adjacency
            )  # type: ignore[arg-type]
            own = (
                DominatingPair.gaussian(gdp.mu_for(plan.rest_epsilon, delta, gaussians=1000), 1e-40)
                if share < 1
                else DominatingPair()
            )
            plan.verify(epsilon, delta, users=900, adjacency=adjacency, own=own)
            both = gdp.compose(plan.mu, own.mu)
            assert plan.mu**2 / both**2 == pytest.approx(share, rel=1e-3)
            assert gdp.delta_for(both, epsilon) == pytest.approx(delta, rel=1e-2)
            mu, variation = plan.charged
            assert mu >= both * (1 - 1e-9)
            assert variation >= plan.variation + own.variation
            assert gdp.delta_for(mu, epsilon) + (1 + math.exp(epsilon)) * variation <= delta


@given(data=st.data(), columns=st.integers(1, 3))
def test_a_window_holds_what_the_bound_says(data, columns):
    """private-bounds#bd2, with z the largest of the noise of any window that was."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    error, many = data.draw(st.sampled_from([0.1, 10.0, 50.0])), 16
    true = random.multinomial(1000, random.dirichlet(np.full(many, 0.2)), size=columns).astype(float)
    noise = error * random.normal(size=true.shape)
    around = Windows(np.zeros(columns), np.ones(columns), np.full(columns, 1000.0), np.full(columns, 1))
    found = of_cells(true + noise, around, error)
    first = np.rint(found.low * many).astype(int)
    for column in range(columns):
        spans = [(start, stop) for start in range(many) for stop in range(start + 1, many + 1)]
        z = max(abs(noise[column, a:b].sum()) / error / math.sqrt(b - a) for a, b in spans)
        size = int(found.bins[column])
        held = true[column, first[column] : first[column] + size].sum()
        for a, b in spans:
            least = min(true[column, a:b].sum(), HELD * 1000)
            assert held >= least - error * ((CLOSE + z) * math.sqrt(b - a) + (z - CLOSE) * math.sqrt(size)) - 1e-6


class TestNames:
    def test_names_of_enough_users_are_shown_and_one_users_own_never(self):
        """One user's is shown with probability 1e-10, one 12 errors above the threshold missed with less."""
        plan = a_plan(users=2000, columns=0, names=2, share=0.3)
        sure = math.ceil((plan.threshold(2) + 12 * plan.errors(columns=0, names=2).names) * MARKS)
        counts = [{"yes": sure, "no": sure + MARKS, "me": MARKS}, {1: sure, 2: MARKS - 3}]
        for seed in range(20):
            shown = plan.release_names(counts, SeededNoise(seed).stream("names"))
            assert [set(each) for each in shown] == [{"yes", "no"}, {1}]
            assert list(shown[0].values()) == sorted(shown[0].values(), reverse=True)

    def test_the_threshold_is_what_the_tail_of_all_lone_names_says(self):
        plan = a_plan(users=500, columns=3, names=7)
        for columns in (1, 7):
            deviation = plan.errors(columns=3, names=columns).names
            lone = columns * MARKS * norm.sf((plan.threshold(columns) - 1) / deviation)
            assert lone == pytest.approx(plan.tail, rel=1e-6)
            assert lone <= plan.tail

    @pytest.mark.parametrize("columns", [1, 2, 3, 60])
    def test_a_label_is_one_of_two_columns_however_many_others_are_named(self, columns):
        plan = a_plan(names=60)
        for label in (None, 0, columns - 1):
            own = private_bounds.weights(columns, label)
            assert 1 - 1e-12 < sum(weight**2 for weight in own) < 1 + 1e-12
            assert max(own) == (own[label] if label is not None else own[0])
        assert plan.threshold(columns, private_bounds.weights(columns, 0)[0]) < 1.2 * plan.threshold(2)
        counts = [{"yes": 10**6, "me": MARKS}, *({"a": 10**7} for _ in range(columns - 1))]
        found = [plan.release_names(counts, SeededNoise(7).stream("n"), label=label) for label in (None, 0)]
        assert [[set(each) for each in shown] for shown in found] == [[{"yes"}, *[{"a"}] * (columns - 1)]] * 2
        errors = [abs(shown[0]["yes"] - 10**6 / MARKS) for shown in found]  # of the same draw
        assert errors[1] <= errors[0] * (1 + 1e-6) * math.sqrt(2 / min(columns, 2) / max(columns / 2, 1))


def test_the_farthest_two_users_use_all_of_it():
    plan = a_plan(users=5, columns=4)
    one, two = (
        plan.place_counts(*(np.stack([each] * 4, axis=1) for each in marks(np.array([value]), np.zeros(1, int), 1)))
        for value in (1.0, 100.0)
    )
    moved = np.linalg.norm(one - two) / (MARKS * math.sqrt(4) * plan.users)
    assert moved == pytest.approx(plan.releases()[0][0].parameters["sensitivity"], rel=1e-9)
