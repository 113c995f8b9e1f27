"""Audits of what one of two servers sees of an own user.

Noise is real (exact samplers, keys of their own), so an attack that finds a row within 2¹² of 2³⁰ steps in five
coordinates at once has found more than chance does once in 10²⁷ times: an attack measures how many rows it finds.
"""

from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import pytest
from scipy import stats

from audits.harness import Audit, case, events
from privacy.references import unit_for
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.free_counts import ShapedMomentSum
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.two_servers import seals
from quoron_privacy.two_servers.noise import (
    FIRST,
    ServerNoise,
    factors_of,
    next_chain,
    outsiders_mu,
    server_mu,
)
from quoron_privacy.two_servers.rows import RingRows, added, fits, less, mask, seed_for, signed
from quoron_privacy.two_servers.specification import Block, MechanismSpec, RoundSpec

PLAN = sha256(b"plan").digest()
UNIT = 1 << 29
NEAR = 1 << 12  # steps; independent noise is so near to other noise, in five coordinates, once in 10²⁷ times


def spec(rounds=2, length=5, factorisation="banded", participations=1, separation=1):
    block = Block("sums", length, UNIT, "clipped")
    return MechanismSpec((RoundSpec((block,)),) * rounds, factorisation, participations, separation)


def rows(users, length=5, seed=0):
    made = np.random.default_rng(seed).integers(-(1 << 27), 1 << 27, (users, length))
    return made.astype(np.int64)


def seeds(users, seed=0):
    return [sha256(f"{seed} {user}".encode()).digest() for user in range(users)]


def fingerprint(user):
    return sha256(f"user {user}".encode()).digest()


def entries(users, seeds):
    """A list: seals are stood in for by what no two seeds share."""
    return sorted((fingerprint(user), b"question", sha256(b"sealed" + seeds[user]).digest()) for user in users)


@dataclass
class Helper:
    """What the helper keeps, and how it answers. Copies of it are stores that were put back."""

    noise: ServerNoise
    chains: list = field(default_factory=list)
    forgets: bool = False  # a broken twin: labels hold the round's own list alone

    def put_back(self):
        return Helper(self.noise, list(self.chains), self.forgets)

    def reply(self, users, seeds):
        before = FIRST if self.forgets or not self.chains else self.chains[-1]
        chain = next_chain(before, len(self.chains), entries(users, seeds))
        self.chains.append(chain)
        masks = [mask(seeds[user], self.noise.spec.rounds[0].length) for user in users]
        none = np.zeros(self.noise.spec.rounds[0].length, np.uint64)
        return less(added(none, *masks), self.noise.of(len(self.chains) - 1, self.chains))


def own_row(masked, with_own, reply_with, without, reply_without):
    """The row of whoever is in the first list alone, as two replies tell it, if their noise is the same."""
    one = less(added(*(masked[user] for user in with_own)), reply_with)
    other = less(added(*(masked[user] for user in without)), reply_without)
    return signed(less(one, other))


def found(guess, row):
    """Whether a guess is the row, but for roundings of predictions."""
    return bool(np.abs(guess - row).max() <= NEAR)


class NoList(ServerNoise):
    """A broken twin: noise of a round is labelled by the round alone."""

    def labels(self, round_, history, group):
        return "two-servers", self.run, round_


KEY, OTHER = b"b" * 32, b"a" * 32
USERS, OWN = range(4), 3  # the own user is the last
ROWS, SEEDS = rows(4), seeds(4)
MASKED = [added(row, mask(seed, 5)) for row, seed in zip(ROWS, SEEDS, strict=True)]
NOTHING, MASKS = np.zeros(5, np.int64), [mask(seed, 5) for seed in SEEDS]
EPSILON, DELTA = 1.0, 0.01


def helper(twin=ServerNoise, forgets=False, **of_the_sheet):
    return Helper(twin(KEY, "run", PLAN, spec(**of_the_sheet)), forgets=forgets)


def chain_of(users):
    return next_chain(FIRST, 0, entries(users, SEEDS))


# What the coordinator computes of replies, the helper following: guesses of the own user's row.


def two_lists_of_one_round(noise=ServerNoise):
    """The helper's store put back: a second release, never a difference without noise."""
    made = helper(noise)
    again = made.put_back()
    return own_row(MASKED, [*USERS], made.reply([*USERS], SEEDS), [0, 1, 2], again.reply([0, 1, 2], SEEDS))


