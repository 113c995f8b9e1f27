"""A loss that another package brings: found by name, checked on a grid, vouched for by name in every promise."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client import reference
from quoron_client import AverageGradient, L2Ball, average_gradient, average_loss, local_sgd, make_loss
from quoron_client.losses import Classification, own
from quoron_client.losses.own import Declaration, declared_loss
from quoron_client.protocol.local_sgd import LocalSGD
from quoron_privacy.errors import ConfigError, VerificationError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

# Pseudo-Huber: w² (√(1 + (r/w)²) - 1), convex, |φ'| < w, φ'' <= 1. As a file that another distribution would hold.
SOURCE = """
from math import sqrt
from quoron_client.losses.own import Declaration

def value(prediction, label, width):
    ratio = (prediction - label) / width
    return width * width * (sqrt(1.0 + ratio * ratio) - 1.0)

def slope(prediction, label, width):
    ratio = (prediction - label) / width
    return width * ratio / sqrt(1.0 + ratio * ratio)

ROUND = Declaration(
    value=value, slope=slope, labels="numbers", curvature=1.0, convex=True,
    slope_bound=lambda largest, label_bound, width: min(width, largest + label_bound),
)
"""
UNPROVED = "the constants of loss 'round' are vouched for by Ada Lovelace (ada-losses 1.2), checked on a grid only"
TABLE = """
[population]
kind = "table"
path = "mine.csv"
user = "who"
label = "cost"
label_range = [-1, 1]
numeric = { age = [0, 100] }
[loss]
name = "round"
width = 0.5
[problem]
items_per_user = 10
[privacy]
epsilon = 2.0
[algorithm]
name = "one-pass-dp-sgd"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the path where distributions may be laid; what was found before and after is forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    for kept in (own._entries, own.installed_loss):
        kept.cache_clear()
    yield tmp_path
    for kept in (own._entries, own.installed_loss):
        kept.cache_clear()


def distribute(folder, name="ada-losses", module="ada_losses", source=SOURCE, entry="round = {}:ROUND"):
    (folder / f"{module}.py").write_text(source)
    found = folder / f"{module}-1.2.dist-info"
    found.mkdir()
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\nAuthor: Ada Lovelace\n")
    (found / "entry_points.txt").write_text(f"[quoron.losses]\n{entry.format(module)}\n")


def wide(prediction, label, width):
    """log cosh, written so that it does not overflow."""
    r = abs(prediction - label)
    return r + math.log1p(math.exp(-2.0 * r)) - math.log(2.0)


def wide_slope(prediction, label, width):
    return math.tanh(prediction - label)


GOOD = Declaration(value=wide, slope=wide_slope, labels="numbers", curvature=1.0, slope_bound=1.0, convex=True)


def family(**changes):
    return declared_loss("mine", replace(GOOD, **changes), vouched_by="me")


