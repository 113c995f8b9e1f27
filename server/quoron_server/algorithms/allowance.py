"""What a run may ask of users, and what a method's own rule says of a plan under that."""

from dataclasses import dataclass, field
from typing import NamedTuple

from quoron_server.budget import Budget


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a run may ask of users: public, and all that `auto`'s rules know beside a plan."""

    budget: Budget = field(default_factory=Budget)
    everybody: bool = False  # whether one machine holds all rows: to ask all users again then costs nobody anything
    participation: float = 1.0  # declared share of those asked who are expected to answer


class Verdict(NamedTuple):
    """What a method's own rule says of a plan."""

    taken: bool
    because: str = ""  # a clause of the sentence that `auto` tells, if there is something to be told
