"""Options of an algorithm, read from what a person gave."""

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from quoron_privacy.errors import ConfigError
from quoron_server.algorithms.search import check_options
from quoron_server.algorithms.spec import AlgorithmSpec
from quoron_server.plan import Constants


def options_of(
    spec: AlgorithmSpec, given: Mapping[str, Any], *, called: str = "options", constants: Constants = "calibrated"
) -> Any:
    """Return an algorithm's options; ConfigError names the one that is unknown, of a wrong type or out of range."""
    kind = spec.options_for(constants)
    if not given:
        return kind()
    known = [item.name for item in fields(kind)]
    for key in given:
        if key not in known:
            close = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean {called}.{close[0]}?" if close else "."
            among = f"of {spec.name}{'' if constants == 'calibrated' else ' as printed'} among {', '.join(known)}"
            raise ConfigError(f"Expected {called} {among}, got {called}.{key}{hint}")
    try:
        read: Any = _reader(kind).validate_python(dict(given))
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join((called, *map(str, wrong["loc"])))
        raise ConfigError(f"Expected {name} to be valid ({wrong['msg']}), got {name}={wrong['input']!r}.") from None
    check_options(read, called)  # as they were read: 1e9 and "1000000000" are numbers of rounds too
    return read


def summed(options: Any) -> Any:
    """The same, of which every question is for one release where that is a choice: all that is read is then sums."""
    return replace(options, parts=True) if "parts" in {item.name for item in fields(options)} else options


@cache
def _reader(options: type) -> TypeAdapter[Any]:
    """Made once: a curve reads the same options for every number of rounds."""
    return TypeAdapter(options)
