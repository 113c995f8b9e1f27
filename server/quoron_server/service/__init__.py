"""The coordinator as a service: who may speak, what runs, and what is said to whom. Start it with `quoron serve`."""

from quoron_server.service.security import Transport
from quoron_server.service.serve import Coordinator, ServeConfig, serve
from quoron_server.specification import Columns, RunSpecification

__all__ = ["Columns", "Coordinator", "RunSpecification", "ServeConfig", "Transport", "serve"]
