"""Training for real on a table that one machine holds: the data holder's run, its lifetime ledger, the model file."""
