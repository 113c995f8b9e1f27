"""A folder a family of algorithms, and the registry of all of them.

>>> ALGORITHMS["filtered-sgd"].trust_model
'central-release'
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType

from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.algorithms.registered import Registered

_PLACES = (  # modules whose AlgorithmInfo are the registry's, in the order in which people are shown them
    "tracking.plan",
    "whitened.plan",
    "one_round.plan",
    "localised.filtered",
    "localised.median",
    "outlier_iterates.plan",
    "localised.phased",
    "localised.grouped",
    "noisy.one_pass",
    "one_epoch.plan",
    "accelerated_erm.plan",
    "outlier_gd.plan",
    "noisy.dp_sgd",
    "mean.plan",
    "winsorised.plan",
    "local_model.plan",
    "noisy.sgd",
)


def _infos(place: str) -> Iterator[AlgorithmInfo]:
    for each in vars(import_module(f"{__name__}.{place}")).values():
        if isinstance(each, AlgorithmInfo):
            yield each


ALGORITHMS: Mapping[str, Registered] = MappingProxyType(
    {info.name: Registered.of(info) for place in _PLACES for info in _infos(place)}
)

__all__ = ["ALGORITHMS", "AlgorithmInfo", "Registered"]
