from quoron_protos.v1 import helper_pb2 as _helper_pb2
from quoron_protos.v1 import values_pb2 as _values_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_ANSWERED: _ClassVar[Status]
    STATUS_MISSING: _ClassVar[Status]
    STATUS_REJECTED: _ClassVar[Status]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_TAKEN: _ClassVar[Verdict]
    VERDICT_LATE: _ClassVar[Verdict]
    VERDICT_DUPLICATE: _ClassVar[Verdict]
    VERDICT_NOT_ASKED: _ClassVar[Verdict]
STATUS_ANSWERED: Status
STATUS_MISSING: Status
STATUS_REJECTED: Status
VERDICT_TAKEN: Verdict
VERDICT_LATE: Verdict
VERDICT_DUPLICATE: Verdict
VERDICT_NOT_ASKED: Verdict

class EnrolRequest(_message.Message):
    __slots__ = ("protocol", "software", "seen", "people")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    PEOPLE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    software: str
    seen: int
    people: int
    def __init__(self, protocol: _Optional[int] = ..., software: _Optional[str] = ..., seen: _Optional[int] = ..., people: _Optional[int] = ...) -> None: ...

class EnrolReply(_message.Message):
    __slots__ = ("user", "agreed", "store", "people")
    USER_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    PEOPLE_FIELD_NUMBER: _ClassVar[int]
    user: int
    agreed: _containers.RepeatedCompositeFieldContainer[Agreed]
    store: Store
    people: int
    def __init__(self, user: _Optional[int] = ..., agreed: _Optional[_Iterable[_Union[Agreed, _Mapping]]] = ..., store: _Optional[_Union[Store, _Mapping]] = ..., people: _Optional[int] = ...) -> None: ...

class Store(_message.Message):
    __slots__ = ("incarnations", "rows", "head", "then", "charged")
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    incarnations: _containers.RepeatedScalarFieldContainer[str]
    rows: int
    head: str
    then: str
    charged: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, incarnations: _Optional[_Iterable[str]] = ..., rows: _Optional[int] = ..., head: _Optional[str] = ..., then: _Optional[str] = ..., charged: _Optional[_Iterable[int]] = ...) -> None: ...

