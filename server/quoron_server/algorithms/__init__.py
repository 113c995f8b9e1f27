"""A folder a family of algorithms, and the registry of all of them.

>>> ALGORITHMS["filtered-sgd"].trust_model
'central-release'
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType

from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.algorithms.registered import Registered

_PLACES = (  # modules, or one name of a module, whose AlgorithmInfo are the registry's, in the order of lists
    "tracking.plan",
    "whitened.plan",
    "one_round.plan",
    "localised.filtered",
    "localised.median",
    "outlier_iterates.plan",
    "localised.plan",
    "localised.grouped",
    "noisy.plan:ONE_PASS",
    "one_epoch.plan",
    "accelerated_erm.plan",
    "outlier_gd.plan",
    "noisy.plan:POISSON",
    "noisy.plan:WITHOUT_REPLACEMENT",
    "mean.plan",
    "winsorised.plan",
    "local_model.plan",
    "noisy.plan:SGD",
)


def _infos(place: str) -> Iterator[AlgorithmInfo]:
    module, _, wanted = place.partition(":")
    for name, info in vars(import_module(f"{__name__}.{module}")).items():
        if isinstance(info, AlgorithmInfo) and wanted in ("", name):
            yield info


ALGORITHMS: Mapping[str, Registered] = MappingProxyType(
    {info.name: Registered.of(info) for place in _PLACES for info in _infos(place)}
)

__all__ = ["ALGORITHMS", "AlgorithmInfo", "Registered"]
