"""Logistic regression by hand, private for all items of a user at once: NumPy and six lines of quoron.

    python examples/loops/plain.py

A user's row is the average gradient of its items. The lines that make the loop private end in `# private`.
"""

import numpy as np

from quoron_privacy import ClippedMean, NoiseSource, SecureNoise


def made_up(users: int = 4_000, items: int = 8, columns: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (users, items, columns), labels (users, items) and the weights behind them."""
    random = np.random.default_rng(0)
    weights = np.linspace(-1.5, 1.5, columns)
    features = random.normal(size=(users, items, columns))
    labels = (random.random((users, items)) < 1 / (1 + np.exp(-features @ weights))).astype(float)
    return features, labels, weights


def train(features: np.ndarray, labels: np.ndarray, noise: NoiseSource, epsilon: float = 2.0) -> np.ndarray:
    """Weights (columns,), (epsilon, 1e-6)-private for users."""
    model = np.zeros(features.shape[2])
    mean = ClippedMean.calibrate(  # private
        epsilon, 1e-6, users=len(features), cohort=500, rounds=60, dimension=len(model), clip_norm=1.0
    )
    state = mean.init()  # private
    for _ in range(mean.rounds):
        users = mean.cohort(state, noise)  # private
        error = 1 / (1 + np.exp(-features[users] @ model)) - labels[users]
        rows = (error[:, :, None] * features[users]).mean(axis=1)
        gradient, state = mean(rows, state, noise)  # private
        model -= 2.0 * gradient
    print(mean.guarantee)  # private
    return model


if __name__ == "__main__":
    features, labels, weights = made_up()
    found = train(features, labels, SecureNoise.fresh())  # private
    print(f"error of the weights: {np.abs(found - weights).max():.2f} of {np.abs(weights).max():.2f}")
