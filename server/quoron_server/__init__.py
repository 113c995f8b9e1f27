"""What the coordinator does: algorithms, mechanisms, accounting, the round loop, budget and ledger."""
