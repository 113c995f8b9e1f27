"""Audits of what one of two servers sees of an own user, and the broken twins that they catch.

Noise is real (exact samplers, keys of their own), so an attack that finds a row within 2¹² of 2³⁰ steps in five
coordinates at once has found more than chance does once in 10²⁷ times.
"""

import numpy as np
import pytest
from scipy import stats

from audits.harness import epsilon_lower_bound
from audits.two_servers_lab import (
    PLAN,
    UNIT,
    Helper,
    NoList,
    entries,
    fingerprint,
    found,
    own_row,
    rows,
    seeds,
    sheet,
)
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.two_servers import seals
from quoron_privacy.two_servers.account import factors_of, outsiders_mu, server_mu, unit_for
from quoron_privacy.two_servers.chain import FIRST, next_chain
from quoron_privacy.two_servers.noise import ServerNoise
from quoron_privacy.two_servers.ring import added, fits, less, mask, seed_for, signed
from quoron_privacy.two_servers.rows import ClippedRows, MomentRows, NormCountRows
from quoron_privacy.two_servers.sheet import Block, RoundSheet, Sheet

KEY, OTHER = b"b" * 32, b"a" * 32
USERS, OWN = range(4), 3  # the own user is the last
ROWS, SEEDS = rows(4), seeds(4)
MASKED = [added(row, mask(seed, 5)) for row, seed in zip(ROWS, SEEDS, strict=True)]
EPSILON, DELTA = 1.0, 0.01


def helper(twin=ServerNoise, forgets=False, **of_the_sheet):
    return Helper(twin(KEY, "run", PLAN, sheet(**of_the_sheet)), forgets=forgets)


