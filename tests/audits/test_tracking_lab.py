"""A column of the lab is the run of the object, sound and broken; plans of broken twins are refused."""

import numpy as np
import pytest

from audits import tracking_lab as lab
from audits.tracking import BROKEN, LONG, MU, SOUND, Column, object_run
from cover import by_default
from quoron_privacy.errors import VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.tracking import TrackingSRGD

CASES = {name: ("sound", TrackingSRGD, scene) for name, scene in SOUND.items()}
CASES |= {name: case[:3] for name, case in BROKEN.items() if name != "rec64_nocol"}


@pytest.mark.parametrize("outlier", by_default([True, False], [True]))
@pytest.mark.parametrize("name", list(CASES))
def test_a_column_of_the_lab_is_the_run_of_the_object(name, outlier):
    twin, kind, scene = CASES[name]
    columns, noise = 5, SeededNoise(9)
    shown = lab.run(scene, outlier, noise, columns, twin)
    for column in range(columns):
        single = object_run(kind(scene.plan), scene, outlier, Column(noise, column, columns))
        together = [part[:, column] for part in (shown.centre, shown.radius, shown.spread, shown.x)]
        np.testing.assert_allclose(single, together, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("plan", [SOUND["main, growing radii"].plan, SOUND["warm-up, first round"].plan, LONG.plan])
def test_the_sound_plans_pass_the_re_check(plan):
    ALGORITHMS["tracking-srgd"].verify(plan)


@pytest.mark.parametrize("name", ["halved", "rec64_nocol"])
def test_the_plans_of_the_broken_twins_are_refused(name):
    with pytest.raises(VerificationError, match="too little noise"):
        ALGORITHMS["tracking-srgd"].verify(BROKEN[name][2].plan)


def test_the_plans_spend_their_budget_to_the_last_part_in_a_thousand():
    p = SOUND["warm-up, first round"].plan.parameters
    assert 2 / p.warmup_divisor / p.warmup_scale == pytest.approx(MU, rel=1e-3)
