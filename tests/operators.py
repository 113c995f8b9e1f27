"""Profiles for commands of operators, in the folder of profiles that `conftest` gives all tests of a process."""

from itertools import count
from pathlib import Path
from typing import Any

from quoron.operate import profiles

_NUMBERS = count()


def reaching(**held: Any) -> list[str]:
    """Options that have a command use a new profile: `coordinator` or `database`, `token_file`, `authority`, ..."""
    name = f"profile-{next(_NUMBERS)}"
    paths = {key: Path(held[key]) for key in ("token_file", "authority") if held.get(key)}
    profiles.keep(name, profiles.Profile(**(held | paths)))
    return ["--profile", name]
