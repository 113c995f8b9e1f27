"""Phases of ERM on fresh users by full-batch steps whose number is fixed, one noisy release a phase."""
