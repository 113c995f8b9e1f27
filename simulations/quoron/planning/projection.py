"""Projecting a run's wall-clock over a network: from its ledger's events, or from its plan before it begins.

What rounds cost and the risk that they lead to: one row a method, with its seconds over each network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from quoron.engine.network import DEADLINE, Counts, Network, Times, total
from quoron.planning.choosing import Candidate, risk_words
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import ConfigError
from quoron_server.parameters import Kind
from quoron_server.plan import RunPlan
from quoron_server.traffic import Traffic, encoded, traffic


@dataclass(frozen=True, slots=True)
class Costs:
    """What all rounds of one method take together, and the risk that they lead to."""

    algorithm: str
    rounds: float
    messages: float  # answers asked for, each with its question
    bytes_down: float  # to all users, as on the wire
    bytes_up: float
    seconds: Mapping[str, float | None]  # by network; None where answers could not be there by the deadline
    held: bool  # whether rounds must last their whole time, however soon all have answered
    risk: float | None  # excess; None where there is nothing to compare
    told: str  # the risk for people


def of_candidates(candidates: Sequence[Candidate], networks: Mapping[str, Network]) -> tuple[Costs, ...]:
    """A row for each feasible plan, the least risk first; guesses last."""
    rows = [_of_candidate(each, each.plan, networks) for each in candidates if each.plan is not None]
    return tuple(sorted(rows, key=lambda row: (row.risk is None, row.risk or 0.0)))


def _of_candidate(candidate: Candidate, plan: RunPlan, networks: Mapping[str, Network]) -> Costs:
    moved = wire_of_plan(plan)
    return Costs(
        algorithm=candidate.algorithm,
        rounds=plan.cost.rounds,
        messages=plan.cost.messages,
        bytes_down=moved.down,
        bytes_up=moved.up,
        seconds={text: _seconds(plan, text, network) for text, network in networks.items()},
        held=held(plan),
        risk=candidate.predicted,
        told=risk_words(candidate.predicted, candidate.guess) or "not predicted",
    )


def _seconds(plan: RunPlan, text: str, network: Network) -> float | None:
    try:
        return of_plan(plan, text, network).seconds["total"]
    except ConfigError:
        return None


NAME = "n" * 16  # of a run that has none yet; every message holds its run's name
SOME = 64  # columns of a question that is written out to see what surrounds its numbers: a few bytes less than of more
Event = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Projection:
    """A whole run over one network."""

    network: str  # as it was given
    seconds: Mapping[str, float]  # by part, and the total
    messages: int  # questions and answers
    bytes_down: int  # as on the wire
    bytes_up: int
    measured: tuple[str, ...]  # parts whose speed was measured, not given; a plan has measured nothing

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return asdict(self)


def by_round(events: Sequence[Event], *, network: Network | None, run: str = NAME) -> list[Row]:
    """The columns that traffic and network add to each round; `run` is the run's name.

    Nothing for rounds of a ledger that did not note the size of its messages.
    """
    return [_columns(event, run, network) if event.get("encoded_down") else {} for event in events]


def of_rounds(columns: Sequence[Row], text: str, network: Network) -> Projection:
    """The sum of what `by_round` gave."""
    parts = [name for name in Times().as_json() if name != "total"]
    times = total([Times(**{part: row[f"network.{part}"] for part in parts}) for row in columns if row])
    messages, down, up = (sum(row.get(f"wire_{name}", 0) for row in columns) for name in ("messages", "down", "up"))
    measured = ("aggregating",) if network.computes else ("computing", "aggregating")
    return Projection(text, times.as_json(), messages, down, up, measured)


def seconds_of(events: Sequence[Event], network: Network) -> float | None:
    """Of a run's rounds over a network; None where some answer of the mean size could not be there in time."""
    counted = [_counts(event, _traffic(event, NAME, network)) for event in events if event.get("encoded_down")]
    if any(network.answer_seconds(counts) > network.deadline for counts in counted):
        return None
    return total([network.project(counts) for counts in counted]).total


def held(plan: RunPlan) -> bool:
    """Whether rounds must last their whole time: their ends would tell who was in a secret cohort."""
    return plan.guarantee.rests_on(Kind.SECRET_COHORTS)


def of_plan(plan: RunPlan, text: str, network: Network) -> Projection:
    """Every round taken as the average one; ConfigError when its answers would come after the network's deadline.

    Rounds last their whole time where they must, whatever the network says of their ends. Speeds that only a run
    measures count as nothing.
    """
    rounds, moved = max(1, plan.cost.rounds), _average(plan, network)
    asked = moved.messages // 2
    counts = Counts(asked, moved.down, moved.up, items=plan.cost.gradient_evaluations / max(1, plan.cost.messages))
    network.require_time(counts)
    ends = network.held() if held(plan) else network
    whole = {part: rounds * seconds for part, seconds in ends.project(counts).as_json().items()}
    return Projection(text, whole, rounds * moved.messages, rounds * moved.down, rounds * moved.up, ())


def wire_of_plan(plan: RunPlan) -> Traffic:
    """Of all rounds, each taken as the average one."""
    rounds, moved = max(1, plan.cost.rounds), _average(plan, None)
    return Traffic(rounds * moved.messages, rounds * moved.down, rounds * moved.up)


def _average(plan: RunPlan, network: Network | None) -> Traffic:
    """Of the average round: its numbers, and what surrounds those of a question of the kind about some columns."""
    cost, outputs = plan.cost, plan.problem.outputs
    messages, rounds = max(1, cost.messages), max(1, cost.rounds)
    asked = max(1, messages // rounds)
    like = replace(plan.problem, dimension=outputs * min(plan.problem.features, SOME))
    nominal = Question(1, np.zeros(1, np.int64), plan.parameters.schedule(like).usual_task)
    sizes = zip(encoded(nominal, like.dimension), nominal.payload(like.dimension), strict=True)
    down, up = (size - numbers for size, numbers in sizes)
    average = {
        "messages": asked,
        "encoded_down": asked * (cost.bytes_down // messages + down),
        "encoded_up": asked * (cost.bytes_up // messages + up),
    }
    return _traffic(average, NAME, network)


def _columns(event: Event, run: str, network: Network | None) -> Row:
    moved = _traffic(event, run, network)
    row: Row = {"wire_messages": moved.messages, "wire_down": moved.down, "wire_up": moved.up}
    if network is None:
        return row
    counts = _counts(event, moved)
    times = network.project(counts)
    return row | {f"network.{part}": seconds for part, seconds in times.as_json().items()}


def _counts(event: Event, moved: Traffic) -> Counts:
    asked = event["messages"]
    return Counts(
        asked,
        moved.down,
        moved.up,
        items=event["gradient_evaluations"] / max(1, asked),
        computing=event["seconds_clients"] / max(1, asked),
        aggregating=event["seconds_server"],
    )


def _traffic(event: Event, run: str, network: Network | None) -> Traffic:
    deadline = DEADLINE if network is None else network.deadline
    return traffic(
        messages=event["messages"],
        down=event["encoded_down"],
        up=event["encoded_up"],
        run=run,
        seconds=max(1, round(deadline)),
    )
