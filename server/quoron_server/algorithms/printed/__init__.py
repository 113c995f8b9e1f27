"""Algorithms exactly as their papers print them, for comparison in simulations: docs/papers/README.md."""
