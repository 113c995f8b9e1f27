import numpy as np
import pytest

from client import reference
from quoron_client import Box, ItemBatch, L2Ball, LocalSGD, local_sgd, make_loss
from quoron_privacy.errors import DataError

DOMAINS = pytest.mark.parametrize("domain", [L2Ball(0.8), Box(0.3)], ids=["ball", "box"])


@pytest.mark.parametrize("loss", reference.some_losses(), ids=lambda loss: loss.name)
@DOMAINS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fast_pass_matches_step_by_step(loss, domain, dtype):
    rng = np.random.default_rng(1)
    batch = reference.random_batch(rng, (3, 0, 20, 1, 7), 9, dtype, loss)
    task = LocalSGD(domain.project(rng.standard_normal((5, 9))), 0.4, domain)
    expected = reference.local_sgd(loss, batch, task)
    np.testing.assert_allclose(local_sgd(loss, batch, task), expected, rtol=0, atol=5e-14)
    assert np.any(np.linalg.norm(expected[:, 0], axis=1) > 0.79) or isinstance(domain, Box)


@DOMAINS
@pytest.mark.parametrize("name", reference.SMOOTH)
def test_two_starts_never_drift_apart(domain, name):
    rng = np.random.default_rng(2)
    loss = make_loss(name, ridge=0.02)
    batch = reference.random_batch(rng, [15] * 100, 6, np.float32, loss, spread=0.7)
    longest = np.linalg.norm(batch.features.astype(np.float64), axis=1).max()
    step = 2 / (loss.curvature * longest**2 + loss.ridge)
    starts = domain.project(rng.standard_normal((2, 100, 6)))
    starts[1, :50] = starts[0, :50] + 1e-9 * rng.standard_normal((50, 6))
    ends = [local_sgd(loss, batch, LocalSGD(start, step, domain))[:, 0] for start in starts]
    before, after = (np.linalg.norm(pair[0] - pair[1], axis=1) for pair in (starts, ends))
    assert np.all(after <= before + 15 * (1 + step) * 1e-15)


@DOMAINS
def test_bad_items_give_nan_and_missing_users_keep_their_start(domain):
    for bad in (np.nan, np.inf, -np.inf):
        batch = reference.random_batch(np.random.default_rng(4), (2, 0, 5, 3), 4)
        batch.features[3, 2] = bad
        starts = np.full((4, 4), 0.1)
        out = local_sgd(make_loss("hinge"), batch, LocalSGD(starts, 0.5, domain))
        np.testing.assert_array_equal(out[1], [starts[1], np.zeros(4)])
        assert np.isnan(out[2]).all()
        assert np.isfinite(out[[0, 3]]).all()


def test_bits_do_not_depend_on_threads_nor_on_other_users():
    rng = np.random.default_rng(5)
    loss = make_loss("logistic", ridge=0.01)
    batch = reference.random_batch(rng, rng.integers(0, 30, 1200), 20)
    starts = 0.1 * rng.standard_normal((1200, 20))
    one = local_sgd(loss, batch, LocalSGD(starts, 0.5, L2Ball(1.0)), threads=1)
    np.testing.assert_array_equal(local_sgd(loss, batch, LocalSGD(starts, 0.5, L2Ball(1.0)), threads=2), one)
    for u, (features, labels) in list(enumerate(reference.users(batch)))[:20]:
        alone = ItemBatch(features, labels, np.array([0, len(labels)]))
        np.testing.assert_array_equal(local_sgd(loss, alone, LocalSGD(starts[u : u + 1], 0.5, L2Ball(1.0)))[0], one[u])


def test_starts_of_the_wrong_shape_are_refused():
    batch = reference.random_batch(np.random.default_rng(6), (2, 5), 4)
    with pytest.raises(DataError, match=r"Expected starts of shape \(2, 4\), got \(1, 4\)"):
        local_sgd(make_loss("logistic"), batch, LocalSGD(np.zeros((1, 4)), 0.1, L2Ball(1.0)))
