"""Answers too long for a coordinator's memory: in parts, in a file without a name while held; else refused by name."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.crowd import carried_out, inline_model, specification
from federation.test_service_same_bits import federated
from quoron_client.protocol import parts
from quoron_client.protocol.questions import Answers
from quoron_privacy.errors import ConfigError, RunError
from quoron_server import spill
from quoron_server.algorithms.whitened.method import WhitenedTracking
from quoron_server.specification import make_plan, require_room

NAME = "whitened-tracking"
voted = WhitenedTracking._vote


def test_second_moments_in_parts_and_on_disk_give_the_bits_of_the_inline_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vector that travelled in parts, and was held on disk, is still clipped as one."""
    made: list[int] = []
    monkeypatch.setattr(WhitenedTracking, "_vote", without_consequence)
    expected = inline_model(specification(NAME), tmp_path)
    monkeypatch.setattr(spill, "HELD", 0)
    monkeypatch.setattr(parts, "MOST", 48)
    honest = np.memmap.__new__
    monkeypatch.setattr(np.memmap, "__new__", lambda *given, **more: made.append(1) or honest(*given, **more))
    model = carried_out(federated(NAME, tmp_path))
    np.testing.assert_array_equal(model, expected)
    assert len(made) >= make_plan(specification(NAME)).cost.rounds
    assert np.linalg.norm(model) > 0


def without_consequence(self: WhitenedTracking, state: Any, answers: Answers, noise: Any) -> Any:
    """Of a vote, so that a model of few users is seen."""
    update = voted(self, state, answers, noise)
    return replace(update, state=replace(update.state, point=state.point))


def test_what_is_held_in_memory_is_bounded_whatever_is_asked_for(tmp_path: Path) -> None:
    few, many = spill.HELD // 80, 10**6
    assert not isinstance(spill.room_for(few, (10,), tmp_path), np.memmap)
    before = set(os.listdir("/proc/self/fd"))
    whole = spill.room_for(many, (34,), tmp_path)
    assert isinstance(whole, np.memmap)
    assert list(tmp_path.iterdir()) == []
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1
    whole[7] = 1.0
    assert (whole[6:9].sum(), whole[-1, -1]) == (34.0, 0.0)
    del whole
    assert set(os.listdir("/proc/self/fd")) <= before


def test_no_room_on_disk_is_said_before_anybody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"room for the answers of a round .* No space left on device.*QUORON_SCRATCH"):
        spill.room_for(10**6, (100,), tmp_path)


def test_a_run_with_long_first_answers_needs_disk_for_them_and_memory_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make_plan(specification(NAME))
    users, numbers = plan.problem.users, plan.parameters.answer_length(plan.problem)
    monkeypatch.setattr("quoron_server.specification.HELD", 8 * plan.problem.dimension * users)
    require_room(plan, 16 * users * plan.problem.dimension, 8 * users * numbers)
    with pytest.raises(ConfigError, match=rf"on this coordinator's disk, got {8 * users * numbers:,}"):
        require_room(plan, 1 << 40, 8 * users * numbers - 1)
    with pytest.raises(ConfigError, match="on this coordinator, twice"):
        require_room(plan, 16 * users * plan.problem.dimension - 1, 1 << 40)
