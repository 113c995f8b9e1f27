"""Rounds on Flower: an engine over a Grid, the nodes that it asks, and the ServerApp of a federation."""
