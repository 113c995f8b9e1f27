"""The coordinator as a service: who may speak, what runs, and what is said to whom. Start it with `quoron serve`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quoron_server.service.config import ServeConfig
    from quoron_server.service.coordinator import Coordinator
    from quoron_server.service.program import serve
    from quoron_server.service.security import Transport
    from quoron_server.specification import RunSpecification

__all__ = ["Coordinator", "RunSpecification", "ServeConfig", "Transport", "serve"]

# A home is imported when one of its names is first used: making a certificate or a token waits for no compiler.
_HOMES = {
    "Coordinator": "quoron_server.service.coordinator",
    "RunSpecification": "quoron_server.specification",
    "ServeConfig": "quoron_server.service.config",
    "Transport": "quoron_server.service.security",
    "serve": "quoron_server.service.program",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
