"""What each purchase of a table's declarations costs and how sure it is, told beforehand: public numbers alone."""

from dataclasses import dataclass

from quoron_privacy.counts.bought import Bought


@dataclass(frozen=True, slots=True)
class Cost:
    """What one release costs, and how sure it is: told beforehand, as it depends on public numbers alone."""

    what: str  # in words
    share: float  # of the whole promise's μ²
    error: float  # standard deviation, in users' votes
    least: float | None = None  # votes from which on a value is shown


def costs(plan: Bought) -> tuple[Cost, ...]:
    """Of each release, with the error where it has most: where all columns are numbers, or all are words."""
    error, plural = plan.errors(columns=plan.columns, names=plan.names), "s" * (plan.columns != 1)
    words = f"values of {plan.names:,} at most that {'is' if plan.names == 1 else 'are'} words"
    told = {
        "bought-places": (
            f"the kind of {plan.columns:,} column{plural}, and about where its numbers lie",
            error.places,
        ),
        "bought-cells": ("a range of each that is a number", error.cells),
        "bought-closer": ("a closer look at one whose numbers lie close together", error.closer),
        "bought-names": (words, error.names),
    }
    least = {"bought-names": plan.threshold(plan.names)} if plan.names else {}
    found = []
    for entry, mu in plan.releases():
        what, deviation = told[entry.mechanism]
        found.append(Cost(what, plan.share * (mu / plan.mu) ** 2, deviation, least.get(entry.mechanism)))
    return tuple(found)
