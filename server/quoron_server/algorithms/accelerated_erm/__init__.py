"""Lowy, Liu & Asi, Algorithms 2 and 3: accelerated phased ERM, outlier gradients left out."""
