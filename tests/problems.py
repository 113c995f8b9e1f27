"""Problems with their beliefs, written flat."""

from dataclasses import fields, replace
from typing import Any

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
