"""Populations: items are a function of the seed and the user, the optimum is one, and what is amiss is named."""

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from cover import by_default
from quoron.data import Outliers, Synthetic, from_table
from quoron.data.synthetic import divergence, exponential
from quoron.data.table import ExcessLoss, TrainingObjective, auc
from quoron.data.users import fill_normals, fill_uniforms, normals, words
from quoron_client.compute.enforcement import bounded
from quoron_client.compute.work import answer
from quoron_client.data.encoding import Encoding, Range, Signs, read_label
from quoron_client.data.features import Categorical, Numeric
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Absolute, Hinge, Huber, LeastSquares, Linear, Logistic, Loss, SmoothedHinge, Softmax
from quoron_client.protocol.domains import Box, L2Ball, on_boundary
from quoron_client.protocol.questions import AverageGradient
from quoron_privacy.errors import ConfigError, DataError

FAMILIES = ("logistic", "least_squares", "linear")


def population(family="logistic", **changes):
    arguments = {
        "users": 1000,
        "items_per_user": 6,
        "dimension": 4,
        "domain": L2Ball(2.0),
        "signal_norm": 0.8,
        "seed": 7,
    }
    return Synthetic(family=family, **(arguments | changes))


def same(left, right):
    np.testing.assert_array_equal(left.features, right.features)
    np.testing.assert_array_equal(left.labels, right.labels)
    np.testing.assert_array_equal(left.offsets, right.offsets)


class TestItems:
    @pytest.mark.parametrize("family", [*FAMILIES, "a table"])
    @settings(derandomize=True, deadline=None, max_examples=20)
    @given(users=st.lists(st.integers(0, 47), min_size=1, max_size=12), unequal=st.booleans())
    def test_items_do_not_depend_on_who_else_is_asked_or_in_which_order(self, family, users, unequal):
        if family == "a table":
            crowd = clinic(outliers=Outliers(0.4, "shifted"))
        else:
            crowd = population(family, unequal_items=unequal, heterogeneity=0.1, outliers=Outliers(0.3))
        together = crowd.items(np.array(users))
        for slot, user in enumerate(users):
            alone = crowd.items(np.array([user]))
            rows = slice(together.offsets[slot], together.offsets[slot + 1])
            np.testing.assert_array_equal(together.features[rows], alone.features)
            np.testing.assert_array_equal(together.labels[rows], alone.labels)

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("dimension", [1, 2, 33])
    def test_no_item_needs_clipping(self, family, dimension):
        crowd = population(family, dimension=dimension, feature_norm=1.3, heterogeneity=0.4, users=3000)
        batch = crowd.items(np.arange(3000))
        assert batch.features.dtype == np.float32
        assert np.linalg.norm(batch.features.astype(np.float64), axis=1).max() <= 1.3
        same(bounded(batch, crowd.loss), batch)


class TestLaw:
    """Each statistical check has a false alarm below 1e-6."""

    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("logistic", {}),
            ("logistic", {"heterogeneity": 0.7}),
            ("logistic", {"ridge": 0.05, "heterogeneity": 0.3}),
            ("least_squares", {"heterogeneity": 0.4}),
            ("least_squares", {"ridge": 0.1}),
            ("linear", {"heterogeneity": 0.1, "ridge": 0.6}),
        ],
    )
    def test_gradient_vanishes_at_the_optimum_and_deviates_as_the_design_says(self, family, changes):
        crowd = population(family, users=60_000, items_per_user=1, **changes)
        asked = AverageGradient(crowd.optimum[None], (1.0,))
        gradients = answer(crowd.loss, crowd.items(np.arange(60_000)), asked).values
        z = gradients.mean(axis=0) / (gradients.std(axis=0) / np.sqrt(60_000))
        assert np.abs(z).max() < 5.7
        deviation = np.sqrt(gradients.var(axis=0).sum())
        assert crowd.knowledge.beliefs.gradient_deviation == pytest.approx(deviation, rel=0.02)


