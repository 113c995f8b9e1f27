"""What runs where the data is: losses and their constants, gradients, second moments, local SGD, private reports."""

import lazy_loader

# The public names and their homes stand in __init__.pyi; a module is imported when one of its names is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
