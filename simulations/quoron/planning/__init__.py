"""Plans: one algorithm's, and the rule that chooses among all."""
