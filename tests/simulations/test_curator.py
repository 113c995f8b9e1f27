"""The curator's engine: an order of users that only the key knows, and random words that come again after a crash."""

import numpy as np
import pytest

from quoron.populations.users import Declared
from quoron.sharding.shard import KeyedRandomness
from quoron.training.curator import CuratorEngine
from quoron_client import L2Ball, make_loss
from quoron_client.data.items import ItemBatch
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import RunError
from quoron_privacy.noise.ahead import StartedNoise
from quoron_privacy.noise.sources import SecureNoise, SeededNoise

USERS = 50
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def gradients(key: bytes) -> np.ndarray:
    """Answers of all slots, where user u's only item has the feature u."""
    batch = ItemBatch(np.arange(USERS, dtype=np.float32)[:, None], np.zeros(USERS), np.arange(USERS + 1))
    declared = Declared(USERS, 1, 1, make_loss("linear", feature_norm=float(USERS)), L2Ball(3.0))
    engine = CuratorEngine(declared, batch, SecureNoise(key))
    return engine.ask(Question(0, np.arange(USERS), AverageGradient(np.zeros((1, 1)), (1.0,)))).values[:, 0]


def test_every_user_has_one_slot_in_an_order_that_follows_from_the_key_alone():
    here = gradients(KEY)
    np.testing.assert_array_equal(np.sort(-here), np.arange(USERS))
    np.testing.assert_array_equal(here, gradients(KEY))
    assert not np.array_equal(here, gradients(OTHER))
    assert not np.array_equal(-here, np.arange(USERS))


def test_the_order_is_the_runs_at_every_start_and_words_of_local_reports_are_the_starts_own():
    """So nobody is asked twice by a run that goes on, and no report's noise meets other data."""
    batch = ItemBatch(np.arange(USERS, dtype=np.float32)[:, None], np.zeros(USERS), np.arange(USERS + 1))
    declared = Declared(USERS, 1, 1, make_loss("linear", feature_norm=float(USERS)), L2Ball(3.0))
    starts = [StartedNoise.fresh(SecureNoise(KEY)) for _ in range(2)]
    question = Question(0, np.arange(USERS), AverageGradient(np.zeros((1, 1)), (1.0,)))
    one, other = (CuratorEngine(declared, batch, start).ask(question).values for start in starts)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one[:, 0], gradients(KEY))
    words = [KeyedRandomness(start).words(round=2, users=np.array([8]), first=0, size=6) for start in starts]
    assert not np.any(words[0] == words[1])  # false alarm: 6 · 2⁻⁶⁴


def test_words_of_local_reports_are_the_same_again_whoever_else_is_asked():
    words = KeyedRandomness(SecureNoise(KEY)).words(round=2, users=np.array([3, 8]), first=0, size=6)
    alone = KeyedRandomness(SecureNoise(KEY)).words(round=2, users=np.array([8]), first=2, size=4)
    np.testing.assert_array_equal(words[1, 2:], alone[0])
    others = [
        KeyedRandomness(SecureNoise(key)).words(round=round_, users=np.array([user]), first=0, size=6)[0]
        for key, round_, user in ((KEY, 3, 8), (KEY, 2, 9), (OTHER, 2, 8))
    ]
    assert not any((words[1] == other).any() for other in others)  # false alarm: 18 · 2⁻⁶⁴


def test_words_from_a_seed_are_refused_for_real_people():
    KeyedRandomness(SecureNoise(KEY)).require_deployable()
    with pytest.raises(RunError):
        KeyedRandomness(SeededNoise(1)).require_deployable()
