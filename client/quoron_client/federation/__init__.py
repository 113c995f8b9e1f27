"""A client of a federation: one user's data, what their owner allows, and a conversation with the coordinator."""

from quoron_privacy.kernels.on_first_use import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
