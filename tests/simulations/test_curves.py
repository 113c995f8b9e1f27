"""A model that bends: what a straight one cannot say, said by the same algorithms under the same guarantee."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron.config import parse
from quoron.simulation.problem import BENT as DEGREES
from quoron.simulation.problem import bent as choose_degrees
from quoron.training import estimated
from quoron_privacy.errors import ConfigError, DataError, Infeasible, UsageError
from quoron_privacy.histograms.private_bounds import EstimatedBounds
from quoron_server.algorithms.whitened import method

COLUMNS: dict[str, Any] = {"numeric": {"x": [0, 1], "z": [0, 1]}, "categorical": {"ward": ["A", "B"]}}
BENT = COLUMNS | {"curves": 3, "pairs": 2}
METHOD = "whitened-tracking"  # that is taken of so many users: planning all others each time is half of the time
QUICK: dict[str, Any] = {"user": "who", "epsilon": 8.0, "delta": 1e-5, "items_per_user": 2, "algorithm": METHOD}


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    """A label that is the exclusive or of two columns, and a number that is a parabola."""
    rng = np.random.Generator(np.random.Philox(5))
    x, z = rng.random((2, 4000))
    ill = (x > 0.5) ^ (z > 0.5) ^ (rng.random(4000) < 0.1)
    height = 4 * (x - 0.5) ** 2 + 0.1 * rng.standard_normal(4000)
    ward = np.where(rng.random(4000) < 0.5, "A", "B")
    return pd.DataFrame({"who": np.arange(4000) // 2, "x": x, "z": z, "ward": ward, "ill": ill, "height": height})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a simulation with curves and pairs."""
    return tmp_path_factory.mktemp("bent") / "run"


@pytest.fixture(scope="module")
def bent(people: pd.DataFrame, folder: Path) -> Any:
    """That simulation."""
    given = QUICK | {"algorithm": "auto"}
    return quoron.simulate(people.drop(columns="height"), label="ill", columns=BENT, out=folder, **given)


def test_pairs_say_what_no_straight_model_can(people: pd.DataFrame, bent: Any, tmp_path: Path) -> None:
    own = people.drop(columns="height")
    straight = quoron.simulate(own, label="ill", columns=COLUMNS, out=tmp_path / "straight", **QUICK)
    right = [float(np.mean(run.model.predict(own) == own.ill)) for run in (straight, bent)]
    assert right[0] < 0.6
    assert right[1] > 0.85
    assert bent.plan.guarantee.epsilon == straight.plan.guarantee.epsilon
    assert bent.plan.algorithm == straight.plan.algorithm


def test_a_parabola_is_learnt_in_the_label_s_units_and_its_shape_is_the_curve(
    people: pd.DataFrame, tmp_path: Path
) -> None:
    label = {"column": "height", "range": [0, 1]}
    run = quoron.simulate(people.drop(columns="ill"), label=label, columns=BENT, out=tmp_path / "run", **QUICK)
    shapes = run.model.shapes(11)
    wanted = 4 * (np.linspace(0, 1, 11) - 0.5) ** 2
    np.testing.assert_allclose(shapes["x",] - shapes["x",].mean(), wanted - wanted.mean(), atol=0.05)
    assert max(np.ptp(shape) for titles, shape in shapes.items() if titles != ("x",)) < 0.2


def test_shapes_add_up_to_the_score_and_are_drawn(people: pd.DataFrame, bent: Any) -> None:
    pytest.importorskip("matplotlib").use("agg")
    shapes, model = bent.model.shapes(3), bent.model
    assert set(shapes) == {("x",), ("z",), ("ward",), ("x", "z"), ("x", "ward"), ("z", "ward")}
    rows = pd.DataFrame({"x": [0.0, 0.5], "z": [1.0, 0.5], "ward": ["A", "B"]})
    scores = [
        shapes["x",][at[0]] + shapes["z",][at[1]] + shapes["ward",][at[2]]
        + shapes["x", "z"][at[0], at[1]] + shapes["x", "ward"][at[0], at[2]] + shapes["z", "ward"][at[1], at[2]]
        for at in ((0, 2, 0), (1, 1, 1))
    ]  # fmt: skip
    np.testing.assert_allclose(np.diff(model.decision_function(rows)), np.diff(scores), rtol=1e-4)
    figure = model.plot()
    assert len([ax for ax in figure.axes if ax.get_xlabel()]) == 6


