"""Flower for people: its simulation as an engine, runs submitted to a federation, private aggregation in their apps."""

from quoron.flower.training import train_privately
from quoron.training.black_box import Trained

__all__ = ["Trained", "train_privately"]
