"""What releases cost together: accounts, calibrations, and what one account may spend in its life."""
