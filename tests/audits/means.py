"""Audits of means: with counts beside them, winsorised, of moments, and of sums that silos make."""

import math
from dataclasses import replace

import numpy as np

from audits.harness import Audit, Still, case, events, gaussian_ratio, ratios
from privacy.references import Chosen
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means import free_counts, private_range
from quoron_privacy.means.clipping import ClippedSum, clip_rows
from quoron_privacy.means.free_counts import COLUMN_PRESENCE as COLUMNS_HERE
from quoron_privacy.means.free_counts import COLUMN_WEIGHTS as WEIGHTS
from quoron_privacy.means.free_counts import (
    ColumnMean,
    ColumnSum,
    Contrasts,
    ContrastSum,
    LengthSum,
    LogLength,
    MomentMean,
    NormCountMean,
    NormCountSum,
    ShapedMomentSum,
    length_sums,
    weights_of,
)
from quoron_privacy.means.private_range import PrivateRange, WinsorisedMean, costs, weights
from quoron_privacy.means.rotation import padded, rotate
from quoron_privacy.means.rotation_loops import tally
from quoron_privacy.means.silo_sums import objection
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Sums
from quoron_server.silos import known_twice

EPSILON, DELTA, USERS = 1.0, 0.01, 5
MU = gdp.mu_for(EPSILON, DELTA)
ROOT = 1.4142135  # √2, rounded down


def adaptive_clip_audits():
    """The shares that an adaptive clip follows: others halfway to the clip norm; None of the own user is nobody."""

    def rows_of(own):
        rows, answered = np.full((USERS, 1), 0.5), np.ones(USERS, bool)
        rows[1], answered[1] = own or 0.0, own is not None
        return rows, answered

    def whole(ends, adjacency="replace-one", draws=8_000):
        """Of all that a round releases, as weighted rows."""
        made = NormCountMean.for_mu(dimension=1, users=USERS, mu=MU, adjacency=adjacency, soft=True)

        def seen(own, stream, draws=1):
            sums, loud = ClippedSum(1.0, USERS).of(*rows_of(own)), np.array(weights_of(adjacency, soft=True))
            came = [made.release(sums, stream) for _ in range(draws)]
            return loud * np.array([[mean.mean[0], mean.beyond, mean.within, mean.presence] for mean in came])

        near, far = (seen(own, Still()) for own in ends)
        return gaussian_ratio(seen(ends[0], SeededNoise(3).stream("audit"), draws), near, far, made._gaussian.scale)

    honest = ClippedSum.of

    def hard(self, values, answered):
        """1[a < 1] in place of h: opposite users on either side of the clip norm are √5 apart, not 2."""
        sums = honest(self, values, answered)
        sums.cells[3] = round(self.scales[1]) * int(np.count_nonzero(answered & (np.abs(values[:, 0]) < self.norm)))
        return sums

    def louder(adjacency):
        weight, *others = free_counts.SOFT[adjacency]
        return free_counts, "SOFT", free_counts.SOFT | {adjacency: (weight, *(2 * other for other in others))}

    pairs = {
        "clipped, or opposite at two thirds": ("replace-one", (1.0, -2 / 3)),
        "opposite, both clipped": ("replace-one", (5.0, -5.0)),
        "nobody, or a user at zero": ("replace-one", (0.0, None)),
        "left out, clipped": ("zero-out", (5.0, None)),
        "left out, at nine tenths": ("zero-out", (0.9, None)),
    }
    yield Audit(
        "shares of an adaptive clip",
        DELTA,
        ratios(whole, epsilon=EPSILON),
        {name: case(adjacency=adjacency, ends=ends, uses=0.99) for name, (adjacency, ends) in pairs.items()},
        {
            "a hard share": case((ClippedSum, "of", hard), ends=(1.0 - 1e-9, -1.0), draws=20_000),
            "shares with half the noise": case(louder("replace-one"), ends=(0.0, None)),
            "shares with half the noise, left out": case(louder("zero-out"), adjacency="zero-out", ends=(0.2, None)),
        },
    )


