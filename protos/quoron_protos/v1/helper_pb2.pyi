from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenRun(_message.Message):
    __slots__ = ("run", "specification", "plan_digest", "software")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SPECIFICATION_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    run: str
    specification: str
    plan_digest: bytes
    software: str
    def __init__(self, run: _Optional[str] = ..., specification: _Optional[str] = ..., plan_digest: _Optional[bytes] = ..., software: _Optional[str] = ...) -> None: ...

class HelperConsent(_message.Message):
    __slots__ = ("suite", "run", "plan_digest", "spec_digest", "run_key", "participations", "separation", "epsilon", "delta", "adjacency", "expires", "signature", "simulation")
    SUITE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SPEC_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RUN_KEY_FIELD_NUMBER: _ClassVar[int]
    PARTICIPATIONS_FIELD_NUMBER: _ClassVar[int]
    SEPARATION_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    ADJACENCY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SIMULATION_FIELD_NUMBER: _ClassVar[int]
    suite: str
    run: str
    plan_digest: bytes
    spec_digest: bytes
    run_key: bytes
    participations: int
    separation: int
    epsilon: float
    delta: float
    adjacency: str
    expires: int
    signature: bytes
    simulation: bool
    def __init__(self, suite: _Optional[str] = ..., run: _Optional[str] = ..., plan_digest: _Optional[bytes] = ..., spec_digest: _Optional[bytes] = ..., run_key: _Optional[bytes] = ..., participations: _Optional[int] = ..., separation: _Optional[int] = ..., epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., adjacency: _Optional[str] = ..., expires: _Optional[int] = ..., signature: _Optional[bytes] = ..., simulation: _Optional[bool] = ...) -> None: ...

class HelperList(_message.Message):
    __slots__ = ("run", "plan_digest", "round", "previous", "entries")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan_digest: bytes
    round: int
    previous: bytes
    entries: int
    def __init__(self, run: _Optional[str] = ..., plan_digest: _Optional[bytes] = ..., round: _Optional[int] = ..., previous: _Optional[bytes] = ..., entries: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("fingerprint", "question_digest", "sealed", "group")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    question_digest: bytes
    sealed: bytes
    group: int
    def __init__(self, fingerprint: _Optional[bytes] = ..., question_digest: _Optional[bytes] = ..., sealed: _Optional[bytes] = ..., group: _Optional[int] = ...) -> None: ...

class ListPart(_message.Message):
    __slots__ = ("head", "entries")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    head: HelperList
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, head: _Optional[_Union[HelperList, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class RoundReference(_message.Message):
    __slots__ = ("run", "round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("run", "plan_digest", "round", "chain", "left_out", "values", "fingerprints", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan_digest: bytes
    round: int
    chain: bytes
    left_out: bytes
    values: bytes
    fingerprints: bytes
    signature: bytes
    def __init__(self, run: _Optional[str] = ..., plan_digest: _Optional[bytes] = ..., round: _Optional[int] = ..., chain: _Optional[bytes] = ..., left_out: _Optional[bytes] = ..., values: _Optional[bytes] = ..., fingerprints: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CloseRun(_message.Message):
    __slots__ = ("run", "plan_digest")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan_digest: bytes
    def __init__(self, run: _Optional[str] = ..., plan_digest: _Optional[bytes] = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ("news",)
    NEWS_FIELD_NUMBER: _ClassVar[int]
    news: bool
    def __init__(self, news: _Optional[bool] = ...) -> None: ...
