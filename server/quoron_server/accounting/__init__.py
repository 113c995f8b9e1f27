"""Calibration and composition: how much noise a promise needs."""