def second_moment_audits():
    """The pilot's moment of four users at e₁ and one own user, along the line on which the worlds differ."""
    delta, draws = DELTA, 6_000
    factors = {"e1": [7.0, 0.0, 0.0], "e2": [0.0, 0.0, 7.0], "absent": [np.nan, 0.0, 0.0]}  # clients that send too much

    def planned(divisor=USERS, **more):
        return MomentMean.for_mu(dimension=2, users=divisor, mu=MU, presence=False, **more)

    honest, left_out = planned(), planned(adjacency="zero-out")

    def world(own, number, noise=honest):
        rows = np.array([factors["e1"]] * USERS)
        rows[2] = factors[own]
        stream = SeededNoise(number).stream("pilot")
        sums = ShapedMomentSum(noise.users, np.eye(2), 1.0).of(rows, np.ones(USERS, bool))

        def draw(draws):
            released = np.array([noise.release(sums, 1.0, stream).mean for _ in range(draws)])
            return released[:, 0, 0] - released[:, 1, 1]

        return draw

    yield Audit(
        "second moment",
        EPSILON,
        events(world, ends=("e1", "e2"), delta=delta, draws=draws),
        {
            "an orthogonal user": case(draws=10_000, least=0.3),
            "left out": case(noise=left_out, ends=("e1", "absent")),
        },
        {
            "a quarter of the noise": case(noise=replace(honest, scale=honest.scale / 4), draws=3_000, beyond=2),
            "left out, a 16th of the noise": case(
                noise=replace(left_out, scale=left_out.scale / 16), ends=("e1", "absent"), draws=3_000, beyond=2
            ),
            "a divisor that counts who answered": case(noise=replace(planned(50), users=USERS), beyond=3),
        },
    )


