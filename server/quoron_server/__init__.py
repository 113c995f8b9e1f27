"""What the coordinator does: algorithms and their plans, the round loop, budgets, storage, a service.

>>> from quoron_server import ALGORITHMS
>>> ALGORITHMS["tracking-srgd"].trust_model
'central-broadcast'
"""

from quoron_privacy.kernels.on_first_use import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
