"""One number in [0, 1] of each held-out user, by which a trial is judged: higher is better, each user weighs one.

Of classes with chances by the Brier score, half the squared distance between the chances and what came; of other
classes how often the model is right; of numbers by |error| over the declared range. Errors are held at what `worst`
says, twice that of a model that knows nothing: settings differ well below, and the noise of a score is that of its
whole range. The mean over a user's rows, so that nobody counts by how many there are.

How hard a search tries, as people say it, and the law of the number of trials that this means.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron.evaluation.scores import means, products, usable
from quoron.evaluation.split import held_users
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Classification, Logistic, Loss, Regression, Softmax
from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import positive
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.selection.trials import Trials
from quoron_server.plan import MOST_EPSILON

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


Vector = NDArray[np.float64]
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
