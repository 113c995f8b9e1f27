"""`quoron.jax.train`: rows of a pure loss are those of a slow loop over users, and what is refused."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import quoron.jax
from flower.plugged import Killed
from quoron.jax.training import LossRows
from quoron.training import lifetime
from quoron.training.rows import Items, LocalSGD, Timetable, TrainedRows
from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.streams import SeededNoise

NOISE = SeededNoise(9)
COUNTS = (5, 1, 0, 8, 3)
MOST, CHUNK = 5, 4
TASKS = [None, LocalSGD(epochs=2, batch_size=2, step_size=0.2), LocalSGD(batch_size=10)]


@pytest.fixture(autouse=True)
def _account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lifetime.VARIABLE, str(tmp_path / "own" / "lifetime.sqlite"))


def params() -> dict[str, Any]:
    draw = np.random.default_rng(1)
    return {
        "first": [draw.normal(size=(4, 6)).astype(np.float32), np.zeros(6, np.float32)],
        "last": draw.normal(size=(6, 3)).astype(np.float32),
    }


def loss(params: Any, x: Any, y: Any) -> Any:
    weight, bias = params["first"]
    return -jax.nn.log_softmax(jnp.tanh(x @ weight + bias) @ params["last"])[y]


def steep(params: Any, x: Any, y: Any) -> Any:
    return jnp.exp(30 * x @ params["first"][0]).sum() * params["last"][0, y] + loss(params, x, y)


def dropped(params: Any, x: Any, y: Any, key: Any) -> Any:
    return loss(params, jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0.0), y)


def items(seed: int = 0) -> Items:
    draw = np.random.default_rng(seed)
    size = sum(COUNTS)
    x, y = draw.normal(size=(size, 4)).astype(np.float32), draw.integers(0, 3, size)
    return Items((x, y), np.concatenate([[0], np.cumsum(COUNTS)]))


def rows_of(local: LocalSGD | None, held: Items | None = None, loss: Any = loss, **more: Any) -> LossRows:
    held = items() if held is None else held
    return LossRows(loss, params(), held, items_per_user=MOST, local=local, **({"chunk": CHUNK} | more))


def slowly(local: LocalSGD | None, users: np.ndarray) -> np.ndarray:
    """One user after the other, one item after the other, with nothing but `grad`."""
    held, found = items(), []
    minibatches = Timetable(held, MOST, local).minibatches(0, users, NOISE)
    start, unflat = ravel_pytree(params())
    for place in range(len(users)):
        now = start
        for places, weights in zip(minibatches.places[place], minibatches.weights[place], strict=True):
            gradient = jnp.zeros_like(start)
            for item, weight in zip(places, weights, strict=True):
                if weight:
                    each = jax.grad(loss)(unflat(now), held.parts[0][item], held.parts[1][item])
                    gradient = gradient + weight * ravel_pytree(each)[0]
            now = now - (1.0 if local is None else local.step_size) * gradient
        found.append(start - now)
    return np.asarray(found, np.float64)


@pytest.mark.parametrize("local", TASKS)
def test_rows_are_those_of_a_slow_loop_over_users(local: LocalSGD | None) -> None:
    users = np.array([3, 0, 2, 4, 1])
    rows = rows_of(local)
    found = rows(0, users, rows.origin, NOISE)
    np.testing.assert_allclose(found, slowly(local, users), atol=3e-6)
    assert not found[2].any()


@pytest.mark.parametrize("local", TASKS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30, -1e38])
@pytest.mark.parametrize("loss", [loss, steep])
def test_rows_of_others_are_the_same_bits_whatever_one_user_holds(
    local: LocalSGD | None, bad: float, loss: Any
) -> None:
    users, held = np.array([0, 3, 1, 4, 2]), items()
    honest = rows_of(local, loss=loss)
    held.parts[0][held.offsets[3] : held.offsets[4]] = bad
    other = rows_of(local, held, loss=loss)(0, users, honest.origin, NOISE)
    np.testing.assert_array_equal(honest(0, users, honest.origin, NOISE)[users != 3], other[users != 3])


def test_users_drop_out_by_dice_of_their_own_in_any_chunk() -> None:
    ones = Items((np.ones((16, 4), np.float32), np.zeros(16, np.int64)), np.arange(0, 17, 2))
    whole, parts = (rows_of(None, ones, dropped, draws=True, chunk=chunk) for chunk in (8, 3))
    found = whole(0, np.arange(8), whole.origin, NOISE)
    assert len(np.unique(found.round(5), axis=0)) > 4  # the same for all with probability below 1e-9
    np.testing.assert_allclose(parts(0, np.arange(8), whole.origin, NOISE), found, atol=1e-6)
    assert not np.array_equal(found, whole(1, np.arange(8), whole.origin, NOISE))


def trained(out: Path, **changed: Any) -> TrainedRows[Any]:
    draw = np.random.default_rng(2)
    owners = np.repeat(np.arange(12), 5)
    given: dict[str, Any] = {"loss": loss, "params": params(), "user": owners, "items_per_user": 5, "epsilon": 8.0}
    given |= {"data": (draw.normal(size=(60, 4)).astype(np.float32), draw.integers(0, 3, 60)), "delta": 1e-3}
    given |= {"clip_norm": 0.5, "radius": 5.0, "algorithm": "dp-sgd-wor", "seed": 5, "out": out, "chunk": 4}
    given |= {"options": {"rounds": 3, "rate": 0.5, "step_size": 0.5}} | changed
    return quoron.jax.train(given.pop("loss"), given.pop("params"), given.pop("data"), **given)


def test_a_killed_run_goes_on_from_its_own_start_whatever_the_script_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = params()
    other = jax.tree.map(lambda leaf: 1.0 - leaf, first)
    whole, real = trained(tmp_path / "whole", params=first).weights, LossRows.__call__

    def dying(self: LossRows, round_: int, *given: Any) -> np.ndarray:
        if round_ == 1:
            raise Killed
        return real(self, round_, *given)

    monkeypatch.setattr(LossRows, "__call__", dying)
    with pytest.raises(Killed):
        trained(tmp_path / "run", params=first)
    monkeypatch.setattr(LossRows, "__call__", real)
    np.testing.assert_array_equal(trained(tmp_path / "run", params=other).weights, whole)
    assert "is not the one that the run in" in caplog.text


def test_a_loss_of_named_parts_gets_a_mapping(tmp_path: Path) -> None:
    base = trained(tmp_path / "base").weights
    draw = np.random.default_rng(2)
    data = {"x": draw.normal(size=(60, 4)).astype(np.float32), "y": draw.integers(0, 3, 60)}
    more: dict[str, Any] = {"data": data, "loss": lambda params, batch: loss(params, batch["x"], batch["y"])}
    np.testing.assert_array_equal(trained(tmp_path / "run", **more).weights, base)


def test_a_run_folder_is_loaded_into_a_tree_like_the_one_that_was_trained(tmp_path: Path) -> None:
    found = trained(tmp_path / "run")
    loaded = quoron.jax.load(tmp_path / "run", jax.tree.map(jnp.zeros_like, params()))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), loaded, found.model))
    with pytest.raises(ConfigError, match="another shape, of 4 and 0"):
        quoron.jax.load(tmp_path / "run", jnp.zeros(4))


def test_a_schedule_of_optax_is_that_of_its_name(tmp_path: Path) -> None:
    schedule = optax.cosine_decay_schedule(0.5, 3)
    given = [{"step_size": schedule}, {"step_size": 0.5, "schedule": "cosine"}]
    fixed = {"rounds": 3, "rate": 0.5, "optimiser": "adam"}
    one, other = (trained(tmp_path / str(i), options=fixed | more).weights for i, more in enumerate(given))
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_held_out_users_tell_how_good_the_parameters_are(tmp_path: Path) -> None:
    """Seeded: the mean over users of a constant is told within its interval."""
    owners = np.repeat(np.arange(200), 5)
    draw = np.random.default_rng(2)
    data = (draw.normal(size=(1000, 4)).astype(np.float32), draw.integers(0, 3, 1000))

    def second_class(params: Any, x: Any, y: Any) -> Any:
        assert params["last"].shape == (6, 3)
        return y == 1

    metrics = {"quarter": lambda params, x, y: jnp.full(len(y), 0.25), "second": second_class}
    found = trained(tmp_path / "run", data=data, user=owners, holdout=0.3, metrics=metrics)
    assert found.plan.problem.users == 140
    quarter, second = (found.evaluation.figure(name) for name in metrics)
    assert quarter.low <= 0.25 <= quarter.high
    assert second.low <= (data[1] == 1).mean() <= second.high
    with pytest.raises(ConfigError, match="raised AttributeError"):
        trained(tmp_path / "no", data=data, user=owners, holdout=0.3, metrics={"a": lambda p, x, y: x.no})


def test_nothing_but_a_loss_data_users_and_epsilon_has_to_be_given(tmp_path: Path) -> None:
    """Two classes a line apart: 500 users, ε = 8, with the defaults."""
    draw = np.random.default_rng(4)
    x = draw.normal(size=(1_500, 4)).astype(np.float32)
    labels = (x.sum(axis=1) > 0).astype(np.int32)
    given: dict[str, Any] = {"user": np.repeat(np.arange(500), 3), "epsilon": 8.0, "seed": 5}
    given |= {"allow_large_delta": True, "out": tmp_path / "run"}

    def cross(params: Any, item: Any, label: Any) -> Any:
        return -jax.nn.log_softmax(item @ params)[label]

    made = quoron.jax.train(cross, jnp.zeros((4, 2)), (x, labels), **given)
    assert made.plan.algorithm == "dp-sgd-wor"
    assert (np.argmax(x @ np.asarray(made.model), axis=1) == labels).mean() > 0.9
    with pytest.raises(ConfigError, match="an empty tree"):
        quoron.jax.train(cross, {}, (x, labels), **given)
