"""Audits of bought declarations, on worst-case neighbours, and of their broken twins."""

import math
from dataclasses import replace

import numpy as np
import pytest

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.counts.bought import CELLS, Bought
from quoron_privacy.counts.marks import MARKS, MISSING, marks
from quoron_privacy.counts.windows import Windows
from quoron_privacy.noise.sources import SecureNoise, SeededNoise

EPSILON, DELTA, USERS, COLUMNS = 2.0, 0.01, 5, 12
DRAWS = 10_000


def plan_of(columns: int = COLUMNS, names: int = 0, adjacency: str = "replace-one", **given) -> Bought:
    sizes = {"users": USERS, "columns": columns, "names": names, "epsilon": EPSILON, "delta": DELTA, "share": 1.0}
    return Bought.calibrate(**sizes | given, adjacency=adjacency)  # type: ignore[arg-type]


HONEST = plan_of()
EACH = [gdp.epsilon_for(mu, DELTA) for _, mu in HONEST.releases()]  # of places, cells, closer, names
ABSENT = None


def user(value: float, columns: int = COLUMNS) -> np.ndarray:
    """Marks (1, columns, MARKS) of a user with one number everywhere."""
    numbers, _ = marks(np.array([value]), np.zeros(1, int), 1)
    return np.stack([numbers] * columns, axis=1)


def counts(plan: Bought, own: float | None, columns: int = COLUMNS) -> np.ndarray:
    """Of four users with a one and an own one, who may be absent."""
    rows = [user(1.0, columns)] * (USERS - 1) + ([] if own is ABSENT else [user(own, columns)])
    numbers = np.concatenate(rows)
    return plan.place_counts(numbers, np.zeros(numbers.shape, np.int8))


def audit(plan, worlds, each=0, columns=COLUMNS, source=SeededNoise(41)):  # noqa: B008
    """ε that two worlds provably exceed, along the line on which they differ; other coordinates are noise alone."""
    differ = worlds[0] != worlds[1]
    line = (worlds[0] - worlds[1])[differ].astype(float)

    def world(held, name):
        stream = source.stream(name)
        return lambda draws: plan._noisy(each, np.tile(held[differ], (draws, 1)), columns, stream) @ line

    return epsilon_lower_bound(world(worlds[0], "P"), world(worlds[1], "Q"), delta=DELTA, draws=DRAWS)


def places_for(plan: Bought, one: float | None = 100.0, other: float | None = 1e-6, **given) -> float:
    return audit(plan, [counts(plan, own) for own in (one, other)], **given)


@pytest.mark.parametrize("source", [SeededNoise(42), SecureNoise(b"b" * 32)], ids=["seeded", "secure"])
def test_replacing_a_user_in_every_column_is_within_what_the_first_release_costs(source):
    assert 0.05 < places_for(HONEST, source=source) <= EACH[0]


def test_leaving_a_user_out_is_within_the_promise_under_its_own_noise():
    assert 0.05 < places_for(plan_of(adjacency="zero-out"), 100.0, ABSENT) <= EACH[0]


def test_all_of_it_uses_what_it_is_charged_and_no_more():
    """By the likelihood ratio of what came out of all four releases: a bound for δ(ε) from both sides."""
    plan, random = plan_of(names=1), SeededNoise(43).stream("all")
    ratios = np.zeros(DRAWS)
    for each, (scale, columns) in enumerate(zip(plan.scales, (COLUMNS, COLUMNS, COLUMNS, 1), strict=True)):
        one, other = np.tile([MARKS, 0], (DRAWS, columns, 1)), np.tile([0, MARKS], (columns, 1))
        error = scale * plan.users * math.sqrt(columns)
        out = plan._noisy(each, one, columns, random)
        far, near = (((out - world / MARKS) ** 2).sum(axis=(1, 2)) for world in (other, one))
        ratios += (far - near) / error**2 / 2
    low, high = delta_bounds(ratios, epsilon=EPSILON)
    assert low <= DELTA
    assert high > 0.2 * DELTA


