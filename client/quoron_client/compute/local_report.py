"""What a client does in a round of the local model: its average gradient, then a report that is private by itself.

Two kinds of report: noisy bits of one rotated coordinate, from which the coordinator finds where the gradients lie, and
the gradient clipped around a public centre with the client's own noise. A user is to send one report in a run; whoever
sends two has spent both. Source: Bassily & Sun (2023), Algorithm 5, lines 6 and 7.
"""

import numpy as np

from quoron_client.compute.draws import user_keys
from quoron_client.compute.gradients import average_gradient
from quoron_client.data.items import Items
from quoron_client.losses import Loss
from quoron_client.protocol.questions import Answers, Matrix, Status
from quoron_client.protocol.tasks import LocalReport, RangeReport, VectorReport
from quoron_client.randomisers.randomness import LocalRandomness, Users
from quoron_client.randomisers.range_bits import RangeBits, rotated_coordinates
from quoron_client.randomisers.vector import VectorNoise
from quoron_privacy.errors import ConfigError


def local_report(
    loss: Loss,
    batch: Items,
    task: LocalReport,
    randomness: LocalRandomness,
    *,
    round: int,
    users: Users,
    threads: int | None = None,
) -> Answers:
    """Each user's report: values (k, *task.answer_shape(d)), and a status that is ANSWERED for everybody.

    Users without items or with non-finite ones report like a gradient of zero: a status of their own would tell the
    coordinator about their data. `batch` is as `bounded` returns it, `users` are the user numbers of its rows, (k,).
    The bits depend on (randomness, round, user, gradient) and not on who else is in the batch.
    """
    gradients = average_gradient(loss, batch, task.gradient, keys=user_keys(round, users), threads=threads)
    gradients[~np.isfinite(gradients).all(axis=1)] = 0.0
    values: Matrix
    if isinstance(task, RangeReport):
        coordinates = rotated_coordinates(gradients, task.signs, task.coordinates)
        bits = RangeBits(task.epsilon, task.bins, task.half_width)
        values = bits.randomise(coordinates, randomness, round=round, users=users).astype(np.float64)
    elif isinstance(task, VectorReport):
        noise = VectorNoise(task.epsilon, task.delta, task.radius)
        values = noise.randomise(gradients, task.centre, randomness, round=round, users=users)
    else:
        raise ConfigError(f"Expected a RangeReport or a VectorReport, got a {type(task).__name__}.")
    return Answers(values, np.full(batch.users, Status.ANSWERED, np.uint8))
