"""Plans of every algorithm from a problem's constants and beliefs, as no preset and no table reaches them all."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from golden.plain import plain
from problems import problem_of
from quoron_client.losses import LeastSquares, Logistic, Softmax
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import QuoronError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy
from quoron_server.wording import plan_json

PRIVACY = Privacy(2.0, 1e-6)
BALL = L2Ball(20.0)


def _of(loss: Any, features: int, **constants: Any) -> dict[str, Any]:
    return {
        "users": 30_000,
        "items_per_user": 10,
        "dimension": loss.outputs * features,
        "domain": BALL,
        "lipschitz": loss.lipschitz(BALL, loss.outputs * features),
        "smoothness": loss.smoothness,
        "start_gradient": loss.start_gradient,
        "feature_norm": 1.0,
        "link_curvature": loss.curvature,
        "outputs": loss.outputs,
        "sigmoid": not isinstance(loss, LeastSquares),
    } | constants


PROBLEMS: Mapping[str, Mapping[str, Any]] = {
    "ten classes": _of(Softmax(classes=10), 6, intercept=True),
    "two classes of two outputs": _of(Softmax(classes=2), 5, users=3_000),
    "a rare class": _of(Logistic(), 12, intercept=True, label_rate=0.01),
    "a number": _of(
        LeastSquares(), 8, start_gradient=2.0, lipschitz=42.0, label_bound=2.0, label_unit=7.0, intercept=True
    ),
    "a near optimum": _of(Logistic(), 10, distance=0.2, start_loss=0.3),
    "alike in all directions": _of(Logistic(), 10, curvature="isotropic", typical_curvature=0.02, distance=4.0),
    "steeper in some directions": _of(
        Logistic(), 10, curvature="isotropic", typical_curvature=0.02, least_curvature=0.002, users=300_000
    ),
    "known gradients": _of(Logistic(), 10, gradient_deviation=0.1, heterogeneity=0.05, users=8_000),
    "a tenth may be hostile": _of(Logistic(), 4, hostile_share=0.1, users=80_000),
    "a pull": _of(Logistic(ridge=0.1), 10, ridge=0.1, items_per_user=1),
}

# What takes long to plan, on those problems whose constants change it in a way of their own.
LONG = ("accelerated-erm", "outlier-gd")
ALL_ON = ("ten classes", "two classes of two outputs", "a near optimum", "known gradients", "a tenth may be hostile")


def constants(_: Path, name: str) -> Iterator[tuple[str, Any]]:
    """All public numbers of a problem's plans, or why an algorithm is infeasible."""
    problem = problem_of(**PROBLEMS[name])
    for algorithm, info in ALGORITHMS.items():
        if algorithm in LONG and name not in ALL_ON:
            continue
        title = f"{name}: {algorithm}"
        try:
            found = plan_json(info.plan(problem, PRIVACY))
        except QuoronError as error:
            yield title, str(error)
        else:
            left_out = ("algorithm", "problem", "statement")
            yield title, plain({key: part for key, part in found.items() if key not in left_out})