def lists_put_back_a_round_ago(forgets=False):
    """The own user leaves the list of round 0, and round 1's list is what it was."""
    made = helper(forgets=forgets)
    again, later = made.put_back(), seeds(4, seed=1)
    first = made.reply([*USERS], SEEDS), again.reply([0, 1, 2], SEEDS)
    second = made.reply([0, 1, 2], later), again.reply([0, 1, 2], later)
    noise_apart = signed(less(second[1], second[0]))  # N₁ - N₁′ = -c₁ (N₀ - N₀′), where Z₁ is the same
    sums = less(added(*(MASKED[user] for user in USERS)), first[0], *(MASKED[user] for user in range(3)))
    return signed(added(sums, first[1])) + noise_apart / float(factors_of(made.noise.spec).coefficients[1])


def a_round_of_two_groups(own_list_alone=False):
    """A store put back; the own user was in group 1 of round 0 the first time, so it is left out of round 1."""
    replies, noise, others = [], ServerNoise(KEY, "run", PLAN, spec(factorisation=None)), entries([0, 1], SEEDS)
    for before, taken in (([*others, *entries([OWN], SEEDS)], [0, 1]), (others, [0, 1, OWN])):
        chains = [next_chain(FIRST, 0, others if own_list_alone else sorted(before))]
        chains.append(next_chain(chains[0], 1, entries([0, 1, OWN], SEEDS)))
        replies.append(less(added(*(MASKS[user] for user in taken)), noise.of(1, chains)))
    return own_row(MASKED, [0, 1, OWN], replies[1], [0, 1], replies[0])


def coordinator_put_back(listed_as_sent=False):
    """What the helper computes: the same list twice, the own user left out of the second of two releases."""
    released = []
    for taken in ([*USERS], [0, 1, 2]):
        noise = ServerNoise(OTHER, "run", PLAN, spec()).of(0, [chain_of([*USERS] if listed_as_sent else taken)])
        total = less(added(*(MASKED[user] for user in taken)), *(MASKS[user] for user in taken))
        released.append(added(total, noise))
    return signed(less(*released))


def attacked(attack, row=ROWS[OWN], **twin):
    return float(found(attack(**twin), row))


def one_noise(helped=True):
    """Whether whoever drew one of two noises is left with the sum when it takes its own off."""
    own = ServerNoise(OTHER, "run", PLAN, spec()).of(0, [chain_of([*USERS])])
    reply = helper().reply([*USERS], SEEDS) if helped else added(*MASKS)
    return signed(less(less(added(*MASKED, own), reply), own))


def seeds_that_come(again=False):
    """The difference of two answers, by one seed or by seeds that are hedged with the row."""
    pair = ROWS[OWN], ROWS[0]
    hedged = [SEEDS[OWN] if again else seed_for(OTHER, "run", 0, b"question", row) for row in pair]
    return signed(less(*(added(row, mask(seed, 5)) for row, seed in zip(pair, hedged, strict=True))))


def equal_releases(by_sums, row):
    """Whether releases with and without the user are equal, which says that the row is zero."""
    own, shown = [*ROWS[:3], row], []
    for users in ([*USERS], [0, 1, 2]):
        total = added(NOTHING, *(own[user] for user in users))
        label = total.tobytes()[:32] if by_sums else chain_of(users)
        shown.append(added(total, ServerNoise(KEY, "run", PLAN, spec()).of(0, [label])))
    return float((shown[0] == shown[1]).all())


def opened(about=None):
    """How many seals of one round, plan and run are opened with words of another."""
    key, count = seals.RunKey.fresh(), 0
    sealed_for = about or seals.info(seals.SUITE, "run", PLAN, 0, b"question", fingerprint(OWN))
    sealed = seals.seal(key.public, SEEDS[OWN], sealed_for)
    for run, plan, round_ in (("run", PLAN, 1), ("run", OTHER, 0), ("runs", PLAN, 0)):
        other = about or seals.info(seals.SUITE, run, plan, round_, b"question", fingerprint(OWN))
        count += seals.open_(key.secret, sealed, other) is not None
    return float(count)


def short_masks(filled=False):
    """Coordinates that a mask of fewer words than numbers leaves bare; the twin fills it up with zeros."""
    short = mask(SEEDS[OWN], 3)
    if not filled:
        with pytest.raises(Exception, match="shape"):
            added(ROWS[OWN], short)
        return 0.0
    return float(np.sum(signed(added(ROWS[OWN], np.append(short, np.zeros(2, np.uint64)))) == ROWS[OWN]))


