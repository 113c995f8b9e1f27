"""One algorithm of one paper a file, and the registry of all of them.

>>> ALGORITHMS["filtered-sgd"].exposure
'model'
"""

from collections.abc import Mapping
from types import MappingProxyType

from quoron_server.algorithms import (
    accelerated_erm,
    dp_sgd,
    filtered_sgd,
    local_model,
    mean_sgd,
    one_epoch,
    one_pass_dp_sgd,
    outlier_iterates,
    phased_sgd,
    sgd,
    soft_filtered_sgd,
    tracking_srgd,
)
from quoron_server.algorithms._info import AlgorithmInfo, guarded

ALGORITHMS: Mapping[str, AlgorithmInfo] = MappingProxyType(
    {
        info.name: guarded(info)
        for info in (
            tracking_srgd.INFO,
            filtered_sgd.INFO,
            soft_filtered_sgd.INFO,
            outlier_iterates.INFO,
            phased_sgd.INFO,
            one_pass_dp_sgd.INFO,
            one_epoch.ACCELERATED_SRGD,
            one_epoch.ACCELERATED_SGD,
            one_epoch.SRGD,
            one_epoch.DP_FTRL,
            accelerated_erm.INFO,
            dp_sgd.POISSON,
            dp_sgd.WITHOUT_REPLACEMENT,
            mean_sgd.INFO,
            local_model.INFO,
            sgd.INFO,
        )
    }
)

__all__ = ["ALGORITHMS", "AlgorithmInfo"]
