"""`quoron.tuning.select`: one charge for trials that a program carries out, and what a trial is judged by."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quoron.tuning.select import Trial, select
from quoron_privacy.errors import UsageError

FEW = {"n_trials": 4.0}


class TestSelectionOfAnything:
    @staticmethod
    def of(folder: Path, trial: Callable[..., Any], **more: Any) -> Any:
        keep = {"out": folder / "run", "ledger": folder / "lifetime.sqlite"}
        given = {"users": 600, "dimensions": 2, "epsilon": 4.0, "delta": 1e-5, **FEW, **keep} | more
        return select([{"clip": 1.0}, {"clip": 0.1}], trial, **given)

    @staticmethod
    def by_clip(setting: dict[str, float]) -> dict[str, Any]:
        return {"clip_norm": setting["clip"], "radius": 2.0}

    @staticmethod
    def trial(_: Any, at: Trial) -> tuple[float, np.ndarray]:
        def rows(users: np.ndarray, point: np.ndarray) -> np.ndarray:
            assert not set(users.tolist()) & set(at.held_out.tolist())
            return point - np.stack([np.sin(users), np.cos(users)], axis=1)

        weights = at.train(rows)
        return at.score(np.full(len(at.held_out), 0.5)), weights

    def test_a_trial_that_trains_or_scores_twice_is_refused(self, tmp_path: Path) -> None:
        def greedy(_: Any, at: Trial) -> tuple[float, np.ndarray]:
            at.score(np.zeros(len(at.held_out)))
            return at.score(np.zeros(len(at.held_out))), np.zeros(2)

        with pytest.raises(UsageError, match="paid for once"):
            self.of(tmp_path, greedy)
