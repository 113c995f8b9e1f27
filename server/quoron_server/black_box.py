"""Plans for black boxes: functions of users' items of which nothing is known, not their size, smoothness or honesty.

    asked = Asked(
        problem=problem, privacy=Privacy(2.0, 1e-6), algorithm="dp-ftrl", clip_norm=1.0, options={"rounds": 50}
    )
    plan = asked.planned(seed=0)

Only algorithms take part whose guarantee rests on what the server does to answers: a clip, a fixed divisor, noise.
Their proofs take a user's answer as any function of that user's items and of what was released before (docs/flower.md,
"Why so few algorithms").
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.options import options_of
from quoron_server.algorithms.spec import NoBlackBoxes
from quoron_server.plan import EVERYONE, Privacy, RunPlan
from quoron_server.problem import Problem

UNKNOWN_CLIP = 1.0  # the first clip norm where nothing is known of answers; it shrinks or doubles within few rounds
NONE_SUCH = NoBlackBoxes("there is none of that name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a black box: all that makes it this run and no other, with what each door adds."""

    problem: Problem  # users, dimension, domain; its bound on gradients is the clip
    privacy: Privacy
    algorithm: str  # whose guarantee rests on the server alone: `AlgorithmSpec.no_black_boxes` is None
    clip_norm: float | None  # C: Euclidean norm at which a user's answer is clipped; None: it follows the users
    options: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm
    group: str = EVERYONE  # whose lifetime budget it draws on, and as whom all who come are enrolled
    simulation_seed: int | None = None  # of a simulation
    start: str = ""  # digest of the model that training starts from

    def as_text(self) -> str:
        """The same run has the same text."""
        document = asdict(self)
        return json.dumps(document | document.pop("privacy"), sort_keys=True, default=str)

    def planned(self, seed: int, *, curated: bool = False) -> RunPlan:
        """Return the plan of `algorithm` where users' answers come out of a black box and are clipped at `clip_norm`.

        Without one the clip norm is adaptive: it starts from UNKNOWN_CLIP and follows the users, privately. `curated`:
        one machine makes all rows, and may leave out those that are far from the others.
        `seed` is public, and draws slots alone. Raises ConfigError, with the reason, for what a black box cannot carry
        out; Infeasible. Call `verify` of the registry on what is made of it.
        """
        algorithm, clip_norm, options = self.algorithm, self.clip_norm, self.options
        refusal = ALGORITHMS[algorithm].no_black_boxes if algorithm in ALGORITHMS else NONE_SUCH
        if refusal is not None and curated and not refusal.even_curated:
            return _without_outliers(self, seed)
        if refusal is not None:
            fit = ", ".join(name for name, spec in ALGORITHMS.items() if spec.no_black_boxes is None)
            raise ConfigError(
                f"Expected an algorithm whose guarantee rests on the server alone ({fit}), got "
                f"algorithm={algorithm!r}: {refusal.why}."
            )
        if "clip_norm" in options:
            raise ConfigError("Expected clip_norm beside the options, got it among them.")
        spec = ALGORITHMS[algorithm]
        clip: dict[str, Any] = {"clip_norm": clip_norm}
        if clip_norm is None:
            _require_adaptive(algorithm, options)
            clip = {"clip": "adaptive", "clip_norm": UNKNOWN_CLIP}
        plan = spec.plan(self.problem, self.privacy, options_of(spec, {**options, **clip}), "calibrated", seed)
        if plan.schedule.smooths_loss:
            raise ConfigError(
                f"Expected smoothness for {algorithm}, got smoothness=None, so that clients would have to smooth their "
                "loss. Give it, or take dp-sgd-wor."
            )
        return plan


def _require_adaptive(algorithm: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the algorithm works without a clip norm, and gets the step that nobody could choose."""
    known = {name: {item.name for item in fields(spec.options)} for name, spec in ALGORITHMS.items()}
    if "clip" not in known[algorithm]:
        can = ", ".join(
            name for name, spec in ALGORITHMS.items() if spec.no_black_boxes is None and "clip" in known[name]
        )
        raise ConfigError(
            f"Expected clip_norm for {algorithm}, got none. Give it, or choose an algorithm that finds one ({can})."
        )
    step = "step_size" if "step_size" in known[algorithm] else "inverse_step"
    if options.get("clip", "adaptive") != "adaptive":
        raise ConfigError(f"Expected clip_norm with options.clip={options['clip']!r}, got none.")
    if options.get(step) is None:
        raise ConfigError(
            f"Expected options.{step} where clip_norm is None, got none: nothing public says how long answers are."
        )


def _without_outliers(asked: Asked, seed: int) -> RunPlan:
    """Rows within `options.radius` of most others count, whatever their length: there is no clip norm.

    Whoever names the radius says that rows lie so close together: about four times as close around their mean.
    """
    algorithm, options, problem = asked.algorithm, asked.options, asked.problem
    for name in ("radius", "step_size"):
        if options.get(name) is None:
            raise ConfigError(f"Expected options.{name} with {algorithm}, got none: nothing public says what rows are.")
    if asked.clip_norm is not None or options.get("smoothing") is not None:
        raise ConfigError(
            f"Expected no clip_norm and no smoothing with {algorithm} on rows, got one: it leaves out rows that are "
            "far from the others and takes the rest as they are. options.radius says how far."
        )
    spec = ALGORITHMS[algorithm]
    read = replace(options_of(spec, options), smoothing=0.0)
    spread = read.radius * math.sqrt(problem.items_per_user) / 4
    seen = replace(problem, lipschitz=read.radius, beliefs=replace(problem.beliefs, gradient_deviation=spread))
    return spec.plan(seen, asked.privacy, read, "calibrated", seed)
