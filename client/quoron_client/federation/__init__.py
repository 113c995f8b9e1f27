"""A client of a federation: one user's data, what their owner allows, and a conversation with the coordinator."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