class TestByName:
    def test_it_is_a_loss_like_any_other(self, folder):
        distribute(folder)
        loss = make_loss("round", width=0.5, label_bound=2.0, ridge=0.1, feature_norm=1.5)
        domain = L2Ball(4.0)
        assert (loss.name, loss.unproved_constants, loss.convex) == ("round", UNPROVED, True)
        assert loss.lipschitz(domain, 3) == pytest.approx(1.5 * 0.5 + 0.1 * 4.0)
        assert loss.smoothness == pytest.approx(1.5**2 + 0.1)
        assert loss.start_gradient == pytest.approx(1.5 * 0.5)
        assert loss == make_loss("round", width=0.5, label_bound=2.0, ridge=0.1, feature_norm=1.5)

    def test_its_gradients_are_those_of_its_formula(self, folder):
        distribute(folder)
        rng, loss = np.random.default_rng(1), make_loss("round", width=0.5, ridge=0.1)
        batch = reference.random_batch(rng, (3, 40), 5, np.float64, make_loss("huber"))
        x = rng.standard_normal(5)
        for u, (rows, labels) in enumerate(reference.users(batch)):
            ratio = (rows @ x - labels) / 0.5
            gradient = (0.5 * ratio / np.sqrt(1 + ratio**2)) @ rows / len(rows) + 0.1 * x
            found = average_gradient(loss, batch, AverageGradient(x[None], (1.0,)))[u]
            np.testing.assert_allclose(found, gradient, rtol=1e-12)
            value = np.mean(0.25 * (np.sqrt(1 + ratio**2) - 1)) + 0.05 * x @ x
            assert average_loss(loss, batch, x)[u] == pytest.approx(value, rel=1e-12)
        passes = local_sgd(loss, batch, LocalSGD(np.zeros((2, 5)), 0.5, L2Ball(1.0)))
        assert np.isfinite(passes).all()

    def test_a_name_that_two_distributions_bring_is_refused(self, folder):
        distribute(folder)
        distribute(folder, "other", "other_losses")
        with pytest.raises(
            ConfigError, match=r"Expected one installed distribution with a loss 'round', got .*other 1.2"
        ):
            make_loss("round")

    @pytest.mark.parametrize(
        ("source", "message"),
        [("import no_such_module", "got ModuleNotFoundError"), ("ROUND = 3", "to be a Declaration, .* got a int")],
    )
    def test_what_cannot_be_had_is_refused_by_name(self, folder, source, message):
        distribute(folder, module=f"broken_{len(source)}", source=source)
        with pytest.raises(ConfigError, match=message):
            make_loss("round")

    def test_the_example_of_the_documentation_is_such_a_loss(self, folder):
        page = (Path(own.__file__).parents[3] / "docs" / "losses.md").read_text(encoding="utf-8")
        (source,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
        (entry,) = re.findall(r'^(log_cosh = )"my_losses:(\w+)"$', page, flags=re.MULTILINE)
        distribute(folder, "my-losses", "my_losses", source, entry[0] + "{}:" + entry[1])
        loss = make_loss("log_cosh", width=0.5)
        assert f"> {loss.unproved_constants}" in page.replace("\n", " ")
        assert loss.smoothness == 2.0
        assert loss.lipschitz(L2Ball(100.0), 3) == 1.0


class TestGrid:
    def test_a_right_declaration_passes(self):
        loss = family()(label_bound=3.0)
        assert loss.lipschitz(L2Ball(50.0), 4) == 1.0
        margin = Declaration(
            value=lambda p, y, w: math.log1p(math.exp(-abs(y * p))) + max(-y * p, 0.0),
            slope=lambda p, y, w: -y / (1.0 + math.exp(y * p)),
            labels="signs",
            curvature=0.25,
            slope_bound=1.0,
            convex=True,
        )
        signs = declared_loss("mine", margin, vouched_by="me")()
        assert isinstance(signs, Classification)
        assert signs.lipschitz(L2Ball(20.0), 3) == 1.0

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (
                {"curvature": 0.9},
                r"\|change of slope\| <= curvature=0.9 .* of loss 'mine', got .* at prediction .* label",
            ),
            ({"curvature": lambda width: 0.9 * width}, r"curvature=0.9"),
            (
                {"slope_bound": 0.95},
                r"Expected \|slope\| <= slope_bound=0.95 of loss 'mine', got -1 at prediction -10 with label -1\. Corr",
            ),
            ({"slope": lambda p, y, w: 0.5 * math.tanh(p - y)}, "Expected slope to be the derivative of value of loss"),
            ({"value": lambda p, y, w: math.log(p - y)}, "Expected finite values and slopes of loss"),
            (
                {"value": lambda p, y, w: math.cos(p - y), "slope": lambda p, y, w: -math.sin(p - y)},
                "Expected slopes that never fall, as declared convex of loss 'mine', got -.* at prediction",
            ),
            (
                {"value": lambda p, y, w: abs(p - y), "slope": lambda p, y, w: float(np.sign(p - y))},
                r"curvature=1 times the distance",
            ),
            ({"slope": lambda p, y, w: {}[p]}, "Expected value and slope of loss 'mine' to be functions that numba"),
            ({"curvature": math.nan}, "Expected curvature >= 0 and finite of loss 'mine', got nan"),
            ({"slope_bound": 0.0}, "Expected slope_bound > 0 and finite of loss 'mine', got 0"),
        ],
    )
    def test_a_wrong_constant_is_refused_with_the_point_that_refutes_it(self, wrong, message):
        with pytest.raises(ConfigError, match=message):
            family(**wrong)()

    def test_a_constant_that_fails_only_far_out_is_refused_for_a_domain_that_reaches_there(self):
        """Slopes that grow beyond prediction 10, where the loss is made: seen once the domain is known."""
        grows = {"value": lambda p, y, w: 0.05 * (p - y) ** 2, "slope": lambda p, y, w: 0.1 * (p - y)}
        loss = family(**grows, slope_bound=1.2)()
        assert loss.lipschitz(L2Ball(5.0), 2) == 1.2
        with pytest.raises(ConfigError, match=r"Expected \|slope\| <= slope_bound=1.2 .* got -9.9 at prediction -100"):
            loss.lipschitz(L2Ball(100.0), 2)

    def test_one_that_is_not_convex_may_say_so(self):
        waves = {"value": lambda p, y, w: math.cos(p - y), "slope": lambda p, y, w: -math.sin(p - y)}
        assert not family(**waves, convex=False)().convex

    @pytest.mark.parametrize(("changes", "message"), [({"labels": "words"}, "Expected labels='signs' or 'numbers'")])
    def test_a_declaration_that_says_nothing_usable_is_refused(self, changes, message):
        with pytest.raises(ConfigError, match=message):
            family(**changes)
        with pytest.raises(ConfigError, match="Expected vouched_by to name who vouches"):
            declared_loss("mine", GOOD, vouched_by=" ")


PROBLEM = Problem(
    users=300_000, items_per_user=50, dimension=10, domain=L2Ball(3.0), lipschitz=1.0, smoothness=0.25,
    feature_norm=1.0, link_curvature=0.25, unproved_constants=UNPROVED,
)  # fmt: skip


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "tracking-srgd", "filtered-sgd", "local-model", "phased-sgd"])
def test_every_promise_about_it_names_who_vouches_and_a_plan_that_leaves_it_out_is_refused(name):
    info = ALGORITHMS[name]
    plan = info.plan(PROBLEM, Privacy(2.0, 1e-6, 0.5, 0.1))
    assumed = Assumption(Kind.UNPROVED_CONSTANTS, (UNPROVED,))
    assert assumed in plan.guarantee.assumptions
    info.verify(plan)
    curated = info.plan(PROBLEM, Privacy(2.0, 1e-6)).as_curated()
    assert curated.guarantee.assumptions == (assumed,)
    silent = tuple(said for said in plan.guarantee.assumptions if said != assumed)
    with pytest.raises(VerificationError, match="rests on this, too: the constants of loss 'round'"):
        info.verify(replace(plan, guarantee=replace(plan.guarantee, assumptions=silent)))
    assert not info.plan(replace(PROBLEM, unproved_constants=None), Privacy(2.0, 1e-6)).guarantee.rests_on(assumed.kind)
