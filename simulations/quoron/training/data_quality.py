"""The data quality check before a run on a table: whether it is worth a share of μ², its one release, its warnings.

    planned, why = plan(config, problem, encoding)       # a plan that pays for the look; why: nobody looks
    shares = release(prepared, own)                      # committed once a run, before it is visible

Statement, and what it costs and sees: docs/privacy/data-quality.md. The mechanism: quoron_privacy.counts.data_quality.
"""

from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quoron.config import Config
from quoron.model import LabelShares
from quoron.planning.plans import Plan, Prepared, Registry, budget_of, choose, privacy_of
from quoron.training.table import Curated, HeldRows
from quoron_client.data.encoding import Balanced, ClassWeights, Encoding, outcomes
from quoron_client.data.fused import declared_columns, declared_labels
from quoron_client.data.items import ItemBatch
from quoron_privacy.accounts import gdp
from quoron_privacy.counts import data_quality
from quoron_privacy.counts.data_quality import DataQuality, Shares, looked_at
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import NoiseSource, SecureNoise
from quoron_privacy.release import Release
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import LEAST_EPSILON, PREFACE, Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.storage.ledger import Ledger

if TYPE_CHECKING:  # only a folder needs it
    from quoron.data.rows import Rows


Vector = NDArray[np.float64]
Users = NDArray[np.int64]
OFF = "train.data_quality = 0 says so"


def plan(
    config: Config, problem: Problem, encoding: Encoding, algorithms: Registry = ALGORITHMS
) -> tuple[Plan, str | None]:
    """Return the plan of a run on a table, with a data quality check; else why there is none.

    Nothing is infeasible, and no method is refused, for the sake of the look. Methods that the rule cannot take are not
    planned. Raises what `choose` raises.
    """
    privacy = privacy_of(config)
    chosen = partial(choose, algorithms=algorithms, alternatives=config.algorithm.name != "auto")
    sizes = {"columns": len(declared_columns(encoding)), "labels": len(declared_labels(encoding))}
    share, why = _share(config, problem, privacy, sizes)
    if not share:
        return chosen(config, problem), why
    left, _ = data_quality.rest(privacy.epsilon, privacy.delta, share)
    if left < LEAST_EPSILON:
        return chosen(config, problem), f"epsilon={privacy.epsilon:g} leaves nothing for it"
    rest = config.but(privacy={"epsilon": left})
    try:
        planned = chosen(rest, problem)
    except Infeasible:
        return chosen(config, problem), f"what it costs, {share:.2g} of μ², would leave too little for training"
    whole = with_look(planned.plan, privacy, share=share, **sizes)
    if whole is None:
        other = chosen(config, problem)
        return other, _not_gaussian(other.plan.algorithm)
    budget_of(config).check_plan(whole)
    ALGORITHMS[whole.algorithm].verify(whole)
    return Plan(whole, planned.candidates, planned.curve, planned.choice, planned.remarks), None


def with_look(own: RunPlan, privacy: Privacy, *, share: float, columns: int, labels: int) -> RunPlan | None:
    """The whole plan of `privacy` whose rest is `own`, made for `data_quality.rest` of it; None if it has no μ, or
    where that leaves nothing. `columns` and `labels` are how many the look at the table tells apart."""
    promise = ALGORITHMS[own.algorithm].gaussian(own)
    if promise is None or own.guarantee.min_cohort is not None:
        return None
    quality = data_quality.calibrate(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        share=share,
        own=(promise.mu, promise.variation),
        users=looked_at(own.problem.users),
        columns=columns,
        labels=labels,
        adjacency=own.guarantee.adjacency,
    )
    if quality is None:
        return None
    whole = replace(own.guarantee, epsilon=privacy.epsilon, delta=privacy.delta, data_quality=quality)
    return replace(own, guarantee=whole)


