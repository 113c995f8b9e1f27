"""Audits of counts: weights over cells, private bounds, held-out users and the look at a table."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa

from audits.harness import Audit, case, events, gaussian_ratio, ratios
from quoron.training import column_bounds
from quoron.training.column_bounds import Fact
from quoron_client.data.encoding import read_label
from quoron_privacy.accounts import gdp
from quoron_privacy.histograms import held_out as room
from quoron_privacy.histograms.data_quality import DataQuality
from quoron_privacy.histograms.held_out import HeldOut
from quoron_privacy.histograms.private_bounds import CELLS, MARKS, EstimatedBounds, Windows, marks
from quoron_privacy.histograms.weighted_histogram import WeightedHistogram
from quoron_privacy.noise.streams import SecureNoise, SeededNoise


def spread_audits():
    """All items of a user in the first cell, or in the last; each group is a run of its own."""
    epsilon, delta, draws, cells = 2.0, 0.02, 40_000, 4

    def spread(adjacency="replace-one", *, running=False, louder=1.0):
        sizes = {"users": draws, "groups": 1, "cells": cells, "mu": gdp.mu_for(epsilon, delta)}
        made = WeightedHistogram.for_mu(**sizes, running=running, adjacency=adjacency)
        return replace(made, scale=made.scale * louder)

    def world(own, number, made=spread(), items=5, by_items=False):  # noqa: B008
        """The statistic that tells best of the first cell from the last."""
        root = np.array([math.comb(2 * j, j) / 4**j for j in range(cells)]) if made.running else np.eye(cells)[0]
        coding = np.array([[root[t - j] if t >= j else 0.0 for j in range(cells)] for t in range(cells)])
        away = np.eye(cells)[0] - (np.eye(cells)[-1] if made.adjacency == "replace-one" else 0.0)
        best = np.linalg.solve(coding.T, coding @ away)  # noise of what is released is coding times independent noise
        mine = np.full(items if made.adjacency == "replace-one" or own == 0 else 0, own)

        def draw(runs):
            everybody = replace(made, groups=runs, users=runs)
            owners, at = np.repeat(np.arange(runs), len(mine)), (np.arange(runs)[:, None] * cells + mine).ravel()
            held = everybody.held(owners, at, everybody.weights(owners))
            if by_items:  # the twin: a user weighs by its items
                held = np.tile(np.bincount(mine, minlength=cells).astype(float), (runs, 1))
            return everybody.release(held, SeededNoise(number + 1).stream("audit")) @ best

        return draw

    zero_out, running = spread("zero-out"), spread(running=True)
    yield Audit(
        "spread",
        epsilon,
        events(world, ends=(0, cells - 1), delta=delta, draws=draws),
        {
            "replace-one": case(least=0.5),
            "zero-out": case(made=zero_out, least=0.5),
            "running": case(made=running, least=0.5),
            "fifty items": case(items=50),
            "running, fifty items": case(made=running, items=50),
        },
        {
            "half of the noise": case(made=spread(louder=0.5)),
            "half of the noise, running": case(made=spread(running=True, louder=0.5)),
            "a user weighs by items": case(by_items=True),
            "a user weighs by items, running": case(made=running, by_items=True),
            "noise of zero-out for a replacement": case(made=replace(spread(), scale=zero_out.scale)),
        },
    )


def along(mean, release, ends=(None, None), *, delta, draws=10_000, source=41):
    """The measure of a vector's release, along the line on which two worlds' means differ."""

    def measure(ends=ends, source=SeededNoise(source), **given):  # noqa: B008
        means = [mean(own, **given) for own in ends]
        line = means[0] - means[1]

        def world(centre, number):
            stream = source.stream("PQ"[number])
            return lambda draws: release(np.tile(centre, (draws, 1)), stream, **given) @ line

        return events(world, ends=means, delta=delta, draws=draws)()

    return measure


def estimated_audits():
    """Four users with a one in every column, and an own one."""
    epsilon, delta, users, columns, draws = 2.0, 0.01, 5, 12, 10_000
    far = (100.0, 1e-6)

    def planned(columns=columns, names=0, adjacency="replace-one", **given):
        sizes = {"users": users, "columns": columns, "names": names, "epsilon": epsilon, "delta": delta, "share": 1.0}
        return EstimatedBounds.calibrate(**sizes | given, adjacency=adjacency)

    honest = planned()
    costs = [gdp.epsilon_for(mu, delta) for _, mu in honest.releases()]  # of places, cells, closer, names

    def user(value):
        numbers, _ = marks(np.array([value]), np.zeros(1, int), 1)
        return np.stack([numbers] * columns, axis=1)

    def places(own, plan=honest):
        numbers = np.concatenate([user(1.0)] * (users - 1) + ([] if own is None else [user(own)]))
        return plan.place_counts(numbers, np.zeros(numbers.shape, np.int8))

    def by_rows(own):
        """A user of thirty rows with thirty votes."""
        counts = [places(value) for value in far]
        return counts[0] + 30 * (places(own) - counts[0])

    def cells(own, width=CELLS):
        """In the twin a mark has a vote in each window it lies in, the second look's cells beside the first's."""
        around = Windows(np.zeros(columns), np.full(columns, 128.0), np.ones(columns), np.ones(columns, np.int64))
        counts = honest.cell_counts(np.concatenate([user(1.0)] * 4 + [user(own)]), around)
        return np.tile(counts, (1, 4))[:, :width]

    def seen(own, number, others, plan=honest, count=None, each=0, columns=columns, source=SeededNoise(41)):  # noqa: B008
        """Along the line on which worlds differ; other coordinates are noise alone."""
        worlds = [count(end) if count else places(end, plan) for end in others]
        differ = worlds[0] != worlds[1]
        line, held = (worlds[0] - worlds[1])[differ].astype(float), worlds[number][differ]
        stream = source.stream("PQ"[number])
        return lambda draws: plan._noisy(each, np.tile(held, (draws, 1)), columns, stream) @ line

    def measure(ends=far, **given):
        return events(seen, ends=ends, delta=delta, draws=draws)(ends, others=ends, **given)

    def everything(plan=planned(names=1), quieter=1.0):  # noqa: B008
        """The ratio of what came out of all four releases."""
        random, found = SeededNoise(43).stream("all"), np.zeros(draws)
        for each, (scale, width) in enumerate(zip(plan.scales, (columns, columns, columns, 1), strict=True)):
            one, other = np.tile([MARKS, 0], (draws, width, 1)), np.tile([0, MARKS], (width, 1))
            twin = replace(plan, scales=tuple(scale / quieter for scale in plan.scales))
            out = twin._noisy(each, one, width, random)
            error = scale / quieter * plan.users * math.sqrt(width)
            flat = (part.reshape(len(part), -1) for part in (out, one[:1] / MARKS, other[None] / MARKS))
            found += gaussian_ratio(*flat, error)
        return found

    yield Audit(
        "estimated places",
        costs[0],
        measure,
        {
            "seeded": case(source=SeededNoise(42), least=0.02),
            "secure": case(source=SecureNoise(b"b" * 32), least=0.02),
            "left out": case(plan=planned(adjacency="zero-out"), ends=(100.0, None), least=0.02),
        },
        {
            "a quarter of the noise": case(plan=replace(honest, scales=tuple(scale / 4 for scale in honest.scales))),
            "noise of one column for twelve": case(columns=1),
            "votes counted by rows": case(count=by_rows),
            "a divisor that counts users with numbers": case(plan=replace(planned(users=50), users=users)),
        },
    )
    near = (100.0, 3.0)
    yield Audit(
        "estimated cells",
        costs[1],
        measure,
        {"one window": case(count=cells, ends=near, each=1, least=0.02)},
        {"two windows at once": case(count=lambda own: cells(own, None), ends=near, each=1)},
    )
    yield Audit(
        "private bounds",
        delta,
        ratios(everything, epsilon=epsilon),
        {"all four": case(uses=0.2)},
        {"half of the noise": case(quieter=2.0)},
    )

    named = planned(columns=0, names=8, delta=1e-3)
    everywhere = {"plan": named, "count": lambda own: np.full(8, own), "ends": (MARKS, 0), "each": 3}
    yield Audit(
        "estimated names",
        gdp.epsilon_for(named.releases()[0][1] / math.sqrt(2), delta),  # of names that go and none that come
        measure,
        {"eight columns": case(columns=8, least=0.02, **everywhere)},
        {"noise of one name for eight columns": case(columns=1, **everywhere)},
    )

    rated = planned(columns=0, names=1)

    def classes(own):
        """Marks of a label's classes, as a run counts them: four users with a row each, and an own one with thirty."""
        table = pa.table({"ill": [1.0, 0.0, 1.0, 0.0, *[own] * 30]})
        want = Fact("ill", "rate", read_label("ill"))
        seats = np.array([0, 1, 2, 3, *[4] * 30])
        counts = column_bounds._Sample(rated, table, seats, users, SeededNoise(45))._names(want)
        return np.array([counts.get(name, 0) for name in ("0", "1")])

    def a_mark_for_each_row(codes, seats, many):
        """The twin: a user with more rows has more marks."""
        found = np.full((many, MARKS * len(codes)), np.nan)
        for user in range(many):
            held = np.repeat(codes[seats == user], MARKS)
            found[user, : len(held)] = held
        return found, None

    counted = {"plan": rated, "count": classes, "ends": (1.0, 0.0), "each": 3, "columns": 1}
    yield Audit(
        "an estimated rate",
        gdp.epsilon_for(rated.releases()[0][1], delta),
        measure,
        {"thirty rows": case(least=0.02, **counted)},
        {
            "a mark for each row": case((column_bounds, "marks", a_mark_for_each_row), **counted),
            "a quarter of the noise": case(
                **counted | {"plan": replace(rated, scales=tuple(scale / 4 for scale in rated.scales))}
            ),
        },
    )

    def lone_shown(twin=EstimatedBounds):
        """How often a name of one user, in any of eight columns, is shown."""
        plan, stream = twin(**{name: getattr(named, name) for name in named.__dataclass_fields__}), SeededNoise(44)
        counts = [{"all": MARKS * users, f"mine {column}": MARKS} for column in range(8)]
        release = stream.stream("names")
        return sum(any(len(shown) > 1 for shown in plan.release_names(counts, release)) for _ in range(2000)) / 2000

    class OneColumn(EstimatedBounds):
        """Ten standard errors of noise are eight columns' and not one's."""

        def threshold(self, columns, weight=None):
            return EstimatedBounds.threshold(self, 1)

    yield Audit(
        "a name of one user alone",
        named.tail,
        lone_shown,
        {"hidden": case()},  # with probability 1 - 2000 tail
        {"the threshold of one name": case(twin=OneColumn, beyond=1e3)},
    )


