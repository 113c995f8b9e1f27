"""Which single changes of a mechanism, and of a silo's sums, pass the check that is made of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from golden.mechanisms import LAPLACE
from golden.plain import plain
from golden.verdicts import changes, passes
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.histograms import data_quality, held_out, min_cohort, private_bounds
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.free_counts import (
    ColumnSum,
    Contrasts,
    ContrastSum,
    LengthSum,
    NormCountSum,
    ShapedMomentSum,
    VectorLengthSum,
)
from quoron_privacy.means.silo_sums import objection
from quoron_privacy.release import packed
from quoron_privacy.robust import coordinate_median, laplace_gate, smooth_test
from quoron_privacy.robust import subsampled_test as sampled
from quoron_privacy.robust.filter import outlier_filter

D, EYE = 3, np.eye(3)
COLUMNS = np.array([[0.0, 0.5, -1.0], [1.0, 0.1, 2.0]])
TOLD = {"users": 5_000, "adjacency": "replace-one", "own": DominatingPair.gaussian(0.9, 1e-12)}


def _min_cohort() -> Any:
    rest = min_cohort.rest(2.0, 1e-6, 0.4)
    made = min_cohort.calibrate(0.5, 0.4, (900, 800), participations=2, rest=rest)
    return made, partial(min_cohort.verify, epsilon=2.0, delta=1e-6, cohorts=(900, 800), participations=2)


MECHANISMS: Mapping[str, Callable[[], tuple[Any, Callable[[Any], Any]]]] = {
    "filter": lambda: (
        outlier_filter.calibrate(4.0, 1e-6, 6_000, 0.01, 60_000),
        partial(outlier_filter.verify, epsilon=4.0, delta=1e-6),
    ),
    "medians": lambda: (
        coordinate_median.calibrate(4.0, 1e-6, 2_000, 0.01, 1.0),
        partial(coordinate_median.verify, epsilon=4.0, delta=1e-6),
    ),
    "min_cohort": _min_cohort,
    "held out": lambda: (
        held_out.HeldOut.calibrate(users=400, classes=2, epsilon=1.0, delta=1e-6),
        lambda held: held.verify(1.0, 1e-6, adjacency="replace-one"),
    ),
    "table health": lambda: (
        replace(data_quality.DataQuality.for_mu(users=5_000, columns=6, labels=2, mu=0.2), share=0.05),
        lambda quality: quality.verify(6.0, 1e-5, **TOLD),
    ),
    "estimates": lambda: (
        private_bounds.EstimatedBounds.calibrate(users=5_000, columns=5, names=2, epsilon=2.0, delta=1e-6, share=0.3),
        lambda made: made.verify(6.0, 1e-5, **TOLD),
    ),
    "lottery": lambda: (
        smooth_test.calibrate(2.0, 1e-6, 2_000),
        partial(smooth_test.verify_one_shot, epsilon=2.0, delta=1e-6),
    ),
    "laplace test": lambda: (
        LAPLACE,
        partial(laplace_gate.verify_laplace_gate, epsilon=2.0, delta=1e-6),
    ),
    "sampled lottery": lambda: (
        sampled.calibrate(2.0, 1e-6, users=20_000, cohort_size=2_000, releases=10),
        partial(sampled.verify_subsampled, epsilon=2.0, delta=1e-6),
    ),
}
SUMS: Mapping[str, tuple[Any, int]] = {  # what is summed, and the length of a row
    "clipped": (ClippedSum(0.7, 900, np.full(D, 0.3)), D),
    "norm counts": (NormCountSum(1.3, 900, np.eye(D)), D),
    "shaped moment": (ShapedMomentSum(900, EYE, 0.5), packed(D)),
    "length": (LengthSum(900, EYE, 2.0), packed(D)),
    "vector's length": (VectorLengthSum(900, EYE, 2.0), D),
    "columns": (ColumnSum(900, COLUMNS, 1.0, True), packed(4)),
    "contrasts": (ContrastSum(Contrasts(2, 3), NormCountSum(1.3, 900, np.eye(2))), 6),
}
JUDGED = (*MECHANISMS, *(f"sums, {kind}" for kind in SUMS))


def judged(_: Path, name: str) -> Iterator[tuple[str, Any]]:
    """What passes, and of sums what is said of them."""
    if name in MECHANISMS:
        made, verify = MECHANISMS[name]()
        yield name, [where for where, changed in changes(made) if passes(verify, changed)]
        return
    reduction, length = SUMS[name.removeprefix("sums, ")]
    rows = 0.5 * np.random.Generator(np.random.Philox(key=3)).normal(size=(40, length))
    sums = reduction.of(rows, np.arange(40) % 9 > 0)
    said = {"": plain(sums)}
    for part in ("total", "cells"):
        numbers = getattr(sums, part)
        for place, change in ((place, change) for place in range(len(numbers)) for change in (-1, 1, 1 << 40)):
            moved = numbers.copy()
            moved[place] += change
            other = replace(sums, **{part: moved})
            said[f"{part}[{place}] {change:+}"] = objection(other, reduction, persons=40, length=len(sums.total))
    yield name, said
