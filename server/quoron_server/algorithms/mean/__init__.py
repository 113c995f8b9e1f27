"""Bassily & Sun, Algorithm 4: SGD on private means around a centre that an earlier release or a range gives."""