def free_counts_audits():
    """Pairs at the corners of free-presence#p1 to #p3; None is nobody."""
    sizes = {"users": USERS, "mu": MU}
    tail, moment = (kind.for_mu(dimension=2, **sizes) for kind in (NormCountMean, MomentMean))
    columns, length = ColumnMean.for_mu(columns=2, **sizes), LogLength.for_mu(**sizes)

    def others(row, own):
        rows = np.tile(np.array(row, float), (USERS, 1))
        rows[2] = own
        return rows

    def tails(mechanism, own, answered, stream, transform=np.eye(2)):  # noqa: B008
        sums = NormCountSum(1.0, mechanism.users, transform, np.zeros(2)).of(others([0.3, 0.1], own), answered)
        found = mechanism.release(sums, stream)
        return np.array([*found.mean, ROOT * found.beyond, found.within, found.presence])

    def classes(*given):
        """Two parts of one number each, whitened one by one and clipped as one."""
        return tails(*given, transform=np.array([[2.0]]))

    def moments(mechanism, own, answered, stream):
        sums = ShapedMomentSum(mechanism.users, np.eye(2), 1.0).of(others([0.5, 0.1, 0.5], own), answered)
        found = mechanism.release(sums, 1.0, stream)
        return np.array([*found.mean[[0, 0, 1], [0, 1, 1]] * [1, np.sqrt(2), 1], found.presence])

    def lengths(mechanism, own, answered, stream):
        sums = length_sums(others([-1.0], own)[:, 0], answered, 1.0, mechanism.users)
        found = mechanism.release(sums, stream)
        return np.array([found.mean, found.presence * 0.8660254])

    def ranges(mechanism, own, answered, stream):
        rows, windows = others([0.5, 0.3, 1.0, 0, 0, 0], own), np.array([[0.0, 0.0], [1.0, 1.0]])
        found = mechanism.release(ColumnSum(mechanism.users, windows, 1.0, True).of(rows, answered), stream)
        parts = np.concatenate([[found.mean, found.spread, found.square], found.still])
        return np.append((parts * (np.array(WEIGHTS) / np.sqrt(2))[:, None]).ravel(), found.presence * COLUMNS_HERE)

    pairs = {
        "opposite gradients": (tails, tail, [9.0, 0.0], [-9.0, 0.0]),
        "opposite gradients in two classes": (classes, tail, [9.0, 9.0], [-9.0, -9.0]),
        "a gradient at its end and one well within": (tails, tail, [9.0, 0.0], [-2 / 3, 0.0]),
        "no gradient and nobody": (tails, tail, [0.0, 0.0], None),
        "orthogonal moments": (moments, moment, [9.0, 0.0, 0.0], [0.0, 0.0, 9.0]),
        "a moment and nobody": (moments, moment, [9.0, 0.0, 0.0], None),
        "a moment of all entries and nobody": (moments, moment, [9.0, 9.0, 9.0], None),
        "opposite ends of ranges": (ranges, columns, [1.0, 1.0, 1.0, 0, 0, 0], [-1.0, -1.0, 1.0, 0, 0, 0]),
        "ends of ranges and nobody": (ranges, columns, [1.0, 1.0, 1.0, 0, 0, 0], None),
        "the longest and the shortest": (lengths, length, 5.0, -9.0),
        "the longest and nobody": (lengths, length, 5.0, None),
    }

    def sample(pair, factor=1.0):
        release, honest, *held = pairs[pair]
        mechanism = replace(honest, scale=honest.scale * factor)

        def world(own, stream):
            here = np.arange(USERS) != (2 if own is None else -1)
            return release(mechanism, np.nan if own is None else own, here, stream)

        near, far = (world(own, Still()) for own in held)
        stream = SeededNoise(3).stream("audit")
        return gaussian_ratio(np.array([world(held[0], stream) for _ in range(4_000)]), near, far, mechanism.scale)

    upper, sum_columns, sum_counts = (
        np.triu_indices(2),
        free_counts.loops.sum_columns,
        free_counts.loops.sum_norm_counts,
    )

    def by_chunks(factors, answered, transform, radius, unit):
        """Chunks are how a moment travels: each within the radius is not the whole within it."""
        total, here = np.zeros(3, np.int64), answered & np.isfinite(factors).all(axis=1)
        for factor in factors[here]:
            whole = np.zeros((2, 2))
            whole[upper] = factor
            whitened = transform.T @ whole.T @ whole @ transform
            total += (np.clip(whitened[upper] / radius, -1, 1) * unit).astype(np.int64)
        return total, int(np.sum(here))

    def twice_as_far(rows, answered, windows, scale, constant, weights, total):
        return sum_columns(rows, answered, windows, scale, constant, 2 * weights, total)

    def each_for_itself(values, answered, transform, centre, radius, unit):
        parts = [
            sum_counts(values[:, [k]].copy(), answered, transform, centre[[k]], radius, unit)
            for k in range(values.shape[1])
        ]
        return np.concatenate([total for total, *_ in parts]), parts[0][1], parts[0][2]

    zero_out = NormCountMean.for_mu(dimension=2, adjacency="zero-out", **sizes).scale / tail.scale
    yield Audit(
        "free presence",
        DELTA,
        ratios(sample, epsilon=EPSILON),
        {name: case(pair=name, uses=0.5) for name in pairs},
        {f"half of the noise, {name}": case(pair=name, factor=0.5) for name in pairs}
        | {
            "a moment that is clipped a chunk at a time": case(
                (free_counts.loops, "sum_moments", by_chunks), pair="a moment of all entries and nobody"
            ),
            "columns that are not brought to their windows": case(
                (free_counts.loops, "sum_columns", twice_as_far), pair="opposite ends of ranges"
            ),
            "a clip for each class": case(
                (free_counts.loops, "sum_norm_counts", each_for_itself), pair="opposite gradients in two classes"
            ),
            "the noise of zero-out under replace-one": case(pair="opposite gradients", factor=zero_out),
        },
    )


