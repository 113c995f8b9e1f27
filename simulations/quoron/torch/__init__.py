"""User-level privacy for an unmodified torch module: per-user gradients or local SGD, for all users on one machine.

    from quoron.torch import LocalSGD

    trained = quoron.torch.train(
        network, (images, labels), user=owners, loss=torch.nn.functional.cross_entropy,
        epsilon=8, delta=1e-6, algorithm="dp-sgd-wor", items_per_user=50, local=LocalSGD(batch_size=10), clip_norm=1,
        radius=10,
    )
    trained.model, trained.statement

Needs the extra `torch`, which nothing else of quoron imports. Page: docs/models.md.
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ModuleNotFoundError(
        "quoron.torch needs torch. Install it: pip install 'quoron[torch]'.", name="torch"
    ) from missing

from quoron.torch.training import answering, load, train, weights, with_weights
from quoron.training.rows import LocalSGD

__all__ = ["LocalSGD", "answering", "load", "train", "weights", "with_weights"]