class TestExcessRisk:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("domain", [L2Ball(2.0), L2Ball(0.3), Box(1.5)])
    @pytest.mark.parametrize("ridge", [0.0, 0.2])
    def test_is_least_at_the_optimum_in_the_domain_and_zero_where_the_best_of_all_is_inside(
        self, family, domain, ridge
    ):
        crowd = population(family, domain=domain, ridge=ridge, heterogeneity=0.1)
        best, held = crowd.optimum, crowd.summary_fields(crowd.optimum)["held_back"]
        assert crowd.excess_risk(best) == held
        without = family == "linear" and ridge == 0  # an infimum; then it is that over the domain
        assert (held == 0.0) == (without or not on_boundary(domain, best))
        rng = np.random.default_rng(0)
        for scale in (1e-6, 1e-3, 1.0):
            for _ in range(20):
                other = domain.project(best + scale * rng.standard_normal(4))
                assert crowd.excess_risk(other) >= held - 1e-15
                assert crowd.excess_risk(other) > 0 or np.array_equal(other, best)

    @pytest.mark.parametrize("family", ["logistic", "least_squares"])
    def test_is_the_same_in_every_domain(self, family):
        """A bound moves the best model that it lets in, and not what a model is compared with."""
        narrow, wide = population(family, domain=L2Ball(0.3)), population(family, domain=L2Ball(9.0))
        for model in (np.zeros(4), narrow.optimum, np.array([0.1, 0.1, -0.2, 0.05])):
            assert narrow.excess_risk(model) == pytest.approx(wide.excess_risk(model), rel=1e-9)
        (said,) = narrow.summary_fields(narrow.optimum)["remarks_simulation_only"]
        assert f"costs an excess risk of {narrow.excess_risk(narrow.optimum):.2g}" in said
        assert wide.summary_fields(wide.optimum)["remarks_simulation_only"] == ()

    @pytest.mark.parametrize(
        ("heterogeneity", "ridge", "radius"),
        by_default([(0, 0, 9.0), (0.8, 0, 9.0), (0.8, 0.05, 9.0), (0.5, 0, 1.0)], [(0.8, 0.05, 9.0), (0.5, 0, 1.0)]),
    )
    def test_logistic_matches_a_slow_reference_in_the_plane(self, heterogeneity, ridge, radius):
        # Features on a circle: expectations over two angles by the trapezoidal rule, labels integrated out.
        crowd = population(
            dimension=2, signal_norm=2.0, domain=L2Ball(radius), heterogeneity=heterogeneity, ridge=ridge
        )
        angles = 2 * np.pi * np.arange(720) / 720
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        own = crowd.signal + heterogeneity * circle  # (users, 2)
        chances = expit(circle @ own.T).mean(axis=1)

        def risk(x):
            scores = circle @ x
            losses = chances * np.logaddexp(0, -scores) + (1 - chances) * np.logaddexp(0, scores)
            return losses.mean() + 0.5 * ridge * x @ x

        best = crowd.optimum
        grid = np.linspace(0, min(2.0, radius), 4001)
        along = grid[np.argmin([risk(c * crowd.signal / 2.0) for c in grid])]
        assert np.linalg.norm(best) == pytest.approx(along, abs=6e-4)
        for offset in ([0.5, -0.2], [-0.05, 0.02], [-1.0, -1.0]):
            other = crowd.domain.project(best + np.array(offset))
            found = crowd.excess_risk(other) - crowd.excess_risk(best)
            assert found == pytest.approx(risk(other) - risk(best), rel=1e-9)

    def test_divergence_is_accurate_in_relative_terms_at_every_size(self):
        rng = np.random.default_rng(1)
        nodes, weights = np.polynomial.legendre.leggauss(200)
        t, best = (nodes + 1) / 2, 4 * rng.standard_normal(2_000)
        for scale in (1e-9, 1e-6, 1e-3, 3e-2, 1.0, 10.0):
            gap = scale * rng.standard_normal(2_000)
            # reference: gap^2 times the integral of (1 - t) sigmoid'(b + t gap), every term positive
            s = expit(best[:, None] + gap[:, None] * t)
            expected = gap**2 * ((s * (1 - s) * (1 - t)) @ (weights / 2))
            np.testing.assert_allclose(divergence(best, gap), expected, rtol=1e-6, atol=1e-15)

    @pytest.mark.parametrize(
        ("family", "domain"), [("least_squares", L2Ball(0.5)), ("linear", L2Ball(2.0)), ("linear", Box(0.4))]
    )
    def test_closed_forms_match_the_average_over_many_items(self, family, domain):
        crowd = population(family, domain=domain, users=50_000, items_per_user=4, label_noise=0.0)
        batch = crowd.items(np.arange(50_000))
        other = domain.project(np.array([0.3, -0.2, 0.1, 0.4]))
        losses = [crowd.loss.value(batch.features.astype(np.float64) @ x, batch.labels) for x in (other, crowd.optimum)]
        # 200,000 items: false alarm < 1e-6
        error = np.std(losses[0] - losses[1]) / np.sqrt(len(losses[0]))
        found = crowd.excess_risk(other) - crowd.excess_risk(crowd.optimum)
        assert abs(found - np.mean(losses[0] - losses[1])) < 6 * error

    def test_a_box_that_cuts_off_a_logistic_optimum_is_refused(self):
        with pytest.raises(ConfigError, match="Expected the optimum inside the box"):
            population(domain=Box(0.1)).excess_risk(np.zeros(4))


