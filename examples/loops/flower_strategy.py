"""A Strategy of Flower whose rounds are private for all items of a user at once: FedAvg with two methods replaced.

    strategy = PrivateFedAvg(epsilon=8.0, users=1_000, cohort=100, rounds=40, clip_norm=1.0, arrays=initial)
    strategy.start(grid, initial, num_rounds=40)

Every node is one user. Cohorts stay secret from everybody who does not run the server; metrics that nodes send are
dropped, as nothing protects them. quoron's own Flower app (docs/flower.md) also survives kills and keeps a ledger.
"""

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from quoron_privacy import ClippedMean, NoiseSource, SecureNoise


def flat(arrays: ArrayRecord) -> np.ndarray:
    """All numbers of a model, (dimension,)."""
    return np.concatenate([each.numpy().ravel() for each in arrays.values()])


def like(arrays: ArrayRecord, numbers: np.ndarray) -> ArrayRecord:
    """The numbers in the shapes and under the names of `arrays`."""
    shapes = {name: each.numpy() for name, each in arrays.items()}
    ends = np.cumsum([each.size for each in shapes.values()])[:-1]
    parts = np.split(numbers, ends)
    return ArrayRecord(
        {
            name: Array(part.reshape(each.shape).astype(each.dtype))
            for (name, each), part in zip(shapes.items(), parts, strict=True)
        }
    )


class PrivateFedAvg(FedAvg):
    """Federated averaging of clipped updates with Gaussian noise."""

    def __init__(
        self,
        *,
        epsilon: float,
        users: int,
        cohort: int,
        rounds: int,
        clip_norm: float,
        arrays: ArrayRecord,
        delta: float = 1e-6,
        noise: NoiseSource | None = None,
    ) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.mean = ClippedMean.calibrate(
            epsilon,
            delta,
            users=users,
            cohort=cohort,
            rounds=rounds,
            dimension=len(flat(arrays)),
            clip_norm=clip_norm,
        )
        self.state, self.noise, self.arrays = self.mean.init(), noise or SecureNoise.fresh(), arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask a secret cohort to train."""
        self.arrays, nodes = arrays, sorted(grid.get_node_ids())
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        chosen = [nodes[user] for user in self.mean.cohort(self.state, self.noise)]
        return self._construct_messages(record, chosen, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the private mean of the updates to the model; who does not answer adds zero."""
        before, answers = flat(self.arrays), [each.content for each in replies if not each.has_error()]
        rows = [flat(each.array_records[self.arrayrecord_key]) - before for each in answers]
        step, self.state = self.mean(np.array(rows).reshape(-1, len(before)), self.state, self.noise)
        return like(self.arrays, before + step), None