def unfit(rows, planned):
    """Rows that are not admitted."""
    return float(sum(not fits(row, planned) for row in rows))


def unit_of_a_question(times=1):
    planned, asked = (RoundSpec((Block("sums", 2, UNIT // 4 * k, "clipped"),)) for k in (1, times))
    return unfit(RingRows(asked, ClippedSum(1.0, 1)).rows(np.array([[3.0, 4.0]]), np.ones(1, bool)), planned)


def weights_of_rows(adjacency="zero-out"):
    """The twin's weights are 1, to be multiplied into the released sum."""
    blocks = Block("sums", 2, UNIT, "norm-counts"), Block("shares", 3, UNIT, "norm-counts")
    made = RingRows(RoundSpec(blocks, adjacency), ClippedSum(1.0, 1))
    return unfit(made.rows(np.array([[0.3, 0.0]]), np.ones(1, bool)), RoundSpec(blocks, "zero-out"))


def other_bits(again_noise=ServerNoise):
    """Replies to equal lists that differ after a crash: a second release of the same round."""
    made, again = helper(), helper(again_noise)
    pairs = [(one.reply([*USERS], seeds(4, t)) for one in (made, again)) for t in range(2)]
    return float(sum((one != other).any() for one, other in pairs))


def attack_audits():
    attacks = {
        "another list of an answered round": (two_lists_of_one_round, {"noise": NoList}),
        "equal later lists after a store put back": (lists_put_back_a_round_ago, {"forgets": True}),
        "lists of all groups": (a_round_of_two_groups, {"own_list_alone": True}),
        "store of the coordinator put back": (coordinator_put_back, {"listed_as_sent": True}),
    }
    for name, (attack, twin) in attacks.items():
        yield Audit(name, 0.0, attacked, {"as it is": case(attack=attack)}, {"labelled": case(attack=attack, **twin)})
    total, apart = signed(added(NOTHING, *ROWS)), ROWS[OWN] - ROWS[0]
    yield Audit(
        "one noise of two",
        0.0,
        attacked,
        {"helped": case(attack=one_noise, row=total)},
        {"the helper adds nothing": case(attack=one_noise, row=total, helped=False)},
    )
    yield Audit(
        "seeds of two answers",
        0.0,
        attacked,
        {"hedged": case(attack=seeds_that_come, row=apart)},
        {"one that comes again": case(attack=seeds_that_come, row=apart, again=True)},
    )
    yield Audit(
        "releases that are equal",
        0.0,
        equal_releases,
        {"no row": case(by_sums=False, row=NOTHING), "a row": case(by_sums=False, row=ROWS[OWN])}
        | {"a row, by sums": case(by_sums=True, row=ROWS[OWN])},
        {"labels by sums": case(by_sums=True, row=NOTHING)},
    )
    twin = b"quoron two-servers" + fingerprint(OWN)
    yield Audit("seals", 0.0, opened, {"told": case()}, {"without run, plan and round": case(about=twin)})
    yield Audit("short masks", 0.0, short_masks, {"refused": case()}, {"filled up": case(filled=True)})
    yield Audit("replies after a crash", 0.0, other_bits, {"equal": case()}, {"others": case(again_noise=NoList)})
    yield Audit("units", 0.0, unit_of_a_question, {"planned": case()}, {"of the question": case(times=16)})
    yield Audit(
        "weights", 0.0, weights_of_rows, {"before the sum": case()}, {"after it": case(adjacency="replace-one")}
    )


def release_audits():
    """Releases of rows as far apart as their kind allows, against `server_mu`."""
    mu = gdp.mu_for(EPSILON, DELTA)
    unit = unit_for(mu, "clipped")

    def number_that_moves(far, number):
        return lambda draws: far + SeededNoise(number + 1).stream("a").gaussian_steps(draws)

    def of_a_kind(kind, times):
        """How far apart rows are: of orthogonal users; or of a user at the centre, and nobody."""
        adjacency, here = "replace-one" if kind == "moment" else "zero-out", np.ones(2, bool)
        loud = times * unit_for(mu, kind, adjacency, length=4)
        if kind == "moment":
            made = RoundSpec((Block("sums", 4, loud, kind),), adjacency)
            reduction = RingRows(made, ShapedMomentSum(1, np.eye(2), 1.0))
            one, other = reduction.rows(np.array([[7.0, 0, 0], [0, 0, 7.0]]), here)
        else:
            blocks = Block("sums", 1, loud, kind), Block("shares", 3, loud, kind)
            one = RingRows(RoundSpec(blocks, adjacency), ClippedSum(1.0, 1)).rows(np.zeros((2, 1)), here)[0]
            other = np.zeros(4, np.int64)
        return 0, float(np.linalg.norm(one - other))

    kinds = ("moment", "norm-counts")
    yield Audit(
        "rows of two servers",
        EPSILON,
        events(number_that_moves, ends=(0, 2 * unit), delta=DELTA, draws=60_000),
        {"a row of the unit": case(least=0.5)}
        | {f"farthest of {kind}": case(ends=of_a_kind(kind, 1), draws=40_000, least=0.5) for kind in kinds},
        {
            "a row in two groups": case(ends=(0, 2 * unit * 2**0.5)),  # each with noise of its own
            "four times the unit": case(ends=(0, 8 * unit), beyond=2),
        }
        | {f"four times as long, {kind}": case(ends=of_a_kind(kind, 4), draws=40_000, beyond=2) for kind in kinds},
    )

    def at_the_edge(row, number, clamped=False):
        """A coordinate that the helper has brought next to 2⁶³, and the row of the own user beyond it."""
        stream = SeededNoise(int(np.random.default_rng(row).integers(2**63, size=1)[0])).stream("a")

        def draw(draws):
            edge = np.full(draws, 2**63 - 1, np.uint64) + np.uint64(row)
            if clamped:  # as `GaussianNoise.release`: divided and held within bounds, then noised
                return GaussianNoise(1.0, 1.0).release(signed(edge).astype(np.float64) / 2.0**30, stream)
            return signed(added(edge, stream.gaussian_steps(draws)) - np.uint64(2**63 - 1)).astype(np.float64)

        return draw

    yield Audit(
        "sums at the edge of the ring",
        EPSILON,
        events(at_the_edge, ends=(0, 2 * unit), delta=DELTA, draws=40_000),
        {"in the ring": case(least=0.4)},
        {"noise after a clamp": case(clamped=True, draws=2000, beyond=3)},
    )

    def outsider(far, number, servers=2):
        """Of whoever sees neither noise."""
        steps = [SeededNoise(number + 1).stream(name) for name in "ab"[:servers]]
        return lambda draws: far + sum(step.gaussian_steps(draws) for step in steps)

    made = MechanismSpec((RoundSpec((Block("sums", 1, unit, "clipped"),)),))
    yield Audit(
        "one number, to outsiders",
        gdp.epsilon_for(outsiders_mu(made), DELTA),
        events(outsider, ends=(0, 2 * unit), delta=DELTA, draws=60_000),
        {"two noises": case(least=0.3)},
        {"one noise": case(servers=1)},
    )

    draws, rounds = 60_000, 8

    def correlated_sheet(column_norm):
        block = Block("sums", 2 * draws, unit_for(mu, "clipped", column_norm=column_norm), "clipped")
        return MechanismSpec((RoundSpec((block,)),) * rounds, "banded")

    norm = factors_of(spec(rounds=rounds)).column_norm
    sound, forgotten = correlated_sheet(norm), correlated_sheet(1.0)
    outside = gdp.epsilon_for(outsiders_mu(sound), DELTA)
    yield Audit(
        "account of correlated noise",
        mu + 1e-5,
        lambda made: server_mu(made),
        {"one server": case(made=sound)},
        {"a column norm that was forgotten": case(made=forgotten, beyond=1.2)},
    )

    def transcript(shifts, number, made=sound, servers=1):
        """A coordinate each; what is told apart by is (C w) along the first column of C: all that it says of a user.

        The user moves round 0 as far as its kind allows.
        """
        chains, c = [bytes([t + 1]) * 32 for t in range(rounds)], factors_of(made).coefficients
        noises = [ServerNoise(bytes([(1, 50)[number] + k]) * 32, "run", PLAN, made) for k in range(servers)]
        told = [signed(added(*(noise.of(t, chains[: t + 1]) for noise in noises))) for t in range(rounds)]
        told[0] = told[0] + shifts * 2 * made.rounds[0].blocks[0].unit
        along = [sum(c[t - j] * told[j] for j in range(t + 1)) for t in range(rounds)]
        return lambda draws: sum(c[t] * along[t] for t in range(rounds))[:draws]

    yield Audit(
        "transcripts of correlated noise",
        EPSILON,
        events(transcript, ends=(0, 1), delta=DELTA, draws=2 * draws),
        {"one server": case(least=0.6), "outsiders": case(servers=2, claim=outside, least=0.4)},
        {"a column norm that was forgotten": case(made=forgotten)},
    )

    def distance(separation):
        """How far two participations so many rounds apart move correlated noise."""
        made = spec(rounds=12, participations=2, separation=6)
        c, apart = factors_of(made).coefficients, np.zeros(12)
        apart += c
        apart[separation:] += c[: 12 - separation]
        assert made.admits([0], separation) == (separation >= 6)
        return float(2 * UNIT * 2.0**-30 * np.linalg.norm(apart))

    yield Audit(
        "rounds of two participations",
        server_mu(spec(rounds=12, participations=2, separation=6)),
        distance,
        {"as planned": case(separation=6)},
        {"neighbours": case(separation=1, beyond=1.1)},
    )


def uneven(words):
    """-ln of the least p-value over coordinates and over the highest and lowest bits of words."""
    parts = [bits for column in words.T for bits in (column >> np.uint64(60), column & np.uint64(15))]
    return -np.log(min(stats.chisquare(np.bincount(bits.astype(int), minlength=16)).pvalue for bits in parts) + 1e-300)


def word_audits():
    """Words of masked rows, whose laws do not depend on data; a wrong alarm has probability below 10⁻⁷ in all."""
    longest = np.array([UNIT, -UNIT, 3 * UNIT, 2**40], np.int64)

    def masked(row=(0, 0, 0, 0), bits=64, length=4):
        """A twin's masks are not of the ring, or leave shares unmasked."""
        bare, ring = np.zeros(4 - length, np.uint64), np.uint64(2**bits - 1)
        masks = (np.append(mask(seed, length), bare) & ring for seed in seeds(4000, 9))
        return uneven(np.array([added(np.array(row), words) for words in masks]))

    def replies(again=False):
        """One reply a round: of it the coordinator makes a sum with noise, and nothing else."""
        made = (helper(length=8).reply([*USERS], seeds(4, 0 if again else seed)) for seed in range(2000))
        return uneven(np.array([*made]))

    def correlation(covered=True):
        """Of rows with what is masked."""
        bits, none = np.random.default_rng(4).integers(0, 2, 4000), np.zeros(4, np.uint64)
        pairs = zip(bits, seeds(4000, 11), strict=True)
        words = np.array([added(np.full(4, bit << 62), mask(seed, 4) if covered else none) for bit, seed in pairs])
        tables = [stats.contingency.crosstab(bits, column >> np.uint64(60)).count for column in words.T]
        return -np.log(min(stats.chi2_contingency(table).pvalue for table in tables) + 1e-300)

    def sealed(seed, opened=False):
        key = seals.RunKey.fresh()
        shown = (seed * 2 if opened else seals.seal(key.public, seed, b"info")[-48:] for _ in range(300))
        nibbles = np.frombuffer(b"".join(shown), np.uint8) >> 4
        return -np.log(stats.chisquare(np.bincount(nibbles, minlength=16)).pvalue + 1e-300)

    alarm, sure = -np.log(1e-9), -np.log(1e-12)
    yield Audit(
        "words of masked rows",
        alarm,
        masked,
        {"nothing": case(), "the longest": case(row=longest)},
        {f"masks of {bits} bits": case(bits=bits, claim=sure) for bits in (53, 62)}
        | {"shares unmasked": case(row=(1, 2, 3, UNIT), length=3, claim=sure)},
    )
    yield Audit("words and rows", alarm, correlation, {"masked": case()}, {"bare": case(covered=False)})
    yield Audit("replies", alarm, replies, {"uniform": case()}, {"masks that come again": case(again=True)})
    own = {"nearly zero": bytes(31) + b"1", "ones": b"\xff" * 32}
    yield Audit(
        "words of seals",
        alarm,
        sealed,
        {name: case(seed=seed) for name, seed in own.items()},
        {name: case(seed=seed, opened=True) for name, seed in own.items()},
    )


AUDITS = [*attack_audits(), *release_audits(), *word_audits()]
