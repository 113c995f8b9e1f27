"""What an excess risk means for a label: how far off predictions are in its own units, how much accuracy that may cost.

>>> Forecast(0.02, start=0.69, accuracy=0.028).words()
"accuracy at most 2.8 points below the best model's (measured)"

What is exact, what is measured, and how: docs/comparing.md, "In the label's own units". And what bounds a model, in
words. All of it is public: declarations, plans and released values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quoron.config import Config, TableSection
from quoron_client.protocol.domains import is_free, on_boundary
from quoron_privacy.arrays import Vector
from quoron_server.algorithms.spec import constant_risk, start_risk
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.wording import domain_words, reach_words


def undeclared(config: Config, plan: RunPlan) -> tuple[str, ...]:
    """That a table's models have a bound which nobody declared, and what it keeps them from."""
    own, problem = isinstance(config.population, TableSection), plan.problem
    if not own or config.domain.radius is not None or is_free(problem.domain, problem.feature_norm or 1.0):
        return ()
    return (
        f"domain.radius is not declared, and what {plan.algorithm} needs for this loss grows with it: models are "
        f"{domain_words(problem)}, so {reach_words(problem)}. Declare domain.radius where more may be needed; methods "
        "whose noise does not depend on it, such as whitened-tracking and tracking-srgd, have no such bound.",
    )


def at_boundary(model: Vector, plan: RunPlan) -> tuple[str, ...]:
    """That the bound of the domain holds the released model (d,), and what it keeps it from."""
    problem = plan.problem
    if not on_boundary(problem.domain, model):
        return ()
    return (
        f"the model is as large as its domain lets it be ({domain_words(problem)}), so {reach_words(problem)}: what it "
        "would gain beyond is lost, whatever the noise. Raise domain.radius; where none is declared, methods whose "
        "noise does not depend on it, as `auto` takes, have no bound.",
    )


def capped(events: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """That a method's own cap on predictions held the last iterate of a run with these events, where it has one."""
    public = [event["public"] for event in events if "capped" in event["public"]]
    if not public or not public[-1]["capped"]:
        return ()
    start = f"the model's predictions are held at a root mean square of {public[-1]['cap']:.3g}"
    end = "what it would gain beyond is lost"
    if public[-1]["feared"]:
        return (
            f"{start}, in fear of hostile users (problem.adversarial_share, or algorithm.options.robust): {end}, "
            "whatever the noise. Declare none where users can be trusted.",
        )
    return (f"{start}, as noise might carry them on: {end}. It rises with the users and with epsilon.",)


# Times the root of the excess log loss, in nine of ten runs (benchmarks/forecasts.py): accuracy that is lost; and area
# under the curve, where a share p of the labels is positive, times 1/√(4p(1 - p)).
ACCURACY, AREA = 0.2, 0.3


@dataclass(frozen=True, slots=True)
class Forecast:
    """A bound on the excess risk, read. None for what does not follow from what is known of the label."""

    excess_risk: float  # at most, over the best model
    start: float  # and without training, at most
    constant: float | None = None  # and of always saying the label rate, at most
    apart: float | None = None  # predictions from the best model's, root mean square in the label's own units, at most
    apart_at_start: float | None = None  # the same of always predicting the middle of the label's range
    chance: float | None = None  # of what was, as the model says it, over what the best says: geometric mean, at least
    accuracy: float | None = None  # less than the best model's, at most; measured
    area: float | None = None  # under the curve, the same; measured, where a label rate is known

    @property
    def sure(self) -> bool:
        """Whether it says anything: less than what not training leaves at most."""
        return self.excess_risk < self.start

    def words(self) -> str:
        """Of a label, in a line; empty where only the risk is known, or nothing is sure."""
        if not self.sure:
            return ""
        if self.apart is not None and self.apart_at_start is not None:
            reference = f"(without training {number(self.apart_at_start)})"
            return f"predictions at most {number(self.apart)} off the best model's, root mean square {reference}"
        parts = []
        if self.accuracy is not None:
            parts.append(f"accuracy at most {100 * self.accuracy:.2g} points below the best model's")
        if self.area is not None:
            parts.append(f"AUC {self.area:.2g}")
        return f"{' and '.join(parts)} (measured)" if parts else ""


def forecast_of(problem: Problem, risk: float | None) -> Forecast | None:
    """Return what a bound on the excess risk means for this problem's label; None without one."""
    if risk is None:
        return None
    known, start = problem.beliefs, start_risk(problem)
    risk = min(risk, start)
    forecast = Forecast(risk, start, constant_risk(problem))
    if (unit := known.label_unit) is not None:
        # ½ E⟨a, x - x*⟩² <= F(x) - F*, as F is a square and x* its minimum
        return replace(forecast, apart=unit * math.sqrt(2 * risk), apart_at_start=unit * math.sqrt(2 * start))
    if known.sigmoid:
        rates = known.label_rates
        area = None if rates is None else min(AREA * math.sqrt(risk / (4 * rates[0] * (1 - rates[0]))), 0.5)
        return replace(forecast, chance=math.exp(-risk), accuracy=min(ACCURACY * math.sqrt(risk), 0.5), area=area)
    return forecast


def no_better_than_start(plan: RunPlan, left: float | None = None) -> tuple[str, ...]:
    """Say that a plan's bound, or that of what its run released (`left`), is no less than what not training leaves.

    One sentence, from public numbers, wherever a plan or a model is shown; () where the bound is smaller. Where nobody
    has measured a bound the planner's guess is taken.
    """
    known = (left, plan.predicted_excess_risk, plan.guessed_excess_risk)
    bound, start = next((risk for risk in known if risk is not None), None), start_risk(plan.problem)
    if bound is None or bound < start:
        return ()
    return (
        f"No better than not training, as far as the bound says: with {plan.problem.users:,} users for "
        f"{plan.problem.dimension:,} coefficients at ε = {plan.guarantee.epsilon:g} the excess risk is bounded by "
        f"{min(bound, start):.2g}, and not training leaves {start:.2g} at most. It takes more users, fewer columns, or "
        "a larger epsilon.",
    )


def number(value: float) -> str:
    """To two digits, as people write it.

    >>> number(8123.4), number(0.0123)
    ('8,100', '0.012')
    """
    return f"{float(f'{value:.2g}'):,.10g}"
