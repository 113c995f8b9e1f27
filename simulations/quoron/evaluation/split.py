"""Which users are held out: so many of all slots, whose number is public and whom nobody knows.

A uniform draw from the run's secret noise, the same whenever the run goes on. So neither how users are named nor how
rows are sorted decides who is held out, and a promise for a user's data is a promise for its name as well. A split by
names or their hashes would move others, or parts' sizes, when a name is another. Proof: docs/privacy/evaluation.md#ev1.
"""

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, probability
from quoron_privacy.noise.streams import NoiseSource, of_the_run

Users = NDArray[np.int64]


def trained_users(users: int, share: float | None) -> int:
    """Those of so many users, or slots, that are trained on. ConfigError where a part would have nobody."""
    return users if share is None else users - held_users(users, share)


def parts(users: int, share: float | None, noise: NoiseSource) -> tuple[Users, Users]:
    """(those trained on, those held out), ascending, by the noise of a run. Secret."""
    if share is None:
        return np.arange(users), np.empty(0, np.int64)
    apart = held_out(noise, users, held_users(users, share))
    return np.flatnonzero(~apart), np.flatnonzero(apart)


def held_users(users: int, share: float) -> int:
    """How many of so many users, or slots, are held out. ConfigError unless both parts have somebody."""
    probability(holdout=share)
    held = round(users * share)
    if not 0 < held < users:
        raise ConfigError(
            f"Expected holdout to leave users on both sides, got holdout={share:g} of {users:,} users. Take more."
        )
    return held


def held_out(noise: NoiseSource, users: int, held: int) -> NDArray[np.bool_]:
    """Whether each user, or slot, is held out, (users,), by the noise of a run. Secret."""
    chosen = np.zeros(users, np.bool_)
    chosen[of_the_run(noise).stream("held out").subset(users, held)] = True
    return chosen
