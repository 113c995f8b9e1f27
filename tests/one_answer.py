"""The answer of one user, as a coordinator reads it."""

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Status
from quoron_client.protocol.wire import rows_from_wire
from quoron_protos.v1 import federation_pb2 as pb


def answer_from_wire(message: pb.Answer, shape: tuple[int, ...]) -> tuple[NDArray[np.float64], Status]:
    """Return values and status of one user, as `rows_from_wire`."""
    found = rows_from_wire(message, shape, 1)
    if found is None:
        return np.zeros(shape), Status.REJECTED
    return found.values[0], Status(int(found.status[0]))
