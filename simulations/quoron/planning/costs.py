"""What rounds cost and what they buy: one row a method, its seconds over each network, and the fronts that it is on.

>>> fronts([{"rounds": 9}, {"rounds": 90}, {"rounds": 91}], [0.2, 0.1, 0.1])
[('rounds',), ('rounds',), ()]
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from quoron.network import Network
from quoron.planning.choosing import Candidate, risk_words
from quoron.planning.projection import held, of_plan, wire_of_plan
from quoron_privacy.errors import ConfigError
from quoron_server.plan import RunPlan

Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Costs:
    """What all rounds of one method take together, and the risk that they lead to."""

    algorithm: str
    rounds: float
    messages: float  # answers asked for, each with its question
    bytes_down: float  # to all users, as on the wire
    bytes_up: float
    seconds: Figures  # by network; None where answers could not be there by the deadline
    held: bool  # whether rounds must last their whole time, however soon all have answered
    risk: float | None  # excess, by which fronts are drawn; None where there is nothing to compare
    told: str  # the risk for people
    fronts: tuple[str, ...] = ()  # "rounds", "bytes" and names of networks

    @property
    def figures(self) -> dict[str, float | None]:
        """What fronts are drawn of."""
        return {"rounds": self.rounds, "bytes": self.bytes_down + self.bytes_up, **self.seconds}

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return asdict(self) | {"fronts": list(self.fronts)}


def of_candidates(candidates: Sequence[Candidate], networks: Mapping[str, Network]) -> tuple[Costs, ...]:
    """A row for each feasible plan, the least risk first. Bounds are compared with bounds: a guess is on no front."""
    rows = [_of_candidate(each, each.plan, networks) for each in candidates if each.plan is not None]
    return marked(sorted(rows, key=lambda row: (row.risk is None, row.risk or 0.0)))


def marked(rows: Sequence[Costs]) -> tuple[Costs, ...]:
    """The same rows with the fronts that they are on."""
    found = fronts([row.figures for row in rows], [row.risk for row in rows])
    return tuple(replace(row, fronts=on) for row, on in zip(rows, found, strict=True))


def fronts(costs: Sequence[Figures], risks: Sequence[float | None]) -> list[tuple[str, ...]]:
    """For each row the costs on whose front it is: no other row has as little of it and of risk, and less of one."""
    return [tuple(name for name in row if _unbeaten(name, place, costs, risks)) for place, row in enumerate(costs)]


def _unbeaten(name: str, place: int, costs: Sequence[Figures], risks: Sequence[float | None]) -> bool:
    cost, risk = costs[place][name], risks[place]
    if cost is None or risk is None:
        return False
    return not any(
        other <= cost and with_risk <= risk and (other < cost or with_risk < risk)
        for other, with_risk in ((row.get(name), at) for row, at in zip(costs, risks, strict=True))
        if other is not None and with_risk is not None
    )


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
