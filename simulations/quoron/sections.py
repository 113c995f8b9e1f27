"""What every door is told in the same words: the promise, how it is kept, and what is kept of it.

    quoron.train(visits, user="patient", label="ill", privacy=Privacy(2.0, 1e-6), keep=Keep(group="clinic"))
    quoron.train_rows(rows, users=1000, dimension=d, privacy=Privacy(2.0, 1e-6), method=Method(radius=10, clip_norm=1))

What is left out (None) is as the source says, else as docs/config-reference.md does. What means nothing to a door is
refused there.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import date, time
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, Literal, ParamSpec, TypeVar

from quoron import toml_text
from quoron.table_columns import described, of_tables, shown
from quoron_privacy.errors import ConfigError

GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}\Z")  # a name of the people in a table
P = ParamSpec("P")
T = TypeVar("T")
DELTA = 1e-6  # of what is released outside of a run, unless told
Setting = str | Mapping[str, Any]  # a text "dotted.key=value", or sections as nested mappings


@dataclass(frozen=True, slots=True)
class Privacy:
    """The promise wanted for one whole user."""

    epsilon: float | None = None  # ε
    delta: float | None = None  # δ
    _: KW_ONLY
    adjacency: Literal["replace-one", "zero-out"] | None = None  # a user's data replaced, or only left out (weaker)
    quorum: float | Literal["none"] | None = None  # share of those asked who must answer, by a noisy count
    quorum_epsilon: float | None = None  # of epsilon, for a quorum that costs something, at most; None: a twentieth
    health: float | None = None  # share of μ² for a look at how well a table fits its declarations; 0: nobody looks
    allow_large_delta: bool = False  # accept a δ above 1/n
    simulation_seed: int | None = None  # of made-up data: noise that comes again, and protects nobody

    def needed(self, door: str, *, usual: float | None = None) -> tuple[float, float]:
        """(ε, δ) where no configuration has any; `usual` is δ where nobody gives one. ConfigError without."""
        delta = usual if self.delta is None else self.delta
        if self.epsilon is None or delta is None:
            raise ConfigError(
                f"Expected epsilon and delta for {door}, which spends them, got epsilon={self.epsilon} and "
                f"delta={delta}. Give epsilon= and delta=, or --epsilon and --delta."
            )
        return self.epsilon, delta


@dataclass(frozen=True, slots=True)
class Method:
    """Which algorithm, and the public numbers that it is planned with."""

    algorithm: str | None = None  # a name from `quoron algorithms`; None: a rule chooses, or "one-pass-dp-sgd" by rows
    options: Mapping[str, Any] = field(default_factory=dict)  # of that algorithm: `rounds`, `step_size`, ...
    _: KW_ONLY
    items_per_user: int | None = None  # as planned; of torch and JAX the most that take part, drawn anew each round
    radius: float | None = None  # the model stays so near to where it starts
    smoothness: float | str | None = None  # of users' average losses, if known
    seed: int | None = None  # public: who is asked when; never of noise
    clip_norm: float | None = None  # of a user's row: the promise's base. None: it follows the users, for a share of ε
    local: Any = None  # LocalSGD: a row is what it makes of the model; None: the average gradient
    chunk: int | None = None  # users computed at once: bounds memory
    compiled: bool | None = None  # by `torch.compile`; None: where it was measured to pay


@dataclass(frozen=True, slots=True)
class Keep:
    """Where a run is kept, and whom it is charged to."""

    out: str | Path | None = None  # the run's folder; None: the next under runs/
    _: KW_ONLY
    group: str | None = None  # whose lifetime account is charged; None: "everyone"
    ledger: str | Path | None = None  # the file of lifetime accounts; None: QUORON_LEDGER, or the platform's place
    run: str | None = None  # its name in the books of a Flower project; None: "private"


Section = Privacy | Method | Keep
S = TypeVar("S", bound=Privacy | Method | Keep)
KEYS = {  # of the configuration
    "epsilon": ("privacy", "epsilon"),
    "delta": ("privacy", "delta"),
    "adjacency": ("privacy", "adjacency"),
    "quorum": ("privacy", "quorum"),
    "quorum_epsilon": ("privacy", "quorum_epsilon"),
    "health": ("train", "health"),
    "evaluate": ("train", "evaluate"),
    "allow_large_delta": ("privacy", "allow_large_delta"),
    "simulation_seed": ("run", "simulation_seed"),
    "algorithm": ("algorithm", "name"),
    "options": ("algorithm", "options"),
    "items_per_user": ("problem", "items_per_user"),
    "radius": ("domain", "radius"),
    "smoothness": ("problem", "user_smoothness"),
    "seed": ("run", "seed"),
    "out": ("run", "out"),
    "group": ("train", "group"),
    "ledger": ("train", "ledger"),
}
_ELSEWHERE = {
    "population": "keep=Keep(group=...)",
    "folder": "keep=Keep(out=...)",
    "network": 'settings=[{"run": {"network": ...}}]',
    "workers": "engine=EngineChoice.of(workers=...)",
    "seconds": "timing=Timing(seconds=...)",
    "waiting": "timing=Timing(waiting=...)",
    "early_ends": "timing=Timing(early_ends=...)",
}


def sections(
    *parts: Section | None, door: str, without: tuple[str, ...] = (), **short: Any
) -> dict[str, dict[str, Any]]:
    """The sections of a configuration that are given, `short` keywords too; a ledger's path is from where we are.

    ConfigError for what means nothing to a `door`: rows of one's own, and what stands in `without`; and for a keyword
    that differs from what a part has.
    """
    whole = [with_keywords(part, door, **short) for part in parts if part is not None]
    pairs = dict(pair for part in whole for pair in given(part).items())
    tree: dict[str, dict[str, Any]] = {}
    for name, value in (pairs | {name: value for name, value in short.items() if value is not None}).items():
        if name not in KEYS or name in without:
            raise _useless(name, value, door)
        section, key = KEYS[name]
        is_ledger = name == "ledger"
        tree.setdefault(section, {})[key] = Path(value).expanduser().resolve() if is_ledger else value
    return tree


def with_keywords(part: S, door: str, **short: Any) -> S:
    """The part with those of the `short` keywords that it has; ConfigError where it has another value of one."""
    has = {each.name for each in fields(part)}
    new = {name: value for name, value in short.items() if value is not None and name in has}
    for name, value in new.items():
        if (own := getattr(part, name)) is not None and own != value:
            raise ConfigError(
                f"Expected one {name} for {door}, got {name}={value!r} and {type(part).__name__}({name}={own!r}). "
                "Leave one out."
            )
    return replace(part, **new)


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
    """The first dotted key of which both have a value, and these differ; with both."""
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
        ("settings, --set", toml_text.assignment(each))
        if isinstance(each, str)
        else ("arguments, options", dict(plain(each, "settings")))
        for each in settings
    ]


def overlay(tree: Mapping[str, Any], settings: Sequence[Setting]) -> dict[str, Any]:
    """`tree` with settings laid over it; another algorithm starts without the tree's options.

    Names of algorithms are laid first, so options given beside a name count wherever they stand. ConfigError for
    settings that differ.
    """
    merged, named = dict(tree), layers_of(settings)
    one_value(*named)
    layers = [each for _, each in named]
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
    """A value as TOML has it: sequences as lists, integers that count up as one text, numbers of numpy as Python's.

    ConfigError for what it cannot have, by the name that it was given under: bytes, objects, and sets, whose order
    differs from one start to the next.
    """
    if isinstance(value, Mapping):
        named = {str(key).lower() if isinstance(key, bool) else str(key): each for key, each in value.items()}
        return {key: plain(each, key) for key, each in named.items()}
    if isinstance(value, range) and value.step == 1 and value:
        return f"{value.start}:{value.stop}"
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, PurePath | date | time):
        return str(value)
    if isinstance(value, set | frozenset):
        raise ConfigError(f"Expected {name} in an order, got {shortened(value)}. Write a list.")
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        return [plain(each, name) for each in value]
    raise ConfigError(f"Expected {name} as words, numbers, or lists and mappings of them, got {shortened(value)}.")


def given(part: Section) -> dict[str, Any]:
    """What somebody has said of it."""
    values = {each.name: getattr(part, each.name) for each in fields(part)}
    return {name: value for name, value in values.items() if value is not None and value is not False and value != {}}


def only(door: str, allowed: tuple[str, ...], *parts: Section) -> None:
    """ConfigError for what is said and not among the names that mean something to a door."""
    for part in parts:
        for name, value in given(part).items():
            if name not in allowed:
                raise _useless(name, value, door)


def _useless(name: str, value: Any, door: str) -> ConfigError:
    return ConfigError(f"Expected no {name} for {door}, got {name}={value!r}: it means nothing there. Leave it out.")


def door(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, which shows the words of a table one by one, and says of a keyword that it does not have what
    was meant, or where that is said.
    """
    own = inspect.signature(function)
    signature = shown(own)
    others = set() if of_tables(own) else signature.parameters.keys() - own.parameters.keys()  # words of their own

    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> T:
        for name, value in kwargs.items():
            if name not in signature.parameters:
                raise _unknown(function.__name__, name, value, [*signature.parameters])
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:  # one that is needed and not there, or too many
            raise ConfigError(f"Expected the arguments of {function.__name__}, got: {error}.") from None
        for name, value in given.items():
            if name not in others:
                _check(function.__name__, name, value, signature.parameters[name].default)
        return function(*args, **kwargs)

    opened.__doc__ = described(function.__doc__, own)
    vars(opened)["__signature__"] = signature
    return opened


