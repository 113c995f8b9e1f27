"""Asi & Liu: gradient descent on all users, outlier gradients left out in every step."""