def quadratic(**changes):
    arguments = {"users": 20_000, "items_per_user": 2, "dimension": 5, "domain": L2Ball(2.0), "seed": 7, "flat": 0.05}
    return Synthetic(family="quadratic", **(arguments | changes))


@pytest.mark.parametrize("changes", [{}, {"ridge": 0.1}, {"heterogeneity": 0.2, "steep": 3.0}])
def test_the_gradient_vanishes_at_the_optimum_and_deviates_as_declared(changes):
    # 40,000 items: false alarm below 1e-6
    crowd = quadratic(**changes)
    gradients = answer(crowd.loss, crowd.items(np.arange(20_000)), AverageGradient(crowd.optimum[None], (1.0,))).values
    z = gradients.mean(axis=0) / (gradients.std(axis=0) / np.sqrt(20_000))
    assert np.abs(z).max() < 5.7
    known = crowd.knowledge.beliefs
    between = np.sqrt(gradients.var(axis=0).sum())
    within = np.sqrt(known.gradient_deviation**2 - known.heterogeneity**2)
    assert np.hypot(within / np.sqrt(2), known.heterogeneity) == pytest.approx(between, rel=0.02)


def test_the_optimum_is_in_the_flat_directions_and_the_excess_is_the_quadratic():
    crowd = quadratic()
    assert crowd.optimum[0] == 0.0
    assert np.linalg.norm(crowd.optimum) == pytest.approx(1.0)
    apart = np.array([0.1, -0.2, 0.05, 0.0, 0.3])
    expected = (apart[0] ** 2 + 0.05 * np.sum(apart[1:] ** 2)) / 2
    assert crowd.excess_risk(crowd.optimum + apart) == pytest.approx(expected, rel=1e-12)
    assert crowd.excess_risk(crowd.optimum) == 0.0


RULES = {each.name for each in fields(Encoding)}
FEATURES = (Numeric("age", 0, 100), Categorical("ward", ("A", "B")))


def visits(rows=400, users=60, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, rows)
    ward = rng.choice(["A", "B", "C"], rows)
    chance = 1 / (1 + np.exp(-(age - 50) / 20 - (ward == "A")))
    who = np.concatenate([np.arange(users), rng.integers(0, users, rows - users)])
    return pd.DataFrame(
        {"who": [f"p{u:03d}" for u in who], "age": age, "ward": ward, "sick": (rng.random(rows) < chance).astype(int)}
    )


def clinic(frame=None, **changes):
    loss, label = changes.pop("loss", Logistic()), changes.pop("label", "sick")
    label = read_label(label) if isinstance(label, str) else label
    said = {name: changes.pop(name) for name in [*changes] if name in RULES}
    rules = Encoding(**{"features": FEATURES, "label": label, "feature_norm": loss.feature_norm} | said)
    given = {"user": "who", "domain": L2Ball(5.0)} | changes
    return from_table(visits() if frame is None else frame, rules, loss=loss, **given)


class TestEncoding:
    @pytest.mark.parametrize("normalize", [False, True])
    @pytest.mark.parametrize("norm", [1.0, 0.3])
    def test_rows_are_within_the_feature_norm_so_enforcement_changes_nothing(self, normalize, norm):
        crowd = clinic(normalize=normalize, loss=Logistic(feature_norm=norm))
        batch = crowd.items(np.arange(crowd.users))
        norms = np.linalg.norm(batch.features.astype(np.float64), axis=1)
        assert batch.features.dtype == np.float32
        assert norms.max() <= norm
        assert not normalize or norms.min() > norm * (1 - 1e-6)
        np.testing.assert_array_equal(bounded(batch, crowd.loss).features, batch.features)


