"""What a released model answers, from released and public numbers alone: one class for all rows, a rare one never.

Nothing here looks at a row. Derivations: docs/privacy/table-health.md#h4.
"""

import numpy as np
from numpy.typing import NDArray

from quoron.model import Model
from quoron_client.data.encoding import ClassWeights, Encoding
from quoron_client.data.labels import in_words, outcomes, seen

RARE = 0.25  # share of labels below which a class is seldom likelier than all others together
DILUTED = 0.5  # what a row counts on average by its class, below which noise is twice what it was beside it
_SHARE = "`quoron predict --threshold share`, in Python model.predict(rows, threshold='share')"


def one_answer(model: Model) -> tuple[str, ...]:
    """Warnings where 0.5 makes a model answer alike: certain of all rows, or to be expected of a rare class."""
    classes = outcomes(model.encoding.label)
    if not classes:
        return ()
    share = model.label_shares is not None and model.threshold != "share"
    fix = f"Decide by the released share: {_SHARE}." if share else "Give `quoron predict` a --threshold."
    fix = fix if model.loss.name in ("logistic", "softmax") else "More users or a larger epsilon tell classes apart."
    only = model.always()
    if only is not None:
        return (f"the model predicts {in_words(only)!r} for every row, whatever it holds within its ranges. {fix}",)
    shares, weights = model.label_shares, model.encoding.class_weight
    if isinstance(weights, ClassWeights):
        return () if shares is None else _diluted(weights, seen(shares.shares, shares.error), model.loss.name)
    if shares is None or len(classes) > 2:
        return ()
    rare = [
        (in_words(value), max(share, 0.0))
        for value, share in zip(classes, shares.shares, strict=True)
        if share + 2 * shares.error < RARE and model.loss.name == "logistic" and model.threshold == 0.5
    ]
    return tuple(
        f"about {100 * share:.2g} % (± {100 * shares.error:.2g} %) of the labels are {value!r}: a model whose chances "
        f"are right predicts it for {200 * (share + 2 * shares.error):.2g} % of rows at most, often for none. {fix}"
        for value, share in rare
    )


def _diluted(weights: ClassWeights, shares: NDArray[np.float64], loss: str) -> tuple[str, ...]:
    """What class weights cost, where that is much."""
    average = float(shares @ np.array(weights.counts) / shares.sum())
    if average > DILUTED or loss not in ("logistic", "softmax"):
        return ()
    return (
        f"by class_weight a row counts {average:.2g} on average, and noise is {1 / average:.2g} times as large beside "
        f"it. Where classes are told badly so, train without it, and decide by the released share: {_SHARE}.",
    )


def in_classes(encoding: Encoding) -> str | None:
    """What a row counts by its class, in words; None where classes count alike."""
    weights, classes = encoding.class_weight, outcomes(encoding.label)
    if not isinstance(weights, ClassWeights):
        return None
    return ", ".join(f"{in_words(each)} {count:.3g}" for each, count in zip(classes, weights.counts, strict=True))
