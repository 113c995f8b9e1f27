"""Sums and means of vectors and matrices, one a user: what is released, its noise and its guarantee."""