class Agreed(_message.Message):
    __slots__ = ("run", "epsilon", "delta")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    run: str
    epsilon: float
    delta: float
    def __init__(self, run: _Optional[str] = ..., epsilon: _Optional[float] = ..., delta: _Optional[float] = ...) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("hello", "consent", "answer", "part", "masked")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CONSENT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    consent: Consent
    answer: Answer
    part: Part
    masked: MaskedAnswer
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., consent: _Optional[_Union[Consent, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., masked: _Optional[_Union[MaskedAnswer, _Mapping]] = ...) -> None: ...

class Follows(_message.Message):
    __slots__ = ("length", "digest")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    length: int
    digest: bytes
    def __init__(self, length: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "software")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    software: str
    def __init__(self, protocol: _Optional[int] = ..., software: _Optional[str] = ...) -> None: ...

class Consent(_message.Message):
    __slots__ = ("run", "takes_part")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TAKES_PART_FIELD_NUMBER: _ClassVar[int]
    run: str
    takes_part: bool
    def __init__(self, run: _Optional[str] = ..., takes_part: _Optional[bool] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("welcome", "run", "question", "receipt", "ended", "part")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    run: Announcement
    question: Question
    receipt: Receipt
    ended: Ended
    part: Part
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., run: _Optional[_Union[Announcement, _Mapping]] = ..., question: _Optional[_Union[Question, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: int
    def __init__(self, user: _Optional[int] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("run", "description", "spec", "consent")
    RUN_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CONSENT_FIELD_NUMBER: _ClassVar[int]
    run: str
    description: str
    spec: str
    consent: _helper_pb2.HelperConsent
    def __init__(self, run: _Optional[str] = ..., description: _Optional[str] = ..., spec: _Optional[str] = ..., consent: _Optional[_Union[_helper_pb2.HelperConsent, _Mapping]] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("run", "round", "digest", "seconds", "average_gradient", "second_moment", "local_sgd", "range_report", "vector_report", "moment_and_gradient", "average_loss", "placed_gradient", "follows", "persons", "sums", "row")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    SECOND_MOMENT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SGD_FIELD_NUMBER: _ClassVar[int]
    RANGE_REPORT_FIELD_NUMBER: _ClassVar[int]
    VECTOR_REPORT_FIELD_NUMBER: _ClassVar[int]
    MOMENT_AND_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_LOSS_FIELD_NUMBER: _ClassVar[int]
    PLACED_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    PERSONS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    digest: bytes
    seconds: int
    average_gradient: AverageGradient
    second_moment: SecondMoment
    local_sgd: LocalSGD
    range_report: RangeReport
    vector_report: VectorReport
    moment_and_gradient: MomentAndGradient
    average_loss: AverageLoss
    placed_gradient: PlacedGradient
    follows: Follows
    persons: bytes
    sums: Reduction
    row: Reduction
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., digest: _Optional[bytes] = ..., seconds: _Optional[int] = ..., average_gradient: _Optional[_Union[AverageGradient, _Mapping]] = ..., second_moment: _Optional[_Union[SecondMoment, _Mapping]] = ..., local_sgd: _Optional[_Union[LocalSGD, _Mapping]] = ..., range_report: _Optional[_Union[RangeReport, _Mapping]] = ..., vector_report: _Optional[_Union[VectorReport, _Mapping]] = ..., moment_and_gradient: _Optional[_Union[MomentAndGradient, _Mapping]] = ..., average_loss: _Optional[_Union[AverageLoss, _Mapping]] = ..., placed_gradient: _Optional[_Union[PlacedGradient, _Mapping]] = ..., follows: _Optional[_Union[Follows, _Mapping]] = ..., persons: _Optional[bytes] = ..., sums: _Optional[_Union[Reduction, _Mapping]] = ..., row: _Optional[_Union[Reduction, _Mapping]] = ...) -> None: ...

class Reduction(_message.Message):
    __slots__ = ("clipped", "norm_counts", "lengths", "shaped_moment", "vector_lengths", "changes", "columns", "classes")
    CLIPPED_FIELD_NUMBER: _ClassVar[int]
    NORM_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    SHAPED_MOMENT_FIELD_NUMBER: _ClassVar[int]
    VECTOR_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    clipped: ClippedSum
    norm_counts: NormCountSum
    lengths: LengthSum
    shaped_moment: ShapedMomentSum
    vector_lengths: LengthSum
    changes: ClippedSum
    columns: ColumnSum
    classes: int
    def __init__(self, clipped: _Optional[_Union[ClippedSum, _Mapping]] = ..., norm_counts: _Optional[_Union[NormCountSum, _Mapping]] = ..., lengths: _Optional[_Union[LengthSum, _Mapping]] = ..., shaped_moment: _Optional[_Union[ShapedMomentSum, _Mapping]] = ..., vector_lengths: _Optional[_Union[LengthSum, _Mapping]] = ..., changes: _Optional[_Union[ClippedSum, _Mapping]] = ..., columns: _Optional[_Union[ColumnSum, _Mapping]] = ..., classes: _Optional[int] = ...) -> None: ...

class ClippedSum(_message.Message):
    __slots__ = ("norm", "divisor", "centre")
    NORM_FIELD_NUMBER: _ClassVar[int]
    DIVISOR_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    norm: float
    divisor: int
    centre: _values_pb2.Array
    def __init__(self, norm: _Optional[float] = ..., divisor: _Optional[int] = ..., centre: _Optional[_Union[_values_pb2.Array, _Mapping]] = ...) -> None: ...

class NormCountSum(_message.Message):
    __slots__ = ("radius", "users", "transform", "centre")
    RADIUS_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    radius: float
    users: int
    transform: _values_pb2.Array
    centre: _values_pb2.Array
    def __init__(self, radius: _Optional[float] = ..., users: _Optional[int] = ..., transform: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., centre: _Optional[_Union[_values_pb2.Array, _Mapping]] = ...) -> None: ...

class LengthSum(_message.Message):
    __slots__ = ("users", "transform", "top")
    USERS_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    users: int
    transform: _values_pb2.Array
    top: float
    def __init__(self, users: _Optional[int] = ..., transform: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., top: _Optional[float] = ...) -> None: ...

class ColumnSum(_message.Message):
    __slots__ = ("users", "windows", "scale", "constant")
    USERS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    users: int
    windows: _values_pb2.Array
    scale: float
    constant: bool
    def __init__(self, users: _Optional[int] = ..., windows: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., scale: _Optional[float] = ..., constant: _Optional[bool] = ...) -> None: ...

class ShapedMomentSum(_message.Message):
    __slots__ = ("users", "transform", "radius")
    USERS_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    RADIUS_FIELD_NUMBER: _ClassVar[int]
    users: int
    transform: _values_pb2.Array
    radius: float
    def __init__(self, users: _Optional[int] = ..., transform: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., radius: _Optional[float] = ...) -> None: ...

class Sums(_message.Message):
    __slots__ = ("total", "cells", "clipped", "answered")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    total: _values_pb2.Array
    cells: _values_pb2.Array
    clipped: int
    answered: int
    def __init__(self, total: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., cells: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., clipped: _Optional[int] = ..., answered: _Optional[int] = ...) -> None: ...

class AverageGradient(_message.Message):
    __slots__ = ("points", "weights", "user_smoothness", "centre", "reference_items", "smoothing")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    USER_SMOOTHNESS_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    SMOOTHING_FIELD_NUMBER: _ClassVar[int]
    points: _values_pb2.Array
    weights: _containers.RepeatedScalarFieldContainer[float]
    user_smoothness: float
    centre: _values_pb2.Array
    reference_items: int
    smoothing: Smoothing
    def __init__(self, points: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., weights: _Optional[_Iterable[float]] = ..., user_smoothness: _Optional[float] = ..., centre: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., reference_items: _Optional[int] = ..., smoothing: _Optional[_Union[Smoothing, _Mapping]] = ...) -> None: ...

class PlacedGradient(_message.Message):
    __slots__ = ("point", "places", "divisor", "clip", "expected")
    POINT_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    DIVISOR_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    point: _values_pb2.Array
    places: _values_pb2.Array
    divisor: float
    clip: float
    expected: int
    def __init__(self, point: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., places: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., divisor: _Optional[float] = ..., clip: _Optional[float] = ..., expected: _Optional[int] = ...) -> None: ...

class SecondMoment(_message.Message):
    __slots__ = ("dimension", "label_scale", "rows")
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    LABEL_SCALE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    dimension: int
    label_scale: float
    rows: int
    def __init__(self, dimension: _Optional[int] = ..., label_scale: _Optional[float] = ..., rows: _Optional[int] = ...) -> None: ...

class MomentAndGradient(_message.Message):
    __slots__ = ("dimension", "point", "centre", "rows")
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    dimension: int
    point: _values_pb2.Array
    centre: _values_pb2.Array
    rows: int
    def __init__(self, dimension: _Optional[int] = ..., point: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., centre: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., rows: _Optional[int] = ...) -> None: ...

class AverageLoss(_message.Message):
    __slots__ = ("points",)
    POINTS_FIELD_NUMBER: _ClassVar[int]
    points: _values_pb2.Array
    def __init__(self, points: _Optional[_Union[_values_pb2.Array, _Mapping]] = ...) -> None: ...

class LocalSGD(_message.Message):
    __slots__ = ("start", "step_size", "domain", "smoothing")
    START_FIELD_NUMBER: _ClassVar[int]
    STEP_SIZE_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    SMOOTHING_FIELD_NUMBER: _ClassVar[int]
    start: _values_pb2.Array
    step_size: float
    domain: Domain
    smoothing: Smoothing
    def __init__(self, start: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., step_size: _Optional[float] = ..., domain: _Optional[_Union[Domain, _Mapping]] = ..., smoothing: _Optional[_Union[Smoothing, _Mapping]] = ...) -> None: ...

class RangeReport(_message.Message):
    __slots__ = ("gradient", "epsilon", "bins", "half_width", "signs", "coordinate", "coordinates")
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    HALF_WIDTH_FIELD_NUMBER: _ClassVar[int]
    SIGNS_FIELD_NUMBER: _ClassVar[int]
    COORDINATE_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_FIELD_NUMBER: _ClassVar[int]
    gradient: AverageGradient
    epsilon: float
    bins: int
    half_width: float
    signs: _values_pb2.Array
    coordinate: int
    coordinates: _values_pb2.Array
    def __init__(self, gradient: _Optional[_Union[AverageGradient, _Mapping]] = ..., epsilon: _Optional[float] = ..., bins: _Optional[int] = ..., half_width: _Optional[float] = ..., signs: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., coordinate: _Optional[int] = ..., coordinates: _Optional[_Union[_values_pb2.Array, _Mapping]] = ...) -> None: ...

class VectorReport(_message.Message):
    __slots__ = ("gradient", "epsilon", "delta", "radius", "centre")
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    RADIUS_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    gradient: AverageGradient
    epsilon: float
    delta: float
    radius: float
    centre: _values_pb2.Array
    def __init__(self, gradient: _Optional[_Union[AverageGradient, _Mapping]] = ..., epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., radius: _Optional[float] = ..., centre: _Optional[_Union[_values_pb2.Array, _Mapping]] = ...) -> None: ...

class Domain(_message.Message):
    __slots__ = ("ball_radius", "box_half_width")
    BALL_RADIUS_FIELD_NUMBER: _ClassVar[int]
    BOX_HALF_WIDTH_FIELD_NUMBER: _ClassVar[int]
    ball_radius: float
    box_half_width: float
    def __init__(self, ball_radius: _Optional[float] = ..., box_half_width: _Optional[float] = ...) -> None: ...

class Smoothing(_message.Message):
    __slots__ = ("convolution_radius", "moreau")
    CONVOLUTION_RADIUS_FIELD_NUMBER: _ClassVar[int]
    MOREAU_FIELD_NUMBER: _ClassVar[int]
    convolution_radius: float
    moreau: float
    def __init__(self, convolution_radius: _Optional[float] = ..., moreau: _Optional[float] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("run", "round", "digest", "status", "values", "follows", "statuses", "sums")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    digest: bytes
    status: Status
    values: _values_pb2.Array
    follows: Follows
    statuses: bytes
    sums: Sums
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., digest: _Optional[bytes] = ..., status: _Optional[_Union[Status, str]] = ..., values: _Optional[_Union[_values_pb2.Array, _Mapping]] = ..., follows: _Optional[_Union[Follows, _Mapping]] = ..., statuses: _Optional[bytes] = ..., sums: _Optional[_Union[Sums, _Mapping]] = ...) -> None: ...

class MaskedAnswer(_message.Message):
    __slots__ = ("run", "round", "digest", "values", "sealed", "follows")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    digest: bytes
    values: bytes
    sealed: bytes
    follows: Follows
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., digest: _Optional[bytes] = ..., values: _Optional[bytes] = ..., sealed: _Optional[bytes] = ..., follows: _Optional[_Union[Follows, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("run", "round", "verdict")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    verdict: Verdict
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, str]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("run", "how")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    run: str
    how: str
    def __init__(self, run: _Optional[str] = ..., how: _Optional[str] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("command", "arguments")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    command: str
    arguments: str
    def __init__(self, command: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class RunReference(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class Document(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...
