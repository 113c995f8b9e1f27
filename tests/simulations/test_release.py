"""One private release: verified, charged, then drawn; where a step fails nothing after it happens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from quoron.releases.once import release_once, verify_gaussian
from quoron.training import lifetime
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import BudgetExceeded, Infeasible, VerificationError
from quoron_privacy.noise.streams import SecureNoise, SeededNoise
from quoron_server.wording import ReleaseGuarantee

PROMISE = ReleaseGuarantee.central(1.0, 1e-6, "figures", "docs/privacy/statistics.md#st1")


def once(steps: list[Any], ledger: Path, seed: int | None = None, fails: bool = False) -> tuple[int, str]:
    """Release 7, and note each step; at the draw with what the ledger holds by then."""

    def verify() -> None:
        steps.append("verify")
        if fails:
            raise VerificationError("Expected less, got more.")

    def draw(noise: Any) -> tuple[int, dict[str, Any]]:
        charges = len(charged(ledger)) if ledger.exists() else 0
        steps.append((type(noise), charges))
        return 7, {"seven": 7}

    given: dict[str, Any] = {"mu": 0.1, "variation": 1e-30, "population": None, "ledger": ledger}
    return release_once("seven", PROMISE, draw, verify, seed=seed, **given)


def charged(ledger: Path) -> list[Any]:
    with lifetime.opened(ledger) as kept:
        return list(kept.charges("everyone"))


def test_a_release_is_verified_then_charged_then_drawn(tmp_path: Path) -> None:
    steps: list[Any] = []
    value, statement = once(steps, tmp_path / "ledger.sqlite")
    assert (value, steps) == (7, ["verify", (SecureNoise, 1)])
    (charge,) = charged(tmp_path / "ledger.sqlite")
    assert (charge.epsilon, charge.delta, charge.mu, charge.variation) == (1.0, 1e-6, 0.1, 1e-30)
    assert statement.startswith("(1, 1e-06)-differential privacy for all items of any one user at once")


def test_what_the_second_account_refuses_is_neither_charged_nor_drawn(tmp_path: Path) -> None:
    steps: list[Any] = []
    with pytest.raises(VerificationError):
        once(steps, tmp_path / "ledger.sqlite", fails=True)
    assert steps == ["verify"]
    assert not (tmp_path / "ledger.sqlite").exists()


def test_what_cannot_be_charged_is_not_drawn(tmp_path: Path) -> None:
    steps: list[Any] = []
    with lifetime.opened(tmp_path / "ledger.sqlite") as kept:
        kept.limit("everyone", epsilon=0.5, delta=1e-5)
    with pytest.raises(BudgetExceeded):
        once(steps, tmp_path / "ledger.sqlite")
    assert steps == ["verify"]


def test_with_a_seed_the_sentence_says_simulated_and_only_a_given_ledger_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    value, statement = once(steps, tmp_path / "ledger.sqlite", seed=3)
    assert (value, steps) == (7, ["verify", (SeededNoise, 1)])
    assert statement.startswith("SIMULATED")
    monkeypatch.setenv(lifetime.VARIABLE, str(tmp_path / "usual.sqlite"))
    given: dict[str, Any] = {"seed": 3, "population": None, "ledger": None}
    assert release_once("seven", PROMISE, lambda _: (7, {}), lambda: None, **given) == (7, statement)
    assert not (tmp_path / "usual.sqlite").exists()


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 15.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_the_second_account_accepts_what_is_promised_and_no_more(epsilon: float, delta: float) -> None:
    mu = gdp.mu_for(epsilon, delta)
    verify_gaussian("private mean", mu * (1 - 1e-9), 1e-40, epsilon, delta)
    with pytest.raises(Infeasible):
        verify_gaussian("private mean", mu * (1 + 1e-7), 1e-40, epsilon, delta)


@pytest.mark.parametrize("dimension", [1, 20])
@pytest.mark.parametrize("epsilon", [0.05, 15.0])
@pytest.mark.parametrize("delta", [1e-12, 0.1])
def test_a_mean_is_calibrated_below_what_the_second_account_accepts(
    epsilon: float, delta: float, dimension: int, tmp_path: Path
) -> None:
    values = np.zeros((200_000, dimension), np.float32)
    quoron.mean(values, epsilon=epsilon, delta=delta, bound=1.0, method="clip", seed=0, ledger=tmp_path / "l.sqlite")
    (charge,) = charged(tmp_path / "l.sqlite")
    assert charge.mu is not None
    assert DominatingPair.gaussian(charge.mu, charge.variation).delta(epsilon, delta) <= delta
