"""Words for a door, laid into its sections: tests vary one word at a time."""

from dataclasses import fields
from typing import Any

from quoron.flower.training import Timing
from quoron.sections import Keep, Method, Privacy


def said(**words: Any) -> dict[str, Any]:
    """`privacy`, `method`, `keep` and `timing` of the words that are theirs, and the other words as they are."""
    values = dict(words)
    for part in (Privacy, Method, Keep, Timing):
        own = {each.name: values.pop(each.name) for each in fields(part) if each.name in values}
        if own:
            values[part.__name__.lower()] = part(**own)
    return values
