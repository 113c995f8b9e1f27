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
# What other audits, or exact tests, hold by default: the same mechanism in a whole run, or in another statistic.
SECOND_LOOKS = {
    "correlated noise in a loop",  # "correlated noise", and "a clipped mean in a loop"
    "a clipped mean of secret cohorts in a loop",  # "cohorts by coins", and "a clipped mean in a loop"
    "an outlier mean in a loop",  # "accelerated-erm"
    "outlier-gd",  # "accelerated-erm"
    "one epoch, one run at a time",  # "one epoch"
    "local reports in a loop",  # "local reports by an engine", and "a clipped mean in a loop"
    "the account of cohorts by coins",  # "cohorts by coins"
    "mean-sgd",  # tests/contracts replays it, calibrated and as printed
    "winsorised mean",  # which replays `winsorised-erm`, and tests/privacy enumerates choices of ranges
    "hidden cutoff",  # "hidden cutoff, by ratios"
    "noisy tests of many users",  # "noisy test"
    "users far away",  # tests/privacy/test_adaptive_mean.py replays all releases
    "second moments around a centre",
    "shares of lengths",
    "second moment",  # tests/contracts/test_replay_tracking.py replays pilots
}
AUDITS: list[Audit] = [audit for module in (*MODULES, tracking, two_servers) for audit in module.AUDITS]


def cells(kind: str) -> list[Any]:
    """By default the first that does not take long, but of second looks none; `pytest -m slow` has the others."""
    found = []
    for audit in AUDITS:
        quick = [name for name, cell in getattr(audit, kind).items() if not cell.slow]
        chosen = quick[0] if quick and audit.name not in SECOND_LOOKS else None
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
    names = {audit.name for audit in AUDITS}
    assert len(names) == len(AUDITS)
    assert names > SECOND_LOOKS


def test_an_audit_gives_a_false_alarm_with_probability_below_a_millionth() -> None:
    assert max(len(audit.sound) for audit in AUDITS) * FAILURE < 1e-6
