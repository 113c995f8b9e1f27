"""The second account of sampled rounds is right by itself: against brute force, known values and 40 digits."""

import ast
import inspect
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from cover import by_default
from privacy import first_account
from quoron_privacy.accounts import pair, pld_lattice, sensitivity_recount, subsampling
from quoron_privacy.accounts.pair import DominatingPair

SECOND = (pair, pld_lattice, sensitivity_recount)
# (rate, rounds, μ per round) at δ = 1e-6: ε from an independent implementation
TABLE = {
    (0.01, 1000, 0.5): 0.827,
    (0.05, 100, 1.0): 4.46,
    (0.05, 100, 0.3): 0.707,
    (0.1, 200, 0.2): 1.32,
    (0.5, 50, 0.1): 1.58,
}


def replaced(rate: float, rounds: int, mu: float, epsilon: float, delta: float) -> float:
    return DominatingPair.sampled(rate, mu, rounds, "replace-one").delta(epsilon, delta)


def absent(rate: float, rounds: int, mu: float, epsilon: float, delta: float) -> float:
    return DominatingPair.sampled(rate, mu, rounds, "zero-out").delta(epsilon, delta)


def moved(rate: float, rounds: int, mu: float, epsilon: float, delta: float) -> float:
    return DominatingPair.coins(rate, mu, rounds).delta(epsilon, delta)


