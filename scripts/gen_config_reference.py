"""Write docs/config-reference.md from the configuration's classes; with `--check`, only say if it is up to date."""

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from inspect import cleandoc
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
import written
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from quoron.arguments import KEYS
from quoron.cli.app import app
from quoron.config import Config, SyntheticSection, TableSection, models
from quoron.data.columns import SHORT, Columns, Label
from quoron.engine.choice import ENGINES
from quoron_server.algorithms import ALGORITHMS

PAGE = Path(__file__).parent.parent / "docs" / "config-reference.md"
HEAD = """# Configuration reference

Generated from `quoron.config` by `scripts/gen_config_reference.py`; do not edit by hand.

A configuration is a TOML file. Every key may also be set on the command line (`--set privacy.epsilon=2`). Unknown keys
are refused. A complete example with every default written out is the `config.toml` of any run folder.
"""
TYPED = """Behind `--set KEY=` a value is TOML (`["id", "code"]`) or a text without quotes; a key of a table has a value
of its own: `--set population.columns.hashed.code=64`, `--set 'population.columns.estimate."*"=any'`.

`engine=`, `--engine` take `NAME` or `NAME:KEY=VALUE,...`, such as `ray:address=auto,workers=8` or
`service:clients=20,slow=300`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, _arguments()]
    for section in (SyntheticSection, TableSection):
        parts.append(_section(f'[population], kind = "{section.model_fields["kind"].default}"', section))
    for name, field in Config.model_fields.items():
        if name != "population" and isinstance(field.annotation, type):
            parts.append(_section(f"[{name}]", field.annotation))
    parts.append(_options())
    return "\n".join(parts)


def _arguments() -> str:
    """The three names of one thing: in Python, in a file, in a shell."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    typed = {option for name in ("train", "simulate") for each in commands[name].params for option in each.opts}
    rows = ["| in Python | in a file | in a shell |", "| --- | --- | --- |"]
    described = ["user", "label", *(f"label.{key}" for key in Label.__annotations__)]
    described += [f"columns.{key}" for key in Columns.__annotations__]
    for name, (section, key) in (KEYS | {name: ("population", name) for name in described}).items():
        option = f"--{name.rpartition('.')[2].replace('_', '-')}"
        shell = f"`{option}`" if option in typed else f"`--set {section}.{key}=...`"
        argument, _, word = name.partition(".")
        python = f"{argument}={{'{word}': ...}}" if word else f"{name}="
        rows.append(f"| `{python}` | `{section}.{key}` | {shell} |")
    return "\n".join(["## Arguments, keys and options", "", *rows, "", TYPED, *_engines(), ""])


def _engines() -> list[str]:
    """What engines are there, and their keys."""
    rows = [f"| `{name}` | {_keys(kind)} | {cleandoc(kind.__doc__ or '')} |" for name, kind in ENGINES.items()]
    return ["| engine | keys | what computes |", "| --- | --- | --- |", *rows]


def _keys(kind: Any) -> str:
    return ", ".join(f"`{field.name}`" for field in fields(kind))


def _section(title: str, section: type[BaseModel]) -> str:
    # A section's own keys first, then those that it shares. A population's kind is its title.
    own = sorted(section.model_fields.items(), key=lambda item: item[0] not in section.__annotations__)
    within = next((name for name, field in Config.model_fields.items() if field.annotation is section), "population")
    rows = [row for name, field in own if name != "kind" or field.description for row in _rows(within, name, field)]
    table = "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows])
    return f"## {title}\n\n{cleandoc(section.__doc__ or '')}\n\n{table}\n"


def _rows(section: str, name: str, field: FieldInfo) -> Iterator[str]:
    """Of a key, and where it is a table of the keys within."""
    tables = [kind for kind in models(field.annotation) if "dict" not in str(field.annotation)]
    default = "required" if field.is_required() else _code(field.get_default(call_default_factory=True))
    short = next((f", or its `{within}` alone" for above, key, within in SHORT if (above, key) == (section, name)), "")
    kind = f"table{short}" if tables else _type(field)
    yield f"| `{name}` | {kind} | {'as below' if tables and default != 'none' else default} | {field.description} |"
    for table in tables:
        for key, inner in table.model_fields.items():
            yield from _rows(section, f"{name}.{key}", inner)


def _code(value: object) -> str:
    if value is None:
        return "none"
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    return f"`{text or (repr(value) if not isinstance(value, str) else chr(34) + value + chr(34))}`"


def _type(field: FieldInfo) -> str:
    text = str(field.annotation)
    kinds = [field.annotation, *(get_args(field.annotation) if get_origin(field.annotation) is not dict else ())]
    choices = [f"`{choice}`" for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices and "float" not in text:
        return " or ".join(choices)
    for sign, word in (
        ("dict", "table"),
        ("bool | int | str", "text, integer or true or false"),
        ("Union[typing.Annotated[tuple", "integer or list"),
        ("typing.Literal['none']", "number > 0 and < 1, or `none`"),
        ("], tuple[", "number > 0 and < 1, or a list of two"),
        ("tuple", "list"),
        ("typing.Literal['item', 'isotropic']", "`item`, `isotropic` or number > 0"),
        ("bool", "true or false"),
    ):
        if sign in text:
            return word
    word = "integer" if "int" in text else "number" if "float" in text else "text"
    inner = re.findall(r"(Gt|Ge|Lt|Le)\(\w+=([^)]*)\)", text + str(field.metadata))
    return " ".join([word, " and ".join(f"{_SIGNS[sign]} {_bound(float(value))}" for sign, value in inner)]).strip()


_SIGNS = {"Gt": ">", "Ge": "≥", "Lt": "<", "Le": "≤"}


def _bound(value: float) -> str:
    return "2^63" if value == 2.0**63 else f"{value:g}"


def _options() -> str:
    lines = ["## [algorithm.options]\n", "What each algorithm's plan takes; left out, the plan chooses.\n"]
    for info in ALGORITHMS.values():
        fields = info.options.__dataclass_fields__.values()
        told = ", ".join(f"`{field.name}` ({_code(field.default)})" for field in fields) or "none"
        lines.append(f"* **{info.name}**: {told}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(written.page(PAGE, page()))
