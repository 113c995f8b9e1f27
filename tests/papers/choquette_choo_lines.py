"""Formulas of Choquette-Choo, Ganesh & Thakurta as their lines print them, written out apart from the product's code.

n examples, p columns, gradients of length L at most, M-smooth losses, a domain of radius R. `log` is what stands beside
`ln` in one line: binary where it counts levels of Lemma 8's tree.
"""

from math import log, log2, sqrt

import numpy as np


def c_dp(n, delta, log=log):
    """Equation (19), second line."""
    return 4 * sqrt(2) * log(n) ** 1.5 * sqrt(np.log(2 * n / delta)) * np.log(2.5 / delta)


def equation_19(n, p, lipschitz, radius, epsilon, delta, log=log):
    """Equation (19): β and T; B = n/T."""
    c = c_dp(n, delta, log)
    return c**2 * lipschitz * max(1, sqrt(p) / (epsilon * sqrt(n))) / radius, c * n**0.25


def corollary_9(longest, steps, epsilon, delta, log=log2):
    """σ Bβ of Corollary 9: a node of the tree over sums of B differences; `longest` is c_DP L."""
    return longest * sqrt(log(steps) * np.log(2.5 / delta)) / epsilon


def theorem_14(n, batch, c_m, lipschitz, radius):
    """Theorem 14: β."""
    return (16 * c_m + 8) * lipschitz * n**1.5 / (radius * batch**2)


def batch_14(n, p, smoothness, epsilon, polylog=1.0):
    """Theorem 14, "in particular": B."""
    return min(sqrt(n), smoothness * n**1.5 * epsilon / (sqrt(p) * polylog))


def corollary_13(c_m, lipschitz, steps, epsilon, delta, log=log2):
    """σ Bβ of Corollary 13 and Theorem 14."""
    return (16 * sqrt(2) * c_m + 8 * sqrt(2)) * lipschitz * sqrt(log(steps) * np.log(2.5 / delta)) / epsilon


def nodes(t):
    """Lemma 8: the nodes (last round, size), rounds from 1, whose sum is the prefix sum of t rounds."""
    found, left = [], t
    while left:
        size = left & -left  # the lowest bit
        found.append((left, size))
        left -= size
    return found
