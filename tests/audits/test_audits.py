"""Every mechanism shows no more than it claims, on worst-case neighbours, and the same audit catches its broken twins.

The rows are declared beside their mechanisms' worlds, in the other modules of this folder.
"""

from typing import Any

import pytest

from audits import (
    counts,
    means,
    mechanisms,
    noise,
    one_epoch,
    outlier_filter,
    outliers,
    participation,
    private_mean,
    reports,
    runs,
    tracking,
    two_servers,
)
from audits.harness import FAILURE, Audit, Case

MODULES = (
    participation,
    counts,
    means,
    mechanisms,
    noise,
    one_epoch,
    outlier_filter,
    outliers,
    private_mean,
    reports,
    runs,
)
AUDITS: list[Audit] = [audit for module in (*MODULES, tracking, two_servers) for audit in module.AUDITS]


def cells(kind: str) -> list[Any]:
    """By default the first of each audit that does not take long; `pytest -m slow` has the others."""
    found = []
    for audit in AUDITS:
        chosen = next((name for name, cell in getattr(audit, kind).items() if not cell.slow), None)
        for name, cell in getattr(audit, kind).items():
            marks = [] if name == chosen else [pytest.mark.slow]
            found.append(pytest.param(audit, cell, id=f"{audit.name}: {name}", marks=marks))
    return found


@pytest.mark.parametrize(("audit", "cell"), cells("sound"))
def test_a_mechanism_shows_no_more_than_it_claims(audit: Audit, cell: Case) -> None:
    low, high, claim = audit.measured(cell)
    assert low <= claim * (1 + 1e-9)
    assert low > cell.least * claim or not cell.least
    assert high >= cell.uses * claim


@pytest.mark.parametrize(("audit", "cell"), cells("twins"))
def test_the_audit_catches_a_broken_twin(audit: Audit, cell: Case) -> None:
    low, _, claim = audit.measured(cell)
    assert low > cell.beyond * claim


def test_every_audit_has_a_twin_and_a_name_of_its_own() -> None:
    assert all(audit.sound and audit.twins for audit in AUDITS)
    assert len({audit.name for audit in AUDITS}) == len(AUDITS)


def test_an_audit_gives_a_false_alarm_with_probability_below_a_millionth() -> None:
    assert max(len(audit.sound) for audit in AUDITS) * FAILURE < 1e-6
