"""Which users are outliers, and of which kind: keyed by (seed, user), so it does not depend on who else is asked."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quoron.populations.streams import Purpose, uniforms, words
from quoron.populations.users import Corruption, Users
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss
from quoron_privacy.errors import ConfigError

OutlierKind = Literal["shifted", "huge", "nan", "inf", "missing", "zero"]


@dataclass(frozen=True, slots=True)
class Outliers:
    """Each user is an outlier with probability `fraction`, independently; what it then does is `kind`."""

    fraction: float = 0.0
    kind: OutlierKind = "shifted"

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ConfigError(f"Expected outlier_fraction in [0, 1], got outlier_fraction={self.fraction}.")
        if self.kind not in get_args(OutlierKind):
            allowed = ", ".join(get_args(OutlierKind))
            raise ConfigError(f"Expected outlier_kind to be one of {allowed}, got outlier_kind={self.kind!r}.")

    def corruption(self, users: Users, *, seed: int) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        shown = np.zeros(len(users), np.uint8)  # HONEST
        if self.fraction > 0:
            draws = uniforms(words(seed=seed, purpose=Purpose.USER, users=users)[:, 0])
            shown[draws < self.fraction] = Corruption[self.kind.upper()]
        return shown


def flipped(batch: ItemBatch, corruption: NDArray[np.uint8], loss: Loss) -> ItemBatch:
    """Items with those of SHIFTED users mirrored, or their labels; `corruption` is that of each user, (k,)."""
    shifted = np.repeat(corruption == Corruption.SHIFTED, np.diff(batch.offsets))
    if not shifted.any():
        return batch
    if loss.name == "linear":
        return replace(batch, features=np.where(shifted[:, None], -batch.features, batch.features))
    return replace(batch, labels=np.where(shifted, loss.opposite(batch.labels), batch.labels))
