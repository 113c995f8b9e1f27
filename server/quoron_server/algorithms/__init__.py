"""A folder or module a family of algorithms, and the registry of all of them.

>>> ALGORITHMS["filtered-sgd"].trust_model
'central-release'
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module

from quoron_server.algorithms.registered import RegisteredAlgorithm
from quoron_server.algorithms.spec import AlgorithmSpec

_PLACES = {  # the module with the AlgorithmSpec of each, in the order of lists
    "tracking-srgd": "tracking",
    "whitened-tracking": "whitened.plan",
    "one-round-least-squares": "one_round",
    "filtered-sgd": "localised.filtered",
    "median-sgd": "localised.median",
    "outlier-iterates": "outlier_iterates",
    "phased-sgd": "localised.phased",
    "group-phased-sgd": "localised.grouped",
    "one-pass-dp-sgd": "noisy",
    "accelerated-srgd": "one_epoch",
    "accelerated-sgd": "one_epoch",
    "srgd": "one_epoch",
    "online-to-batch": "one_epoch",
    "dp-ftrl": "one_epoch",
    "accelerated-erm": "accelerated_erm",
    "outlier-gd": "outlier_gd",
    "dp-sgd-poisson": "noisy",
    "dp-sgd-wor": "noisy",
    "recentred-sgd": "mean",
    "mean-sgd": "mean",
    "winsorised-erm": "winsorised",
    "local-model": "local_model",
    "sgd": "noisy",
}


@cache
def _registered(name: str) -> RegisteredAlgorithm:
    held = vars(import_module(f"{__name__}.{_PLACES[name]}")).values()
    spec = next(value for value in held if isinstance(value, AlgorithmSpec) and value.name == name)
    return RegisteredAlgorithm(**{field.name: getattr(spec, field.name) for field in fields(spec)})


class _Registry(Mapping[str, RegisteredAlgorithm]):
    """Algorithms by name; a family is imported when one of its algorithms is first used."""

    def __getitem__(self, name: str) -> RegisteredAlgorithm:
        return _registered(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


ALGORITHMS: Mapping[str, RegisteredAlgorithm] = _Registry()

__all__ = ["ALGORITHMS", "AlgorithmSpec", "RegisteredAlgorithm"]
