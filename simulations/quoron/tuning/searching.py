"""A search, whatever is tried: its price before it begins, its trials, and the one that is released.

What is written, and in which order, each step harmless to repeat after a crash:

    config.toml, tune.json   what was fixed from public facts: candidates, the law of the number of trials, the price
    ledger.sqlite            the noise key, of which the number of trials and every draw are functions
    lifetime ledger          the whole price, before anything is looked at
    ledger.sqlite            the best trial, before it is shown; the key is erased in the same transaction

A trial is judged by one number in [0, 1] of each held-out user: higher is better, each user weighs one. Of classes with
chances it is by the Brier score, half the squared distance between the chances and what came; of other classes how
often the model is right; of numbers by |error| over the declared range. Errors are held at what `worst` says, twice
that of a model that knows nothing: settings differ well below, and the noise of a score is that of its whole range. It
is the mean over a user's rows, so that nobody counts by how many there are.

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

from quoron.evaluation.scores import held_users, means, products, usable
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Classification, Logistic, Loss, Regression, Softmax
from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import Infeasible, positive
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource, OtherStreams, RandomStream, StartedNoise, total_variation
from quoron_privacy.release import Adjacency
from quoron_privacy.selection import verified
from quoron_privacy.selection.price import Selection, calibrate, rounded
from quoron_privacy.selection.trials import Trials, drawn
from quoron_server.parameters import Kind
from quoron_server.plan import MOST_EPSILON

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


TWICE = 2.0  # trials a candidate in the mean, by default
HELD_OUT = 0.1, 0.3  # default share of users that score: at least, and at most, where they are few
USELESS = 0.02  # deviation of a score from which it tells few settings apart


@dataclass(frozen=True, slots=True)
class Effort:
    """How many trials a search carries out in the mean, and whether the clock may tell how many there were."""

    trials: float | None = None  # in the mean; None: twice as many as candidates
    most: int | None = None  # trials; None: five times the mean, three times where `padded`
    padded: bool = False  # always carry out `most` trials, of which those beyond the secret number count for nothing
    evaluate: float | None = None  # share of users that are held out, and score; None: by how many there are

    def of(self, candidates: int) -> Trials:
        """The law for so many candidates. ConfigError for numbers that make none."""
        mean = max(2.0, TWICE * candidates) if self.trials is None else self.trials
        positive(trials=mean)
        most = math.ceil(3 * mean) if self.most is None and self.padded else self.most
        return Trials.negative_binomial(mean, most=most)

    def held(self, users: int, mu: float) -> int:
        """How many of so many users score, where a score may cost `mu`: so that its noise is small, if it can be."""
        share = self.evaluate
        if share is None:
            share = min(max(1 / (mu * USELESS * users), HELD_OUT[0]), HELD_OUT[1])
        return held_users(users, share)


_STEPS = 2.0**40  # of a user's score: their sum is exact


def score_name(loss: Loss) -> str:
    """What it is, for people."""
    if isinstance(loss, Classification) and not isinstance(loss, Logistic | Softmax):
        return "accuracy per user"
    what = "Brier score" if isinstance(loss, Classification) else "|error| / range"
    return f"1 - {what} / {worst(loss):.2g} per user"


def worst(loss: Loss) -> float:
    """The error of a row that counts 0, and every larger one: twice that of who knows nothing.

    Of K chances that are alike the Brier score is (1 - 1/K)/2; who always says the middle of a range is off by a
    quarter of it, of labels all over it.
    """
    return 1 - 1 / loss.outputs if isinstance(loss, Softmax) else 0.5


def user_scores(weights: Vector, loss: Loss, items: ItemBatch) -> Vector:
    """(k,) in [0, 1]; 0 of a user without rows that can be used."""
    with np.errstate(all="ignore"):  # whatever a model says of whatever row
        rows = np.clip(np.nan_to_num(_rows(weights, loss, items), nan=0.0), 0.0, 1.0)
    return np.asarray(np.clip(means(rows[:, None], items, usable(items))[:, 0], 0.0, 1.0))


def noise_for(mu: float, users: int) -> GaussianNoise:
    """The noise of a mean of one number in [0, 1] of each of so many users: one of them moves it by 1 / users."""
    return GaussianNoise.for_mu(sensitivity=1 / users, mu=mu, dimension=1)


def planned_with(mu: float, delta: float) -> float:
    """ε of what is planned with (ε, δ) on the curve of `mu`; no more than anything is planned with."""
    return min(gdp.epsilon_for(mu, delta), MOST_EPSILON)


def pair_of(noise: GaussianNoise, users: int) -> Pair:
    """What one such mean costs, by what is drawn: the second account's own."""
    return Pair.gaussian(sensitivity_recount.mu(1 / users, noise.scale, 1), total_variation(gaussians=1))


def private_mean(scores: Vector, noise: GaussianNoise, source: NoiseSource) -> float:
    """Of users' scores (k,), which are brought to a grid first, so that their sum is exact in any order."""
    bounded = np.clip(np.nan_to_num(np.asarray(scores, np.float64), nan=0.0), 0.0, 1.0)
    total = int(np.rint(bounded * _STEPS).astype(np.int64).sum())
    mean = np.array([total / (_STEPS * len(bounded))])
    return float(noise.release(mean, source.stream("score"))[0])


def _rows(weights: Vector, loss: Loss, items: ItemBatch) -> Vector:
    """(N,)."""
    scores = products(items, weights, loss.outputs)
    if loss.outputs > 1:
        labels = items.labels.astype(np.int64)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        if not isinstance(loss, Softmax):
            return np.asarray(np.argmax(scores, axis=1) == labels, np.float64)
        own = np.take_along_axis(chances, labels[:, None], axis=1)[:, 0]
        return np.asarray(1 - ((chances**2).sum(axis=1) - 2 * own + 1) / 2 / worst(loss))
    if isinstance(loss, Logistic):
        return np.asarray(1 - 1 / (1 + np.exp(np.clip(items.labels * scores[:, 0], -700, 700))) ** 2 / worst(loss))
    if isinstance(loss, Classification):
        return np.asarray(items.labels * scores[:, 0] > 0, np.float64)
    bound = 2 * loss.label_bound if isinstance(loss, Regression) else 2.0
    return np.asarray(1 - np.abs(scores[:, 0] - items.labels) / bound / worst(loss))
