"""One writer and one reader for questions and sums: the bytes that they always had, and the limits of every field."""

from hashlib import sha256
from typing import Annotated, Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from federation.test_wire import TASKS, same
from quoron_client.protocol import wire
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import (
    MAX_FEATURES,
    AverageGradient,
    AverageLoss,
    LocalSGD,
    MomentAndGradient,
    PlacedGradient,
    RangeReport,
    SecondMoment,
    VectorReport,
)
from quoron_client.protocol.smoothing import Convolution, Moreau
from quoron_privacy.errors import WireError
from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.free_counts import (
    ColumnSum,
    Contrasts,
    ContrastSum,
    LengthSum,
    NormCountSum,
    ShapedMomentSum,
    VectorLengthSum,
)
from quoron_privacy.release import packed
from quoron_protos.v1 import federation_pb2 as federation

Kind = TypeVar("Kind", bound=np.generic)
SQUARE, WIDE = np.array([[2.0, 0.5], [0.0, 1.0]]), np.array([[2.0, 0.5, -1.0], [0.25, 1.0, 3.0]])
COUNTS = NormCountSum(1.5, 300, WIDE, np.array([1.0, -2.0, 0.5]))
SUMS = {
    "clipped": ClippedSum(1.5, 300),
    "clipped around a centre": ClippedSum(1.5, 300, WIDE[0]),
    "changes": ChangeSum(ClippedSum(0.5, 9)),
    "norm counts": COUNTS,
    "lengths": LengthSum(300, SQUARE, 1.5),
    "vector lengths": VectorLengthSum(300, WIDE, 1.5),
    "columns": ColumnSum(300, np.abs(WIDE), 1.5, constant=True),
    "shaped moment": ShapedMomentSum(300, SQUARE, 1.5),
    "contrasts": ContrastSum(Contrasts(2, 3), COUNTS),
    "lengths of contrasts": ContrastSum(Contrasts(2, 3), VectorLengthSum(300, WIDE, 1.5)),
}
# SHA-256 of a question to one user and one to two, and of sums, cut to 16 bytes.
GOLDEN = {
    "average gradient": "b2c5b8253bc499f7957fd18ff6d4676b",
    "plain gradient": "fb4e50b2c0d37d67d695758dc6a4d4f8",
    "convolved gradient": "f325143f7471ad372923c2f55812208f",
    "second moment": "32eaebee190f03edb15c03f6ebde4ab8",
    "second moment with labels": "801b46f8ad812b715fcdec265e4226b7",
    "second moment of few rows": "7bdc3014cf75efb23a9e0785592c3fd8",
    "moment and gradient": "3b1912d91fe77c8b5af8b4eace4d76d9",
    "moment and centred gradient": "c8ab8b0fa1c14e6805049664e25fcf62",
    "moment of few rows and gradient": "036f5b93327415eb9ba8f2340b51dc61",
    "average loss": "d03fbfe904380b500ce0db0c22cec739",
    "local SGD": "c6aa92859d43f817088ceb97bdca2f9d",
    "local SGD in a box": "51111d200e2a9db405217009579e004b",
    "placed gradient": "b6de17eae43c2e39bedf6b2c29865dfd",
    "unclipped places": "0cb6fa0d7836a94ec2e4539bffd697bd",
    "range report": "9ad30d83676fbd4aba68d6a239ab65d2",
    "vector report": "e1e12a155d1d0f55e8866a311dc4c259",
    "clipped": "25330c0bb9ee7cda9d4c704ea98a6b8f",
    "clipped around a centre": "5b7bd22c0a50555919da03622839e8b2",
    "changes": "80b917895c1734790855be26ebd8c275",
    "norm counts": "6d2b815372e5e68617078722567ac319",
    "lengths": "df831a33642f0c4e6b7c2eeeb327bed3",
    "vector lengths": "663f29bb13f1cedcd54ceb818cb88ea0",
    "columns": "5de4799fb54a9d376b14df36d3dd09e7",
    "shaped moment": "16e476c25796c1f6c8d9f4db4bccc80a",
    "contrasts": "fba1eef1887164ca0c10e908a063630f",
    "lengths of contrasts": "00cec5be2e384230391eb42b1cc441a1",
}


