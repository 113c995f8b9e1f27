"""Problems with their beliefs, written flat."""

from dataclasses import fields, replace
from typing import Any

from quoron_client.protocol.domains import L2Ball
from quoron_server.problem import Beliefs, Problem

_BELIEFS = {each.name for each in fields(Beliefs)}


def problem_of(**constants: Any) -> Problem:
    """A problem of these constants and beliefs."""
    beliefs = Beliefs(**{name: value for name, value in constants.items() if name in _BELIEFS})
    return Problem(**{name: value for name, value in constants.items() if name not in _BELIEFS}, beliefs=beliefs)


def changed(problem: Problem, **constants: Any) -> Problem:
    """The same problem with other constants or beliefs."""
    beliefs = replace(problem.beliefs, **{name: value for name, value in constants.items() if name in _BELIEFS})
    return replace(problem, **{name: each for name, each in constants.items() if name not in _BELIEFS}, beliefs=beliefs)


TRIVIAL = 3.0  # Lipschitz constant times radius of `small`: what not training costs at most


def small(users: int = 1_000, hostile_share: float = 0.0, alike: bool = False) -> Problem:
    """Five items of two columns a user, of which nobody knows much; curved `alike` in all directions or unknown."""
    return problem_of(
        users=users,
        items_per_user=5,
        dimension=2,
        domain=L2Ball(TRIVIAL),
        lipschitz=1.0,
        smoothness=0.25,
        hostile_share=hostile_share,
        **({"curvature": "isotropic", "typical_curvature": 0.1} if alike else {}),
    )
