"""Audits of the whole transcript of correlated noise, against contributions that answer to it, and its broken twins."""

from dataclasses import replace

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from papers.choquette_choo_lines import corollary_9
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.noise.sources import SecureNoise, SeededNoise
from quoron_privacy.prefix.factorisations import FACTORISATIONS, factorise
from quoron_privacy.prefix.noise import PrefixNoise

DRAWS, ROUNDS = 120_000, 8
SENSITIVITY = 0.05
EPSILON, DELTA = 1.0, 1e-2


def honest(name="blt", rounds=ROUNDS, epsilon=EPSILON, delta=DELTA):
    mu = mu_for(epsilon, delta, gaussians=rounds)
    return PrefixNoise.for_mu(rounds=rounds, sensitivity=SENSITIVITY, mu=mu, dimension=1, factorisation=name)


def strategy_matrix(name, rounds):
    """C, by streaming the unit vectors."""
    factors = factorise(name, rounds)
    memory, rows = np.zeros((factors.slots, rounds)), []
    for t in range(rounds):
        rows.append(factors.predict(t, memory) + np.eye(rounds)[t])
        memory = factors.remember(t, memory, np.eye(rounds)[t])
    return np.array(rows)


def others(sums):
    """What the other users contribute next: a function of what was released, at any size."""
    return np.sign(sums) * 3.0 + np.cos(sums / SENSITIVITY)


def world(noise, own, source, moment=0):
    """The sufficient statistic ⟨C[:, moment], C (w - g)⟩ of independent transcripts, one a coordinate."""

    def draw(draws):
        state, sums, left = noise.start(draws), np.zeros(draws), []
        for t in range(noise.rounds):
            known = others(sums)
            new, state = noise.release(state, known + own * (t == moment), source)
            left.append(new - sums - known)  # what an observer cannot explain by public values
            sums = new
        matrix = strategy_matrix(noise.factorisation, noise.rounds)
        return matrix[:, moment] @ (matrix @ np.array(left))

    return draw


def audit(noise, *, delta=DELTA, seed=31, **keywords):
    """Zero-out neighbours: the own user gives all that it may, or nothing."""
    worlds = (world(noise, own, SeededNoise(seed + i), **keywords) for i, own in enumerate((SENSITIVITY, 0.0)))
    return epsilon_lower_bound(*worlds, delta=delta, draws=DRAWS)


@pytest.mark.parametrize("name", sorted(FACTORISATIONS))
def test_a_transcript_never_exceeds_its_claimed_epsilon(name):
    found = audit(honest(name))
    assert 0.7 < found <= EPSILON


def test_a_user_of_a_later_round_is_protected_too():
    assert audit(honest(), moment=5) <= EPSILON


def test_secure_noise_keeps_the_same_promise():
    worlds = (world(honest(), own, SecureNoise(bytes([i] * 32))) for i, own in enumerate((SENSITIVITY, 0.0), start=1))
    assert epsilon_lower_bound(*worlds, delta=DELTA, draws=DRAWS) <= EPSILON


def test_the_audit_catches_a_quarter_of_the_noise():
    assert audit(replace(honest(), scale=honest().scale / 4)) > EPSILON


@pytest.mark.parametrize("name", ["blt", "sqrt-toeplitz", "tree"])
def test_the_audit_catches_a_forgotten_column_norm(name):
    noise = honest(name)
    assert audit(replace(noise, scale=noise.scale / noise.column_norm)) > EPSILON


def test_the_audit_catches_more_rounds_than_were_planned():
    few = honest("tree", rounds=2)
    assert audit(replace(few, rounds=32)) > EPSILON


def test_the_audit_catches_replacement_where_only_absence_was_planned():
    worlds = (world(honest(), own, SeededNoise(41 + i)) for i, own in enumerate((SENSITIVITY, -SENSITIVITY)))
    assert epsilon_lower_bound(*worlds, delta=DELTA, draws=DRAWS) > EPSILON


def test_the_audit_catches_a_second_participation():
    def twice(own, seed):
        noise = honest()

        def draw(draws):
            state, sums, left = noise.start(draws), np.zeros(draws), []
            for t in range(ROUNDS):
                new, state = noise.release(state, np.full(draws, own * (t in (0, 1))), SeededNoise(seed))
                left.append(new - sums)
                sums = new
            matrix = strategy_matrix("blt", ROUNDS)
            return (matrix[:, 0] + matrix[:, 1]) @ (matrix @ np.array(left))

        return draw

    found = epsilon_lower_bound(twice(SENSITIVITY, 51), twice(0.0, 52), delta=DELTA, draws=DRAWS)
    assert found > EPSILON


class TestCorollary9:
    """The tree at the noise as printed, against its claim (ε, δ/2); δ/2 pays for clipping."""

    EPSILON, DELTA = 4.0, 1e-2

    def test_the_audit_catches_the_noise_as_printed(self):
        printed = corollary_9(SENSITIVITY, ROUNDS, self.EPSILON, 2 * self.DELTA)
        noise = PrefixNoise(ROUNDS, SENSITIVITY, printed, "tree")
        assert audit(noise, delta=self.DELTA) > self.EPSILON

    def test_the_tree_at_its_own_calibration_passes(self):
        noise = honest("tree", epsilon=self.EPSILON, delta=self.DELTA)
        assert 2.5 < audit(noise, delta=self.DELTA) <= self.EPSILON
