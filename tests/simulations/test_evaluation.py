"""Users that are held out of a run, and a model that is measured alone: what they say, and what it costs."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from committed import charges
from patients import COLUMNS, patients
from quoron.cli.app import invoke
from quoron.evaluation import figures
from quoron.evaluation.evaluation import Evaluation
from quoron.evaluation.scores import Scorer
from quoron.results import restored
from quoron.training import evaluated, lifetime
from quoron.training.rows import Items, figures_of
from quoron.training.table import CuratorEngine
from quoron_client.data.encoding import Classes, Encoding, Range, Signs
from quoron_client.data.items import ItemBatch
from quoron_client.losses import make_loss
from quoron_privacy.errors import BudgetExceeded, ConfigError, DataError, Infeasible, RunError
from quoron_privacy.histograms import held_out
from quoron_privacy.histograms.held_out import HeldOut
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import EVALUATED
from quoron_server.storage.ledger import Ledger
from quoron_server.wording import ReleaseGuarantee

USERS = 2000
QUICK: dict[str, Any] = {"epsilon": 4.0, "algorithm": "one-pass-dp-sgd", "settings": ["algorithm.options.rounds=3"]}


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    return patients(USERS, spread=20.0)


def train(people: Any, out: Path, **more: Any) -> Any:
    return quoron.train(people, out=out, **COLUMNS | QUICK | {"holdout": 0.2} | more)


def test_a_run_says_how_good_its_model_is_for_one_charge_and_everywhere(people, ledger, tmp_path, capsys):
    """Noise is secret: figures are six standard errors off with probability below 1e-8 each."""
    trained = train(people, tmp_path / "run")
    evaluation, model = trained.evaluation, trained.model
    assert evaluation.users == 400
    assert trained.summary.users == 1600
    right = float((model.predict(people) == people.ill).mean())
    accuracy, auc = evaluation.figure("accuracy"), evaluation.figure("AUC")
    assert abs(accuracy.value - right) < 6 * (accuracy.high - accuracy.low) / 3.9
    assert accuracy.baseline_name == "majority"
    assert not accuracy.useless
    assert 0.5 < auc.value <= 1
    assert [each.epsilon for each in charges(ledger)] == [4.0]
    assert "400 users or slots, drawn in secret" in trained.statement
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())["evaluation"]
    assert restored(Evaluation, stored) == evaluation == quoron.load(tmp_path / "run").evaluation
    assert quoron.resume(tmp_path / "run").evaluation == evaluation
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as own:
        told = [entry.mechanism for number, entry in own.releases() if number == EVALUATED]
        assert told == ["held-out-places", "held-out-figures"]
        assert len(own.events()) == 3
    people.head().to_csv(tmp_path / "some.csv", index=False)
    assert invoke(["predict", str(tmp_path / "run"), str(tmp_path / "some.csv")]) == 0
    assert f"accuracy per user of 400 held-out users, with 95 %: {accuracy.text()}" in capsys.readouterr().err
    with pytest.raises(DataError, match="got 'F1'"):
        evaluation.figure("F1")


def test_a_kill_between_training_and_evaluation_releases_both_once_and_charges_once(
    people, ledger, tmp_path, monkeypatch
):
    finish, calls = Ledger.finish, []

    def dies(self, *args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise RunError("gone")
        return finish(self, *args, **kwargs)

    monkeypatch.setattr(Ledger, "finish", dies)
    with pytest.raises(RunError, match="gone"):
        train(people, tmp_path / "run")
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as own:
        assert own.released(EVALUATED) is None
        assert not own.finished
    trained = train(people, tmp_path / "run")
    (_, _, first), (_, _, second) = calls
    assert first["evaluation"] != second["evaluation"], "what was drawn and not committed is drawn again"
    np.testing.assert_array_equal(calls[0][0], calls[1][0])
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as own:
        assert own.released(EVALUATED) == second
        assert len([number for number, _ in own.releases() if number == EVALUATED]) == 2
    assert [each.epsilon for each in charges(ledger)] == [4.0]
    assert trained.evaluation.users == 400


def test_nobody_is_trained_on_and_measured_and_a_run_that_goes_on_holds_out_the_same(
    people, ledger, tmp_path, monkeypatch
):
    asked, measured = set(), []
    ask, batches = CuratorEngine.ask, evaluated.batches

    def asking(self, question):
        asked.update(self._order[question.cohort].tolist())
        return ask(self, question)

    def measuring(declared, items, users):
        measured.append(users.tolist())
        return batches(declared, items, users)

    monkeypatch.setattr(CuratorEngine, "ask", asking)
    monkeypatch.setattr(evaluated, "batches", measuring)
    train(people, tmp_path / "run")
    held = set(measured[0])
    assert len(held) == 400
    assert measured[0] == measured[1]
    assert asked <= set(range(USERS)) - held
    assert len(asked) == 3 * (1600 // 3)


def test_what_is_bought_and_what_a_look_sees_is_of_the_trained_users_alone(people, ledger, tmp_path):
    only = {name: COLUMNS[name] for name in ("user", "label")}
    trained = quoron.train(people, out=tmp_path / "run", epsilon=4.0, holdout=0.2, **only)
    plan = trained.plan["guarantee"]
    assert plan["estimates"]["users"] == 1600
    assert plan["data_quality"]["users"] == 1600
    assert plan["held_out"]["users"] == 400
    assert trained.evaluation.figure("AUC").value > 0.5
    assert [each.epsilon for each in charges(ledger)] == [4.0]


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "dp-sgd-wor", "outlier-iterates", "local-model"])
def test_a_plan_with_held_out_users_costs_what_the_worse_of_both_parts_does(name, people, ledger):
    planned = quoron.train(people, **COLUMNS | {"epsilon": 4.0, "algorithm": name}, holdout=0.2, dry_run=True).plan
    info = ALGORITHMS[name]
    pairs, alone = info.pairs(planned), info.pairs(planned.without("held_out"))
    assert pairs[:-1] == alone
    assert pairs[-1] == planned.guarantee.held_out.pair
    assert max(pair.delta(4.0) for pair in pairs) <= planned.guarantee.delta
    last = [each.entry.mechanism for each in planned.releases() if EVALUATED in each.rounds]
    assert last == ["held-out-places", "held-out-figures"]
    both, part = info.gaussian(planned), info.gaussian(planned.without("held_out"))
    if part is not None:
        assert both.mu == max(part.mu, planned.guarantee.held_out.pair.mu)


def test_a_model_is_measured_alone_for_a_charge_of_its_own(people, ledger, tmp_path, capsys):
    model = train(people, tmp_path / "run", holdout=None).model
    keep = {"population": "others"}
    found = quoron.evaluate(model, people, user="who", epsilon=2.0, **keep)
    accuracy, right = found.figure("accuracy"), float((model.predict(people) == people.ill).mean())
    assert abs(accuracy.value - right) < 6 * (accuracy.high - accuracy.low) / 3.9
    assert [each for each in found.remarks if "they flatter" in each]
    with lifetime.opened(ledger) as store:
        (charge,) = store.charges("others")
        assert (charge.epsilon, charge.delta, charge.adjacency) == (2.0, 1e-6, "replace-one")
        store.limit("others", epsilon=2.5, delta=1e-5)
    with pytest.raises(BudgetExceeded):
        quoron.evaluate(model, people, user="who", epsilon=2.0, **keep)
    people.to_csv(tmp_path / "people.csv", index=False)
    command = ["evaluate", str(tmp_path / "run"), str(tmp_path / "people.csv"), "--user", "who", "--epsilon", "2"]
    assert invoke(command) == 0
    shown = capsys.readouterr().out
    assert "AUC per user" in shown
    assert "where the model says" in shown
    zero_out = {"epsilon": 2.0, "delta": 1e-6, "zero_out": 2500, "seed": 3}
    seeded = [quoron.evaluate(model, people, user="who", **zero_out) for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert seeded[0].statement.startswith("SIMULATED")


NUMBER = (Range("y", 0, 100), make_loss("least_squares"))
TWO = (Signs("y"), make_loss("logistic"))
THREE = (Classes("y", ("a", "b", "c")), make_loss("softmax", classes=3))


@pytest.mark.parametrize("weights", [[np.nan, 1.0], [np.inf, -np.inf], [1.5e308, -1.7e308]])
@pytest.mark.parametrize(("label", "loss"), [NUMBER, TWO, THREE], ids=["number", "two", "three"])
def test_a_model_that_is_none_is_called_useless_and_one_beyond_squares_is_measured(label, loss, weights):
    """Errors of NaN fell out of sums, so such a model looked perfect."""
    scorer = Scorer(np.tile(weights, loss.outputs), loss, Encoding((), label, intercept=True, feature_norm=1.0))
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 900) if scorer.classes == 3 else random.choice([-1.0, 1.0], 900)
    items = ItemBatch(random.uniform(-0.5, 0.5, (900, 2)), labels.astype(np.float64), np.arange(901))
    held = HeldOut.calibrate(users=900, classes=scorer.classes, epsilon=2.0, delta=1e-6)
    released = figures.release(held, scorer, lambda: [items], SeededNoise(1))
    found = figures.read(held, scorer, released, ReleaseGuarantee(2.0, 1e-6, ""))
    assert all(np.isfinite([each.value, each.low, each.high]).all() for each in found.figures)
    none = not np.isfinite(weights).all()
    assert (figures.NO_MODEL in found.remarks) == none
    assert all(each.useless for each in found.figures) or not none


@pytest.mark.parametrize(("epsilon", "classes"), [(1.0, 2), (0.01, 2), (0.1, 0), (0.1, 12)])
def test_as_many_users_as_a_refusal_asks_for_are_enough(epsilon, classes):
    of = lambda users: HeldOut.calibrate(users=users, classes=classes, epsilon=epsilon, delta=1e-6)  # noqa: E731
    with pytest.raises(Infeasible, match="needs about") as refused:
        figures.require_informative(of(5), epsilon)
    enough = int(str(refused.value).split("needs about ")[1].split(" ")[0].replace(",", ""))
    assert figures.expected(of(enough)) < 0.26
    assert figures.expected(of(enough * 9 // 10)) > 0.25


def test_the_bound_of_errors_is_where_they_end_and_no_step_that_noise_alone_exceeds():
    """The largest such step held the errors of one run in 700 at the whole range of labels."""
    label, loss = NUMBER
    scorer = Scorer(np.zeros(2), loss, Encoding((), label, intercept=True, feature_norm=1.0))
    held, steps = HeldOut.calibrate(users=600, classes=0, epsilon=8.0, delta=1e-6), held_out.STEPS
    waves, shares = held_out.waves(steps, held_out.STEEP), np.zeros(steps)
    shares[10:16], noise = 1 / 6, np.random.default_rng(0).normal(0, held.scales[0], (2000, steps + held_out.LABELS))
    said = np.append(waves @ shares * held_out.ERRORS**0.5, np.zeros(held_out.LABELS))
    known = figures.cells_of(held, scorer, said).bound
    assert max(figures.cells_of(held, scorer, said + each).bound for each in noise) <= 3 * known
    shares[4], shares[10:16] = 0.4, 0.1  # a group that is far
    said[:steps] = waves @ shares * held_out.ERRORS**0.5
    assert figures.cells_of(held, scorer, said).bound == 2.0**-2


def test_a_model_that_is_worse_than_always_saying_the_same_is_told_so():
    """All rows of one class, 5,000 users, a model that tosses coins: known to a hundredth, so not useless."""
    encoding, random = Encoding((), Signs("y"), intercept=True, feature_norm=1.0), np.random.default_rng(0)
    scorer = Scorer(np.array([2.0]), make_loss("logistic"), encoding)
    items = ItemBatch(random.uniform(-1, 1, (5000, 1)), np.ones(5000), np.arange(5001))
    held = HeldOut.calibrate(users=5000, classes=2, epsilon=2.0, delta=1e-6)
    released = figures.release(held, scorer, lambda: [items], SeededNoise(1))
    accuracy = figures.read(held, scorer, released, ReleaseGuarantee(2.0, 1e-6, "")).figure("accuracy")
    assert accuracy.high < 0.55 < accuracy.baseline
    assert not accuracy.useless


def test_rows_of_ones_own_are_measured_on_users_that_nobody_trained_on(ledger, tmp_path):
    """Noise is secret: the mean is six deviations off with probability below 1e-8."""
    targets = np.random.Generator(np.random.Philox(5)).normal(0.5, 0.1, 2000)
    trained, measured = set(), set()

    def rows(users, point):
        trained.update(users.tolist())
        return point[None, :] - targets[users, None]

    def near(users, model):
        measured.update(users.tolist())
        return np.abs(model[0] - targets[users]) < 0.1

    given: dict[str, Any] = {
        "users": 2000,
        "dimension": 1,
        "epsilon": 2.0,
        "delta": 1e-6,
        "items_per_user": 1,
        "radius": 2.0,
        "clip_norm": 1.0,
        "options": {"rounds": 5},
        "holdout": 0.2,
        "metrics": {"near": near, "quarter": lambda users, model: np.full(len(users), 0.25)},
    }
    found = quoron.train_rows(rows, **given, out=tmp_path / "run")
    assert len(measured) == 400
    assert not measured & trained
    quarter = found.evaluation.figure("quarter")
    assert abs(quarter.value - 0.25) < 6 * (quarter.high - quarter.low) / 3.9
    assert [each.epsilon for each in charges(ledger)] == [2.0]
    assert found.plan.problem.users == 1600
    again = quoron.train_rows(rows, **given, out=tmp_path / "run")
    assert again.evaluation == found.evaluation


ITEMS = Items((np.arange(5.0), np.array([1, 0, 1, 1, 0])), np.array([0, 2, 2, 5]))


def test_a_user_is_the_mean_of_its_items_held_to_the_ends_and_none_without_any():
    metrics = {"x": lambda model, x, y: x * model, "y": lambda model, x, y: y}
    found = figures_of(ITEMS, metrics, lambda point: float(point[0]), lambda *parts: parts)
    np.testing.assert_allclose(found(np.array([2, 1, 0]), np.array([0.1])), [[0.3, 2 / 3], [np.nan] * 2, [0.05, 0.5]])
    np.testing.assert_allclose(found(np.array([2]), np.array([10.0])), [[1.0, 2 / 3]])


@pytest.mark.parametrize("bad", ["raises", "shape", "warns"])
def test_what_one_users_items_raise_or_warn_of_is_told_to_nobody_and_moves_no_other_user(bad):
    def figures(model, x, y):
        if 3.0 not in x:
            return y
        if bad == "raises":
            raise RuntimeError(f"{x}")
        if bad == "warns":
            warnings.warn(f"{x}", stacklevel=1)
        return y if bad == "warns" else np.zeros((len(x), 7))

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        found = figures_of(ITEMS, {"y": figures}, lambda point: None, lambda *parts: parts)
        last = 2 / 3 if bad == "warns" else np.nan
        np.testing.assert_allclose(found(np.arange(3), np.zeros(1)), [[0.5], [np.nan], [last]])
    assert not shown


def test_too_few_held_out_users_are_refused_before_the_charge_with_how_many_would_do(people, ledger, tmp_path):
    few = people[people.who < 100]
    with pytest.raises(Infeasible, match=r"10 users to measure .* needs about \d+ of them"):
        train(few, tmp_path / "run", holdout=0.1, epsilon=1.0)
    with pytest.raises(ConfigError, match="both sides"):
        train(people[people.who < 3], tmp_path / "run", holdout=0.1)
    assert not ledger.exists()
    planned = quoron.train(people, **COLUMNS | QUICK, holdout=0.2, dry_run=True)
    assert any("400 of 2,000 users are held out" in each and "an AUC to ±" in each for each in planned.remarks)
