"""Flower for people: its simulation as an engine, runs submitted to a federation, private aggregation in their apps."""

from quoron.flower.training import train_privately

__all__ = ["train_privately"]
