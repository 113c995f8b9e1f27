"""Replay: whatever a run releases on D, it could have released on a neighbour D', for no more than the plan charges.

    replay(scene(algorithm), Pair(round=0, slot=3, first=far(0), second=ABSENT))

The run on D records its releases. The run on D' is forced to the same: where a mechanism adds noise to whole steps, by
noise' = noise + steps - steps'; where it decides, by the same decision. Then all that is public has to be the same, bit
for bit: questions, scales, reported values, the model. And ‖noise' - noise‖ in standard deviations, or what the
mechanism's own theorem bounds, has to be within the plan's charge. What is released without noise shows as a difference
and what moves too far as a cost, however rarely a sampled run would show it.

Cohorts and coins that no answer touches are the same in both worlds: amplification is the accounting's matter, and it
starts from one round with its cohort given. Events that a theorem charges to δ as a whole end a pair (`Charged`).
"""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from contracts.charges import require_charged
from contracts.forced import FORCED
from contracts.neighbours import ABSENT, Neighbours, Pair
from contracts.worlds import Charged, Complaint, Spent, World, same
from quoron_client.protocol.questions import LocalSGD, Question
from quoron_privacy.errors import BelowMinCohort
from quoron_server.algorithm import Algorithm

UNNOISED = frozenset({"points", "starts"})  # what clients see of a phase under trust model `central-release`


@dataclass(frozen=True, eq=False)
class Shown:
    """What is seen of one round."""

    state: Any  # before it: not seen
    question: Question
    fresh: bool  # the question follows a release, or every question does
    public: dict[str, Any]
    releases: list[tuple[str, dict[str, float]]]
    model: np.ndarray | None  # None below its minimum cohort


@dataclass(frozen=True, eq=False)
class Scene:
    """An algorithm and its run among honest users, which asks whom every run asks and begins as every run does."""

    algorithm: Algorithm[Any]
    honest: list[Shown]


def scene(algorithm: Algorithm[Any]) -> Scene:
    """To be made where the algorithm is already as broken as it will be."""
    return Scene(algorithm, course(algorithm, Neighbours(algorithm, -1), World(algorithm.plan), algorithm.init()))


def course(algorithm: Algorithm[Any], users: Neighbours, world: World, state: Any) -> list[Shown]:
    """One run in `world`, from `state` on."""
    shown: list[Shown] = []
    fresh = True
    with ExitStack() as stack:
        for owner, name, factory in FORCED:
            stack.enter_context(patch.object(owner, name, factory(world, getattr(owner, name))))
        while True:
            with world.opened():
                question = algorithm.request(state, world)
            if question is None:
                return shown
            world.round = question.round
            answers, row = users.answer(question, state)
            chained = isinstance(question.task, LocalSGD)  # then a row is a chain, which the neighbour has broken into
            world.row = world.row if chained and row is None else row
            world.open = False
            update, before = algorithm.update(state, answers, world), state
            state = update.state
            releases = [(each.mechanism, dict(each.parameters)) for each in update.releases]
            shown.append(Shown(before, question, fresh, dict(update.public), releases, _model(algorithm, state)))
            own = [name for name, _ in releases if name != "min_cohort"]  # a decision releases no iterate
            fresh = bool(own) or algorithm.plan.guarantee.trust_model != "central-release"


def _model(algorithm: Algorithm[Any], state: Any) -> np.ndarray | None:
    try:
        return algorithm.model(state)
    except BelowMinCohort:
        return None


def first_complaint(broken: Scene, candidates: Iterable[Pair]) -> str:
    """What replay says of the first of these pairs that it refuses, or nothing."""
    for pair in candidates:
        try:
            replay(broken, pair)
        except Complaint as complaint:
            return str(complaint)
    return ""


def replay(scene: Scene, pair: Pair) -> list[Spent] | None:
    """What forcing the second world took, or None where the pair is charged to δ. Raises Complaint."""
    algorithm, cohort = scene.algorithm, scene.honest[pair.round].question.cohort
    user = int(cohort[pair.slot % len(cohort)])
    first = World(algorithm.plan, lenient=pair.crowded)
    second = World(algorithm.plan, first, lenient=pair.crowded)
    if pair.crowded:
        start = algorithm.init()
    else:  # until the neighbour is asked both worlds are the honest one
        start = next(shown.state for shown in scene.honest if user in shown.question.cohort)

    def run(corner: int, world: World) -> list[Shown]:
        stays = corner == ABSENT and algorithm.plan.guarantee.adjacency == "zero-out"
        users = Neighbours(algorithm, user, corner, 0 if stays else pair.turn, pair.crowded)
        return course(algorithm, users, world, start)

    try:
        one, other = run(pair.first, first), run(pair.second, second)
    except Charged:
        return None
    same("draws", len(first.draws), len(second.draws))
    same("rounds", len(one), len(other))
    for a, b in zip(one, other, strict=True):
        where = f"round {a.question.round}"
        same(f"{where}: question", a.question, b.question, frozenset() if a.fresh else UNNOISED)
        same(f"{where}: public", a.public, b.public)
        same(f"{where}: releases", a.releases, b.releases)
        same(f"{where}: model", a.model, b.model)
    require_charged(algorithm.plan, second.spent)
    return second.spent
