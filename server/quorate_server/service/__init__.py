"""The coordinator as a service: who may speak, what runs, and what is said to whom. Start it with `quorate serve`."""

from quorate_server.service.security import Transport
from quorate_server.service.serve import Coordinator, ServeConfig, serve
from quorate_server.specification import Columns, RunSpecification

__all__ = ["Columns", "Coordinator", "RunSpecification", "ServeConfig", "Transport", "serve"]