def held_out_audits():
    """The second release of four users in the middle and an own one, and both releases together."""
    epsilon, delta, users = 1.0, 0.01, 5
    sizes = {"users": users, "epsilon": epsilon, "delta": delta}
    honest, numbers = (HeldOut.calibrate(classes=classes, **sizes) for classes in (2, 0))
    cells, nobody = honest.cells, np.zeros((1, 4 * honest.cells))

    def corner(class_, cell, right):
        return np.eye(4 * cells)[[(class_ * cells + cell) * 2 + right]]

    rows = room.two_classes(cells).T
    apart = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    farthest = [np.eye(4 * cells)[[at]] for at in np.unravel_index(apart.argmax(), apart.shape)]
    wrong_and_right = np.array([[1.0, 1.0, 1.0]]), np.array([[1.0, 0.0, 0.0]])

    def mean(own, held=honest, times=1):
        """In the twin the own vector counts so often, and is not shortened."""
        others = np.repeat(held.second_vectors(np.full_like(own, 1 / own.shape[1])), users - 1, axis=0)
        mine = held.second_vectors(own)
        if times == 1:
            return held._reduction(1).mean(held.sums(1, np.vstack([others, mine])))
        return (others.sum(axis=0) + times * mine[0]) / users

    def release(centres, stream, held=honest, times=1):
        return held.noises[1].release(centres, stream)

    def second(factor):
        return replace(honest, scales=(honest.scales[0], honest.scales[1] * factor))

    def losses(*apart, seed=43, draws=100_000):
        """Of releases that lie so many deviations apart."""
        stream = SeededNoise(seed).stream("both")
        return sum(far * stream.gaussian_steps(draws) * 2.0**-30 + far**2 / 2 for far in apart)

    def far(quieter=1.0):
        return [quieter * noise.sensitivity / noise.scale for noise in honest.noises]

    classes = np.linalg.norm(np.subtract(*(mean(corner(class_, 0, class_)) for class_ in (0, 1))))
    first = far()[0]
    yield Audit(
        "held-out users",
        epsilon,
        along(mean, release, farthest, delta=delta),
        {
            "seeded": case(source=SeededNoise(42), least=0.1),
            "secure": case(source=SecureNoise(b"e" * 32), least=0.1),
            "left out": case(
                held=HeldOut.calibrate(classes=2, adjacency="zero-out", **sizes),
                ends=(corner(0, 0, 0), nobody),
                least=0.1,
            ),
            "errors of numbers": case(held=numbers, ends=wrong_and_right, least=0.1),
        },
        {
            "a quarter of the noise": case(held=second(1 / 4)),
            "a user weighs by its items": case(times=4),
            "errors clipped row by row and summed": case(held=numbers, ends=wrong_and_right, times=4),
            "noise for right or wrong alone": case(held=second(room.CORRECT**0.5)),
        },
    )
    often, wide = 5, {"users": users, "figures": 1, "epsilon": epsilon, "delta": delta}
    measured = room.HeldMeans.calibrate(**wide, rounds=tuple(range(often - 1)))

    def evaluations(held=measured):
        """Log ratios of five evaluations of one user who is always right, were it always wrong."""
        near, far = (np.array([1.0, (own + 0.5 * (users - 1)) / users]) * held._weights for own in (1.0, 0.0))
        shown = held.noise.release(np.tile(near, (often * 100_000, 1)), SeededNoise(11).stream("means"))
        return gaussian_ratio(shown, near, far, held.scale).reshape(-1, often).sum(axis=1)

    yield Audit(
        "held-out users measure five times",
        delta,
        ratios(evaluations, epsilon=epsilon),
        {"as calibrated": case(least=0.1)},
        {"noise of one evaluation": case(held=replace(measured, scale=room.HeldMeans.calibrate(**wide).scale))},
    )
    yield Audit(
        "both releases of held-out users",
        delta,
        ratios(lambda apart: losses(*apart), epsilon=epsilon),
        {
            "together": case(apart=far(), uses=0.2),
            "users in other classes": case(apart=[np.hypot(first, classes / honest.scales[1])]),
            "one part": case(apart=[honest.pair.mu]),
        },
        {
            "half of the noise": case(apart=far(2.0)),
            "classes that are charged alone": case(apart=[np.hypot(first, classes / honest.scales[1] * 2**0.5)]),
            "an evaluation on training users": case(apart=[honest.pair.mu, honest.pair.mu]),
        },
    )


