"""What an audit of a privacy claim is, and two ways to make one, wrong with probability at most `failure`.

An `Audit` measures a mechanism in two neighbouring worlds, as it is and as its broken twins make it. `test_audits` runs
all that are declared in this folder.

`epsilon_lower_bound` sees outputs only: it picks an event on one half of the draws and measures it on the other half
with Clopper–Pearson bounds. `delta_bounds` also knows the log-likelihood ratio of each output, as for a whole
transcript, and sees what no single event shows. A mechanism passes when neither lower bound exceeds its claim; an audit
counts only if the same call catches a broken twin.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Sampler = Callable[[int], NDArray[np.generic]]  # number of draws -> one scalar statistic a draw

FAILURE = 1e-8  # of each bound; an audit has fewer than 100, so its false alarms have probability below 1e-6


@dataclass(frozen=True)
class Case:
    """One measurement of an audit: what is told the measure, and what of the product is patched meanwhile."""

    given: Mapping[str, Any]
    patches: tuple[tuple[Any, str, Any], ...] = ()
    claim: float | None = None  # where it is not the audit's
    least: float = 0.0  # a sound one: how much of its claim has to be found, or the audit sees nothing
    uses: float = 0.0  # how much of its claim the upper bound of δ may not exclude
    beyond: float = 1.0  # a twin: how many times the claim has to be found
    slow: bool = False


def case(
    *patches: tuple[Any, str, Any],
    claim: float | None = None,
    least: float = 0.0,
    uses: float = 0.0,
    beyond: float = 1.0,
    slow: bool = False,
    **given: Any,
) -> Case:
    """A row's cell; what is given beyond a case's own fields goes to the measure."""
    return Case(given, patches, claim, least, uses, beyond, slow)


@dataclass(frozen=True)
class Audit:
    """A row of the table: a claim (an ε for events, a δ for ratios), its measure, sound cases and broken twins."""

    name: str
    claim: float
    measure: Callable[..., float | tuple[float, float]]
    sound: Mapping[str, Case]
    twins: Mapping[str, Case] = field(default_factory=dict)

    def measured(self, cell: Case) -> tuple[float, float, float]:
        """Lower and upper bound (of events: none), and the claim."""
        with ExitStack() as patched:
            for owner, name, value in cell.patches:
                patched.enter_context(patch.object(owner, name, value))
            found = self.measure(**cell.given)
        low, high = found if isinstance(found, tuple) else (found, np.inf)
        return low, high, self.claim if cell.claim is None else cell.claim


def events(world: Callable[..., Sampler], *, ends: Any, delta: float, draws: int) -> Callable[..., float]:
    """The measure by events: `world(own, number, ...)` samples what is seen of an own user, first or second."""

    def measure(ends: Any = ends, delta: float = delta, draws: int = draws, **given: Any) -> float:
        one, two = (world(own, number, **given) for number, own in enumerate(ends))
        return epsilon_lower_bound(one, two, delta=delta, draws=draws)

    return measure


def ratios(sample: Callable[..., Floats], *, epsilon: float) -> Callable[..., tuple[float, float]]:
    """The measure by log-likelihood ratios: `sample(...)` draws them."""

    def measure(epsilon: float = epsilon, **given: Any) -> tuple[float, float]:
        return delta_bounds(sample(**given), epsilon=epsilon)

    return measure


def gaussian_ratio(drawn: Floats, near: Any, far: Any, scale: float) -> Floats:
    """ln P/Q of draws (runs, coordinates) of Gaussian noise around `near` (P), were it around `far` (Q)."""
    away = np.sum((drawn - far) ** 2, axis=1) - np.sum((drawn - near) ** 2, axis=1)
    return np.asarray(away / (2 * scale**2))


def changed(plan: Any, **numbers: Any) -> Any:
    """A plan with other parameters, which `verify` has not seen."""
    return replace(plan, parameters=replace(plan.parameters, **numbers))


class Still:
    """A stream, and a source, without noise."""

    def stream(self, *labels: Any) -> "Still":
        return self

    def gaussian_steps(self, shape: int | Sequence[int]) -> NDArray[np.int64]:
        return np.zeros(shape, np.int64)


class Labelled:
    """The noise source of one of many runs."""

    def __init__(self, source: Any, run: int) -> None:
        self.source, self.run = source, run

    def stream(self, *labels: Any) -> Any:
        return self.source.stream(self.run, *labels)


def clopper_pearson(hits: NDArray[np.int64], trials: int, failure: float) -> tuple[Floats, Floats]:
    """Lower and upper confidence bounds for a success probability; each fails with probability at most `failure`."""
    low = np.where(hits > 0, stats.beta.ppf(failure, np.maximum(hits, 1), trials - hits + 1), 0.0)
    high = np.where(hits < trials, stats.beta.isf(failure, hits + 1, np.maximum(trials - hits, 1)), 1.0)
    return low, high


def epsilon_lower_bound(
    world_p: Sampler, world_q: Sampler, *, delta: float, draws: int, failure: float = FAILURE, cuts: int = 400
) -> float:
    """An ε that the pair of worlds provably exceeds at this δ; 0 when nothing is found."""
    chosen, kept = np.split(np.array([world_p(draws), world_q(draws)], dtype=np.float64), 2, axis=1)
    levels = np.unique(np.quantile(chosen, np.linspace(0, 1, cuts), method="nearest"))
    best, event = -np.inf, (0, 1, 0.0)
    for sign in (1, -1):  # events statistic >= level and statistic <= level
        hits = _at_least(sign * chosen, np.sort(sign * levels))
        low, high = clopper_pearson(hits, chosen.shape[1], failure / 2)
        for first in (0, 1):
            gain = np.log(np.maximum(low[first] - delta, 1e-300) / high[1 - first])
            if gain.max() > best:
                best, event = gain.max(), (first, sign, np.sort(sign * levels)[gain.argmax()])
    first, sign, level = event
    low, high = clopper_pearson((sign * kept >= level).sum(axis=1), kept.shape[1], failure / 2)
    return float(max(0.0, np.log(max(low[first] - delta, 1e-300) / high[1 - first])))


def delta_bounds(log_ratio: Floats, *, epsilon: float, failure: float = FAILURE) -> tuple[float, float]:
    """Lower and upper bound for δ(ε) = E[(1 - e^(ε - L))₊] from draws of L = ln P/Q (output) under P.

    Empirical Bernstein (Maurer & Pontil, 2009, theorem 4) for a variable in [0, 1].
    """
    lost = -np.expm1(np.minimum(epsilon - log_ratio, 0.0))
    log = np.log(2 / failure)
    margin = np.sqrt(2 * lost.var(ddof=1) * log / len(lost)) + 7 * log / (3 * (len(lost) - 1))
    return float(lost.mean() - margin), float(lost.mean() + margin)


def _at_least(values: Floats, levels: Floats) -> NDArray[np.int64]:
    """How many values of each row are >= each level; shape (rows, levels)."""
    return np.array([len(row) - np.searchsorted(np.sort(row), levels, side="left") for row in values])
