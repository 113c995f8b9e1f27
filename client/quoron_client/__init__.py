"""What runs where the data is: losses and their constants, gradients, second moments, local SGD, private reports."""

from quoron_privacy.kernels.on_first_use import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
