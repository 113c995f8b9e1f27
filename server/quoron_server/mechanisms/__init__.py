"""Noise, tests, filters: what turns private values into releases."""