def release(prepared: Prepared[Curated], own: Ledger, among: Users) -> Shares | None:
    """Return the data quality check of these users (k,), released now unless it was before; None without one.

    Where there are more users than are looked at, these are drawn in secret, so that no name and no order decides who
    they are. They and the noise are of this start alone: nobody has seen what is drawn and not committed, and a store
    that is restored releases a copy with noise of its own. Call it once the run is charged.
    """
    quality = prepared.planned.plan.guarantee.data_quality
    if quality is None:
        return None

    def draw() -> tuple[tuple[Release], dict[str, Any]]:
        return (quality.entry(),), {
            "table_health": drawn(quality, prepared.scene.held, SecureNoise.fresh(), among).tolist()
        }

    return quality.shares(np.array(own.release_once(PREFACE, draw)["table_health"], np.float64))


def drawn(quality: DataQuality, held: HeldRows, noise: NoiseSource, among: Users) -> Vector:
    """A release (D,) of a look at rows of these users (k,): who holds it back may draw again, who tells it may not."""
    users, reduction = among[noise.stream("table health", "users").subset(len(among), quality.users)], quality.reduction
    parts = (quality.vectors(*part) for part in held.fitting(users))
    nobody = reduction.of(np.zeros((0, quality.dimension)), np.zeros(0, np.bool_))
    sums = reduce(add, (reduction.of(rows, np.ones(len(rows), np.bool_)) for rows in parts), nobody)
    return quality.release(sums, noise.stream("table health"))


def weighed(encoding: Encoding, quality: DataQuality | None, seen: Shares | None) -> Encoding:
    """With the class weights that follow from what was released; where nobody looked all classes count alike.

    A function of released and public numbers alone, so that a run that goes on has the same (data-quality#h3).
    """
    if not isinstance(encoding.class_weight, Balanced):
        return encoding
    if quality is None or seen is None:
        return replace(encoding, class_weight=None)
    return replace(encoding, class_weight=encoding.class_weight.by(seen.labels, quality.errors.unusable))


def unbalanced(encoding: Encoding, why: str) -> tuple[str, ...]:
    """Return what is said where class weights need a data quality check, and there is none."""
    if not isinstance(encoding.class_weight, Balanced):
        return ()
    return (
        f"class_weight='balanced' weighs all classes alike: nobody looks at their shares ({why}). Write a weight for "
        "each class.",
    )


def label_shares(encoding: Encoding, quality: DataQuality | None, seen: Shares | None) -> LabelShares | None:
    """Return what was released of the shares of classes; None without a data quality check, or without classes."""
    if quality is None or seen is None or not outcomes(encoding.label):
        return None
    return LabelShares(tuple(seen.labels.tolist()), quality.errors.unusable)


def weigh(items: "ItemBatch | Rows", encoding: Encoding) -> "ItemBatch | Rows":
    """Items that all counted alike, weighed by class, or as they will be read."""
    if not isinstance(items, ItemBatch):
        return replace(items, encoding=encoding)
    if not isinstance(encoding.class_weight, ClassWeights) or items.weights is None:
        return items
    return replace(items, weights=encoding.class_weight.weighed(items.labels, items.weights))


def _share(config: Config, problem: Problem, privacy: Privacy, sizes: dict[str, int]) -> tuple[float, str | None]:
    """s, and why it is 0."""
    name, wanted = config.algorithm.name, config.train.data_quality
    if wanted == 0:
        return 0.0, OFF
    if name in ALGORITHMS and not ALGORITHMS[name].may_be_gaussian:
        return 0.0, _not_gaussian(name)
    if wanted is not None:
        return (
            (wanted, None) if wanted >= data_quality.SMALLEST else (0.0, f"train.data_quality={wanted:g} buys nothing")
        )
    mu, adjacency = gdp.mu_for(privacy.epsilon, privacy.delta), config.privacy.adjacency
    share = data_quality.share_for(users=looked_at(problem.users), mu=mu, adjacency=adjacency, **sizes)
    few = f"at epsilon={privacy.epsilon:g} {problem.users:,} users are too few to see even that none of them has a row"
    return share, None if share else f"{few} that can be used"


def _not_gaussian(name: str) -> str:
    return f"{name} is not Gaussian as a whole here, and a share of μ² is what a look is paid with"
