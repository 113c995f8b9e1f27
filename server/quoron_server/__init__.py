"""What the coordinator does: algorithms and their plans, the round loop, budgets, books, a service.

>>> from quoron_server import ALGORITHMS
>>> ALGORITHMS["tracking-srgd"].trust_model
'central-broadcast'
"""

import lazy_loader

# The public names and their homes stand in __init__.pyi; a module is imported when one of its names is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
