"""What a client cannot compute or read is refused before it begins: a row for every rule. The sentences are golden."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from client import reference
from federation.conversation import terms
from quoron.data.declared_types import check_types
from quoron_client import AverageGradient, Convolution, ItemBatch, L2Ball, LocalSGD, Moreau, make_loss
from quoron_client.compute.draws import user_keys
from quoron_client.compute.enforcement import smoothness_scale
from quoron_client.compute.gradients import average_gradient, average_loss, gradient_sums
from quoron_client.compute.local_iterates import local_sgd
from quoron_client.compute.work import answer, placed_gradient
from quoron_client.data import columns, features
from quoron_client.data.encoding import (
    Classes,
    Comparison,
    Encoding,
    Positive,
    Range,
    Signs,
    Weight,
    read_label,
)
from quoron_client.data.features import DateNumber, DatePart, Hashed, Numeric
from quoron_client.data.formats import Dialect
from quoron_client.federation import Terms
from quoron_client.losses import Hinge, LeastSquares, Logistic
from quoron_client.protocol.questions import PlacedGradient, SecondMoment
from quoron_privacy.errors import QuoronError
from quoron_privacy.means.clipping import ClippedSum

AGE = (Numeric("age", 0, 100),)
DAYS = DateNumber("a", "days", 0, 1, "1970-01-01")
SPAN = {"column": "k", "buckets": 1048576}
ITEMS = reference.random_batch(np.random.default_rng(11), (2, 5), 4)
POINT = AverageGradient(np.ones((1, 4)), (1.0,))
PLACES = np.array([[0, 1]])
WIDE = AverageGradient(np.ones((1, 8)), (1.0,))
CONVOLVED = replace(POINT, smoothing=Convolution(1.0, 0))
DECLARED: list[tuple[str, Callable[[], object]]] = [
    ("a format with a year", lambda: DatePart("a", "month", "%H:%M")),
    ("a format with an hour", lambda: DatePart("a", "hour", "%d.%m.%Y")),
    ("%p beside %I", lambda: DatePart("a", "hour", "%I:%M")),
    ("Expected a format of", lambda: DatePart("a", "month", "%d.%Q.%Y")),
    ("Expected a format of", lambda: DatePart("a", "month", "%d.%m.%Y%")),
    ("a format with a month", lambda: DatePart("a", "month", "%Y")),
    ("a format with a day", lambda: DatePart("a", "weekday", "%Y-%m")),
    ("got 'minute'", lambda: DatePart("a", "minute")),
    ("range low < high of the year", lambda: DateNumber("a", "year", 2016, 2007)),
    ("no first day for years", lambda: DateNumber("a", "year", 0, 1, "2007-01-01")),
    ("a day such as", lambda: DateNumber("a", "days", 0, 1)),
    ("time zone of column 'a'", lambda: DAYS.read(pa.table({"a": pa.array([0], pa.timestamp("s", "Mars/Olympus"))}))),
    ("to hold dates, times or text", lambda: Encoding((DAYS,)).check(pa.table({"a": pa.nulls(1, pa.duration("s"))}))),
    ("dates or times in feature", lambda: check_types(Encoding((DAYS,)), {"a": pa.bool_()})),
    (
        "a days within which",
        lambda: check_types(Encoding((replace(DAYS, since="2262-04-12"),)), {"a": pa.timestamp("ns")}),
    ),
    ("to hold numbers or text", lambda: Encoding(AGE).check(pa.table({"age": pa.nulls(0, pa.timestamp("s"))}))),
    ("classes = ", lambda: check_types(Encoding(AGE, Signs("y")), {"y": pa.string()})),
    ("can hold", lambda: check_types(Encoding(AGE, Classes("y", ("no", "1.5"))), {"y": pa.float32()})),
    ("can hold", lambda: check_types(Encoding(AGE, Classes("y", (0, 300))), {"y": pa.uint8()})),
    ("positive that label", lambda: check_types(Encoding(AGE, Positive("y", "died")), {"y": pa.int32()})),
    ("now true and now false", lambda: check_types(Encoding(AGE, Comparison("y", ">=", 0.0)), {"y": pa.uint16()})),
    ("now true and now false", lambda: check_types(Encoding(AGE, Comparison("y", ">", 15.0)), {"y": pa.bool_()})),
    ("a range within which", lambda: check_types(Encoding(AGE, Range("y", -5, 0)), {"y": pa.uint64()})),
    ("with a finite number", lambda: read_label("a > __import__")),
    ("one of positive, classes", lambda: read_label("a", positive=1, classes=(1, 2))),
    ("two classes of label", lambda: read_label("a", classes=(1,))),
    ("all text or all integers", lambda: read_label("a", classes=(1, "b"))),
    ("got one twice", lambda: read_label("a", classes=("b", "b"))),
    ("it means missing", lambda: read_label("a", positive="")),
    ("Write them as text", lambda: read_label("a", positive=2**53)),
    ("a public range low < high", lambda: read_label("a", range=(3.0, 3.0))),
    ("a label for the logistic loss", lambda: Encoding(AGE).check_loss(Logistic())),
    ("range = \\[", lambda: Encoding(AGE, Signs("y")).check_loss(LeastSquares())),
    ("such as 'y > 1'", lambda: Encoding(AGE, Range("y", 0, 2)).check_loss(Logistic())),
    ("label_bound=2", lambda: Encoding(AGE, Range("y", 0, 2)).check_loss(LeastSquares(label_bound=2.0))),
    ("Take the loss softmax", lambda: Encoding(AGE, Classes("y", (1, 2, 3))).check_loss(Hinge())),
    ("feature_norm=2", lambda: Encoding(AGE, Signs("y")).check_loss(Logistic(feature_norm=2.0))),
    ("Unexpected keyword", lambda: Encoding.from_json(Encoding(AGE).as_json() | {"later": 1})),
    ("as JSON", lambda: Encoding.from_json({"features": [{"column": "a", "low": float("nan"), "high": 1.0}]})),
    ("low < high", lambda: Numeric("a", 2.0, 1.0)),
    ("a smaller range", lambda: Numeric("a", -1e308, 1e308)),
    ("a weight of 'w'", lambda: Weight("w", -1.0)),
    ("feature_norm > 0", lambda: Encoding(AGE, feature_norm=0.0)),
    ("at least one feature", lambda: Encoding((), intercept=False)),
    ("buckets for column 'a'", lambda: Hashed("a", 1)),
    ("buckets for column 'a'", lambda: Hashed("a", 2**20 + 1)),
    ("declarations imply, got 1,048,578", lambda: Encoding((Hashed("a", features.MAX_COLUMNS), Hashed("b", 2)))),
    ("as features, got 2,000,000", lambda: Encoding(tuple(Numeric(f"{name}[0:1000000]", 0, 1) for name in "ab"))),
    ("got 20,971,520,000", lambda: Terms.read("r", terms(columns={"features": [SPAN] * 20_000}))),
    (
        "columns",
        lambda: Terms.read("r", terms(columns={"features": [{"column": "x[0:900000000]", "low": 0, "high": 1}]})),
    ),
    ("Expected separator", lambda: Dialect(separator=";;")),
    ("Expected decimal", lambda: Dialect(decimal=";")),
    ("Expected encoding", lambda: Dialect(encoding="ebcdic")),
    ("Expected quoting", lambda: Dialect(quoting="all")),
    ("to say whose a row is", lambda: columns.users(pa.table({"who": pa.nulls(2, pa.list_(pa.int8()))}), "who")),
]
COMPUTED: list[tuple[str, Callable[[], object]]] = [
    ("one of logistic", lambda: make_loss("logit")),
    ("among feature_norm", lambda: make_loss("hinge", width=1.0)),
    ("threshold > 0", lambda: make_loss("huber", threshold=0.0)),
    ("feature_norm > 0 and finite", lambda: make_loss("logistic", feature_norm=float("inf"))),
    ("ridge >= 0", lambda: make_loss("logistic", ridge=-0.1)),
    ("a whole number >= 1", lambda: make_loss("logistic", active_features=1.5)),
    ("classes to be a whole number", lambda: make_loss("softmax", classes=1)),
    ("classes of loss softmax, got none", lambda: make_loss("softmax")),
    ("points with 4", lambda: average_gradient(make_loss("logistic"), ITEMS, AverageGradient(np.ones((1, 3)), (1.0,)))),
    ("points with 4", lambda: average_loss(make_loss("logistic"), ITEMS, np.ones(5))),
    ("points with 12", lambda: average_gradient(make_loss("softmax", classes=3), ITEMS, POINT)),
    ("a centre with 4", lambda: average_gradient(make_loss("logistic"), ITEMS, replace(POINT, centre=np.ones(3)))),
    ("reference_items >= 1", lambda: average_gradient(make_loss("logistic"), ITEMS, replace(POINT, reference_items=0))),
    (
        "one or two points",
        lambda: average_gradient(make_loss("linear"), ITEMS, AverageGradient(np.ones((3, 4)), (1.0,))),
    ),
    ("one output", lambda: gradient_sums(make_loss("softmax", classes=2), ITEMS, WIDE, ClippedSum(1.0, 9))),
    ("centre", lambda: gradient_sums(make_loss("linear"), ITEMS, POINT, ClippedSum(1.0, 9, np.ones(3)))),
    ("starts of shape", lambda: local_sgd(make_loss("linear"), ITEMS, LocalSGD(np.zeros((1, 4)), 0.1, L2Ball(1.0)))),
    ("dimension=4", lambda: answer(make_loss("logistic"), ITEMS, SecondMoment(3))),
    ("keys, one per user", lambda: average_gradient(make_loss("hinge"), ITEMS, CONVOLVED)),
    ("2, got keys", lambda: average_gradient(make_loss("hinge"), ITEMS, CONVOLVED, keys=user_keys(0, np.arange(3)))),
    (
        "with Moreau smoothing",
        lambda: local_sgd(make_loss("logistic"), ITEMS, LocalSGD(np.zeros((2, 4)), 0.1, L2Ball(1.0), Moreau(1.0))),
    ),
    (
        "row of places",
        lambda: placed_gradient(make_loss("linear"), ITEMS, PlacedGradient(np.ones((1, 4)), PLACES, 1.0)),
    ),
    ("radius > 0", lambda: Convolution(0.0, 0)),
    ("seed in", lambda: Convolution(1.0, -1)),
    ("parameter > 0", lambda: Moreau(float("inf"))),
    ("a smooth loss", lambda: smoothness_scale(make_loss("hinge"), ITEMS, 0.1)),
    ("user_smoothness > 0", lambda: smoothness_scale(make_loss("logistic"), ITEMS, 0)),
    ("weights", lambda: ItemBatch(np.ones((3, 1)), np.ones(3), np.array([0, 3]), np.ones(3, np.float32))),
]


@pytest.mark.parametrize(("said", "refused"), DECLARED + COMPUTED)
def test_what_cannot_be_meant_is_refused(said: str, refused: Callable[[], object]) -> None:
    with pytest.raises(QuoronError, match=said):
        refused()
