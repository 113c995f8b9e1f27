"""Profiles for commands of operators, in the folder of profiles that `conftest` gives all tests of a process."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from quoron.federation import profiles

_NUMBERS = count()


def reaching(**held: Any) -> list[str]:
    """Options before a command that have it use a new profile: `coordinator` or `database`, `token_file`, ..."""
    name = f"profile-{next(_NUMBERS)}"
    paths = {key: Path(held[key]) for key in ("token_file", "authority") if held.get(key)}
    profiles.save(name, profiles.Profile(**(held | paths)))
    return ["--profile", name]


def before(words: Sequence[str]) -> list[str]:
    """The words of a command line with the options of `reaching` before the command, wherever they stand."""
    place = words.index("--profile") if "--profile" in words else 0
    return [*words[place : place + 2], *words[:place], *words[place + 2 :]]
