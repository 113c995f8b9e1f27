"""A client's items are those of the population's table, bit for bit; what is wrong with a file is told to its owner."""

import json
import logging

import numpy as np
import pandas as pd
import pytest

from quoron.populations import Categorical, Numeric, from_table
from quoron_client.compute.local_report import local_report
from quoron_client.data.dialect import Dialect
from quoron_client.data.encoding import Encoding, Signs, read_label
from quoron_client.federation.own_table import check_one_user, own_items
from quoron_client.federation.terms import read_terms
from quoron_client.losses import Huber, Logistic, SmoothedHinge
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Status
from quoron_client.protocol.reports import VectorReport
from quoron_client.randomisers import SystemRandomness
from quoron_privacy.errors import DataError, WireError

TERMS = {
    "run": "r",
    "algorithm": "dp-sgd-poisson",
    "statement": "(1, 1e-06)-differential privacy",
    "epsilon": 1.0,
    "delta": 1e-6,
    "adjacency": "replace-one",
    "exposure": "broadcast",
    "rounds": 5,
    "participations": 5,
    "dimension": 4,
    "loss": {"name": "logistic", "feature_norm": 1.0},
    "domain": {"l2-ball": 3.0},
    "columns": Encoding((Numeric("age", 0, 100), Categorical("ward", ("A", "1"))), Signs("sick")).as_json(),
    "later": {"keys": "are left alone"},
}


def terms(**changes):
    return read_terms("r", json.dumps(TERMS | changes))


def columns(features=None, label="sick", bound=None, **changes):
    """Other rules: `features` as two mappings, of ranges and of vocabularies."""
    made = TERMS["columns"] | changes
    if features is not None:
        numeric, categorical = features
        made["features"] = [{"column": name, "low": low, "high": high} for name, (low, high) in numeric.items()]
        made["features"] += [{"column": name, "categories": list(values)} for name, values in categorical.items()]
    if label != "sick":
        read = None if label is None else read_label(label, label_range=bound and (-bound, bound), bound=bound or 1.0)
        made["label"] = Encoding((), read).as_json()["label"]
    return {"columns": made}


def visits(users=6, rows=60, seed=3):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "who": np.concatenate([np.arange(users), rng.integers(0, users, rows - users)]),
            "age": rng.uniform(-10, 120, rows),
            "ward": rng.choice(["A", "1", "Z"], rows),
            "sick": rng.integers(0, 2, rows),
            "cost": rng.standard_normal(rows),
        }
    )


def write(frame, folder, suffix=".parquet"):
    path = folder / f"mine{suffix}"
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


class TestTheItems:
    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    @pytest.mark.parametrize(
        ("loss", "label", "unit_rows", "intercept"),
        [
            (Logistic(), "sick", False, True),
            (Logistic(feature_norm=2.0), "cost > 0", True, True),
            (SmoothedHinge(width=0.5), "sick", True, False),
            (Huber(threshold=0.5, label_bound=0.7), "cost", False, True),
        ],
    )
    def test_are_those_of_the_population(self, tmp_path, suffix, loss, label, unit_rows, intercept):
        frame = visits()
        bound = getattr(loss, "label_bound", None)
        label_of = read_label(label, label_range=bound and (-bound, bound), bound=bound or 1.0)
        everyone = from_table(
            frame, user="who", label=label_of, features=(Numeric("age", 0, 100), Categorical("ward", ("A", "1"))),
            loss=loss, unit_rows=unit_rows, intercept=intercept, test_fraction=0.0,
        )  # fmt: skip
        bounds = loss.bounds
        agreed = terms(
            **columns(
                label=label, bound=bound, unit_rows=unit_rows, intercept=intercept, feature_norm=loss.feature_norm
            ),
            loss={"name": loss.name, **bounds},
            dimension=3 + intercept,
        )
        for user in range(6):
            own = own_items(write(frame[frame["who"] == user], tmp_path, suffix), agreed)
            wanted = everyone.items(np.array([user]))
            assert own.problem is None
            assert own.batch.features.tobytes() == wanted.features.tobytes()
            np.testing.assert_array_equal(own.batch.labels, loss.bound_labels(wanted.labels))

    def test_are_the_same_from_files_of_any_kind_and_dialect(self, tmp_path):
        frame, comma = visits().drop(columns="who").round(3), Dialect(decimal=",")
        frame["id"] = 5
        wanted = own_items(write(frame, tmp_path, ".csv"), terms()).batch.features.tobytes()
        frame.to_csv(tmp_path / "mine.csv.gz", sep=";", decimal=",", index=False)
        frame.to_json(tmp_path / "mine.jsonl", orient="records", lines=True, double_precision=15)
        frame.to_feather(tmp_path / "mine.feather")
        for name, dialect in (("mine.csv.gz", comma), ("mine.jsonl", None), ("mine.feather", None)):
            assert own_items(tmp_path / name, terms(), dialect).batch.features.tobytes() == wanted
            check_one_user(tmp_path / name, one_user=False, items_per_user=None, dialect=dialect)
            with pytest.raises(DataError, match="got more than 10 times the 5 rows"):
                check_one_user(tmp_path / name, one_user=False, items_per_user=5, dialect=dialect)
        (tmp_path / "two.jsonl").write_text('{"patient": 1}\n{"patient": 2, "age": 3}\n')
        with pytest.raises(DataError, match="several values in column 1, whose name"):
            check_one_user(tmp_path / "two.jsonl", one_user=False, items_per_user=None)


