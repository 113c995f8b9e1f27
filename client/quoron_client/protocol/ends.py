"""Where a domain ends, and whether it does: a ball so large that it bounds nothing stands for all models.

>>> is_free(free_ball(feature_norm=2.0), feature_norm=2.0), is_free(L2Ball(3.0), feature_norm=2.0)
(True, False)
"""

import numpy as np

from quoron_client.protocol.domains import Domain, L2Ball, Vector

_NEAR = 0.99  # of the size: a model this large would have gone on
_FREE = 1e9  # predictions of an item, beyond which no arithmetic of theirs says anything


def free_ball(feature_norm: float) -> L2Ball:
    """A ball that bounds nothing: models of any use for items with ‖a‖ at most `feature_norm` are far inside."""
    return L2Ball(_FREE / feature_norm)


def on_boundary(domain: Domain, model: Vector) -> bool:
    """Whether a model (d,) is as large as its domain lets it be, to 1 %."""
    if isinstance(domain, L2Ball):
        return bool(np.linalg.norm(model) >= _NEAR * domain.radius)
    return bool(np.max(np.abs(model), initial=0.0) >= _NEAR * domain.half_width)


def is_free(domain: Domain, feature_norm: float) -> bool:
    """Whether a domain bounds nothing, as a `free_ball`."""
    return isinstance(domain, L2Ball) and domain.radius >= free_ball(feature_norm).radius
