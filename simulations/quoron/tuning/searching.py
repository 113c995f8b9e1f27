"""A search, whatever is tried: its price before it begins, its trials, and the one that is released.

What is written, and in which order, each step harmless to repeat after a crash:

    config.toml, tune.json   what was fixed from public facts: candidates, the law of the number of trials, the price
    ledger.sqlite            the noise key, of which the number of trials and every draw are functions
    lifetime ledger          the whole price, before anything is looked at
    ledger.sqlite            the best trial, before it is shown; the key is erased in the same transaction

Nothing is written of trials. After a kill they are carried out again: noise depends on the key and on the trial alone,
so that each comes out as it did.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import NoiseSource, OtherStreams, RandomStream, StartedNoise
from quoron_privacy.release import Adjacency
from quoron_privacy.selection import verified
from quoron_privacy.selection.price import Selection, calibrate, rounded
from quoron_privacy.selection.trials import Trials, drawn
from quoron_server.parameters import Kind

WORST = -np.finfo(np.float64).max.item()  # the score of a trial whose numbers are not finite: below all others
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one trial would release."""

    score: float  # with noise, higher is better
    weights: Vector  # (d,)
    events: tuple[Mapping[str, Any], ...] = ()  # what its rounds made public
    candidate: int = -1  # that was tried, by its place; set by the search

    @property
    def settled(self) -> "Outcome":
        """Return it with the worst score, and zeros, if a number is not finite: a failed trial says nothing by itself.

        An error would show the observer of a run a trial that is not released.
        """
        finite = bool(np.isfinite(self.score) & np.isfinite(self.weights).all())
        return self if finite else Outcome(WORST, np.zeros(self.weights.shape), candidate=self.candidate)


T = TypeVar("T")
Perform = Callable[[int, NoiseSource, NoiseSource], Outcome]  # a candidate's place, noise of its trial, of the search
THEOREM = "docs/privacy/selection.md#se1"
_AGAIN = 6  # times that trials are planned with less, where some cost more than Gaussian ones


@dataclass(frozen=True)
class Price:
    """What a search promises and costs, and what it is beside: public, before anything is looked at."""

    trials: Trials
    pairs: tuple[Pair, ...]  # of one trial
    epsilon: float  # of the whole search
    delta: float
    adjacency: Adjacency
    candidates: int
    padded: bool

    def verify(self) -> None:
        """VerificationError unless the second account finds it within its promise; Infeasible where it costs more."""
        if (found := self.selection.promised(self.delta)) > self.epsilon * (1 + 1e-9):
            raise Infeasible("selection", f"these trials cost epsilon={found:.3g}, not {self.epsilon:g}", "less noise")
        verified.check(self.trials, self.pairs, self.epsilon, self.delta)

    @property
    def assumed(self) -> Kind:
        """What nobody may learn by the clock: how many trials there were; of always as many, which setting was when."""
        return Kind.SECRET_ORDER if self.padded else Kind.SECRET_DURATION

    @cached_property
    def selection(self) -> Selection:
        """The mechanism."""
        return Selection(self.trials, self.pairs)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, and what a trial, and a search in the open, cost."""
        chosen = self.selection
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "candidates": self.candidates,
            "trials": self.trials.words,
            "mean_trials": rounded(self.trials.mean * (1 + 1e-9)),
            "most_trials": self.trials.most,
            "padded": self.padded,
            "trial_epsilon": rounded(chosen.trial_epsilon(self.delta)),
            "open_search_epsilon": rounded(chosen.naive_epsilon(self.delta, self.candidates)),
            "chance_that_one_setting_is_never_tried": rounded(self.trials.missed(1 / self.candidates)),
        }


def within(asked: Price, plan: Callable[[float, float], tuple[T, Sequence[Pair]]]) -> tuple[T, Price]:
    """What `plan` makes of what a trial may spend, (μ, δ), and the price of its pairs, verified: within that `asked`.

    Where some cost more than Gaussian ones, trials are planned with less. Raises what `plan` and `Price.verify` raise.
    """
    each, mu = max(1e-12, asked.delta / (2 * asked.trials.mean)), calibrate(asked.epsilon, asked.delta, asked.trials)
    for _ in range(_AGAIN):
        made, pairs = plan(mu, each)
        price = replace(asked, pairs=_worst(pairs))
        cost = price.selection.promised(asked.delta)
        if cost <= asked.epsilon * (1 + 1e-9):
            break
        mu = rounded(mu * (min(0.97, rounded(asked.epsilon / cost)) if math.isfinite(cost) else 0.5))
    price.verify()
    return made, price


def _worst(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Each other one, and of the Gaussian ones one that is as bad as the worst of them."""
    gaussian = [pair for pair in pairs if pair.is_gaussian]
    others = tuple(dict.fromkeys(pair for pair in pairs if not pair.is_gaussian))
    return (Pair.gaussian(max(pair.mu for pair in gaussian), max(pair.lack for pair in gaussian)), *others)


@dataclass(frozen=True, slots=True)
class TrialNoise(OtherStreams):
    """The noise of one trial: streams of the run's own source, of which no other trial draws."""

    source: NoiseSource
    trial: int

    def stream(self, *labels: str | int) -> RandomStream:
        """See NoiseSource."""
        return self.source.stream("trial", self.trial, *labels)


def search(price: Price, noise: NoiseSource, perform: Perform) -> Outcome:
    """Carry out all trials, and return the best; of equal scores the earlier one.

    Nothing is raised, shown or written of single trials: one whose numbers are not finite has the worst score, and no
    warning of it is shown. What `perform` raises is passed on: it must not depend on anybody's values.
    """
    best, number = None, price.trials.draw(noise)
    for trial in range(price.trials.most if price.padded else number):
        candidate = drawn(noise, trial, price.candidates)
        with np.errstate(all="ignore"), warnings.catch_warnings():  # a warning tells of the trial that it is of
            warnings.simplefilter("ignore")
            outcome = perform(candidate, StartedNoise(TrialNoise(noise, trial), "search"), noise).settled
        if trial < number and (best is None or outcome.score > best.score):
            best = replace(outcome, candidate=candidate)
    assert best is not None  # at least one trial
    return best
