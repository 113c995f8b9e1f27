"""Comparing algorithms and settings on one problem."""
