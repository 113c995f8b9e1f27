"""The four papers' algorithms exactly as printed, for comparison in simulations: docs/papers/README.md."""