class TestOptimum:
    @pytest.mark.parametrize(
        ("loss", "tolerance"),
        [
            (Logistic(), 1e-9), (Logistic(ridge=0.1), 1e-9), (LeastSquares(), 1e-9), (Huber(threshold=0.3), 1e-9),
            (SmoothedHinge(width=0.5), 1e-9), (Hinge(), 5e-4), (Absolute(), 5e-4), (Linear(), 1e-9),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("domain", [L2Ball(0.7), L2Ball(20.0), Box(0.5)])
    def test_no_other_point_of_the_domain_is_better(self, loss, tolerance, domain):
        regression = {"label": Range("sick", -1, 1)} if hasattr(loss, "label_bound") else {}
        crowd = clinic(loss=loss, domain=domain, **regression)
        best, held = crowd.optimum, crowd.summary_fields(crowd.optimum)["held_back"]
        np.testing.assert_allclose(domain.project(best), best, atol=1e-12)
        rng = np.random.default_rng(3)
        for scale in (1e-3, 0.1, 3.0):
            for _ in range(30):
                other = domain.project(best + scale * rng.standard_normal(len(best)))
                assert crowd.excess_risk(other) >= held - tolerance
        assert abs(crowd.excess_risk(best) - held) <= tolerance

    def test_matches_a_slow_reference(self):
        crowd = clinic()
        batch = crowd.training

        def risk(x):
            losses = np.logaddexp(0, -batch.labels * (batch.features.astype(np.float64) @ x))
            return np.mean([losses[a:b].mean() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)])

        slow = minimize(
            risk,
            np.zeros(crowd.dimension),
            method="Nelder-Mead",
            options={"xatol": 1e-7, "fatol": 1e-13, "maxiter": 5000},
        )
        np.testing.assert_allclose(crowd.optimum, slow.x, atol=1e-4)
        other = np.array([0.3, -0.1, 0.5, 0.0])
        assert crowd.excess_risk(other) == pytest.approx(risk(other) - risk(crowd.optimum), rel=1e-9)


class TestErrors:
    def test_a_declared_user_without_items_is_refused(self):
        who = pd.Categorical(visits().who, categories=[*sorted(visits().who.unique()), "ghost", "spectre"])
        with pytest.raises(DataError, match="got declared users without any"):
            clinic(visits().assign(who=who))

    def test_a_split_that_leaves_nobody_to_train_on_is_refused(self):
        with pytest.raises(DataError, match="Expected a user to train on"):
            clinic(visits().assign(who="p"), test_fraction=0.9)

    def test_messages_hold_no_users_data(self):
        frame = visits().assign(who=lambda f: ("secret-" + f.who).astype(object))
        frame.loc[[3, 9], "who"] = None
        with pytest.raises(DataError) as caught:
            clinic(frame)
        assert "secret" not in str(caught.value)


MASK = 0xFFFFFFFF


def philox_reference(counter, key):
    """Salmon et al. 2011, in plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


@pytest.mark.parametrize(
    ("block", "user", "purpose", "seed", "expected"),
    [
        (0, 0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (MASK, -1, MASK, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x243F6A88, 0x13198A2E85A308D3, 0x03707344, 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_words_are_the_published_known_answers_of_philox(block, user, purpose, seed, expected):
    found = words(seed=seed, purpose=purpose, users=np.array([user]), block=block)[0]
    assert [f"{int(word):08x}" for word in found] == expected.split()


def test_normals_match_box_muller_in_float64():
    seed, user, count = 2**40 + 17, 2**33 + 5, 403
    expected = []
    for block in range(101):
        raw = philox_reference((block, user & MASK, user >> 32, 1), (seed & MASK, seed >> 32))
        for radius_word, angle_word in (raw[:2], raw[2:]):
            radius = np.sqrt(-2 * np.log((radius_word + 0.5) / 2**32))
            quadrant, angle = angle_word >> 30, (angle_word & (2**30 - 1)) / 2**30
            angle = np.pi / 2 * (angle if angle < 0.5 else angle - 1)  # signed, around the quadrant's axis
            first, second = [(np.sin, np.cos), (np.cos, np.sin)][quadrant % 2]
            expected.append(radius * first(angle) * (-1 if quadrant >= 2 else 1))
            expected.append(radius * second(angle) * (-1 if quadrant in (1, 2) else 1))
    found = normals(seed=seed, purpose=1, user=user, count=count)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected[:count], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("fill", [fill_normals, fill_uniforms])
def test_streams_drawn_together_are_those_drawn_one_by_one(fill):
    counts = np.array([0, 1, 2, 403, 4, 5000, 0, 37, 8])  # blocks that are cut, and streams longer than a group
    users, starts = np.arange(len(counts)) + 2**33, 100 + np.concatenate([[0], np.cumsum(counts)])
    kind = np.float32 if fill is fill_normals else np.float64
    together = np.full(counts.sum() + 1, 7, kind)
    fill(np.uint64(3), np.uint32(1), users, starts, together)
    for user, count, first in zip(users, counts, starts - 100, strict=False):
        alone = np.empty(count, kind)
        fill(np.uint64(3), np.uint32(1), np.array([user]), np.array([0, count]), alone)
        np.testing.assert_array_equal(together[first : first + count], alone)
    assert together[-1] == 7


def test_exponential_is_within_a_billionth_and_ends_before_it_overflows():
    points = np.concatenate([np.linspace(-700, 700, 20_001), np.random.default_rng(0).uniform(-5, 5, 20_000), [0.0]])
    found = np.array([exponential(x) for x in points])
    np.testing.assert_allclose(found, np.exp(points), rtol=1e-9)
    assert exponential(1e300) == exponential(700.0) < np.inf
    assert exponential(-1e300) == exponential(-700.0) > 0


@pytest.fixture(scope="module")
def wide():
    rng = np.random.default_rng(3)
    features = rng.uniform(-1, 1, (6000, 8))
    sick = rng.random(6000) < expit(features @ rng.standard_normal(8))
    frame = pd.DataFrame(features, columns=[f"x{i}" for i in range(8)]).assign(
        who=rng.integers(0, 900, 6000), sick=sick
    )
    rules = Encoding(tuple(Numeric(f"x{i}", -1, 1) for i in range(8)), label=Signs("sick"))
    return from_table(frame, rules, user="who", loss=Logistic(), items_per_user=6)


@pytest.mark.parametrize("scale", [2.0, 0.1, 1e-3, 1e-5])
def test_a_sample_tells_the_risk_of_a_round_to_a_share_of_itself_however_small_it_is(wide, scale, monkeypatch):
    model = wide.optimum + scale * np.random.default_rng(5).standard_normal(9)
    assert wide.risk_by_sample(model) == {"excess_risk": wide.excess_risk(model)}  # few items: all of them
    monkeypatch.setattr("quoron.data.table.TRACED", wide.training.features.size // 4)
    told, exact = replace(wide).risk_by_sample(model), wide.excess_risk(model)
    assert told["excess_risk_error"] < 0.15 * exact
    assert abs(told["excess_risk"] - exact) < 7 * told["excess_risk_error"]  # fixed seeds; of others 1e-11 would fail


def objectives(seed: int, loss: Loss, *, rare: bool) -> tuple[TrainingObjective, TrainingObjective]:
    """That of 3,000 users, and that of 300 of them, none of whom has anything in a `rare` column."""
    rng = np.random.default_rng(seed)
    features = (rng.standard_normal((3000, 5)) * [1, 1, 1, 0.01, 1] / 3).astype(np.float32)
    if rare:
        features[10:, 4] = 0.0
    scores = features @ rng.standard_normal((5, max(2, loss.outputs)))
    labels = loss.bound_labels(np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(float))
    everybody = ItemBatch(features, labels, np.arange(3001))
    return TrainingObjective(everybody, loss), TrainingObjective(everybody.between(100, 400), loss)


@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize("radius", [0.5, 1e3])
@pytest.mark.parametrize(
    "loss", [Logistic(), Logistic(ridge=0.1), Huber(threshold=0.1), Hinge(), Absolute(), Softmax(classes=3)]
)
def test_the_optimum_that_is_looked_for_by_way_of_some_users_is_that_of_all(loss, radius, rare):
    everybody, some = objectives(1, loss, rare=rare)
    domain = L2Ball(radius)
    exact, found = everybody.minimiser(domain), everybody.minimiser(domain, some)
    assert np.linalg.norm(found) <= radius * (1 + 1e-12)
    assert ExcessLoss(everybody, exact).difference(found) <= 1e-14


def test_the_optimum_of_all_is_found_where_classes_of_some_are_told_apart():
    everybody, _ = objectives(2, Logistic(), rare=False)
    domain = L2Ball(1e6)
    right = np.flatnonzero(everybody.scores(everybody.minimiser(domain)) * everybody.labels > 0)
    some = TrainingObjective(everybody.items.of(right[:300]), Logistic())
    exact, found = everybody.minimiser(domain), everybody.minimiser(domain, some)
    assert ExcessLoss(everybody, exact).difference(found) <= 1e-14


def test_the_bits_of_a_slope_of_all_users_do_not_depend_on_how_many_threads_there_are(monkeypatch):
    everybody, _ = objectives(3, Logistic(), rare=False)
    monkeypatch.setattr("quoron.data.table._CACHED", 100)
    at = np.arange(5.0)
    with_all = everybody.gradient(at)
    monkeypatch.setattr("quoron_privacy.kernels.threads.all_threads", lambda: 1)
    alone = everybody.gradient(at)
    np.testing.assert_array_equal(with_all, alone)


@pytest.mark.parametrize("ties", [1, 7, 1000])
def test_the_area_under_the_curve_is_the_chance_that_a_positive_outscores_a_negative(ties):
    rng = np.random.default_rng(ties)
    scores, positive = rng.integers(0, 1000 // ties + 1, 300).astype(float), rng.random(300) < 0.3
    pairs = np.sign(scores[positive][:, None] - scores[~positive])
    assert auc(scores, positive) == pytest.approx(float(np.mean((pairs + 1) / 2)), abs=1e-15)


def test_a_few_users_who_hold_very_many_items_are_all_of_the_sample(wide, monkeypatch):
    monkeypatch.setattr("quoron.data.table.TRACED", 1)
    few = replace(wide, users=60, training=wide.training.of(np.arange(60)))
    assert few.risk_by_sample(np.ones(9)) == {"excess_risk": few.excess_risk(np.ones(9))}
    assert replace(wide).risk_by_sample(np.ones(9))["excess_risk_error"] > 0


USERS, ROWS = 40, 400


def amiss(**columns):
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, ROWS)
    known = {
        "who": np.arange(ROWS) % USERS,
        "age": age,
        "ward": rng.choice(["A", "B"], ROWS),
        "sick": (rng.random(ROWS) < 1 / (1 + np.exp((50 - age) / 40))).astype(int),
        "cost": 300 + 4 * age + rng.normal(0, 10, ROWS),
    }
    return pd.DataFrame(known | columns)


def remarks(frame, **changes):
    return clinic(frame, **{"items_per_user": 5} | changes).summary_fields(np.zeros(4))["remarks_simulation_only"]


class TestRemarks:
    @pytest.mark.parametrize(
        ("frame", "changes", "words"),
        [
            (amiss(age=np.arange(ROWS) * 0.5), {}, ("49.8 % of the rows", "Column 'age'", "eclare")),
            (amiss(ward=["A", "C", "B", "D"] * 100), {}, ("50 % of the rows", "Column 'ward'", "eclare")),
            (amiss(who="me"), {}, ("one user", "Name the column that tells users apart")),
            (amiss(who=np.arange(ROWS)), {}, ("one row", "user-level privacy is then item-level")),
            (amiss(), {"items_per_user": None}, ("items_per_user is not declared", "population.items_per_user")),
        ],
    )
    def test_name_what_is_amiss_and_the_fix(self, frame, changes, words):
        (found,) = remarks(frame, **changes)
        for word in words:
            assert word in found

    def test_of_users_without_a_usable_row_name_their_share(self):
        frame = amiss()
        frame.loc[frame.who < 4, "age"] = np.nan
        found = remarks(frame)
        assert len(found) == 3
        assert "10 % of the users have no row that can be used" in found[0]
