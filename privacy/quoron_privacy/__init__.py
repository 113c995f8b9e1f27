"""Mechanisms as a library of their own: samplers, guarantees, calibration and checks. Arrays in, arrays out.

Each module is one mechanism or one kind of account, with its statement and proof under docs/privacy/. Every mechanism
that releases or decides stands here too, and what is most asked for besides; accounts are modules to import: `gdp`,
`pair`, `subsampling`, `lifetime`.

    >>> from quoron_privacy import GaussianNoise
    >>> from quoron_privacy.accounts import gdp
    >>> noise = GaussianNoise.for_mu(sensitivity=0.02, mu=gdp.mu_for(1.0, 1e-6, gaussians=1), dimension=1)
    >>> round(gdp.epsilon_for(noise.effective_mu(1), 1e-6), 3)
    1.0
"""

from quoron_privacy.kernels.on_first_use import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
