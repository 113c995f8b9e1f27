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
    "tracking.entry",
    "whitened.entry",
    "one_round.entry",
    "localised.filtered",
    "localised.soft_filtered",
    "localised.median",
    "outlier_iterates.entry",
    "localised.phased",
    "localised.grouped",
    "phased_erm.entry",
    "noisy.one_pass",
    "one_epoch.family",
    "accelerated_erm.entry",
    "outlier_gd.entry",
    "noisy.dp_sgd",
    "noisy.group_dp_sgd",
    "mean.entry",
    "winsorised.entry",
    "local_model.entry",
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
