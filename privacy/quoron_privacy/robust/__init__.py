"""Means that leave outliers out, and the private tests without which nothing is released."""