def mixture(chances: np.ndarray, shifts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Masses between edges."""
    return chances @ np.diff(norm.cdf(edges - np.asarray(shifts)[:, None]), axis=1)


def of_two(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """δ at ε of two rounds, all pairs of cells; cells hide something, so it is never above the truth."""
    return float(np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(q, q), 0).sum())


def fixed_size(rate: float, mu: float, cells: int = 800) -> tuple[np.ndarray, np.ndarray]:
    """The pair of subsampling#k1: the losses above 0 of the mixture, their mirror images, and the rest, of loss 0."""
    edges = np.concatenate([np.linspace(mu / 2, mu + 9, cells), [np.inf]])
    p = mixture(np.array([1 - rate, rate]), np.array([0, mu]), edges)
    q = mixture(np.ones(1), np.zeros(1), edges)
    rest = 1 - p.sum() - q.sum()
    return np.concatenate([p, q, [rest]]), np.concatenate([q, p, [rest]])


def by_coins(rate: float, mu: float, other: float) -> tuple[np.ndarray, np.ndarray]:
    """A release of a cohort by coins: a member adds μ in one world, and `other` in the other."""
    chances = np.array([1 - rate, rate])
    edges = np.concatenate([[-np.inf], np.linspace(-mu - 9, mu + 9, 1600), [np.inf]])
    return mixture(chances, np.array([0.0, mu]), edges), mixture(chances, np.array([0.0, other]), edges)


COHORTS = ((0.1, 1.0, 0.5), (0.4, 0.7, 1.0), (0.02, 2.5, 2.0))  # rate, μ, ε


@cache
def expected() -> tuple[float, ...]:
    """δ of two rounds of all of these by all pairs of cells, as `found` says them."""
    pairs = [(fixed_size(rate, mu), epsilon) for rate, mu, epsilon in COHORTS]
    pairs += [(by_coins(rate, mu, 0.0), epsilon) for rate, mu, epsilon in COHORTS]
    pairs += [(by_coins(rate, mu, -mu), epsilon) for rate, mu, epsilon in COHORTS]
    return tuple(max(of_two(p, q, epsilon), of_two(q, p, epsilon)) for (p, q), epsilon in pairs)


def found() -> list[float]:
    """The same by the second account."""
    return [each(rate, 2, mu, epsilon, 1e-4) for each in (replaced, absent, moved) for rate, mu, epsilon in COHORTS]


def brute_force_agrees() -> bool:
    pairs = zip(found(), expected(), strict=True)
    return all(least * (1 - 1e-9) <= said <= least * 1.006 for said, least in pairs)


def exact_gaussian(mu: float, epsilon: float) -> float:
    with mpmath.workdps(40):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper = lambda t: mpmath.erfc(t / mpmath.sqrt(2)) / 2  # noqa: E731
        return float(upper(epsilon / mu - mu / 2) - mpmath.exp(epsilon) * upper(epsilon / mu + mu / 2))


def agrees() -> bool:
    """Whether what is known by other means is found, never less and hardly more."""
    if not brute_force_agrees():
        return False
    for case, epsilon in TABLE.items():
        if not replaced(*case, 1.004 * epsilon, 1e-6) < 1e-6 < replaced(*case, 0.996 * epsilon, 1e-6):
            return False
    for mu, epsilon in ((0.3, 1.0), (0.05, 0.2), (2.0, 8.0)):
        exact = exact_gaussian(mu, epsilon)
        everybody = absent(1.0, 9, mu / 3, epsilon, 1e-6)
        sampled = replaced(1 - 1e-9, 9, mu / 3, epsilon, exact)
        if not (exact * (1 - 1e-12) <= everybody <= exact * (1 + 1e-9) and 0.999 < sampled / exact < 1.004):
            return False
    return True


def forget() -> None:
    """No account remembers anything."""
    for remembered in (
        pld_lattice.exactly,
        subsampling.wor_round_mu,
        subsampling.poisson_round_mu,
    ):
        remembered.cache_clear()


@pytest.fixture
def forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


def test_everything_known_by_other_means_is_found() -> None:
    assert agrees()


def test_tails_are_as_exact_as_is_said_of_them() -> None:
    t = np.concatenate([np.linspace(0, 3, 60), np.linspace(3, 37, 90)])
    found, wrong = pld_lattice._normal_tail(t)
    with mpmath.workdps(40):
        exact = [mpmath.erfc(mpmath.mpf(float(each)) / mpmath.sqrt(2)) / 2 for each in t]
        assert all(abs(mpmath.mpf(float(a)) - b) <= float(off) for a, b, off in zip(found, exact, wrong, strict=True))


# What somebody could get wrong in the second account: name -> (module, function, what it becomes, given what it was).
WRONG = {
    "a third of the rate": (
        pld_lattice, "laws", lambda was: lambda stage: was(replace(stage, rate=stage.rate / 3))
    ),
    "one order": (pld_lattice, "_both_ways", lambda was: lambda own: (was(own)[1],) * 2),
    "one round fewer": (pld_lattice, "_raised", lambda was: lambda values, exponent: was(values, exponent - 1)),
    "half of δ": (pld_lattice, "most", lambda was: lambda *given: was(*given) / 2),
    "all of a cell at its lower end": (
        pld_lattice, "_split", lambda was: lambda first, width, left, *given: (left, 0 * left)
    ),
    "no losses below zero": (
        pld_lattice, "_cut", lambda was: lambda places, masses, *given: was(np.maximum(places, 0), masses, *given)
    ),
    "what is cut off is forgotten": (
        pld_lattice, "_cut", lambda was: lambda places, masses, gap, lost, off, cut: was(
            places, masses, gap, -lost, off, 1e-2
        )
    ),
    "tails a tenth too small": (pld_lattice, "_normal_tail", lambda was: lambda t: tuple(0.9 * p for p in was(t))),
    "a loss of nine tenths": (pld_lattice, "loss", lambda was: lambda one, x: (0.9 * was(one, x)[0], *was(one, x)[1:])),
    "a window that ends early": (
        pld_lattice,
        "window",
        lambda was: lambda *given: (was(*given)[0], was(*given)[0] + (was(*given)[1] - was(*given)[0]) // 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", by_default(WRONG, [*WRONG][::2]))
def test_a_mistake_in_the_second_account_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, forgotten: None
) -> None:
    module, function, wrong = WRONG[name]
    monkeypatch.setattr(module, function, wrong(getattr(module, function)))
    with np.errstate(all="ignore"):
        assert not agrees()


def test_the_second_account_has_nothing_of_the_first() -> None:
    """No module of ours but for types, checks, errors and words; no accountant of others but for its events."""
    imported = set()
    both = "".join(map(inspect.getsource, SECOND))
    for node in ast.walk(ast.parse(both)):
        if isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            imported |= {each.name for each in node.names}
    own = {module.__name__ for module in SECOND}
    ours = {name for name in imported if name.startswith("quoron")} - own
    assert {name.rpartition(".")[0] for name in ours} - own <= {
        "quoron_privacy.arrays",
        "quoron_privacy.errors",
        "quoron_privacy.kernels.on_first_use",
        "quoron_privacy.release",
    }
    accountants = {name for name in imported if name.startswith("dp_accounting")}
    assert accountants <= {"dp_accounting.DpEvent", "dp_accounting.dp_event"}


def drawn(seed: int, count: int) -> Iterator[tuple[float, int, float, float]]:
    """(rate, rounds, ε, δ) over all that a plan may be."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rate = 1.0 if rng.random() < 0.05 else math.exp(rng.uniform(math.log(1e-4), 0))
        yield (
            rate,
            round(math.exp(rng.uniform(0, math.log(1e4)))),
            math.exp(rng.uniform(math.log(0.05), math.log(12))),
            math.exp(rng.uniform(math.log(1e-12), math.log(1e-4))),
        )


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_noise_that_the_first_account_finds_is_worth_its_epsilon_to_the_second(count: int) -> None:
    """No δ beyond what is promised at ε, and more than that at 0.99 ε."""
    for rate, rounds, epsilon, delta in drawn(1, count):
        wor = subsampling.wor_round_mu(rate, rounds, epsilon, delta)
        coins = subsampling.poisson_round_mu(rate, rounds, epsilon, delta, "zero-out")
        present = subsampling.poisson_round_mu(rate, rounds, epsilon, delta, "replace-one")
        for share in (1.0, 0.99):
            at = share * epsilon
            found = (
                replaced(rate, rounds, wor, at, delta),
                absent(rate, rounds, coins, at, delta),
                moved(rate, rounds, present, at, delta),
            )
            case = found, rate, rounds, epsilon, delta
            assert max(found) <= delta * (1 + 1e-9) if share == 1 else min(found) > delta, case


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_two_accountants_agree_within_half_a_percent_of_delta(count: int) -> None:
    """The first adds rounds up by a distribution of its own: of plans that it finds noise for, at their ε."""
    for rate, rounds, epsilon, delta in drawn(2, count):
        mu = subsampling.wor_round_mu(rate, rounds, epsilon, delta)
        at = first_account.wor_epsilon(rate, rounds, mu, delta)
        first = (
            subsampling._wor(rate, rounds, mu, at, least=1e-3 * delta)
            if rate < 1
            else exact_gaussian(math.sqrt(rounds) * mu, at)
        )
        assert replaced(rate, rounds, mu, at, delta) == pytest.approx(first, rel=5e-3), (rate, rounds, epsilon, delta)
        coins = subsampling.poisson_round_mu(rate, rounds, epsilon, delta)
        if rate < 1:
            first = subsampling._poisson(rate, rounds, coins, "zero-out", epsilon, least=1e-3 * delta)
            assert absent(rate, rounds, coins, epsilon, delta) == pytest.approx(first, rel=5e-3)
