"""Choquette-Choo, Ganesh & Thakurta: SRGD, accelerated SRGD and DP-FTRL in one epoch."""
