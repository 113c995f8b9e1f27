"""User-level privacy for a pure loss over a tree of parameters: per-user gradients or local SGD, for all users at once.

    from quoron.jax import LocalSGD

    trained = quoron.jax.train(
        loss, params, (images, labels), user=owners, epsilon=8, delta=1e-6,
        algorithm="dp-sgd-wor", items_per_user=50, local=LocalSGD(batch_size=10), clip_norm=1, radius=10,
    )
    trained.model, trained.statement

Needs the extra `jax`, which nothing else of quoron imports. Page: docs/models.md.
"""

try:
    import jax  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "jax":
        raise
    raise ModuleNotFoundError("quoron.jax needs jax. Install it: pip install 'quoron[jax]'.", name="jax") from missing

from quoron.jax.training import load, train
from quoron.training.rows import LocalSGD

__all__ = ["LocalSGD", "load", "train"]