def test_labels_at_an_end_of_their_range_spoil_no_curves_of_columns_that_are_nearly_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly all are 0, of 0 to 200: errors are at most 1 % above those of the mean; otherwise five times as large."""
    columns: dict[str, Any] = {"numeric": {f"x{place}": [0, 1] for place in range(4)}, "curves": 4, "pairs": 2}
    asked: dict[str, Any] = {"user": "who", "epsilon": 8.0, "items_per_user": 5, "progress": False, "columns": columns}
    asked |= {"label": {"column": "y", "range": [0, 200]}, "seed": 0}
    rng = np.random.Generator(np.random.Philox(0))
    x = rng.random((3750, 4))
    x[:, 3] = np.clip(x[:, 0] + 0.02 * rng.standard_normal(3750), 0, 1)
    y = np.clip(4 * ((x[:, :2] - 0.5) @ np.array([3, 2]) + rng.standard_normal(3750) - 3), 0, 200)
    rows = pd.DataFrame(x, columns=[*columns["numeric"]]).assign(y=y, who=np.arange(3750) // 5)

    def error(name: str) -> float:
        model = quoron.simulate(rows[:3000], out=tmp_path / name, **asked).model
        return float(np.sqrt(np.mean((model.predict(rows[3000:]) - y[3000:]) ** 2)) / y[3000:].std())

    assert error("level first") < 1.01
    monkeypatch.setattr(method, "LEVEL_ALONE", 1000)
    assert error("all at once") > 3


def test_a_model_of_curves_is_saved_loaded_and_shown_without_coefficients(bent: Any, folder: Path) -> None:
    again = quoron.load(folder)
    rows = pd.DataFrame({"x": [0.1, 0.9], "z": [0.2, 0.3], "ward": ["A", "B"]})
    np.testing.assert_array_equal(again.predict_proba(rows), bent.model.predict_proba(rows))
    with pytest.raises(UsageError, match="Expected a model with one coefficient for each column, got one of curves"):
        _ = again.coef_
    assert "x and z" in (folder / "report.html").read_text()


def test_of_several_classes_shapes_are_refused_and_predictions_bend(people: pd.DataFrame, tmp_path: Path) -> None:
    own = people.drop(columns=["ill", "height"])
    own["kind"] = np.select([own.x < 0.33, own.x < 0.67], ["low", "middle"], "high")
    label = {"column": "kind", "classes": ["low", "middle", "high"]}
    run = quoron.simulate(own, label=label, columns=BENT | {"pairs": 0}, out=tmp_path / "run", **QUICK)
    assert float(np.mean(run.model.predict(own) == own.kind)) > 0.7
    with pytest.raises(UsageError, match="Expected a model of one score"):
        run.model.shapes()


def test_columns_whose_ranges_are_estimated_bend_too(people: pd.DataFrame, tmp_path: Path) -> None:
    own, columns = people.drop(columns="height"), {"curves": 2, "pairs": 1}
    settings = ["privacy.delta=1e-5"]
    run = quoron.train(
        own, user="who", label="ill", epsilon=8.0, columns=columns, settings=settings, progress=False,
        ledger=tmp_path / "ledger.sqlite", out=tmp_path / "run",
    )  # fmt: skip
    assert any("*" in name for name in run.model.encoding.names)


@pytest.mark.parametrize(
    ("label", "missing"),
    [
        pytest.param("ill", "midpoint", marks=pytest.mark.slow),
        ({"column": "kind", "classes": ["a", "b", "c"]}, "drop"),
        ({"column": "height", "range": [0, 1]}, "midpoint"),
    ],
)
def test_users_may_be_absent_and_cells_missing(people: pd.DataFrame, label: Any, missing: str, tmp_path: Path) -> None:
    """Under zero-out half of the slots hold nobody; a tenth of the numbers are no number, one user's all."""
    own = people.assign(kind=np.select([people.x < 0.33, people.x < 0.67], ["a", "b"], "c"))
    own.loc[(own.index % 10 == 3) | (own.who == 7), "x"] = np.nan
    own = own[["who", "x", "z", "ward", label if isinstance(label, str) else label["column"]]]
    run = quoron.train(
        own, user="who", label=label, epsilon=8.0, adjacency="zero-out", items_per_user=2, progress=False,
        columns=BENT | {"missing": missing}, ledger=tmp_path / "ledger.sqlite", out=tmp_path / "run",
        settings=["privacy.delta=1e-5", "population.users=4000"],
    )  # fmt: skip
    rows = pd.DataFrame({"x": [0.2, np.nan], "z": [0.3, 0.3], "ward": ["A", "nowhere"]})
    if missing == "drop":
        with pytest.raises(DataError, match="got 1 rows without, the first is row 1"):
            run.model.predict(rows)
    else:
        middle = run.model.predict(rows.fillna({"x": 0.5}))
        np.testing.assert_array_equal(run.model.predict(rows), middle)
    guess = run.model.predict(people.assign(x=people.x.fillna(0.5)))
    truth = own[own.columns[-1]]
    wrong = (
        np.abs(guess - truth).mean() / np.abs(truth - truth.mean()).mean()
        if guess.dtype.kind == "f"
        else np.mean(guess != truth) * 2
    )
    assert wrong < 0.8


