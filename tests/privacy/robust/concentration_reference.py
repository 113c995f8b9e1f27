"""Slow, obvious versions of the concentration score, and cohorts to try it on."""

import numpy as np


def real_scores(gradients, tau, norm="l2"):
    """The score as written on paper, in extended precision."""
    rows = np.asarray(gradients, dtype=np.longdouble)
    total = np.empty(len(rows), dtype=np.longdouble)
    for i, row in enumerate(rows):
        with np.errstate(over="ignore"):  # only where extended precision is double precision
            apart = np.abs(rows - row)
            lengths = np.sqrt((apart**2).sum(axis=1)) if norm == "l2" else apart.max(axis=1)
            total[i] = np.exp(-np.longdouble(tau) * lengths).sum()
    return total


def reference_scores(gradients, tau, norm="l2"):
    """The arithmetic of `concentration.scores` step by step, all pairs at once: equal to it bit by bit."""
    rows = np.asarray(gradients, dtype=np.float64)
    with np.errstate(over="ignore"):
        squares, largest = np.zeros((2, len(rows), len(rows)))
        for k in range(rows.shape[1]):
            apart = np.abs(np.subtract.outer(rows[:, k], rows[:, k]))
            squares += apart**2
            largest = np.maximum(largest, apart)
        y = np.minimum(tau * (np.sqrt(squares) if norm == "l2" else largest), 25.0) / 256
    tail = 1 / 120 - y * (1 / 720) * (1 - y * (1 / 7 - y * (1 / 56)))
    power = 1 - y * (1 - y * (1 / 2 - y * (1 / 6 - y * (1 / 24 - y * tail))))
    for _ in range(8):
        power = power * power
    return (np.floor(power * 2.0**34 + 0.5) * 2.0**-34).sum(axis=1)


def reference_decisions(gradients, answered, tau, thresholds, step, norm="l2"):
    """All pairs of the rows that take part, compared with the thresholds in integers."""
    present = np.flatnonzero(answered & np.isfinite(gradients).all(axis=1))
    kept = np.zeros(len(gradients), dtype=bool)
    kept[present] = np.rint(reference_scores(gradients[present], tau, norm) / step) > thresholds[present]
    return kept


KINDS = ("gaussian", "clusters", "outliers", "duplicates", "huge", "line", "offset", "sphere")


def cohort(kind, users, dimension, rng):
    """A (users, dimension) matrix of finite rows; distances of ordinary users are about 1."""
    rows = rng.normal(size=(users, dimension)) / np.sqrt(2 * dimension)
    some = rng.random(users) < rng.choice([0.02, 0.2, 0.5])
    if kind == "clusters":
        rows[some] += rng.normal(size=dimension) * rng.choice([1.0, 5.0, 100.0])
    elif kind == "outliers":
        rows[some] *= 10.0 ** rng.uniform(0, 12, size=(some.sum(), 1))
    elif kind == "duplicates":
        rows = rows[rng.integers(0, max(1, users // 3), size=users)]
    elif kind == "huge":
        rows[some] = rng.choice([1e150, -1e150, 1e300, -1e300, 1.7e308], size=(some.sum(), dimension))
    elif kind == "line":
        rows = np.linspace(0, rng.choice([0.1, 3.0, 1e4]), users)[:, None] * np.ones(dimension)
    elif kind == "offset":
        rows += rng.choice([1e3, 1e8, 1e15, 1e200])
    elif kind == "sphere":
        rows /= np.maximum(np.sqrt((rows**2).sum(axis=1, keepdims=True)), 1e-9)
    return rows
