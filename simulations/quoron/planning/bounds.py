"""What bounds a model, in words: beforehand a bound that nobody declared, afterwards one that holds what was released.

All of it is public: declarations, plans and released values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from quoron.config import Config, TableSection
from quoron_client.protocol.domains import Vector
from quoron_client.protocol.ends import is_free, on_boundary
from quoron_server.plan import RunPlan
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


def held(model: Vector, plan: RunPlan) -> tuple[str, ...]:
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
    told = [event["public"] for event in events if "capped" in event["public"]]
    if not told or not told[-1]["capped"]:
        return ()
    held = f"the model's predictions are held at a root mean square of {told[-1]['cap']:.3g}"
    lost = "what it would gain beyond is lost"
    if told[-1]["feared"]:
        return (
            f"{held}, in fear of hostile users (problem.hostile_share, or algorithm.options.robust): {lost}, whatever "
            "the noise. Declare none where users can be trusted.",
        )
    return (f"{held}, as noise might carry them on: {lost}. It rises with the users and with epsilon.",)
