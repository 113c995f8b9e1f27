"""User-level privacy for a pure loss over a tree of parameters: per-user gradients or local SGD, for all users at once.

    import quoron.jax

    trained = quoron.jax.train(
        loss, params, (images, labels), user=owners, items_per_user=50,
        local=quoron.jax.LocalSGD(batch_size=10), algorithm="dp-sgd-wor",
        epsilon=8, delta=1e-6, clip_norm=1, radius=10,
    )
    trained.params, trained.guarantee.sentence()

Needs the extra `jax`, which nothing else of quoron imports. Page: docs/models.md.
"""

try:
    import jax  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "jax":
        raise
    raise ModuleNotFoundError("quoron.jax needs jax. Install it: pip install 'quoron[jax]'.", name="jax") from missing

from quoron.jax.training import Trained, train
from quoron.training.timetable import LocalSGD

__all__ = ["LocalSGD", "Trained", "train"]