def _unknown(door: str, name: str, value: object, known: Sequence[str]) -> ConfigError:
    if name in _homes():
        return ConfigError(f"Expected {name} as {_homes()[name]} for {door}, got it as a keyword of its own.")
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f"Did you mean {close[0]!r}?" if close else f"See help({door})."
    return ConfigError(f"Expected an argument of {door}, got {name!r}. {meant}")


def _check(door: str, name: str, value: object, default: object) -> None:
    """ConfigError where a word, which means the same to every door, has a value of another kind."""
    usual = (value is None and default is None) or (_is_text(value) and _is_text(default))
    if name in _KINDS and not usual and not _KINDS[name][1](value):
        raise ConfigError(f"Expected {name} as {_KINDS[name][0]} for {door}, got {name}={shortened(value)}.")
    if isinstance(value, Section):
        for each in fields(value):
            _check(door, each.name, getattr(value, each.name), None)


def shortened(value: object) -> str:
    """A value as it is told: what holds rows by its type."""
    simple = value is None or isinstance(value, str | bytes | int | float | Path | Privacy | Method | Keep)
    listed = isinstance(value, list | tuple | dict) and len(str(value)) < 200
    text = repr(value) if simple or listed else ""
    kind = type(value).__name__
    return text if text and len(text) < 200 else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_NUMBERS = (
    "epsilon",
    "delta",
    "quorum_epsilon",
    "health",
    "evaluate",
    "radius",
    "clip_norm",
    "bound",
    "spread",
    "outliers",
    "accuracy",
)
_WHOLE = ("simulation_seed", "seed", "items_per_user", "chunk", "dimension", "most_votes")
_SWITCHES = ("allow_large_delta", "compiled", "compare", "epsilons", "items", "progress")
_TEXTS = ("user", "label", "adjacency", "algorithm", "run")
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # of every word that means the same everywhere
    **dict.fromkeys(_NUMBERS, ("a number", _is_number)),
    **dict.fromkeys(_WHOLE, ("a whole number", lambda value: isinstance(value, Integral) and _is_number(value))),
    **dict.fromkeys(_SWITCHES, ("true or false", lambda value: isinstance(value, bool))),
    **dict.fromkeys(_TEXTS, ("a text", _is_text)),
    **dict.fromkeys(("most_outside", "most_below"), ("a share", _is_number)),
    **dict.fromkeys(("rows", "watch"), ("a function", callable)),
    **dict.fromkeys(("directory", "path", "out", "ledger"), ("a path", lambda value: isinstance(value, str | Path))),
    **dict.fromkeys(
        ("quorum", "smoothness", "risk"), ("a number, or as a text", lambda value: _is_text(value) or _is_number(value))
    ),
    "seeds": (
        "a whole number or 'auto'",
        lambda value: value == "auto" or (isinstance(value, int) and _is_number(value)),
    ),
    "group": (
        "a name of letters, digits, ' ', '.', '_' and '-'",
        lambda value: _is_text(value) and bool(GROUP.match(value)),
    ),
    "privacy": ("Privacy(epsilon, delta)", lambda value: isinstance(value, Privacy)),
    "method": ("Method(algorithm, options)", lambda value: isinstance(value, Method)),
    "keep": ("Keep(out, group=...)", lambda value: isinstance(value, Keep)),
    "options": ("a mapping", lambda value: isinstance(value, Mapping)),
    "engine": ("its name or EngineChoice.of(...)", lambda value: _is_text(value) or hasattr(value, "sharing")),
    "observers": (
        "a list of observers, with `started`, `told` and `finished`",
        lambda value: _is_list(value) and all(hasattr(each, "started") for each in value),
    ),
    "algorithms": ("a list of names", lambda value: _is_list(value) and all(map(_is_text, value))),
    "vary": (
        "a mapping of keys to the values to try",
        lambda value: isinstance(value, Mapping) and all(map(_is_list, value.values())),
    ),
    "settings": (
        "a list of texts such as 'privacy.delta=1e-7', or sections as mappings",
        lambda value: (
            isinstance(value, Mapping) or (_is_list(value) and all(isinstance(each, str | Mapping) for each in value))
        ),
    ),
}


@functools.cache
def _homes() -> dict[str, str]:
    """Where each word is said."""
    named = [(part.__name__, each.name) for part in (Privacy, Method, Keep) for each in fields(part)]
    return {word: f"{part.lower()}={part}({word}=...)" for part, word in named} | _ELSEWHERE
