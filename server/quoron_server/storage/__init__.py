"""What is written and in which order: runs, ledgers, lifetime accounts, and the database under them."""
