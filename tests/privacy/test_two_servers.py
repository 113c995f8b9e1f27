"""The ring, seals, chains, specifications and noise of two servers: what they promise, and what they refuse."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy.references import unit_for
from quoron_privacy.errors import ConfigError, WireError
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_privacy.two_servers import rows as ring
from quoron_privacy.two_servers import seals
from quoron_privacy.two_servers.noise import FIRST, Entry, ServerNoise, next_chain, outsiders_mu, server_mu
from quoron_privacy.two_servers.rows import added, fits, less, mask, seed_for, signed, sum_of_squares
from quoron_privacy.two_servers.specification import KINDS, Block, MechanismSpec, RoundSpec, median

KEY, OWN, PLAN = b"k" * 32, b"o" * 32, b"p" * 32
numbers = st.integers(-(2**63), 2**63 - 1)


def chains(number, name=b"list"):
    made = [FIRST]
    for t in range(number):
        made.append(next_chain(made[-1], t, [(bytes([t]) * 32, b"question", name)]))
    return made[1:]


def one_block(length=4, unit=1 << 29, kind="clipped", rounds=1, **more):
    return MechanismSpec((RoundSpec((Block("sums", length, unit, kind),)),) * rounds, **more)


class TestTheRing:
    @given(st.data(), st.integers(1, 6), st.integers(1, 8))
    def test_masked_rows_less_their_masks_are_the_sum_of_rows_whatever_their_size(self, data, users, k):
        row = st.lists(numbers, min_size=k, max_size=k)
        rows = np.array(data.draw(st.lists(row, min_size=users, max_size=users)), np.int64)
        masks = [mask(bytes([user]) * 31 + b"m", k) for user in range(users)]
        masked = [added(own, each) for own, each in zip(rows, masks, strict=True)]
        exact = [sum(int(row[j]) for row in rows) for j in range(k)]
        assert less(added(*masked), *masks).tolist() == [each % 2**64 for each in exact]

    @pytest.mark.parametrize("size", [2**34, 2**35 - 1, 2**35, 2**62])
    def test_squares_of_many_large_numbers_do_not_wrap(self, size):
        row = np.full(100_000, -size, np.int64)
        assert sum_of_squares(row) == 100_000 * size**2

    def test_floats_are_no_numbers_of_the_ring(self):
        for made in (np.ones(2), np.ones(2, np.float32), np.ones(2, np.int32)):
            with pytest.raises(ConfigError, match="64-bit integers"):
                added(made)

    def test_a_sum_in_floats_is_another_number(self):
        # the twin: float64 holds 53 bits of a masked number
        row, cover = np.array([3], np.int64), mask(KEY, 1)
        rounded = added(row, cover).astype(np.float64) - cover.astype(np.float64)
        assert rounded[0] != 3
        assert signed(less(added(row, cover), cover))[0] == 3

    def test_a_row_is_admitted_up_to_its_unit_and_not_one_step_beyond(self):
        made = one_block(2, 5).rounds[0]
        assert fits(np.array([3, -4]), made)
        assert not fits(np.array([3, -5]), made)
        assert not fits(np.array([-(2**63), 0]), made)  # whose magnitude int64 does not hold
        assert not fits(np.array([2**32, 2**32]), made)  # whose squares wrap around to zero
        assert not fits(np.array([0.0, 0.0]), made)
        assert not fits(np.zeros(3, np.int64), made)

    def test_two_blocks_that_are_one_row_are_admitted_together(self):
        blocks = Block("sums", 1, 10, "norm-counts"), Block("shares", 3, 20, "norm-counts")
        made = RoundSpec(blocks, "zero-out")
        assert fits(np.array([8, 12, 0, 0]), made)  # (.8, .6) in units of each
        assert not fits(np.array([9, 12, 0, 0]), made)


class TestSeeds:
    def test_randomness_that_comes_again_seeds_another_answer_otherwise(self):
        one, other = np.array([1, 2]), np.array([1, 3])
        seed = seed_for(OWN, "run", 0, b"question", one)
        assert seed == seed_for(OWN, "run", 0, b"question", one)
        others = {
            seed_for(OWN, "run", 0, b"question", other),
            seed_for(OWN, "run", 1, b"question", one),
            seed_for(OWN, "ru", 0, b"nquestion", one),
            seed_for(OWN, "run", 0, b"other", one),
            seed_for(KEY, "run", 0, b"question", one),
        }
        assert len(others | {seed}) == 6

    def test_a_machine_without_randomness_is_refused(self):
        for own in (bytes(32), b"short"):
            with pytest.raises(ConfigError, match="randomness"):
                seed_for(own, "run", 0, b"", np.zeros(1, np.int64))


class TestSeals:
    about = seals.info(seals.SUITE, "run", PLAN, 3, b"question", b"f" * 32)

    def test_a_seal_opens_under_its_own_run_plan_round_question_and_user_alone(self):
        key = seals.RunKey.fresh()
        sealed = seals.seal(key.public, OWN, self.about)
        assert len(sealed) == seals.SEALED
        assert seals.open_(key.secret, sealed, self.about) == OWN
        assert seals.RunKey.of(key.secret).public == key.public
        assert len(key.public) == seals.PUBLIC
        own = seals.SUITE, "run", PLAN, 3, b"question", b"f" * 32
        for at, other in enumerate(("suite", "runs", b"q" * 32, 4, b"questions", b"g" * 32)):
            elsewhere = seals.info(*own[:at], other, *own[at + 1 :])
            assert seals.open_(key.secret, sealed, elsewhere) is None
        assert seals.open_(seals.RunKey.fresh().secret, sealed, self.about) is None

    def test_what_was_changed_or_cut_does_not_open(self):
        key = seals.RunKey.fresh()
        sealed = seals.seal(key.public, OWN, self.about)
        for at in (0, seals.SALT, seals.SALT + 1100, len(sealed) - 1):
            changed = bytearray(sealed)
            changed[at] ^= 1
            assert seals.open_(key.secret, bytes(changed), self.about) is None
        assert seals.open_(key.secret, sealed[:-1], self.about) is None
        assert seals.open_(key.secret, b"", self.about) is None

    def test_another_seed_is_sealed_under_another_key_though_randomness_comes_again(self):
        one, two = (seals.seal(seals.RunKey.fresh().public, seed, self.about)[: seals.SALT] for seed in (OWN, KEY))
        assert one == ring.salt_of(OWN) != two
        assert bytes(mask(OWN, 4).tobytes())[:16] != one  # and the salt is no part of a mask


class TestChains:
    one, other = (bytes([1]) * 32, b"q", b"s"), (bytes([2]) * 32, b"q", b"s")

    def test_a_chain_holds_all_lists_so_far_in_their_rounds_and_groups(self):
        made = {
            next_chain(FIRST, 0, []),
            next_chain(FIRST, 1, []),
            next_chain(FIRST, 0, [Entry(*self.one, 1)]),
            next_chain(FIRST, 0, [self.one]),
            next_chain(FIRST, 0, [self.one, self.other]),
            next_chain(KEY, 0, [self.one]),
            next_chain(FIRST, 0, [(self.one[0], b"qs", b"")]),
        }
        assert len(made) == 7
        assert {len(each) for each in made} == {32}
        assert next_chain(FIRST, 0, [self.one]) == next_chain(FIRST, 0, [self.one])

    def test_a_user_twice_another_order_and_short_digests_are_refused(self):
        for entries in ([self.one, self.one], [self.other, self.one], [(bytes(16), b"q", b"s")]):
            with pytest.raises(ConfigError, match="fingerprints"):
                next_chain(FIRST, 0, entries)
        with pytest.raises(ConfigError, match="32 bytes"):
            next_chain(bytes(16), 0, [])


class TestTheNoiseOfAServer:
    def test_it_is_a_function_of_key_run_plan_round_group_and_lists(self):
        spec, (chain,), (other,) = one_block(), chains(1), chains(1, b"other")
        noises = [
            ServerNoise(KEY, "run", PLAN, spec).of(0, [chain]),
            ServerNoise(OWN, "run", PLAN, spec).of(0, [chain]),
            ServerNoise(KEY, "runs", PLAN, spec).of(0, [chain]),
            ServerNoise(KEY, "run", OWN, spec).of(0, [chain]),
            ServerNoise(KEY, "run", PLAN, spec).of(0, [other]),
            ServerNoise(KEY, "run", PLAN, spec).of(0, [chain], group=1),
        ]
        assert len({each.tobytes() for each in noises}) == 6
        assert (noises[0] == ServerNoise(KEY, "run", PLAN, spec).of(0, [chain])).all()

    @pytest.mark.parametrize("name", ["blt", "banded", "tree"])
    def test_correlated_noise_is_that_of_prefix_noise_in_steps(self, name):
        rounds, d, history = 7, 3, chains(9)
        first = RoundSpec((Block("moment", 2, 9, "length"),))
        spec = MechanismSpec((first, first, *one_block(d).rounds * rounds), name)
        noise = ServerNoise(KEY, "run", PLAN, spec)

        class Streams:
            def stream(self, _, t):
                return RandomStream(noise._source.stream(*noise.labels(t + 2, tuple(history), 0), 0).words)

        made = PrefixNoise(rounds, 2.0**-30, 1.0, name)
        state = made.start(d)
        for t in range(rounds):
            before = state.total
            _, state = made.release(state, np.zeros(d), Streams())
            assert (noise.of(t + 2, history[: t + 3]).view(np.int64) == state.total - before).all()

    def test_rounds_may_be_asked_for_again_and_in_any_order(self):
        spec, history = one_block(rounds=6, factorisation="blt"), chains(6)
        noise = ServerNoise(KEY, "run", PLAN, spec)
        fresh = [ServerNoise(KEY, "run", PLAN, spec).of(t, history[: t + 1]) for t in range(6)]
        for t in (5, 0, 3, 4, 4, 2, 5):
            assert (noise.of(t, history[: t + 1]) == fresh[t]).all()
        elsewhere = [*chains(3, b"other"), *history[3:4]]
        assert (noise.of(3, elsewhere) != fresh[3]).any()
        assert (noise.of(4, history[:5]) == fresh[4]).all()

    def test_a_round_without_those_before_it_and_short_digests_are_refused(self):
        noise = ServerNoise(KEY, "run", PLAN, one_block(rounds=3))
        for round_, history in ((1, chains(1)), (0, chains(2)), (3, chains(4)), (0, [bytes(16)])):
            with pytest.raises(ConfigError, match="chains"):
                noise.of(round_, history)
        with pytest.raises(ConfigError, match="32 bytes"):
            ServerNoise(KEY, "run", bytes(16), one_block())

    def test_it_is_standard_normal_in_steps(self):
        steps = ServerNoise(KEY, "run", PLAN, one_block(20_000)).of(0, chains(1)).view(np.int64)
        assert stats.kstest(steps / 2.0**30, "norm").pvalue > 1e-7


class TestSheets:
    def test_a_sheet_has_one_spelling_and_comes_back_from_it(self):
        rounds = (
            *one_block().rounds * 3,
            RoundSpec((Block("sums", 4, 7, "norm-counts"), Block("shares", 3, 9, "norm-counts"))),
        )
        spec = MechanismSpec(rounds, "blt", 2, 2, groups=3)
        text = spec.as_json()
        assert MechanismSpec.read(text) == spec
        assert len(text) < 400
        assert len(spec.digest()) == 32
        for other in (text + " ", "{}", "[]", text.replace("blt", "bolt"), text.replace(":2,", ":0,"), "1" * 5000):
            with pytest.raises(WireError):
                MechanismSpec.read(other)
        assert spec.digest() != MechanismSpec(rounds, "blt", 2, 2).digest()

    def test_a_sheet_of_endless_rounds_is_refused_before_it_is_made(self):
        text = one_block().as_json().replace('"rounds":[[1', '"rounds":[[10000000000000')
        with pytest.raises(WireError, match="rounds"):
            MechanismSpec.read(text)
        whole = json.loads(one_block().as_json())
        for numbers in ((10**13, 1 - 10**13), (0, 1), (1.0, 1), (float("nan"), 1), ()):  # that cancel, or are no counts
            made = whole | {"rounds": [[number, whole["rounds"][0][1]] for number in numbers]}
            with pytest.raises(WireError):
                MechanismSpec.read(json.dumps(made, sort_keys=True, separators=(",", ":")))

    def test_users_are_asked_as_often_and_as_far_apart_as_planned(self):
        spec = one_block(rounds=9, participations=2, separation=3)
        assert [t for t in range(9) if spec.admits([], t)] == list(range(9))
        assert [t for t in range(9) if spec.admits([2], t)] == [5, 8]
        assert [t for t in range(9) if spec.admits([5], t)] == [2, 8]
        assert not any(spec.admits([2, 5], t) for t in range(9))
        assert not spec.admits([], 9)

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_units_are_the_longest_that_keep_a_promise(self, kind):
        for adjacency in ("replace-one", "zero-out"):
            for mu in (1e-3, 0.3, 4.0):
                unit = unit_for(mu, kind, adjacency, length=3)
                block = (Block("sums", 3, unit, kind),) + (Block("shares", 3, unit, kind),) * ("counts" in kind)
                got = server_mu(MechanismSpec((RoundSpec(block, adjacency),)))
                assert got <= mu
                assert got > mu * (1 - 1e-8) - 2.0**-28

    def test_several_rounds_and_a_store_put_back_compose(self):
        unit = unit_for(1.0, "clipped")
        assert server_mu(one_block(unit=unit, rounds=8, participations=4)) == pytest.approx(2.0, rel=1e-8)
        assert server_mu(one_block(unit=unit, rounds=8), restored=3) == pytest.approx(2.0, rel=1e-8)
        assert outsiders_mu(one_block(unit=unit, rounds=8)) == pytest.approx(0.5**0.5, rel=1e-7)


class TestGroups:
    @given(st.integers(1, 9), st.data())
    def test_fewer_than_half_of_the_groups_leave_the_median_between_the_others(self, groups, data):
        numbers = st.lists(st.floats(-10, 10), min_size=groups, max_size=groups)
        means = np.array([data.draw(numbers) for _ in range(3)]).T
        vandals = data.draw(st.integers(0, (groups - 1) // 2))
        sent = means.copy()
        sent[:vandals] = data.draw(st.floats(-1e300, 1e300))
        honest = means[vandals:]
        made = median(sent)
        assert ((honest.min(axis=0) <= made) & (made <= honest.max(axis=0))).all()


@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.4])
def test_two_floors_are_nearly_one_of_the_sum_less_something_uniform(sigma):
    """docs/privacy/two-servers.md#ts5: total variation at most (2/π) Σ exp(-π² j² σ²) / j, and not much less."""
    cells = np.arange(-40, 41)
    floor = np.diff(stats.norm.cdf(np.append(cells, 41) / sigma))
    floors = np.convolve(floor, floor)
    places, wide = np.arange(-80, 81), sigma * 2**0.5

    def below(x):  # ∫ P(a + b <= x) dx
        return x * stats.norm.cdf(x / wide) + wide * stats.norm.pdf(x / wide)

    one = below(places + 2) - 2 * below(places + 1) + below(places)
    bound = 2 / np.pi * sum(np.exp(-((np.pi * j * sigma) ** 2)) / j for j in (1, 2, 3))
    found = np.abs(floors - one).sum() / 2
    assert bound / 3 < found <= bound
