"""Noise for prefix sums that is correlated over rounds: factorisations, and the mechanism on top."""
