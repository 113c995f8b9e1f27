"""Arguments that mean the same in every function: their sections in a configuration, their kinds, errors.

    quoron.train(visits, user="patient", label="ill", epsilon=2.0, delta=1e-6, population="clinic")
    quoron.train_rows(rows, users=1000, dimension=d, epsilon=2.0, delta=1e-6, radius=10, clip_norm=1)

An argument that is left out (None) is as the source says, else as docs/config-reference.md does.
"""

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time
from numbers import Integral, Real
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from quoron import toml_text
from quoron.data.columns import Columns, Label, written_out
from quoron_privacy.errors import ConfigError, nearest
from quoron_privacy.release import Adjacency

POPULATION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")  # a name of the people in a table
P = ParamSpec("P")
T = TypeVar("T")
DELTA = 1e-6  # default δ of what is released outside of a run
Setting = str | Mapping[str, Any]  # a text "dotted.key=value", or sections as nested mappings


KEYS = {  # of the configuration
    "epsilon": ("privacy", "epsilon"),
    "delta": ("privacy", "delta"),
    "adjacency": ("privacy", "adjacency"),
    "allow_large_delta": ("privacy", "allow_large_delta"),
    "holdout": ("train", "holdout"),
    "seed": ("run", "seed"),
    "algorithm": ("algorithm", "name"),
    "options": ("algorithm", "options"),
    "items_per_user": ("population", "items_per_user"),
    "model": ("population", "model"),
    "out": ("run", "out"),
    "data_quality": ("train", "data_quality"),
    "population": ("train", "population"),
    "ledger": ("train", "ledger"),
}


class PlanArguments(TypedDict, total=False):
    """The arguments of every function that plans a run."""

    columns: Columns | Mapping[str, Any] | None
    model: str | None
    epsilon: float | None
    delta: float | None
    adjacency: Adjacency | None  # a user's data replaced, or only left out (weaker)
    algorithm: str | None
    options: Mapping[str, Any] | None
    items_per_user: int | None
    settings: Sequence[Setting] | Mapping[str, Any]


class SimulationArguments(PlanArguments, total=False):
    """The arguments of a simulation."""

    seed: int | None
    out: str | Path | None


class TrainingArguments(PlanArguments, total=False):
    """The arguments of what spends a budget."""

    allow_large_delta: bool
    holdout: float | None
    data_quality: float | None
    population: str | None
    ledger: str | Path | None
    out: str | Path | None


class ReleaseArguments(TypedDict, total=False):
    """The arguments of every release outside of a run that say whose budget it is charged to."""

    population: str | None  # whose privacy budget; None: "everyone"
    ledger: str | Path | None  # in which file
    seed: int | None  # SIMULATED: of all noise