def written(name):
    if name in SUMS:
        return wire.reduction_to_wire(SUMS[name])
    return federation.Question.FromString(wire.Body.of(TASKS[name].part(slice(0, 1))).data)


def found(message):
    """What a question or sums are read as."""
    if isinstance(message, federation.Reduction):
        return wire.reduction_from_wire(message)
    name = message.WhichOneof("task")
    return wire.read(wire.TASKS[name], getattr(message, name))


@pytest.mark.parametrize("name", TASKS)
def test_questions_have_the_bytes_that_they_always_had(name):
    data = b"".join(wire.Body.of(TASKS[name].part(slice(0, users))).data for users in (1, 2))
    assert sha256(data).hexdigest()[:32] == GOLDEN[name]


@pytest.mark.parametrize("name", SUMS)
def test_sums_have_the_bytes_that_they_always_had(name):
    message = wire.reduction_to_wire(SUMS[name])
    assert sha256(message.SerializeToString(deterministic=True)).hexdigest()[:32] == GOLDEN[name]
    same(wire.reduction_from_wire(message), SUMS[name])


@pytest.mark.parametrize("reduction", [None, COUNTS.transform])
def test_what_a_silo_has_no_sums_of_is_answered_with_rows(reduction):
    assert wire.reduction_to_wire(reduction) is None


numbers = st.floats(1e-149, 1e149)
counts = st.integers(1, 2**31 - 1)


def arrays(*shape):
    """Of finite numbers of any size."""
    return st.integers(0, 2**32 - 1).map(
        lambda seed: np.random.default_rng(seed).standard_normal(shape) * 10.0 ** (seed % 600 - 300)
    )


def maybe(strategy):
    return st.none() | strategy


@st.composite
def tasks(draw):
    """Every task with every field, for one asked user or several."""
    d, p, k = draw(st.integers(1, 5)), draw(st.integers(1, 2)), draw(st.integers(1, 4))
    smoothing = maybe(st.builds(Moreau, numbers) | st.builds(Convolution, numbers))
    gradient = st.builds(
        AverageGradient,
        arrays(p, d),
        st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * p),
        maybe(numbers),
        maybe(arrays(d)),
        maybe(st.integers(1, 2**63 - 1)),
        smoothing,
    )
    places = st.integers(0, 99).map(lambda seed: np.random.default_rng(seed).permuted([[*range(-1, 3)]] * k, axis=1))
    signs = st.integers(0, 99).map(lambda seed: np.random.default_rng(seed).choice([-1.0, 1.0], d))
    coordinates = st.integers(0, 99).map(
        lambda seed: np.random.default_rng(seed).integers(0, 1 << (d - 1).bit_length(), k)
    )
    domain = st.builds(L2Ball, numbers) | st.builds(Box, numbers)
    dimension = st.integers(1, MAX_FEATURES)
    return draw(
        gradient
        | st.builds(PlacedGradient, arrays(1, d), places, numbers, maybe(numbers), st.integers(0, 2**63 - 1))
        | st.builds(SecondMoment, dimension, maybe(numbers))
        | st.builds(MomentAndGradient, dimension, arrays(d), maybe(arrays(d)))
        | st.builds(AverageLoss, arrays(draw(st.integers(1, 16)), d))
        | st.builds(LocalSGD, arrays(k, d), numbers, domain, smoothing)
        | st.builds(RangeReport, gradient, numbers, st.integers(2, 2**16), numbers, signs, coordinates)
        | st.builds(VectorReport, gradient, numbers, st.floats(1e-300, 1, exclude_max=True), numbers, arrays(d))
    )