TABLE = """
[population]
kind = "table"
path = "none.csv"
user = "who"
label = "ill"
items_per_user = 2
model = "curves"
"""


@pytest.mark.parametrize(
    ("users", "settings", "degrees"),
    [
        (2_000, (), (8, 4)),  # 0.83 n / 5 = 332 numbers at most, and there are 169
        (600, (), (8, 2)),  # 99, and 94
        (500, (), (4, 2)),  # 83, and 70
        (400, (), (4, 1)),  # 66, and 40
        (200, (), (4, 0)),  # 33, and 25
        (120, (), (2, 0)),  # 20, and 13
        (10, (), (2, 0)),
        (2_000, ("problem.label_rate=0.03",), (4, 0)),  # 39, and 13 with products
        (1_200, ("population.label.classes=['a', 'b', 'c']",), (4, 1)),  # 199, and 120 of three classes
        (2_000, ("population.model=linear",), (1, 0)),
        (50_000, ("population.model=auto",), (8, 4)),  # s n μ √s / 10, s = 4 r (1 - r), r = 0.1, and 200 at most
        (6_000, ("population.model=auto",), (8, 2)),  # 108
        (2_000, ("population.model=auto",), (4, 0)),  # 55, and 36 with products
        (2_000, ("population.model=auto", "problem.label_rate=0.4"), (8, 2)),  # 147
        (2_000, ("population.model=auto", "problem.label_rate=[0.01, 0.5]"), (1, 0)),  # 6
        (1_000, ("population.model=auto", "problem.label_rate=0.5"), (4, 2)),  # 76
        (100, ("population.model=auto",), (1, 0)),
        (10**6, ("population.model=auto", "population.columns.numeric={ 'x[0:300]' = [0, 1] }"), (1, 0)),
        (10**6, ("population.model=auto", "population.columns.numeric={ 'x[0:14]' = [0, 1] }"), (4, 1)),  # 148
        (10**6, ("population.columns.numeric={ 'x[0:300]' = [0, 1] }",), (4, 0)),  # not 45,150 products
    ],
)
def test_degrees_are_chosen_by_public_numbers(users: int, settings: tuple[str, ...], degrees: tuple[int, int]) -> None:
    numeric = ["population.columns.numeric={ 'x[0:6]' = [0, 1] }"] * (not any("numeric" in each for each in settings))
    config = parse(TABLE, settings=[*numeric, "privacy.epsilon=4", "privacy.delta=1e-6", *settings])
    found: Any = choose_degrees(config, users).population
    assert (found.columns.curves, found.columns.pairs, found.model) == (*degrees, None)


def test_auto_bends_more_with_more_users_and_epsilon_and_less_with_more_columns() -> None:
    """So that no step of the rule takes away what a smaller run had."""

    def numbers(users: int, epsilon: float, columns: int) -> int:
        numeric = f"population.columns.numeric={{ 'x[0:{columns}]' = [0, 1] }}"
        settings = (numeric, f"privacy.epsilon={epsilon}", "privacy.delta=1e-6", "population.model=auto")
        found: Any = choose_degrees(parse(TABLE, settings=settings), users).population
        return DEGREES.index((found.columns.curves, found.columns.pairs))

    some = [100, 300, 1_000, 3_000, 10_000, 100_000]
    assert [numbers(users, 1.0, 5) for users in some] == sorted(
        (numbers(users, 1.0, 5) for users in some), reverse=True
    )
    assert [numbers(3_000, epsilon, 5) for epsilon in (0.5, 1.0, 4.0, 8.0)] == [5, 4, 2, 1]
    assert [numbers(3_000, 4.0, columns) for columns in (2, 5, 9, 40)] == [0, 2, 4, 5]


@pytest.mark.slow
def test_curves_in_one_word_are_those_of_the_rule_wherever_it_is_said(people: pd.DataFrame, tmp_path: Path) -> None:
    own, ledger = people.drop(columns="height"), {"ledger": tmp_path / "ledger.sqlite", "progress": False}
    own.to_csv(tmp_path / "own.csv", index=False)
    simulated = quoron.simulate(own, label="ill", columns=COLUMNS, model="curves", out=tmp_path / "simulated", **QUICK)
    assert float(np.mean(simulated.model.predict(own) == own.ill)) > 0.85
    declared = QUICK | ledger | {"label": "ill", "model": "curves"}
    runs = [
        quoron.train(source, columns=columns, out=tmp_path / f"{place}", **declared)
        for place, (source, columns) in enumerate([(own, COLUMNS), (tmp_path / "own.csv", COLUMNS), (own, None)])
    ]
    degrees = [(run.model.encoding.curves, run.model.encoding.pairs) for run in (simulated, *runs)]
    assert degrees == [(8, 4)] * 4
    many = {"adjacency": "zero-out", "settings": ["population.users=100_000"], "epsilon": 0.02, "dry_run": True}
    planned = quoron.train(own, columns=COLUMNS, **declared | many)
    assert planned.plan.problem.dimension == runs[0].model.encoding.dimension  # of 2,000 it would be 7