def test_a_quarter_of_the_noise_is_caught():
    assert places_for(replace(HONEST, scales=tuple(scale / 4 for scale in HONEST.scales))) > EACH[0]


def test_noise_of_one_column_for_twelve_is_caught():
    """The twin forgets that a user votes in every column."""
    assert audit(HONEST, [counts(HONEST, own) for own in (100.0, 1e-6)], columns=1) > EACH[0]


def test_votes_counted_by_rows_are_caught():
    """A user of thirty rows with thirty votes."""
    worlds = [counts(HONEST, own) for own in (100.0, 1e-6)]
    by_rows = [worlds[0] + 30 * (world - worlds[0]) for world in worlds]
    assert audit(HONEST, by_rows) > EACH[0]


def test_a_divisor_that_counts_users_with_numbers_is_caught():
    """Noise planned for fifty users, and votes of the five that have a number."""
    twin = replace(plan_of(users=50), users=USERS)
    assert places_for(twin) > EACH[0]


def test_cells_of_two_windows_at_once_are_caught():
    """The twin gives a mark a vote in each window it lies in, the second look's cells beside the first's."""
    around = Windows(np.zeros(COLUMNS), np.full(COLUMNS, 128.0), np.ones(COLUMNS), np.ones(COLUMNS, np.int64))
    worlds = [
        np.tile(HONEST.cell_counts(np.concatenate([user(1.0)] * 4 + [user(own)]), around), (1, 4))
        for own in (100.0, 3.0)
    ]

    assert 0.05 < audit(HONEST, [each[:, :CELLS] for each in worlds], 1) <= EACH[1]
    assert audit(HONEST, worlds, 1) > EACH[1]


NAMED = plan_of(columns=0, names=8, delta=1e-3)


def shown(plan: Bought, lone: bool, stream) -> bool:
    """Whether a name of one user, in any of eight columns, is shown."""
    counts = [{"all": MARKS * USERS, **({f"mine {column}": MARKS} if lone else {})} for column in range(8)]
    return any(len(each) > 1 for each in plan.release_names(counts, stream))


def lone_shown(plan: Bought) -> float:
    stream = SeededNoise(44).stream("names")
    return sum(shown(plan, True, stream) for _ in range(2000)) / 2000


def test_a_name_of_one_user_alone_is_hidden_and_nobody_elses_presence_shows():
    assert lone_shown(NAMED) == 0  # with probability 1 - 2000 tail, above 1 - 1e-2; the seed is fixed
    assert not shown(NAMED, False, SeededNoise(45).stream("names"))


def test_the_threshold_of_one_name_for_those_of_eight_columns_is_caught():
    """Ten standard errors of noise are eight columns' and not one's: a lone name is shown far oftener than `tail`."""

    class OneColumn(Bought):
        def threshold(self, columns: int, weight: float | None = None) -> float:
            return Bought.threshold(self, 1)

    twin = OneColumn(**{name: getattr(NAMED, name) for name in NAMED.__dataclass_fields__})
    assert lone_shown(twin) > 1e3 * NAMED.tail


def test_noise_of_one_name_for_eight_columns_is_caught():
    worlds = [np.full(8, MARKS), np.zeros(8, np.int64)]
    cost = gdp.epsilon_for(NAMED.releases()[0][1] / math.sqrt(2), DELTA)  # of names that go and none that come
    assert 0.05 < audit(NAMED, worlds, 3, 8) <= cost
    assert audit(NAMED, worlds, 3, 1) > cost


def test_marks_of_a_missing_user_are_votes_like_any_other():
    """Whoever replaces its rows by none moves two coordinates of a column, no more."""
    numbers, kinds = marks(np.zeros(0), np.zeros(0, int), 1)
    held = HONEST.place_counts(np.stack([numbers] * COLUMNS, axis=1), np.stack([kinds] * COLUMNS, axis=1))
    assert (held.sum(axis=1) == MARKS).all()
    assert (kinds == MISSING).all()
