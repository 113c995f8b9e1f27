"""The data quality check before a run on a table: whether it is worth a share of μ², its one release, its warnings.

    planned, why = plan(config, problem, encoding)       # a plan that pays for the look; why: nobody looks
    shares = release(prepared, own)                      # committed once a run, before it is visible
    report = read(quality, shares, encoding)             # in words: shares with their noise, what is amiss and its fix

The report is a function of released numbers and of declarations. What noise alone could have made is not spoken of: a
table in which nothing is amiss is warned of with probability at most `FALSE_ALARM`. Statement, and what the check costs
and sees: docs/privacy/data-quality.md. The mechanism: quoron_privacy.histograms.data_quality.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from quoron.config import Config
from quoron.data.users import Users, Vector
from quoron.model import LabelShares
from quoron.planning.plans import Plan, Prepared, Registry, budget_of, choose, privacy_of
from quoron.training.table import TableRows, TableSetup
from quoron_client.data.encoding import Encoding, Range, outcomes
from quoron_client.data.fused import Column, declared_columns, declared_labels, held_at_end
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible
from quoron_privacy.histograms import data_quality
from quoron_privacy.histograms.data_quality import FALSE_ALARM, MISSED, OFTEN, DataQuality, Errors, Shares, looked_at
from quoron_privacy.noise.streams import NoiseSource, SecureNoise
from quoron_privacy.release import Release
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import MIN_EPSILON, PREFACE, Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.storage.ledger import Ledger

OFF = "train.data_quality = 0 says so"
FEW_ERRORS = 2.0  # of a share of rows, up to which it may well be none


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
    rest_epsilon, _ = data_quality.rest(privacy.epsilon, privacy.delta, share)
    if rest_epsilon < MIN_EPSILON:
        return chosen(config, problem), f"epsilon={privacy.epsilon:g} leaves nothing for it"
    rest = config.but(privacy={"epsilon": rest_epsilon})
    try:
        planned = chosen(rest, problem)
    except Infeasible:
        return chosen(config, problem), f"what it costs, {share:.2g} of μ², would leave too little for training"
    whole = with_data_quality(planned.plan, privacy, share=share, **sizes)
    if whole is None:
        other = chosen(config, problem)
        return other, _not_gaussian(other.plan.algorithm)
    budget_of(config).check_plan(whole)
    ALGORITHMS[whole.algorithm].verify(whole)
    return replace(planned, plan=whole), None


def with_data_quality(own: RunPlan, privacy: Privacy, *, share: float, columns: int, labels: int) -> RunPlan | None:
    """Return the whole plan of `privacy` whose rest is `own`, made for `data_quality.rest` of it.

    None if it has no μ, or where that leaves nothing. The check counts so many `columns` and `labels`.
    """
    promise = ALGORITHMS[own.algorithm].gaussian(own)
    if promise is None or own.guarantee.min_cohort is not None:
        return None
    quality = data_quality.calibrate(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        share=share,
        own=promise,
        users=looked_at(own.problem.users),
        columns=columns,
        labels=labels,
        adjacency=own.guarantee.adjacency,
    )
    if quality is None:
        return None
    whole = replace(own.guarantee, epsilon=privacy.epsilon, delta=privacy.delta, data_quality=quality)
    return replace(own, guarantee=whole)


def release(prepared: Prepared[TableSetup], own: Ledger, among: Users) -> Shares | None:
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
            "table_health": drawn(quality, prepared.setup.rows, SecureNoise.fresh(), among).tolist()
        }

    return quality.shares(np.array(own.draw_once(PREFACE, draw)["table_health"], np.float64))


def drawn(quality: DataQuality, rows: TableRows, noise: NoiseSource, among: Users) -> Vector:
    """Return a release (D,) of these users (k,): it may be drawn again before it is published, never after."""
    users, reduction = among[noise.stream("table health", "users").subset(len(among), quality.users)], quality.reduction
    parts = (quality.vectors(*fitting) for fitting in rows.fitting(users))
    empty = reduction.of(np.zeros((0, quality.dimension)), np.zeros(0, np.bool_))
    sums = reduce(add, (reduction.of(part, np.ones(len(part), np.bool_)) for part in parts), empty)
    return quality.release(sums, noise.stream("table health"))


def centred(weights: Vector, encoding: Encoding, plan: RunPlan, seen: Shares | None) -> Vector:
    """Return a model (d,) that is sure of no row for having none of a column's values, where as good as all have one.

    Such rows are too few to teach what they are: a number added to all values and taken off the constant changes no
    other row, so without a ridge noise alone decides it. A function of released and public numbers (data-quality#h5).
    """
    quality = plan.guarantee.data_quality
    if quality is None or seen is None or plan.problem.ridge:
        return weights
    few = seen.columns[: len(encoding.features)] <= FEW_ERRORS * _errors(quality).column
    return encoding.centred(weights, few.tolist())


def label_shares(encoding: Encoding, quality: DataQuality | None, seen: Shares | None) -> LabelShares | None:
    """Return what was released of the shares of classes; None without a data quality check, or without classes."""
    if quality is None or seen is None or not outcomes(encoding.label):
        return None
    return LabelShares(tuple(seen.labels.tolist()), quality.errors.unusable)


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


LEAST_COMMON = 2 / 3  # of labels, that are sure to be alike where they may well all be
WIDE = 0.25  # of a column whose range was estimated, which leaves its tails at the ends, is spoken of from here on
FEW, MOST_NAMED = 4, 8  # columns with a warning each, and with their names in one; all are in the report
UNSEEN = (
    "Whether values lie in their declared ranges, rows cannot be used, or every row is of another user, is private, "
    "and nobody has looked{why}: rehearse with `quoron simulate` where that is allowed, or have facts released with "
    "`quoron bounds`."
)


@dataclass(frozen=True, slots=True)
class ShareLine:
    """One released share of the users that were looked at, with its standard error as one of all."""

    what: str
    share: float  # as released: noise may carry it below zero or above one
    error: float

    def text(self, users: int) -> str:
        """For people."""
        return (
            f"{_percent(self.share)} ± {_width(self.error)} ({_count(self.share, users)} ± {self.error * users:,.0f})"
        )


@dataclass(frozen=True, slots=True)
class DataQualityReport:
    """What was released of a table, and what it says."""

    users: int
    share: float  # of μ²
    visible: float  # the least share of users without a usable row that is spoken of, but with probability MISSED
    lines: tuple[ShareLine, ...]
    warnings: tuple[str, ...]
    false_alarm: float = FALSE_ALARM  # chance at most of a warning where nothing is amiss
    missed: float = MISSED

    def table(self) -> list[tuple[str, str]]:
        """Label and text of each share."""
        return [(line.what, line.text(self.users)) for line in self.lines]


def read(
    quality: DataQuality, shares: Shares, encoding: Encoding, estimates: Collection[str] = ()
) -> DataQualityReport:
    """Return what the released shares of a table say; of these columns the range or values were estimated."""
    errors = _errors(quality)
    lines = [ShareLine("users without a row that can be used", shares.unusable, errors.unusable)]
    if not math.isnan(shares.values):
        lines.append(ShareLine("values that do not fit, of all columns", shares.values, errors.values))
    for column, share in zip(declared_columns(encoding), shares.columns.tolist(), strict=True):
        lines.append(ShareLine(f"{column.name!r} {column.misfit}", share, errors.column))
    for name, share in zip(declared_labels(encoding), shares.labels.tolist(), strict=True):
        lines.append(ShareLine(f"rows with {name}", share, errors.unusable))
    warnings = tuple(_warnings(quality, shares, encoding, estimates))
    return DataQualityReport(quality.users, quality.share, quality.visible, tuple(lines), warnings)


def unseen(quality: DataQualityReport | None, why: str | None) -> str:
    """Return what no warning can be about."""
    if quality is None:
        return UNSEEN.format(why=f" ({why})" if why else "")
    rest = "Whether every row is of another user nobody has looked at."
    if quality.visible > 1:
        return (
            f"A look at the table cost {quality.share:.2g} of μ², and {quality.users:,} users are too few for it to "
            f"see even that none of them has a row that can be used. {rest}"
        )
    few = f"too few users to see less than {math.ceil(100 * quality.visible)} %"
    if quality.visible <= 2 * OFTEN:
        few = f"a share below {math.ceil(100 * quality.visible)} % may go unsaid"
    return (
        f"A look at the table cost {quality.share:.2g} of μ². Of users without a row that can be used: {few}. Where "
        f"nothing is amiss something is said with chance {FALSE_ALARM:g} at most. {rest}"
    )


def _warnings(quality: DataQuality, shares: Shares, encoding: Encoding, estimates: Collection[str]) -> Iterator[str]:
    errors, users, columns = _errors(quality), quality.users, declared_columns(encoding)
    known = f"{users:,} users" + (" that were drawn" if users >= data_quality.ENOUGH else "")
    unusable = shares.unusable >= quality.threshold(errors.unusable)
    pairs = [(share, column) for share, column in zip(shares.columns.tolist(), columns, strict=True)]
    spoken = [(pair, WIDE if pair[1].name in estimates else 0.0) for pair in pairs]
    known_amiss = (pair for pair, least in spoken if pair[0] >= max(least, quality.threshold(errors.column)))
    amiss = sorted(known_amiss, key=lambda pair: -pair[0])
    if unusable:
        see = "see the columns named below" if amiss else _cause(columns, encoding)
        yield (
            f"about {_count(shares.unusable, users)} of {known} (± {errors.unusable * users:,.0f}) have no row that "
            f"can be used, and teach the model nothing: {see}."
        )
    much = shares.values >= max(WIDE if estimates else 0.0, quality.threshold(errors.values))
    if len(amiss) > FEW or (much and not amiss):
        share = (
            f"about {_percent(shares.values)} (± {_width(errors.values)}) of all values do"
            if much
            else "many values do"
        )
        most = [repr(column.name) for _, column in amiss[:MOST_NAMED]]
        more = f" and {len(amiss) - MOST_NAMED} more columns" if len(amiss) > MOST_NAMED else ""
        named = f"most in {', '.join(most)}{more}" if most else "in too many columns to name one"
        yield (
            f"{share} not fit their declarations, {named}: declare ranges in the columns' own units, and all "
            "categories; numbers are written with a decimal point, unless a comma is declared."
        )
        amiss = []
    for part, column in amiss:
        least = "at least " if len(amiss) > 1 else ""  # a user's columns are shortened together
        yield column.remark(f"{least}about {_percent(part)} (± {_width(errors.column)}) of a user's rows")
    labels = declared_labels(encoding)
    if isinstance(encoding.label, Range):
        for name, share in zip(labels, shares.labels.tolist(), strict=True):
            if share >= quality.threshold(errors.unusable):
                yield f"about {_percent(share)} (± {_width(errors.unusable)}) of {held_at_end(name)}"
        return
    always = 1 - (quality.visible - quality.threshold(quality.errors.unusable))  # but with MISSED, if everybody's
    for name, share in zip(labels, shares.labels.tolist(), strict=True):
        least = share - quality.deviations * errors.unusable
        if least > 1 - OFTEN or (share >= always and least > LEAST_COMMON):
            yield (
                f"about {_percent(share)} (± {_width(errors.unusable)}) of the labels, at least {_percent(least)} of "
                f"them, are {name}: a model that always says so is right as often. Is that what the label is meant to "
                "be?"
            )


def _cause(columns: Sequence[Column], encoding: Encoding) -> str:
    """Return why rows cannot be used where no column stands out: the label, if every other value is filled in."""
    able = [column for column in columns if encoding.missing == "drop" or column.kind in ("label", "weight")]
    if len(able) != 1:
        return "no single column stands out of the noise"
    only = able[0]
    return f"their label {only.name!r} is {only.misfit}, as all else that is missing is filled in"


def _errors(quality: DataQuality) -> Errors:
    """With what drawing ENOUGH of more users adds to the noise, at most."""
    drawn = 0.5 / math.sqrt(quality.users) if quality.users >= data_quality.ENOUGH else 0.0
    errors = (
        math.hypot(error, drawn) for error in (quality.errors.unusable, quality.errors.values, quality.errors.column)
    )
    return Errors(*errors)


def _percent(share: float) -> str:
    return _width(min(max(share, 0.0), 1.0))


def _width(error: float) -> str:
    return f"{100 * error:.2g} %" if error < 0.0995 else f"{100 * error:.0f} %"


def _count(share: float, users: int) -> str:
    return f"{users * min(max(share, 0.0), 1.0):,.0f}"
