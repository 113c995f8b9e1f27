"""Reading TOML with errors that name the place, `key=value` settings and pairs, and writing a configuration back.

>>> assignment("privacy.epsilon=2")
{'privacy': {'epsilon': 2}}
>>> assignment("algorithm.name=auto")
{'algorithm': {'name': 'auto'}}
>>> print(dumps({"privacy": {"epsilon": 2.0, "delta": 1e-06}}))
[privacy]
epsilon = 2.0
delta = 1e-06
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from quoron_privacy.errors import ConfigError, nearest

Tree = dict[str, Any]

_DEEPEST = 100  # tables and lists within each other: what reads them further is recursive
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse(text: str, source: str) -> Tree:
    """Return the tables of a TOML text; `source` names it in errors."""
    try:
        return _loads(text)
    except ValueError as error:
        raise ConfigError(f"Expected {source} to be valid TOML, got: {error}") from None


def _loads(text: str) -> Tree:
    """Return the tables of a TOML text. ValueError for what is none, too deep, or a number of too many digits."""
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"tables or lists nested more than {_DEEPEST} deep") from None
    level: list[Any] = [tree]
    for _ in range(_DEEPEST):
        within = chain.from_iterable(value.values() if isinstance(value, dict) else value for value in level)
        level = [value for value in within if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"tables or lists nested more than {_DEEPEST} deep")
    return tree


def assignment(text: str) -> Tree:
    """Return the tree that `dotted.key=value` sets. The value is TOML; a bare word is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"Expected key=value, such as privacy.epsilon=2, got {text!r}.")
    bare = not value.strip().startswith(("'", '"', "[", "{"))
    word = json.dumps(value.strip())
    if value.strip() in ("nan", "inf") and key.strip().endswith("send"):  # words there, numbers elsewhere
        return _loads(f"{key} = {word}")
    for candidate in (value, word) if bare else (value,):
        try:
            return _loads(f"{key} = {candidate}")
        except ValueError:
            continue
    short = text if len(text) <= 100 else f"{text[:100]}..."
    raise ConfigError(f"Expected a dotted key, '=' and a TOML value, such as privacy.epsilon=2, got {short!r}.")


def pairs(of: str, texts: Iterable[str], known: Collection[str], *, otherwise: str) -> dict[str, Any]:
    """Return the value of each KEY=VALUE, a text.

    ConfigError for an unknown key, with the nearest or what is to be done `otherwise`, and for two values of one.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or (key := key.strip()) not in known:
            meant = nearest(key, known, otherwise)
            raise ConfigError(f"Expected {of} KEY=VALUE of {', '.join(known)}, got {text!r}. {meant}")
        if values.setdefault(key, value) != value:
            raise ConfigError(f"Expected one {of} {key}, got {key}={values[key]} and {text}. Leave one out.")
    return values


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Return a new tree with the values of `above` laid over `below`, table by table.

    A table whose `kind` changes is replaced as a whole: the other kind's keys mean nothing to it.
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        if both and value.get("kind", old.get("kind")) == old.get("kind"):  # type: ignore[union-attr]
            merged[key] = merge(old, value)  # type: ignore[arg-type]
        else:
            merged[key] = value
    return merged


def dumps(tree: Mapping[str, Any]) -> str:
    """TOML text of nested tables; None is left out. Tables below the first level are inline, unless they hold some."""
    sections = []
    for name, table in tree.items():
        nested = {f"{_key(name)}.{_key(key)}": value for key, value in table.items() if _holds_tables(value)}
        own = {key: value for key, value in table.items() if not _holds_tables(value)}
        for title, keys in ({_key(name): own} | nested).items():
            lines = [f"{_key(key)} = {literal(value)}" for key, value in keys.items() if value is not None]
            sections.append("\n".join([f"[{title}]", *lines]))
    return "\n\n".join(sections)


def _holds_tables(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(inner, Mapping) for inner in value.values())


def comment(text: str) -> str:
    """On one line, of what TOML takes in a comment."""
    return "# " + "".join(character if character.isprintable() else "\ufffd" for character in text)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def literal(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | Path):
        return _string(str(value))
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {literal(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}" if inner else "{}"
    return f"[{', '.join(literal(item) for item in value)}]"