class TestTheCoordinatorAlone:
    """What the coordinator computes of replies, the helper following."""

    def two_lists_of_one_round(self, made):
        again = made.put_back()
        with_own, without = list(USERS), [0, 1, 2]
        reply, other = made.reply(with_own, SEEDS), again.reply(without, SEEDS)
        return own_row(MASKED, with_own, reply, without, other)

    def test_another_list_of_an_answered_round_has_other_noise(self):
        # books of the helper put back: a second release, never a difference without noise
        assert not found(self.two_lists_of_one_round(helper()), ROWS[OWN])

    def test_a_helper_whose_noise_does_not_know_the_list_is_caught(self):
        assert found(self.two_lists_of_one_round(helper(NoList)), ROWS[OWN])

    def lists_put_back_a_round_ago(self, forgets, factorisation="sqrt-toeplitz"):
        """The own user leaves the list of round 0, and round 1's list is what it was."""
        made = helper(forgets=forgets, factorisation=factorisation)
        again = made.put_back()
        first = made.reply(list(USERS), SEEDS), again.reply([0, 1, 2], SEEDS)
        later = seeds(4, seed=1)
        second = made.reply([0, 1, 2], later), again.reply([0, 1, 2], later)
        noise_apart = signed(less(second[1], second[0]))  # N₁ - N₁′ = -c₁ (N₀ - N₀′), where Z₁ is the same
        c = float(factors_of(made.noise.sheet).coefficients[1])
        sums = less(added(*(MASKED[user] for user in USERS)), first[0], *(MASKED[user] for user in range(3)))
        apart = signed(added(sums, first[1]))  # z_u + N₀ - N₀′
        return apart + noise_apart / c

    def test_equal_later_lists_after_books_put_back_tell_nothing_of_an_earlier_one(self):
        assert not found(self.lists_put_back_a_round_ago(False), ROWS[OWN])

    def test_labels_without_the_lists_before_are_caught(self):
        assert found(self.lists_put_back_a_round_ago(True), ROWS[OWN])

    def a_round_of_two_groups(self, own_list_alone):
        """Books put back; the own user was in group 1 of round 0 the first time, so it is left out of round 1."""
        replies, noise = [], ServerNoise(KEY, "run", PLAN, sheet(factorisation=None))
        for before in ([*entries([0, 1], SEEDS), *entries([OWN], SEEDS)], entries([0, 1], SEEDS)):
            labelled = entries([0, 1], SEEDS) if own_list_alone else sorted(before)
            chains = [next_chain(FIRST, 0, labelled)]
            chains.append(next_chain(chains[0], 1, entries([0, 1, OWN], SEEDS)))
            taken = [0, 1] if len(before) == 3 else [0, 1, OWN]
            replies.append(less(added(*(mask(SEEDS[user], 5) for user in taken)), noise.of(1, chains)))
        return own_row(MASKED, [0, 1, OWN], replies[1], [0, 1], replies[0])

    def test_a_groups_noise_knows_the_lists_of_all_groups(self):
        assert not found(self.a_round_of_two_groups(False), ROWS[OWN])

    def test_a_label_of_a_groups_own_lists_is_caught(self):
        assert found(self.a_round_of_two_groups(True), ROWS[OWN])

    def test_equal_lists_after_a_crash_give_equal_bits(self):
        made = helper()
        again = made.put_back()
        for t in range(2):
            assert (made.reply(list(USERS), seeds(4, t)) == again.reply(list(USERS), seeds(4, t))).all()

    def test_a_label_by_sums_tells_whose_row_is_zero(self):
        # the twin's label is a digest of the sum: equal releases with and without the user say that the row is zero
        def released(twin, row):
            own = [*ROWS[:3], row]
            noises = []
            for users in (list(USERS), [0, 1, 2]):
                total = added(np.zeros(5, np.int64), *(own[user] for user in users))
                chain = next_chain(FIRST, 0, entries(users, SEEDS))
                label = total.tobytes()[:32] if twin else chain
                noises.append(added(total, ServerNoise(KEY, "run", PLAN, sheet()).of(0, [label])))
            return (noises[0] == noises[1]).all()

        nothing = np.zeros(5, np.int64)
        assert released(True, nothing)
        assert not released(True, ROWS[OWN])
        assert not released(False, nothing)
        assert not released(False, ROWS[OWN])

    def test_one_noise_is_taken_off_by_whoever_drew_it(self):
        list_, none = list(USERS), np.zeros(5, np.uint64)
        own = ServerNoise(OTHER, "run", PLAN, sheet()).of(0, [next_chain(FIRST, 0, entries(list_, SEEDS))])
        masks = added(none, *(mask(each, 5) for each in SEEDS))
        reply, total = helper().reply(list_, SEEDS), added(none, *ROWS)
        released = less(added(added(none, *MASKED), own), reply)
        assert not found(signed(less(released, own)), signed(total))
        twin = less(added(added(none, *MASKED), own), masks)  # the helper adds nothing
        assert found(signed(less(twin, own)), signed(total))

    def test_a_seal_of_another_round_or_plan_is_not_opened_again(self):
        key = seals.RunKey.fresh()
        about = seals.info(seals.SUITE, "run", PLAN, 0, b"question", fingerprint(OWN))
        sealed = seals.seal(key.public, SEEDS[OWN], about)
        for other in (("run", PLAN, 1), ("run", OTHER, 0), ("runs", PLAN, 0)):
            run, plan, round_ = other
            info = seals.info(seals.SUITE, run, plan, round_, b"question", fingerprint(OWN))
            assert seals.open_(key.secret, sealed, info) is None
        twin = b"quoron two-servers" + fingerprint(OWN)  # info without run, plan and round
        assert seals.open_(key.secret, seals.seal(key.public, SEEDS[OWN], twin), twin) == SEEDS[OWN]

    def test_a_seed_that_comes_again_gives_two_answers_away(self):
        one, two = ROWS[OWN], ROWS[0]
        twin = less(added(one, mask(SEEDS[OWN], 5)), added(two, mask(SEEDS[OWN], 5)))
        assert (signed(twin) == one - two).all()
        hedged = [seed_for(OTHER, "run", 0, b"question", row) for row in (one, two)]
        real = less(*(added(row, mask(seed, 5)) for row, seed in zip((one, two), hedged, strict=True)))
        assert not found(signed(real), one - two)

    def test_a_mask_of_fewer_words_than_numbers_is_refused(self):
        # the twin fills up with zeros what a mask of the length that a question names leaves bare
        short = np.concatenate([mask(SEEDS[OWN], 3), np.zeros(2, np.uint64)])
        assert (signed(added(ROWS[OWN], short))[3:] == ROWS[OWN][3:]).all()
        with pytest.raises(Exception, match="shape"):
            added(ROWS[OWN], mask(SEEDS[OWN], 3))

    @pytest.mark.parametrize("times", [1, 16])
    def test_a_unit_from_the_question_makes_a_row_that_is_not_admitted(self, times):
        planned = RoundSheet((Block("sums", 2, UNIT // 4, "clipped"),))
        asked = RoundSheet((Block("sums", 2, UNIT // 4 * times, "clipped"),))
        row = ClippedRows(asked, 1.0).rows(np.array([[3.0, 4.0]]), np.ones(1, bool))[0]
        assert fits(row, planned) == (times == 1)


class TestTheHelperAlone:
    """What the helper computes of releases, the coordinator following."""

    def put_back(self, own_chain):
        """The same list twice, the own user left out of the second reply: two releases of the coordinator."""
        masks, none = [mask(each, 5) for each in SEEDS], np.zeros(5, np.uint64)
        released = []
        for taken in (list(USERS), [0, 1, 2]):
            listed = taken if own_chain else list(USERS)
            noise = ServerNoise(OTHER, "run", PLAN, sheet()).of(0, [next_chain(FIRST, 0, entries(listed, SEEDS))])
            total = less(added(none, *(MASKED[user] for user in taken)), *(masks[user] for user in taken))
            released.append(added(total, noise))
        return signed(less(*released))

    def test_leaving_a_user_out_after_the_coordinators_books_were_put_back_tells_nothing(self):
        assert not found(self.put_back(True), ROWS[OWN])

    def test_a_label_of_the_list_that_was_sent_and_not_of_the_rows_that_were_added_is_caught(self):
        assert found(self.put_back(False), ROWS[OWN])

    def at_the_edge(self, release, row):
        """A coordinate that the helper has brought next to 2⁶³, and the row of the own user beyond it."""

        def draw(draws):
            edge = np.full(draws, 2**63 - 1, np.uint64) + np.uint64(row)
            return release(edge, np.random.default_rng(row).integers(2**63, size=1)[0])

        return draw

    def test_noise_after_a_clamp_is_caught_and_in_the_ring_it_is_within_the_promise(self):
        mu = gdp.mu_for(EPSILON, DELTA)
        unit = unit_for(mu, "clipped")

        def clamped(edge, seed):
            # as `GaussianNoise.release`: divided and held within bounds, then noised
            noise = GaussianNoise(1.0, 1.0)
            return noise.release(signed(edge).astype(np.float64) / 2.0**30, SeededNoise(int(seed)).stream("a"))

        def in_the_ring(edge, seed):
            steps = SeededNoise(int(seed)).stream("a").gaussian_steps(len(edge))
            return signed(added(edge, steps) - np.uint64(2**63 - 1)).astype(np.float64)

        worlds = 0, 2 * unit
        assert epsilon_lower_bound(*(self.at_the_edge(clamped, row) for row in worlds), delta=DELTA, draws=2000) > 3
        got = epsilon_lower_bound(*(self.at_the_edge(in_the_ring, row) for row in worlds), delta=DELTA, draws=40_000)
        assert 0.4 < got <= EPSILON


class TestTheAccount:
    """Releases of rows as far apart as their kind allows, against `server_mu`."""

    def epsilon(self, far, draws=60_000):
        """Of one number that moves by `far` steps."""

        def world(row, seed):
            return lambda draws: row + SeededNoise(seed).stream("a").gaussian_steps(draws)

        return epsilon_lower_bound(world(0, 1), world(far, 2), delta=DELTA, draws=draws)

    def test_a_row_of_the_unit_is_within_the_promise_and_one_in_two_groups_is_caught(self):
        mu = gdp.mu_for(EPSILON, DELTA)
        unit = unit_for(mu, "clipped")
        assert 0.5 < self.epsilon(2 * unit) <= EPSILON
        assert self.epsilon(2 * unit * 2**0.5) > EPSILON  # a round's two groups, each with noise of its own

    def test_four_times_the_unit_is_caught(self):
        assert self.epsilon(8 * unit_for(gdp.mu_for(EPSILON, DELTA), "clipped")) > 2 * EPSILON

    def test_whoever_sees_neither_noise_is_within_root_half_of_it(self):
        made = Sheet((RoundSheet((Block("sums", 1, unit_for(gdp.mu_for(EPSILON, DELTA), "clipped"), "clipped"),)),))
        outside = gdp.epsilon_for(outsiders_mu(made), DELTA)
        steps = [SeededNoise(seed).stream(name) for seed in (1, 2) for name in ("a", "b")]
        far = 2 * made.rounds[0].blocks[0].unit
        one = lambda draws: steps[0].gaussian_steps(draws) + steps[1].gaussian_steps(draws)  # noqa: E731
        two = lambda draws: far + steps[2].gaussian_steps(draws) + steps[3].gaussian_steps(draws)  # noqa: E731
        assert 0.3 < epsilon_lower_bound(one, two, delta=DELTA, draws=60_000) <= outside < EPSILON

    def correlated(self, column_norm, servers=1, rounds=8, draws=60_000, name="sqrt-toeplitz"):
        """Of transcripts of correlated noise, a coordinate each, whose user moves round 0 as far as its kind allows.

        What is told apart by is (C w) along the first column of C: all that a transcript says of that user.
        """
        unit = unit_for(gdp.mu_for(EPSILON, DELTA), "clipped", column_norm=column_norm)
        block = Block("sums", 2 * draws, unit, "clipped")
        made = Sheet((RoundSheet((block,)),) * rounds, name)
        chains = [bytes([t + 1]) * 32 for t in range(rounds)]
        c = factors_of(made).coefficients

        def world(shift, first):
            noises = [ServerNoise(bytes([first + each]) * 32, "run", PLAN, made) for each in range(servers)]
            told = [signed(added(*(each.of(t, chains[: t + 1]) for each in noises))) for t in range(rounds)]
            told[0] = told[0] + shift
            along = [sum(c[t - j] * told[j] for j in range(t + 1)) for t in range(rounds)]
            return lambda draws: sum(c[t] * along[t] for t in range(rounds))[:draws]

        return epsilon_lower_bound(world(0, 1), world(2 * unit, 50), delta=DELTA, draws=2 * draws), made

    def test_transcripts_of_correlated_noise_are_within_the_promise_of_one_server_and_of_outsiders(self):
        kappa = factors_of(sheet(rounds=8)).column_norm
        found, made = self.correlated(kappa)
        assert 0.6 < found <= EPSILON
        assert server_mu(made) <= gdp.mu_for(EPSILON, DELTA) + 1e-5
        both, made = self.correlated(kappa, servers=2)
        assert 0.3 < both <= gdp.epsilon_for(outsiders_mu(made), DELTA) < 0.8

    def test_a_column_norm_that_was_forgotten_is_caught(self):
        found, made = self.correlated(1.0)
        assert found > EPSILON
        assert server_mu(made) > 1.2 * gdp.mu_for(EPSILON, DELTA)

    @pytest.mark.parametrize(("kind", "adjacency"), [("moment", "replace-one"), ("norm-counts", "zero-out")])
    def test_the_farthest_real_rows_of_a_kind_are_within_the_promise_and_four_times_as_long_are_caught(
        self, kind, adjacency
    ):
        unit, here = unit_for(gdp.mu_for(EPSILON, DELTA), kind, adjacency, length=3), np.ones(2, bool)
        for times in (1, 4):
            if kind == "moment":  # orthogonal users
                made = RoundSheet((Block("sums", 3, times * unit, kind),), adjacency)
                one, other = MomentRows(made, 2, 1.0).rows(np.array([[7.0, 0, 0], [0, 0, 7.0]]), here)
            else:  # a user at the centre, and nobody
                blocks = Block("sums", 1, times * unit, kind), Block("shares", 3, times * unit, kind)
                one = NormCountRows(RoundSheet(blocks, adjacency), 1.0).rows(np.zeros((2, 1)), here)[0]
                other = np.zeros(4, np.int64)
            far = float(np.linalg.norm(one - other))
            found = self.epsilon(far, draws=40_000)
            assert 0.5 < found <= EPSILON if times == 1 else found > 2 * EPSILON

    def test_rounds_nearer_than_planned_move_correlated_noise_farther_than_promised(self):
        made = sheet(rounds=12, participations=2, separation=6)
        c = factors_of(made).coefficients
        column = np.zeros((2, 13))
        column[0, :12], column[1, 1:12] = c, c[:11]
        neighbours = 2 * UNIT * 2.0**-30 * np.linalg.norm(column.sum(0)[:12])
        apart = np.zeros(12)
        apart += c
        apart[6:] += c[:6]
        assert 2 * UNIT * 2.0**-30 * np.linalg.norm(apart) <= server_mu(made)
        assert neighbours > 1.1 * server_mu(made)
        assert made.admits([0], 6)
        assert not made.admits([0], 1)

    def test_weights_after_the_sum_make_rows_that_are_not_admitted(self):
        blocks = Block("sums", 2, UNIT, "norm-counts"), Block("shares", 3, UNIT, "norm-counts")
        made, plain = RoundSheet(blocks, "zero-out"), RoundSheet(blocks, "replace-one")
        values, here = np.array([[0.3, 0.0]]), np.ones(1, bool)
        assert fits(NormCountRows(made, 1.0).rows(values, here)[0], made)
        twin = NormCountRows(plain, 1.0).rows(values, here)[0]  # weights 1, to be multiplied into the released sum
        assert not fits(twin, made)


class TestWhatOneServerSees:
    """Words of masked rows, whose laws do not depend on data; a wrong alarm has probability below 10⁻⁷ in all."""

    def words(self, row, cover, users=4000):
        return np.array([added(row, cover(seed)) for seed in seeds(users, 9)])

    def uneven(self, words):
        """The least p-value over coordinates and over the highest and lowest bits of words."""
        found = []
        for column in words.T:
            for bits in (column >> np.uint64(60), column & np.uint64(15)):
                found.append(stats.chisquare(np.bincount(bits.astype(int), minlength=16)).pvalue)
        return min(found)

    @pytest.mark.parametrize("own", ["nothing", "longest"])
    def test_masked_rows_are_uniform_whatever_is_masked(self, own):
        row = np.array([0, 0, 0, 0] if own == "nothing" else [UNIT, -UNIT, 3 * UNIT, 2**40], np.int64)
        assert self.uneven(self.words(row, lambda seed: mask(seed, 4))) > 1e-9

    def test_rows_do_not_correlate_with_what_is_masked(self):
        rng = np.random.default_rng(4)
        bits = rng.integers(0, 2, 4000)
        words = np.array(
            [added(np.full(4, bit * UNIT), mask(seed, 4)) for bit, seed in zip(bits, seeds(4000, 11), strict=True)]
        )
        tables = [stats.contingency.crosstab(bits, column >> np.uint64(60)).count for column in words.T]
        assert min(stats.chi2_contingency(table).pvalue for table in tables) > 1e-9

    @pytest.mark.parametrize("bits", [53, 62])
    def test_masks_that_are_not_of_the_ring_are_caught(self, bits):
        def cover(seed):
            return mask(seed, 4) & np.uint64(2**bits - 1)

        assert self.uneven(self.words(np.zeros(4, np.int64), cover)) < 1e-12

    def test_shares_that_are_left_unmasked_are_caught(self):
        def cover(seed):
            return np.concatenate([mask(seed, 3), np.zeros(1, np.uint64)])

        assert self.uneven(self.words(np.array([1, 2, 3, UNIT]), cover)) < 1e-12

    def test_replies_are_uniform_but_for_masks(self):
        # one reply a round: of it the coordinator makes a sum with noise, and nothing else
        made = np.array([helper(length=8).reply(list(USERS), seeds(4, seed)) for seed in range(2000)])
        assert self.uneven(made) > 1e-9

    def test_seals_of_one_seed_are_as_uneven_as_seals_of_another(self):
        key = seals.RunKey.fresh()
        for seed in (bytes(31) + b"1", b"\xff" * 32):
            sealed = np.frombuffer(b"".join(seals.seal(key.public, seed, b"info")[-48:] for _ in range(300)), np.uint8)
            assert stats.chisquare(np.bincount(sealed >> 4, minlength=16)).pvalue > 1e-9
