"""Populations: many users on one machine, synthetic or from a table, with the truth to compare with."""

import lazy_loader

# The public names and their homes stand in __init__.pyi; a module is imported when one of its names is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