def winsorised_audits():
    """Choices and box: the exact laws of the choices, and the Gaussian around what either world makes of them.

    Others are beyond the range in every rotated coordinate, so that choices stand at its edge.
    """
    users, dimension, delta, signs = 12, 4, 0.05, np.ones(4)
    one = np.eye(1, dimension)

    def sound(adjacency="replace-one"):
        return WinsorisedMean.for_mu(
            users=users,
            crude=PrivateRange(0.2, 6, 2.0),
            half_width=0.3,
            mu=gdp.mu_for(EPSILON, delta),
            dimension=dimension,
            adjacency=adjacency,
        )

    def world(own):
        rows, there = np.repeat(100.0 * one, users, axis=0), np.ones(users, np.bool_)
        rows[3], there[3] = 0.0 if own is None else own, own is not None
        return rows, there

    def laws(mean, rows, there):
        """Counts, and ln of the chance of every bin, for each coordinate."""
        counts = np.zeros((padded(dimension), mean.crude.bins), np.int64)
        tally(rotate(rows[there], signs), mean.crude.half_width, counts)
        whole = [weights(costs(row), mean.crude.epsilon) for row in counts]
        return counts, np.array([[math.log(weight / sum(row)) for weight in row] for row in whole])

    def sample(ends, mean=sound(), draws=2500):  # noqa: B008
        worlds = [world(own) for own in ends]
        (counts, here), (_, other) = (laws(mean, *held) for held in worlds)
        found = np.zeros(draws)
        for run in range(len(found)):
            source = SeededNoise(run)
            choice = source.stream("range")
            places = [mean.crude.choose(row, choice) for row in counts]
            z = mean.release(*worlds[0], signs, source.stream("range"), source.stream("noise"))[0]
            near, far = (mean.release(*held, signs, Chosen(places), Still())[0] for held in worlds)
            z, near, far = (rotate(value[None], signs) for value in (z, near, far))
            at = np.arange(len(places)), places
            found[run] = np.sum(here[at] - other[at]) + gaussian_ratio(z, near, far, mean.noise.scale)[0]
        return found

    def unclamped(rotated, middles, half_width, unit, total):
        """Adds rows as they are, but for what integers can hold."""
        total += np.floor(np.clip((rotated - middles) / half_width, -50, 50) * unit).astype(np.int64).sum(axis=0)
        return 0

    opposite = 1e9 * one, -1e9 * one
    short = replace(sound().noise, scale=sound().noise.scale / math.sqrt(padded(dimension)))
    yield Audit(
        "winsorised mean",
        delta,
        ratios(sample, epsilon=EPSILON),
        {
            "replaced": case(ends=opposite, least=0.1),
            "left out": case(mean=sound("zero-out"), ends=(-1e9 * one, None), least=0.1),
        },
        {
            "a box without its diagonal": case(mean=replace(sound(), noise=short), ends=opposite, draws=800),
            "no clamp": case((private_range.loops, "add_clamped", unclamped), ends=opposite),
            # half of ε₁ and h/n, while the absent user stands in zero's bin, clamped around choices at the edge
            "left out by a zero row": case(mean=sound("zero-out"), ends=(1e9 * one, np.zeros((1, dimension)))),
            "replaced at the price of leaving out": case(mean=sound("zero-out"), ends=opposite),
        },
    )


