"""What a look at the table says, in words: shares with their noise, and what is amiss with its fix.

A function of released numbers and of declarations. What noise alone could have made is not spoken of: a table in which
nothing is amiss is warned of with probability at most `FALSE_ALARM`.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from quoron_client.data.encoding import Encoding, Range
from quoron_client.data.fused import Column, declared_columns, declared_labels, held_at_end
from quoron_privacy.counts import data_quality
from quoron_privacy.counts.data_quality import FALSE_ALARM, MISSED, OFTEN, DataQuality, Errors, Shares

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
    errors, columns, labels = _errors(quality), declared_columns(encoding), declared_labels(encoding)
    lines = [ShareLine("users without a row that can be used", shares.unusable, errors.unusable)]
    if not math.isnan(shares.values):
        lines.append(ShareLine("values that do not fit, of all columns", shares.values, errors.values))
    for column, share in zip(columns, shares.columns.tolist(), strict=True):
        lines.append(ShareLine(f"{column.name!r} {column.misfit}", share, errors.column))
    for name, share in zip(labels, shares.labels.tolist(), strict=True):
        lines.append(ShareLine(f"rows with {name}", share, errors.unusable))
    said = tuple(_warnings(quality, shares, columns, labels, encoding, estimates))
    return DataQualityReport(quality.users, quality.share, quality.visible, tuple(lines), said)


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


def _warnings(
    quality: DataQuality,
    shares: Shares,
    columns: Sequence[Column],
    labels: Sequence[str],
    encoding: Encoding,
    estimates: Collection[str],
) -> Iterator[str]:
    errors, users = _errors(quality), quality.users
    known = f"{users:,} users" + (" that were drawn" if users >= data_quality.ENOUGH else "")
    lost = shares.unusable >= quality.threshold(errors.unusable)
    found = [(share, column) for share, column in zip(shares.columns.tolist(), columns, strict=True)]
    spoken = [(each, WIDE if each[1].name in estimates else 0.0) for each in found]
    known_amiss = (each for each, least in spoken if each[0] >= max(least, quality.threshold(errors.column)))
    amiss = sorted(known_amiss, key=lambda each: -each[0])
    if lost:
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
    able = [each for each in columns if encoding.missing == "drop" or each.kind in ("label", "weight")]
    if len(able) != 1:
        return "no single column stands out of the noise"
    only = able[0]
    return f"their label {only.name!r} is {only.misfit}, as all else that is missing is filled in"


def _errors(quality: DataQuality) -> Errors:
    """With what drawing ENOUGH of more users adds to the noise, at most."""
    drawn = 0.5 / math.sqrt(quality.users) if quality.users >= data_quality.ENOUGH else 0.0
    each = (
        math.hypot(error, drawn) for error in (quality.errors.unusable, quality.errors.values, quality.errors.column)
    )
    return Errors(*each)


def _percent(share: float) -> str:
    return _width(min(max(share, 0.0), 1.0))


def _width(error: float) -> str:
    return f"{100 * error:.2g} %" if error < 0.0995 else f"{100 * error:.0f} %"


def _count(share: float, users: int) -> str:
    return f"{users * min(max(share, 0.0), 1.0):,.0f}"
