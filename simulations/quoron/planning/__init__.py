"""Plans: one algorithm's, the rule that chooses among all, what a network makes of their rounds."""