def silo_audits():
    """Neighbours of one person of a silo, beside whatever other silos send."""
    persons, silos = 20, 3
    users, nobody = persons * silos, Sums(np.zeros(1, np.int64), np.zeros(4, np.int64), 0, 0)
    clipped, rest = ClippedSum(1.0, users), np.full((persons - 1, 1), 0.05)
    sensitivity = mean_sensitivity(1.0, users, "replace-one")
    noise = GaussianNoise.for_mu(sensitivity=sensitivity, mu=MU, dimension=1)

    def by_person(rows, reduction=clipped):
        return reduction.of(rows, np.ones(len(rows), bool))

    def known_to_two(rows):
        return by_person(rows) + by_person(rows)

    def of(whole, rows):
        return Sums(np.trunc(whole * 2.0**clipped.bits).astype(np.int64), np.zeros(4, np.int64), 0, len(rows))

    def clip_by_silo(rows):
        """What all persons' rows add up to is clipped once, to as many times the clip norm."""
        return of(clip_rows(rows.sum(axis=0, keepdims=True), float(len(rows)))[0], rows)

    def one_row_a_silo(rows):
        """The silo is one slot, whose clipped mean stands for all of its persons."""
        return of(len(rows) * clip_rows(rows.mean(axis=0, keepdims=True), 1.0)[0], rows)

    def away_for_one(rows):
        """The silo answers only while nobody's row is negative."""
        return by_person(rows) if rows.min() >= 0 else nobody

    def world(own, number, silo=by_person, others=(), rest=rest):
        sums = [silo(np.concatenate([rest, [[own]]]))]
        sums += [sent for sent in others if objection(sent, clipped, persons=persons, length=1) is None]
        mean, stream = clipped.mean(sum(sums, nobody)), SeededNoise(number).stream("release")
        return lambda draws: np.array([noise.release(mean, stream)[0] for _ in range(draws)])

    def lies(sent):
        return (Sums(np.array([sent]), np.array([0, 0, persons, 0]), 0, persons),) * 2

    twice, twice_delta = known_twice(EPSILON, DELTA)
    yield Audit(
        "sums of silos",
        EPSILON,
        events(world, ends=(1e6, -1e6), delta=DELTA, draws=6_000),
        {f"others send {sent}": case(others=lies(sent)) for sent in (2**40, 2**62, -(2**62))}
        | {
            "replacing one person": case(least=0.3),
            "known to two, at twice the guarantee": case(
                silo=known_to_two, claim=twice, delta=twice_delta, draws=20_000
            ),
        },
        {
            "a clip by silo": case(silo=clip_by_silo, beyond=3),
            "one row a silo": case(silo=one_row_a_silo, beyond=3),
            "a silo that stays away because of one person": case(
                silo=away_for_one, ends=(0.0, -1e-9), rest=np.ones((persons - 1, 1)), beyond=3
            ),
            "known to two": case(silo=known_to_two, draws=20_000),
        },
    )

    factors = np.tile([0.5, 0.1, 0.5], (persons - 1, 1))
    length, moment = LogLength.for_mu(users=users, mu=MU), MomentMean.for_mu(dimension=2, users=users, mu=MU)
    gradient = NormCountMean.for_mu(dimension=4, users=users, mu=MU)

    def lengths(sums, stream):
        found = length.release(sums, stream)
        return np.array([found.mean, found.presence * 0.8660254]) / length.scale

    def moments(sums, stream):
        found = moment.release(sums, 1.0, stream)
        return np.array([*found.mean[[0, 0, 1], [0, 1, 1]] * [1, np.sqrt(2), 1], found.presence]) / moment.scale

    def gradients(sums, stream):
        found = gradient.release(sums, stream)
        return np.array([*found.mean, np.sqrt(2) * found.beyond, found.within, found.presence]) / gradient.scale

    def contrasts(*own):
        """Gradients of three classes, whose parts add up to zero."""
        return np.concatenate([np.zeros((persons - 1, 6)), [[*own, *own, *np.multiply(-2, own)]]])

    def stacked(*own):
        return np.vstack([factors, own])

    shaped = ContrastSum(Contrasts(2, 3), NormCountSum(1.0, users, np.eye(2)))
    questions = {  # of `whitened-tracking` by sums: release, reduction, and rows of a silo in both worlds
        "length": (lengths, LengthSum(users, np.eye(2), 1.0), stacked(9.0, 0, 9.0), stacked(0.0, 0, 0)),
        "moment": (moments, ShapedMomentSum(users, np.eye(2), 1.0), stacked(9.0, 0, 0), stacked(0.0, 0, 9.0)),
        "gradient": (gradients, shaped, contrasts(9.0, 0.0), contrasts(-9.0, 0.0)),
    }

    def one_for_all(rows, reduction):
        """What the silo's persons hold together is shaped once, and stands for each of them."""
        whole = reduction.of(np.mean(rows, axis=0, keepdims=True), np.ones(1, bool))
        return Sums(len(rows) * whole.total, len(rows) * whole.cells, 0, len(rows))

    def sample(question, silo=by_person):
        release, reduction, *worlds = questions[question]
        near, far = (release(silo(rows, reduction), Still()) for rows in worlds)
        stream, sums = SeededNoise(5).stream("release"), silo(worlds[0], reduction)
        assert silo is one_for_all or objection(sums, reduction, persons=persons, length=len(sums.total)) is None
        return gaussian_ratio(np.array([release(sums, stream) for _ in range(6_000)]), near, far, 1.0)

    yield Audit(
        "whitened-tracking by sums",
        DELTA,
        ratios(sample, epsilon=EPSILON),
        {name: case(question=name, uses=0.5) for name in questions},
        {f"a row of the silo as a whole, {name}": case(question=name, silo=one_for_all) for name in questions},
    )


AUDITS = [
    *adaptive_clip_audits(),
    *second_moment_audits(),
    *free_counts_audits(),
    *winsorised_audits(),
    *silo_audits(),
]