def data_quality_audits():
    """Users who differ wherever they can: no row of use, or one label; one column that does not fit, or all."""
    epsilon, delta, users, columns = 1.0, 0.01, 5, 30
    sizes = {"columns": columns, "labels": 2, "mu": gdp.mu_for(epsilon, delta)}
    honest = DataQuality.for_mu(users=users, **sizes)
    lost, found = (1.0, [0.0, 0.0], np.eye(columns)[0]), (0.0, [1.0, 0.0], np.eye(columns)[1])
    every, none = (1.0, [0.0, 0.0], np.ones(columns)), (0.0, [1.0, 0.0], np.zeros(columns))

    def mean(own, health=honest, vectors=None):
        """Of four users in whose rows nothing is amiss, and an own one; a twin's vectors are not shortened."""
        make = vectors or health.vectors
        rows = np.vstack([make(np.zeros(1), np.array([[0.0, 1.0]]), np.zeros((1, columns)))] * (users - 1))
        if own is not None:
            rows = np.vstack([rows, make(np.array([own[0]]), np.array([own[1]]), own[2][None, :])])
        if vectors is not None:
            return rows.sum(axis=0) / users
        return health.reduction.mean(health.reduction.of(rows, np.ones(len(rows), bool)))

    def release(centres, stream, health=honest, vectors=None):
        return health._gaussian.release(centres, stream)

    def unclipped(none, labels, columns):
        """Columns are not shortened together."""
        users, values, column = np.sqrt([0.4, 0.2, 0.4])
        value = np.where(none[:, None] > 0, 0.0, labels)
        parts = users * none[:, None], users * value, values * columns.mean(axis=1, keepdims=True), column * columns
        return np.hstack(parts)

    def whole(health=honest):
        means = [mean(own, health) for own in (lost, found)]
        out = health._gaussian.release(np.tile(means[0], (40_000, 1)), SeededNoise(33).stream("look"))
        return gaussian_ratio(out, *means, health.scale)

    zero_out = DataQuality.for_mu(users=users, adjacency="zero-out", **sizes)
    yield Audit(
        "a look at a table",
        epsilon,
        along(mean, release, (lost, found), delta=delta, source=31),
        {
            "seeded": case(source=SeededNoise(32), least=0.1),
            "secure": case(source=SecureNoise(b"h" * 32), least=0.1),
            "a lost user left out": case(health=zero_out, ends=(lost, None), least=0.1),
            "a user of no use left out": case(health=zero_out, ends=(every, None), least=0.1),
        },
        {
            "a quarter of the noise": case(health=replace(honest, scale=honest.scale / 4)),
            "columns that are not shortened together": case(ends=(every, none), vectors=unclipped),
            "noise for one column alone": case(health=replace(honest, scale=honest.scale * 0.4)),
            "a divisor that counts users with rows": case(
                health=replace(DataQuality.for_mu(users=50, **sizes), users=users)
            ),
        },
    )
    yield Audit(
        "a look at a table, by ratios",
        delta,
        ratios(whole, epsilon=epsilon),
        {"the whole vector": case(uses=0.2)},
        {"half of the noise": case(health=replace(honest, scale=honest.scale / 2))},
    )


AUDITS = [
    *spread_audits(),
    *estimated_audits(),
    *held_out_audits(),
    *data_quality_audits(),
]
