"""Levy et al.: full-batch noisy gradient descent on winsorised means."""
