"""The coordinator as a service: who may speak, what runs, and what is said to whom. Start it with `quoron serve`."""

from quoron_privacy.kernels.on_first_use import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