class TestConsent:
    """Making the items raises an error, and so refuses a run, by the header of a CSV file alone."""

    CELLS = (
        "50,A,1\n",
        "old,A,yes\n",
        ",,\n",
        "2020-01-01,1.5,true\n",
        "99999999999999999999,7,3\n",
        "1\n1,2,3,4,5\n",
        '"open',
        "",
        "\udcff,\udcfe,\udcfd\n",
    )

    @pytest.mark.parametrize("cells", CELLS)
    @pytest.mark.parametrize(
        ("changes", "fits"),
        [
            ({}, True),
            ({"features": ({"age": (0, 100)}, {"ward": (1, 2)})}, True),
            ({"features": ({"age": (0, 100), "ward": (0, 1)}, {})}, True),
            ({"label": "sick > 3"}, True),
            ({"label": "nowhere > 3"}, False),
            ({"features": ({}, {"age": ("A", "B", "C")})}, True),
            ({"features": ({"age": (0, 100)}, {"bed": ("A", "B")})}, False),
        ],
    )
    def test_is_the_same_for_any_cells(self, tmp_path, cells, changes, fits):
        path = tmp_path / "mine.csv"
        path.write_bytes(("\ufeffage,ward,sick\n" + cells).encode("utf-8", "surrogateescape"))
        agreed = terms(**columns(**changes), dimension=3 if changes.get("features", (0, 1))[1] == {} else 4)
        if fits:
            own = own_items(path, agreed)
            assert (own.problem is None) != np.isnan(own.batch.features).all()
        else:
            with pytest.raises(DataError):
                own_items(path, agreed)


class TestWhatIsWrongWithTheValues:
    FAULTS = ({"age": np.nan}, {"age": np.inf}, {"sick": 7}, {"sick": np.nan}, {"age": "old"})

    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    @pytest.mark.parametrize("fault", FAULTS)
    def test_leaves_its_row_out_and_is_told_to_the_owner(self, tmp_path, fault, suffix):
        frame, name = visits(), next(iter(fault))
        whole = own_items(write(frame.drop(index=3), tmp_path, suffix), terms())
        frame[name] = frame[name].astype(object)
        frame.loc[3, name] = fault[name]
        if suffix == ".parquet":
            frame[name] = frame[name].map(str)
        own = own_items(write(frame, tmp_path, suffix), terms())
        assert own.problem is None
        assert f"got 1 of 60 that cannot, by column: '{name}' (1)" in own.notice
        np.testing.assert_array_equal(own.batch.features, whole.batch.features)
        np.testing.assert_array_equal(own.batch.labels, whole.batch.labels)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_in_every_row_cannot_be_seen_at_all_in_the_local_model(self, tmp_path, fault):
        frame = visits().assign(**fault)
        own = own_items(write(frame, tmp_path), terms())
        task = VectorReport(AverageGradient(np.zeros((1, 4)), (1.0,)), 1.0, 1e-6, 1.0, np.zeros(4))
        found = local_report(Logistic(), own.batch, task, SystemRandomness(), round=0, users=np.array([0]))
        assert found.status.tolist() == [Status.ANSWERED]
        assert np.isfinite(found.values).all()

    def test_never_quotes_a_value(self, tmp_path, our_logs):
        frame = visits().assign(sick=987654321)
        with our_logs.at_level(logging.DEBUG):
            assert "987654321" not in own_items(write(frame, tmp_path), terms()).problem
        assert not our_logs.records


class TestTerms:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"epsilon": float("nan")}, "epsilon: "),
            ({"epsilon": -1.0}, "epsilon: "),
            ({"epsilon": "1"}, "epsilon: Input should be a valid number"),
            ({"delta": 2.0}, "delta: "),
            ({"rounds": 0}, "rounds: "),
            ({"participations": 0}, "participations: "),
            ({"exposure": "everybody"}, "exposure: "),
            ({"run": "another"}, "the description of the announced run"),
            ({"loss": {"name": "cubic"}}, "Expected loss to be one of"),
            ({"loss": {"name": "huber", "width": 1.0}}, "Expected the bounds of loss huber to be among"),
            ({"loss": {"name": "huber", "threshold": "wide"}}, "numbers as its bounds"),
            ({"loss": {"feature_norm": 1.0}}, "Expected loss to be one of"),
            ({"domain": {}}, "to have one domain"),
            ({"domain": {"l2-ball": 0.0}}, "domain.l2-ball: "),
            (columns(({"age": (2, 1)}, {})), "a public range low < high"),
            (columns(({}, {}), intercept=False), "at least one feature or an intercept"),
            (columns(label=None), "a label for the logistic loss"),
            (columns(feature_norm=2.0), "Expected the loss's feature_norm=1, got feature_norm=2"),
            (columns(({}, {"ward": ()})), "the public values of categorical feature 'ward'"),
            ({"columns": TERMS["columns"] | {"features": [{"column": "w", "categories": "from-data"}]}}, "List them"),
            (columns(later=True), "columns.later: Unexpected keyword"),
        ],
    )
    def test_that_cannot_be_meant_are_refused_by_name(self, changes, said):
        with pytest.raises(WireError, match=said):
            terms(**changes)

    def test_that_are_enormous_are_refused_before_they_are_read(self):
        with pytest.raises(WireError, match="at most 1,048,576 characters"):
            read_terms("r", " " * (1 << 21))