def test_auto_estimates_the_share_of_a_label_s_classes_for_a_part_of_epsilon_and_bends_by_it(
    people: pd.DataFrame, tmp_path: Path
) -> None:
    own = people.drop(columns="height").head(2400)
    asked: dict[str, Any] = QUICK | {"label": "ill", "columns": COLUMNS, "model": "auto"}
    run = quoron.train(own, **asked, out=tmp_path / "run", ledger=tmp_path / "ledger.sqlite", progress=False)
    found = parse((tmp_path / "run" / "declared.toml").read_text())
    assert found.problem.label_rate == pytest.approx(own.ill.mean(), abs=0.1)
    assert "of the rarer class" in run.summary.estimates[0].value
    numbers = run.model.weights.size
    declared = quoron.train(own, **asked, settings=["problem.label_rate=0.5"], dry_run=True).plan
    assert declared.guarantee.estimates is None
    assert declared.problem.dimension == numbers
    assert (found.population.columns.curves, found.population.columns.pairs) == (8, 4)  # type: ignore[union-attr]
    forecast = quoron.train(own, **asked, dry_run=True)  # knows no rate, and costs the same
    paid = forecast.plan.guarantee.estimates
    assert paid is not None
    assert (paid.columns, paid.names) == (0, 1)
    assert 0.01 <= paid.share < 0.1
    assert f"Estimated with {paid.share:.2g}" in (tmp_path / "run" / "declared.toml").read_text()
    assert forecast.plan.problem.dimension < numbers
    remarks = " ".join(forecast.remarks)
    assert "1 fact of the table is not declared: estimating it takes" in remarks
    assert "a rarer class of 10 % of labels" in remarks
    assert quoron.plan(own, **asked).plan.guarantee.estimates == paid
    simulated = quoron.simulate(own, **asked, out=tmp_path / "simulated", progress=False)
    assert simulated.plan.guarantee.epsilon < 8.0  # what the estimate leaves
    assert simulated.model.encoding.pairs == 4


def test_no_rate_is_paid_for_where_it_could_not_bend_a_model_or_a_method_cannot_share_its_epsilon(
    people: pd.DataFrame,
) -> None:
    asked: dict[str, Any] = QUICK | {"columns": COLUMNS, "model": "auto", "dry_run": True}
    own, numbers = people.drop(columns="height"), people.drop(columns="ill")
    without = {key: value for key, value in asked.items() if key != "dry_run"}
    for few in (quoron.train(own.head(60), label="ill", **asked), quoron.plan(own.head(60), label="ill", **without)):
        assert few.plan.guarantee.estimates is None
    label = {"column": "height", "range": [0, 1]}
    assert quoron.train(numbers, label=label, **asked).plan.guarantee.estimates is None
    with pytest.raises(Infeasible):  # and no word of estimates
        quoron.train(own, label="ill", **asked | {"algorithm": "filtered-sgd"})


@pytest.mark.parametrize(
    ("votes", "rate"),
    [
        ({"0": 900, "1": 100}, 0.1),
        ({"no": 600, "Yes": 400}, 0.4),
        ({"Yes": 600, "no": 400}, 0.6),
        ({"10": 700, "9": 300}, 0.7),
        ({"False": 950}, 0.05),
        ({"ill": 950}, 0.95),
        ({"ill": 500}, None),  # of so many words none is one of two classes
        ({"a": 500, "b": 300, "c": 200}, None),
    ],
)
def test_an_estimated_rate_is_that_of_the_second_class(votes: dict[str, float], rate: float | None) -> None:
    paid = EstimatedBounds.calibrate(users=1_000, columns=0, names=1, epsilon=8.0, delta=1e-6, share=0.5)
    found = estimated._rate({"names": [*votes.items()]}, paid, [1.0])
    assert found == (rate if rate is None else pytest.approx(rate))


def test_curves_and_a_model_beside_them_are_two_values_of_one_thing(people: pd.DataFrame) -> None:
    for columns, said in (
        ({"curves": 3}, r"population\.model='curves' or columns\.curves"),
        ({"pairs": 1}, "Leave one out"),
    ):
        with pytest.raises(ConfigError, match=said):
            quoron.simulate(people, label="ill", columns=COLUMNS | columns, model="curves", **QUICK)