@given(tasks())
def test_a_question_is_read_as_it_was_written(task):
    message = federation.Question.FromString(wire.Body.of(task).data)
    same(found(message), task)
    assert wire.Body.of(found(message)).data == wire.Body.of(task).data


@st.composite
def sums(draw):
    """Every reduction with every field."""
    p, d = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    clipped = st.builds(ClippedSum, numbers, counts, maybe(arrays(d)))
    of_parts = st.builds(NormCountSum, numbers, counts, arrays(p, d), maybe(arrays(draw(st.integers(1, 9)))))
    lengths = st.builds(VectorLengthSum, counts, arrays(p, d), numbers)
    windows = arrays(2, d).map(lambda found: np.abs(found) + 1e-300)
    outputs = st.integers(2, 9).map(lambda classes: Contrasts(p, classes))
    return draw(
        clipped
        | st.builds(ChangeSum, clipped)
        | of_parts
        | lengths
        | st.builds(LengthSum, counts, arrays(d, d), numbers)
        | st.builds(ColumnSum, counts, windows, numbers, st.booleans())
        | st.builds(ShapedMomentSum, counts, arrays(d, d), numbers)
        | st.builds(ContrastSum, outputs, of_parts | lengths)
    )


@given(sums())
def test_sums_are_read_as_they_were_written(reduction):
    message = wire.reduction_to_wire(reduction)
    same(wire.reduction_from_wire(federation.Reduction.FromString(message.SerializeToString())), reduction)


def fields(message, path=()):
    """(path, field) of every field within what a question or sums hold, absent ones included, but for choices."""
    for field in message.DESCRIPTOR.fields:
        here = (*path, field.name)
        if field.message_type is None or field.message_type.name == "Array":
            yield here, field
        elif field.message_type.name not in ("Domain", "Smoothing"):
            yield from fields(getattr(message, field.name), here)


def kind_of(message):
    return next(getattr(message, field.name) for field, _ in message.ListFields() if field.message_type is not None)


def damages(name):
    """(path, what is wrong) for every field that has a limit."""
    for path, field in fields(kind_of(written(name))):
        if field.message_type is not None:
            wrong = ["dtype", "bytes", "axes", "none", "size"] + ["not finite"] * (path[-1] not in WHOLE)
        elif field.type == field.TYPE_DOUBLE:
            wrong = [float("nan"), float("inf"), -float("inf")] + [0.0, -1.0] * (path[-1] != "weights")
        elif field.name in FREE:
            continue
        else:
            wrong = [2**31 if path[-1] != "reference_items" else 2**63] + [0] * (path[-1] != "coordinate")
        if path[-1] == "delta":
            wrong.append(1.0)
        yield from ((path, each) for each in wrong)


WHOLE, FREE = ("places", "coordinates", "signs"), ("expected", "constant")


