"""Runs on this machine: population, engine, folder, from the first round to the model."""
