"""Lowy, Liu & Asi, Algorithm 1: chains of local SGD, outlier iterates left out of every phase's release."""