def damage(message, path, wrong):
    """The field of a message at a path made wrong; False for what cannot be wrong in this way."""
    *before, last = path
    owner = kind_of(message)
    for name in before:
        owner = getattr(owner, name)
    if not isinstance(wrong, str):
        if last == "weights":
            owner.weights[0] = wrong
        else:
            setattr(owner, last, wrong)
        return True
    array = getattr(owner, last)
    if not array.dtype:
        array.CopyFrom(wire.array_to_wire(np.zeros(1, np.int64 if last in WHOLE else np.float64)))
    if wrong == "dtype":
        array.dtype = "float32"
    elif wrong == "bytes":
        array.data = array.data[:-1]
    elif wrong == "axes":
        array.shape.extend([1, 1])
    elif wrong == "none":
        array.CopyFrom(wire.array_to_wire(np.zeros((0,) * len(array.shape), array.dtype)))
    elif wrong == "size":  # one more in the last axis, where anything else has as many
        array.CopyFrom(wire.array_to_wire(np.full((*array.shape[:-1], array.shape[-1] + 1), 1, array.dtype)))
        return last in ("centre", "signs") and not isinstance(owner, federation.ClippedSum | federation.NormCountSum)
    else:
        array.data = np.full(len(array.data) // 8, np.nan).tobytes()
    return True


@pytest.mark.parametrize("name", [*TASKS, *SUMS])
def test_every_field_has_limits_and_what_is_beyond_them_is_refused_by_name(name):
    seen = set()
    for path, wrong in damages(name):
        message = written(name)
        if damage(message, path, wrong):
            seen.add(path)
            with pytest.raises(WireError, match=f"{path[-1]}|array"):
                found(message)
    assert {path for path, field in fields(kind_of(written(name))) if field.name not in FREE} == seen


@pytest.mark.parametrize("task", ["average loss", "average gradient", "vector report"])
def test_points_beyond_the_most_are_refused(task):
    message = written(task)
    inner = kind_of(message)
    gradient = inner if hasattr(inner, "points") else inner.gradient
    gradient.points.CopyFrom(wire.array_to_wire(np.ones((17, 3))))
    if hasattr(gradient, "weights"):
        del gradient.weights[:]
        gradient.weights.extend([1.0] * 17)
    with pytest.raises(WireError, match="points, got 17"):
        found(message)


@pytest.mark.parametrize(
    ("field", "values", "said"),
    [
        ("places", [0, -2], "from 0, or -1 for none, got -2"),
        ("places", [3, -1, 3], "each place once"),
        ("signs", [1, -1, 0], "-1 or 1, got 0"),
        ("coordinates", [4], r"coordinates in \[0, 4\), got 4"),
        ("coordinates", [-1], r"coordinates in \[0, 4\), got -1"),
    ],
)
def test_whole_numbers_that_name_nothing_are_refused(field, values, said):
    message = written("placed gradient" if field == "places" else "range report")
    getattr(kind_of(message), field).CopyFrom(wire.array_to_wire(np.array(values)))
    with pytest.raises(WireError, match=said):
        found(message)


@pytest.mark.parametrize("field", ["domain", "smoothing"])
def test_a_choice_of_a_later_protocol_is_refused_and_not_left_out(field):
    message = written("local SGD")
    getattr(message.local_sgd, field).Clear()
    getattr(message.local_sgd, field).SetInParent()
    with pytest.raises(WireError, match=f"Expected a {field} that this client knows"):
        found(message)


def numbers_in(message):
    """Of all arrays within."""
    inner = [value for field, value in message.ListFields() if field.message_type is not None]
    if message.DESCRIPTOR.name == "Array":
        return len(message.data) // 8
    return sum(map(numbers_in, inner)) + (message.DESCRIPTOR.name == "RangeReport")  # and one coordinate


@pytest.mark.parametrize("name", TASKS)
def test_numbers_down_are_those_of_the_arrays_that_one_user_is_sent(name):
    assert TASKS[name].numbers_down == TASKS[name].part(slice(0, 1)).numbers_down == numbers_in(kind_of(written(name)))
    assert TASKS[name].part(slice(0)).numbers_down == TASKS[name].numbers_down


def test_the_second_moment_of_the_most_features_is_one_array():
    assert packed(MAX_FEATURES) <= wire.MAX_NUMBERS < packed(MAX_FEATURES + 1)


def test_an_array_is_read_where_numpy_has_an_alias_for_it(monkeypatch):
    """As from NumPy 2.5 on, where `NDArray` is no longer the class."""
    alias = TypeAliasType("alias", np.ndarray[Any, np.dtype[Kind]], type_params=(Kind,))
    expected = wire._field("point", Annotated[NDArray[np.float64], "d"])
    monkeypatch.setattr(wire, "_ARRAY", alias)
    found = wire._field("point", Annotated[alias[np.float64], "d"])
    assert found.dtype == expected.dtype == "float64"
    assert found.reader.args == expected.reader.args
