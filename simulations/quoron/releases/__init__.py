"""Numbers that are released once with noise: means, bounds, statistics, how good a model is."""
