"""A made-up user's items in a file, as they are: no table's rows become these very bits."""

from pathlib import Path
from typing import Any

import numpy as np

from quoron_client.data.items import ItemBatch


def save_items(path: Path, batch: ItemBatch) -> None:
    """Write the items of one user."""
    more: dict[str, Any] = {} if batch.weights is None else {"weights": batch.weights}
    np.savez(path, features=batch.features, labels=batch.labels, offsets=batch.offsets, **more)


def load_items(path: Path) -> ItemBatch:
    """What `save_items` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        return ItemBatch(stored["features"], stored["labels"], stored["offsets"], stored.get("weights"))
