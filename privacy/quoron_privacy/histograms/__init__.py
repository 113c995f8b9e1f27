"""Noisy histograms and counts: votes, ranks, facts of a table, whether enough users answered, how well a table fits."""
