"""Training for real on a table that one machine holds: the curator's run, its lifetime ledger, the model file."""
