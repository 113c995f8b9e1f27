"""Users and their items: tables, folders of files, and made-up populations with the truth to compare with."""

from quoron_privacy.kernels.on_first_use import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