def sections(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration that arguments stand for, but for those that describe a table.

    None and switches that are off are left out. A ledger's relative path begins at the working directory.
    """
    tree: dict[str, dict[str, Any]] = {}
    for name, value in arguments.items():
        if name in KEYS and value is not None and value is not False:
            section, key = KEYS[name]
            tree.setdefault(section, {})[key] = Path(value).expanduser().resolve() if name == "ledger" else value
    return tree


def one_value(*layers: tuple[str, Mapping[str, Any]]) -> None:
    """ConfigError where two layers, each with where it was given, have different values of a key; it names both."""
    trees = [(where, {name: of for name, of in tree.items() if isinstance(of, Mapping)}) for where, tree in layers]
    for place, (here, above) in enumerate(trees):
        for there, below in trees[:place]:
            if (found := _difference(below, above)) is not None:
                key, one, two = found
                raise ConfigError(
                    f"Expected one value of {key}, got {shortened(one)} ({there}) and {shortened(two)} ({here}). Leave "
                    "one out."
                )


def _difference(below: Mapping[str, Any], above: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first dotted key of which both have a value, and these differ; with both."""
    for key in (key for key in below if key in above):
        one, two = below[key], above[key]
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            if (found := _difference(one, two)) is not None:
                return f"{key}.{found[0]}", *found[1:]
        elif one != two:
            return key, one, two
    return None


def layers_of(settings: Sequence[Setting]) -> list[tuple[str, dict[str, Any]]]:
    """Each setting as sections, and where it was given."""
    return [
        ("settings, --set", written_out(toml_text.assignment(setting)))
        if isinstance(setting, str)
        else ("arguments, options", written_out(plain(setting, "settings")))
        for setting in settings
    ]


def overlay(tree: Mapping[str, Any], settings: Sequence[Setting]) -> dict[str, Any]:
    """`tree` with settings laid over it; another algorithm starts without the tree's options.

    Names of algorithms are laid first, so options given beside a name count wherever they stand. ConfigError for
    settings that differ.
    """
    merged, named = written_out(tree), layers_of(settings)
    one_value(*named)
    layers = [layer for _, layer in named]
    for above in layers:
        own = above.get("algorithm")
        if not (isinstance(own, Mapping) and "name" in own):
            continue
        below = merged.get("algorithm")
        if isinstance(below, Mapping) and own["name"] != below.get("name", "auto"):
            merged["algorithm"] = {key: value for key, value in below.items() if key != "options"}
        merged = toml_text.merge(merged, {"algorithm": {"name": own["name"]}})
        above["algorithm"] = {key: value for key, value in own.items() if key != "name"}
    for above in layers:
        for name, section in above.items():
            if name in merged and isinstance(merged[name], Mapping) != isinstance(section, Mapping):
                wrong = merged[name] if isinstance(section, Mapping) else section
                raise ConfigError(f"Expected {name} to be a section with keys of its own, got {name}={wrong!r}.")
        merged = toml_text.merge(merged, above)
    return merged


def plain(value: Any, name: str) -> Any:
    """A value as TOML has it: sequences as lists, numbers of numpy as Python's.

    ConfigError for what it cannot have, by the name that it was given under: bytes, objects, and sets, whose order
    differs from one start to the next.
    """
    if isinstance(value, Mapping):
        named = {str(key).lower() if isinstance(key, bool) else str(key): entry for key, entry in value.items()}
        return {key: plain(entry, key) for key, entry in named.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, PurePath | date | time):
        return str(value)
    if isinstance(value, set | frozenset):
        raise ConfigError(f"Expected {name} in an order, got {shortened(value)}. Write a list.")
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        return [plain(entry, name) for entry in value]
    raise ConfigError(f"Expected {name} as words, numbers, or lists and mappings of them, got {shortened(value)}.")


def entry_point(function: Callable[P, T]) -> Callable[P, T]:
    """Return the same function, which has all arguments in its signature, refuses others and checks their kinds."""
    signature = _one_by_one(inspect.signature(function))
    forms = {name: _forms(name, parameter.annotation) for name, parameter in signature.parameters.items()}

    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in signature.parameters:
                raise _unknown(function.__name__, name, [*signature.parameters])
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:  # one that is needed and not there, or too many
            raise ConfigError(f"Expected {_call(function.__name__, signature)}, got: {error}.") from None
        for name, value in given.items():
            if not (value is None and signature.parameters[name].default is None):
                _check(function.__name__, name, value, forms[name])
        return function(*args, **kwargs)

    vars(opened)["__signature__"] = signature
    return opened


def _one_by_one(signature: inspect.Signature) -> inspect.Signature:
    """Return the same with each name in place of `**arguments: Unpack[...]`."""
    own = [*signature.parameters.values()]
    if not own or own[-1].kind is not inspect.Parameter.VAR_KEYWORD or typing.get_origin(own[-1].annotation) is None:
        return signature
    (listed,), words = typing.get_args(own[-1].annotation), []
    for name, hint in typing.get_type_hints(listed).items():
        needed = name in listed.__required_keys__
        default, kind = (inspect.Parameter.empty, hint) if needed else (None, hint | None)
        words.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return signature.replace(parameters=[*own[:-1], *words])


def _call(name: str, signature: inspect.Signature) -> str:
    """Return how a function is called: what may stand without a name, and what has to be given."""
    parts = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            parts.append(parameter.name)
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty:
            parts.append(f"{parameter.name}=")
    return f"{name}({', '.join(parts)})"


def _unknown(door: str, name: str, known: Sequence[str]) -> ConfigError:
    for argument, keys in (("columns", Columns), ("label", Label)):
        if argument in known and name in keys.__annotations__:
            return ConfigError(
                f"Expected {argument}={{{name!r}: ...}} for {door}, got {name}=.... Write it in {argument}."
            )
    return ConfigError(f"Expected an argument of {door}, got {name!r}. {nearest(name, known, f'See help({door}).')}")


def _forms(name: str, hint: Any) -> "tuple[Form, ...]":
    """Return what a value may be, one of these, by its argument's name or type; () where anything is taken here."""
    if name in _NAMED:
        return (_NAMED[name],)
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    kinds = dict.fromkeys(_kind(part) for part in parts if part is not NoneType)
    if Path in kinds:
        kinds.pop(str, None)  # a path may be a text
    return tuple(_FORMS[kind] for kind in kinds) if kinds.keys() <= _FORMS.keys() else ()


def _kind(hint: Any) -> Any:
    """Return the class that a type means."""
    origin = typing.get_origin(hint) or hint
    return Mapping if typing.is_typeddict(hint) else str if origin is Literal else origin


def _check(door: str, name: str, value: object, forms: "Sequence[Form]") -> None:
    """Raise ConfigError where an argument has a value of another kind."""
    if forms and not any(test(value) for _, test in forms):
        words = " or ".join(word for word, _ in forms)
        raise ConfigError(f"Expected {name} as {words} for {door}, got {name}={shortened(value)}.")


def shortened(value: object) -> str:
    """Return a value as text for a message: by its type alone if it may hold rows."""
    simple = value is None or isinstance(value, str | bytes | int | float | Path)
    listed = isinstance(value, list | tuple | dict) and len(str(value)) < 200
    text = repr(value) if simple or listed else ""
    kind = type(value).__name__
    return text if text and len(text) < 200 else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and _is_number(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


Form = tuple[str, Callable[[Any], bool]]  # in words, and whether a value is one
_FORMS: dict[Any, Form] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", _is_whole),
    float: ("a number", _is_number),
    str: ("a text", _is_text),
    Path: ("a path", lambda value: isinstance(value, str | Path)),
    Mapping: ("a mapping", lambda value: isinstance(value, Mapping)),
    Sequence: ("a list of names", lambda value: _is_list(value) and all(map(_is_text, value))),
    Callable: ("a function", callable),
}
_NAMED: dict[str, Form] = {  # of arguments that mean the same everywhere
    "seed": ("a whole number from 0 to 2^63 - 1", lambda value: _is_whole(value) and 0 <= value < 2**63),
    "population": (
        "a name of letters, digits, ' ', '.', '_' and '-'",
        lambda value: _is_text(value) and bool(POPULATION.fullmatch(value)),
    ),
    "observers": (
        "a list of observers, with `started`, `round_finished` and `finished`",
        lambda value: _is_list(value) and all(hasattr(observer, "started") for observer in value),
    ),
    "settings": (
        "a list of texts such as 'privacy.delta=1e-7', or sections as mappings",
        lambda value: (
            isinstance(value, Mapping) or (_is_list(value) and all(isinstance(item, str | Mapping) for item in value))
        ),
    ),
}
