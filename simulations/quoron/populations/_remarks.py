"""What a reader of a run's figures should know of its table: what did not fit its rules, by name, with the fix.

Functions of private data: for reports of simulations only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quoron_client.data.encoding import Classes, Encoding, Signs
from quoron_client.protocol.domains import Domain, L2Ball, Vector, on_boundary

if TYPE_CHECKING:
    from quoron_client.data.fused import Counts

OFTEN = 0.05  # share of values from which on a misfit is spoken of


@dataclass(frozen=True, slots=True)
class Fit:
    """How a table fits its rules."""

    counts: "Counts"
    users: int  # all, held out or not
    users_without: int  # whose rows are all left out
    most_rows: int  # of any one user

    def clipped(self) -> Mapping[str, float]:
        """Share of values outside their declared range, by column; only columns with some."""
        found = {**self.counts.clipped, **self.counts.labels_clipped}
        return {name: count / self.counts.rows for name, count in found.items() if count}

    def remarks(self, encoding: Encoding) -> Iterator[str]:
        """One sentence for each thing that is amiss, with its fix."""
        yield from _about_users(self)
        rows = self.counts.rows
        if self.counts.dropped > OFTEN * rows:
            blamed = ", ".join(f"{name!r} ({count:,})" for name, count in self.counts.unusable.items() if count)
            yield (
                f"{_share(self.counts.dropped, rows)} of the rows cannot be used and are left out, by column: "
                f"{blamed}. {_cure(self.counts, encoding)}"
            )
        for name, count in self.counts.clipped.items():
            if count > OFTEN * rows:
                yield (
                    f"{_share(count, rows)} of the values of {name!r} lie outside its declared range and are held at "
                    "the ends. Declare a wider range."
                )
        for name, count in self.counts.labels_clipped.items():
            if count > OFTEN * rows:
                yield (
                    f"{_share(count, rows)} of the labels {name!r} lie outside label_range and are held at the ends: "
                    "the model cannot learn them. Declare a wider label_range."
                )
        for name, (count, kinds) in self.counts.unknown.items():
            # One value left out loses nothing beside an intercept, which then stands for it.
            if count > OFTEN * rows and (kinds > 1 or not encoding.intercept):
                yield (
                    f"{_share(count, rows)} of the values of {name!r} are in none of its declared categories and "
                    "become zeros. Declare them, if they are public."
                )


def about_boundary(domain: Domain, model: Vector, optimum: Vector, cost: float) -> Iterator[str]:
    """What to do about a model on the boundary of its domain, where the best has an excess risk of `cost`.

    Nothing if it is not there, or belongs there, as the best of a linear loss does.
    """
    if not on_boundary(domain, model):
        return
    size = domain.radius if isinstance(domain, L2Ball) else domain.half_width
    if cost > 0:
        yield (
            f"The model lies on the boundary of its domain (domain.radius = {size:g}), and so does the optimum without "
            f"privacy: the domain is too small for what there is to learn, which costs an excess risk of {cost:.2g} "
            "whatever the noise. Raise domain.radius; of a table that has none a method whose noise does not depend on "
            "it, as `auto` takes, is not bounded."
        )
    elif not on_boundary(domain, optimum):
        yield (
            f"The model lies on the boundary of its domain (domain.radius = {size:g}), where the optimum without "
            "privacy does not: noise has carried it there. Lower domain.radius, raise privacy.epsilon, or have more "
            "users."
        )


def about_separation(found: bool) -> Iterator[str]:
    """That no model is best, where it is so."""
    if found:
        yield (
            "In some direction the classes are told apart without error: no model is best, and better ones are ever "
            "longer. The excess risk is over the risk that they approach, to within 1e-9. With loss.ridge one is best."
        )


def _about_users(fit: Fit) -> Iterator[str]:
    if fit.users == 1:
        yield (
            "The table has one user: there is nobody to hide among, and nothing useful can be learnt privately. Name "
            "the column that tells users apart as `user`."
        )
    elif fit.most_rows == 1:
        yield (
            "Every user has one row: user-level privacy is then item-level. If rows of the same person exist, name the "
            "column that tells persons apart as `user`."
        )
    if fit.users_without > OFTEN * fit.users:
        yield (
            f"{_share(fit.users_without, fit.users)} of the users have no row that can be used, and answer zero. See "
            "which columns rows are left out for."
        )


def _cure(counts: "Counts", encoding: Encoding) -> str:
    label = encoding.label
    if label is not None and 2 * counts.unusable.get(label.column, 0) > counts.dropped:
        if isinstance(label, Signs):
            return (
                f"Most labels are no true/false, 0/1 or -1/+1: declare what {label.column!r} means, by positive = "
                "value, classes = [values] or a comparison such as 'delay > 15'; or of a number label_range."
            )
        if isinstance(label, Classes):
            return "Most labels are none of the declared classes, or missing. Declare all classes."
        return "Most have no label there, or none that can be read as declared. If it is missing, all is well."
    numeric = [f for f in encoding.features if counts.unusable.get(f.title)]
    if numeric and encoding.missing == "drop":
        return "Set missing = 'midpoint' to keep rows without a feature, or leave the column out of the features."
    return "Look at these columns."


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.3g} %"
