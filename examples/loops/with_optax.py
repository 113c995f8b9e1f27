"""A network in JAX, optimised by optax, private for all items of a user at once.

    pip install jax optax
    python examples/loops/with_optax.py

Correlated noise in the order of the users: momentum sums up rounds, and sums are what its noise is small in.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from quoron_privacy import NoiseSource, PrefixNoise, SecureNoise

USERS, ITEMS, COLUMNS, HIDDEN, COHORT, ROUNDS = 6_000, 8, 6, 8, 600, 60


def made_up() -> tuple[jax.Array, jax.Array]:
    """Features (users, items, columns) and labels (users, items) of a quadratic rule."""
    random = np.random.default_rng(0)
    features = random.normal(size=(USERS, ITEMS, COLUMNS)).astype(np.float32)
    return jnp.asarray(features), jnp.asarray(features[..., 0] * features[..., 1] + features[..., 2] > 0)


def predict(tree: dict[str, jax.Array], features: jax.Array) -> jax.Array:
    """Log-odds of the items."""
    return jnp.tanh(features @ tree["in"] + tree["bias"]) @ tree["out"]


def loss(tree: dict[str, jax.Array], features: jax.Array, labels: jax.Array) -> jax.Array:
    """Average over a user's items."""
    return optax.sigmoid_binary_cross_entropy(predict(tree, features), labels.astype(jnp.float32)).mean()


def train(noise: NoiseSource, epsilon: float = 8.0) -> tuple[float, float]:
    """Share of labels that are predicted, before and after."""
    features, labels = made_up()
    random = np.random.default_rng(1)
    shapes = {"in": (COLUMNS, HIDDEN), "bias": (HIDDEN,), "out": (HIDDEN,)}
    tree = {name: jnp.asarray(0.7 * random.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    start, unravel = ravel_pytree(tree)
    optimiser = optax.sgd(1.0, momentum=0.9)
    steps = optimiser.init(tree)
    rows_of = jax.jit(jax.vmap(lambda tree, x, y: ravel_pytree(jax.grad(loss)(tree, x, y))[0], (None, 0, 0)))

    def accuracy(tree: dict[str, jax.Array]) -> float:
        return float(jnp.mean((predict(tree, features) > 0) == labels))

    before = accuracy(tree)
    mean = PrefixNoise.calibrate(
        epsilon, 1e-6, users=USERS, cohort=COHORT, rounds=ROUNDS, dimension=len(start), clip_norm=0.5
    )
    state = mean.init()
    for _ in range(mean.rounds):
        users = mean.cohort(state, noise)
        gradient, state = mean(rows_of(tree, features[users], labels[users]), state, noise)
        updates, steps = optimiser.update(unravel(gradient), steps)
        tree = optax.apply_updates(tree, updates)
    print(mean.guarantee)
    return before, accuracy(tree)


if __name__ == "__main__":
    before, after = train(SecureNoise.fresh())
    print(f"predicted before: {before:.2f}, after: {after:.2f}")
