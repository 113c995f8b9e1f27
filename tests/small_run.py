"""A run that takes a moment: a few thousand users, a few rounds."""

TOML = """
[population]
kind = "synthetic"
family = "logistic"
users = 2_000
items_per_user = 5
dimension = 3
signal_norm = 1.0

[domain]
radius = 2.0

[privacy]
epsilon = 4.0
delta = 1e-5

[algorithm]
name = "one-pass-dp-sgd"
options = { rounds = 8 }
"""
