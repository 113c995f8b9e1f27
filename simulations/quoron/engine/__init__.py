"""Who computes the answers of simulated users: this process, workers, a Ray cluster, Flower, a local federation."""

from quoron_privacy.kernels.on_first_use import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
