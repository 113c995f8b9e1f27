"""Tables as populations: public encoding, users kept whole, errors that name the column, an optimum that is one."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from quoron.populations import Categorical, Numeric, Outliers, from_table
from quoron.populations.metrics import auc
from quoron_client.compute.enforcement import bounded
from quoron_client.data import fused
from quoron_client.data.encoding import Encoding, Range
from quoron_client.losses import Absolute, Hinge, Huber, LeastSquares, Linear, Logistic, SmoothedHinge
from quoron_client.protocol.domains import Box, L2Ball
from quoron_privacy.errors import ConfigError, DataError


def encode(table, features, *, intercept):
    """Features before they are scaled to the norm."""
    found = fused.encoded(Encoding(features, intercept=intercept), table)
    return found.features * np.sqrt(len(features) + intercept) / (1 - 2.0**-22)


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
    arguments = {"user": "who", "label": "sick", "features": FEATURES, "domain": L2Ball(5.0)}
    return from_table(visits() if frame is None else frame, **(arguments | changes))


class TestEncoding:
    @pytest.mark.parametrize("unit_rows", [False, True])
    @pytest.mark.parametrize("norm", [1.0, 0.3])
    def test_rows_are_within_the_feature_norm_so_enforcement_changes_nothing(self, unit_rows, norm):
        crowd = clinic(unit_rows=unit_rows, loss=Logistic(feature_norm=norm))
        batch = crowd.items(np.arange(crowd.users))
        norms = np.linalg.norm(batch.features.astype(np.float64), axis=1)
        assert batch.features.dtype == np.float32
        assert norms.max() <= norm
        assert not unit_rows or norms.min() > norm * (1 - 1e-6)
        np.testing.assert_array_equal(bounded(batch, crowd.loss).features, batch.features)

    def test_a_vocabulary_from_data_is_sorted_and_said_to_be_for_simulation_only(self):
        crowd = clinic(features=(Categorical("ward", "from-data"),))
        assert crowd.encoding.names == ("ward=A", "ward=B", "ward=C", "intercept")
        assert any("'ward'" in text and "simulation only" in text for text in crowd.knowledge.assumptions)
        assert clinic(items_per_user=5).knowledge.assumptions == ()


class TestUsers:
    @settings(derandomize=True, deadline=None, max_examples=25)
    @given(users=st.lists(st.integers(0, 47), min_size=1, max_size=10))
    def test_items_do_not_depend_on_who_else_is_asked(self, users):
        crowd = clinic(outliers=Outliers(0.4, "shifted"))
        together = crowd.items(np.array(users))
        for slot, user in enumerate(users):
            rows = slice(together.offsets[slot], together.offsets[slot + 1])
            alone = crowd.items(np.array([user]))
            np.testing.assert_array_equal(together.features[rows], alone.features)
            np.testing.assert_array_equal(together.labels[rows], alone.labels)


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
        best, held = crowd.optimum, crowd.beside(crowd.optimum).held_back
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


class TestMetrics:
    @settings(derandomize=True, deadline=None, max_examples=50)
    @given(pairs=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
    def test_auc_counts_pairs_with_ties_as_half(self, pairs):
        scores, positive = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs])
        if positive.all() or not positive.any():
            return
        gaps = scores[positive][:, None] - scores[~positive][None]
        assert auc(scores, positive) == pytest.approx(np.mean(np.where(gaps > 0, 1.0, np.where(gaps == 0, 0.5, 0.0))))


def broken(column, value, rows=(3, 9)):
    frame = visits().astype({"age": object, "sick": object, "who": object})
    frame.loc[list(rows), column] = value
    return frame.astype({"age": float, "sick": float, "who": object})


class TestErrors:
    def test_a_declared_user_without_items_is_refused(self):
        who = pd.Categorical(visits().who, categories=[*sorted(visits().who.unique()), "ghost", "spectre"])
        with pytest.raises(DataError, match="got declared users without any"):
            clinic(visits().assign(who=who))

    def test_a_split_that_leaves_nobody_to_train_on_is_refused(self):
        with pytest.raises(DataError, match="Expected a user to train on"):
            clinic(visits().assign(who="p"), test_fraction=0.9)
        with pytest.raises(ConfigError, match="test_fraction=1"):
            clinic(test_fraction=1)

    def test_messages_hold_no_users_data(self):
        frame = broken("who", None).assign(who=lambda f: f.who.where(f.who.isna(), "secret-" + f.who.astype(str)))
        with pytest.raises(DataError) as caught:
            clinic(frame)
        assert "secret" not in str(caught.value)
