"""What is to be compared: algorithms times settings times seeds, on one problem.

>>> request = Request.of(Config(), algorithms=["recentred-sgd"], vary={"privacy.epsilon": [1, 4]}, seeds=2)
>>> [(cell.algorithm, cell.varied) for cell in request.cells()]
[('recentred-sgd', (('privacy.epsilon', 1),)), ('recentred-sgd', (('privacy.epsilon', 4),))]
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from quoron import config as configs
from quoron import toml_text
from quoron.arguments import overlay
from quoron.config import Config
from quoron.network import Network
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS

SEEDS = 5  # runs of each cell, unless told otherwise
LOOKS = (3, 6, 12, 24, 48)  # runs after which `auto` looks whether the best two part; after the last it ends
OURS = ("algorithm.name", "run.seed", "run.out")  # keys that a comparison sets by itself
NETWORK = "run.network"
Varied = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One algorithm under one choice of the varied keys: as many runs as there are seeds."""

    algorithm: str  # a name of the registry, or auto
    varied: Varied  # key and value
    config: Config  # with the first seed

    def seeded(self, number: int) -> Config:
        """The configuration of the run with the given number, from 0."""
        run = self.config.run
        return self.config.model_copy(update={"run": run.model_copy(update={"seed": run.seed + number})})

    @property
    def named(self) -> str:
        """For people: `recentred-sgd privacy.epsilon=4`."""
        return " ".join([self.algorithm, *(f"{key}={shown(value)}" for key, value in self.varied)])

    @property
    def problem(self) -> str:
        """Cells in which this is equal have the same users and the same loss, so that their risks can be compared."""
        return json.dumps(self.config.model_dump(mode="json", include={"population": True, "loss": True}))


@dataclass(frozen=True, slots=True)
class Request:
    """One comparison. Its cells are in the order of the settings, then of the algorithms."""

    config: Config
    algorithms: tuple[str, ...]
    vary: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # key and its values
    seeds: int | Literal["auto"] = SEEDS  # auto: as many of LOOKS as it takes until the best two part

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of runs of each cell after which a comparison may end."""
        return LOOKS if self.seeds == "auto" else (self.seeds,)

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        algorithms: Sequence[str] | None = None,
        vary: Mapping[str, Sequence[Any]] | None = None,
        seeds: int | Literal["auto"] = SEEDS,
    ) -> "Request":
        """A request that makes sense; ConfigError otherwise.

        `algorithms` are by default all that promise privacy and have the constants that are asked for.
        """
        if isinstance(algorithms, str):
            raise ConfigError(f"Expected algorithms to be a list of names, got the text {algorithms!r}.")
        private = tuple(name for name, info in ALGORITHMS.items() if info.trust_model != "none")
        names = private if algorithms is None else tuple(dict.fromkeys(algorithms))
        for name in names:
            if name != "auto" and name not in ALGORITHMS:
                known = ", ".join(("auto", *ALGORITHMS))
                raise ConfigError(f"Expected algorithms to be of {known}, got {name!r}.")
        if not names:
            raise ConfigError("Expected one algorithm or more to compare, got none. Leave them out for all.")
        if seeds != "auto" and (not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1):
            raise ConfigError(f"Expected seeds >= 1 or 'auto', got seeds={seeds!r}.")
        swept = tuple((key, _values(key, values)) for key, values in (vary or {}).items())
        request = cls(config, names, swept, seeds)
        able = {cell.algorithm for cell in request.cells()}  # what does not check is refused now
        if algorithms is not None and (lacking := [name for name in names if name not in able]):
            raise ConfigError(
                f"Expected algorithm.constants to be one of {', '.join(ALGORITHMS[lacking[0]].constants)} for "
                f"{lacking[0]}, got others. Leave it out."
            )
        return replace(request, algorithms=tuple(name for name in names if name in able))

    @property
    def networks(self) -> dict[str, Network]:
        """Over which every cell is projected; those of each cell where `run.network` varies are its own."""
        return {} if any(key == NETWORK for key, _ in self.vary) else self.config.run.networks

    def cells(self) -> tuple[Cell, ...]:
        """Every algorithm under every combination of values, but for constants that it does not have.

        ConfigError for a key or a value that is not one.
        """
        keys = [key for key, _ in self.vary]
        choices = [tuple(zip(keys, values, strict=True)) for values in product(*(values for _, values in self.vary))]
        cells = [Cell(name, varied, self._laid(name, varied)) for varied in choices for name in self.algorithms]
        return tuple(
            cell
            for cell in cells
            if cell.algorithm == "auto" or cell.config.algorithm.constants in ALGORITHMS[cell.algorithm].constants
        )

    def _laid(self, algorithm: str, varied: Varied) -> Config:
        """The configuration with the values and the algorithm; another algorithm starts without options."""
        texts = [f"algorithm.name={toml_text.literal(algorithm)}"]
        texts += [f"{key}={toml_text.literal(value)}" for key, value in varied]
        tree = self.config.model_dump(mode="json", exclude_none=True)
        if self.config.run.dropout == 0.0:  # it decides no bit then: a run is one over all networks
            tree["run"].pop("network", None)
        return configs.from_tree(overlay(tree, texts))

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes it again."""
        return {
            "config": self.config.model_dump(mode="json", exclude_none=True),
            "algorithms": list(self.algorithms),
            "vary": {key: list(values) for key, values in self.vary},
            "seeds": self.seeds,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Request":
        """The request that `as_json` gave."""
        config = configs.from_tree(stored["config"])
        return cls.of(config, algorithms=stored["algorithms"], vary=stored["vary"], seeds=stored["seeds"])


def number_or_auto(text: str) -> int | Literal["auto"]:
    """A number of seeds as it is typed; ConfigError for anything else.

    >>> number_or_auto("12"), number_or_auto("auto")
    (12, 'auto')
    """
    try:
        return "auto" if text == "auto" else int(text)
    except ValueError:
        raise ConfigError(f"Expected seeds >= 1 or 'auto', got seeds={text!r}.") from None


def sweep(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Keys and values of `key=[value, value]` texts; ConfigError for anything else.

    >>> sweep(["privacy.epsilon=[0.5, 1]"])
    {'privacy.epsilon': [0.5, 1]}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        read: Any = toml_text.assignment(text) if value.strip().startswith("[") else None
        if read is None:
            raise ConfigError(f"Expected key=[value, value], such as 'privacy.epsilon=[0.5, 1, 2]', got {text!r}.")
        for part in key.strip().split("."):
            read = read[part.strip().strip('"')]
        if key.strip() in found:
            raise ConfigError(f"Expected each key once, got {key.strip()} again. Give all its values in one list.")
        found[key.strip()] = read
    return found


def shown(value: Any) -> str:
    """A value for people: bare words, numbers without trailing zeros."""
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str) else json.dumps(value)


def _values(key: str, values: Any) -> tuple[Any, ...]:
    if key in OURS:
        instead = "algorithms" if key == "algorithm.name" else "out" if key == "run.out" else "seeds"
        raise ConfigError(f"Expected keys other than {', '.join(OURS)} to vary, got {key}. Give {instead} instead.")
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence) or len(values) == 0:
        raise ConfigError(f"Expected a list of values for {key}, got {values!r}.")
    texts = [json.dumps(value, default=str) for value in values]
    if len(set(texts)) < len(texts):
        raise ConfigError(f"Expected different values for {key}, got {list(values)!r}.")
    return tuple(values)
