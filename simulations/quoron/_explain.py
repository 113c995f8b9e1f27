"""Validation errors of pydantic, retold: the dotted key, the value, and the fix."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

Key = tuple[str, ...]

_EXPECTED = {
    "int_type": "to be an integer",
    "int_parsing": "to be an integer",
    "int_from_float": "to be an integer",
    "float_type": "to be a number",
    "float_parsing": "to be a number",
    "finite_number": "to be finite",
    "string_type": "to be a string in quotes",
    "bool_type": "to be true or false",
    "dict_type": "to be a table",
    "model_type": "to be a table",
    "tuple_type": "to be a list",
    "list_type": "to be a list",
}
_KINDS = (
    "bool",
    "int",
    "float",
    "str",
    "constrained-float",
    "constrained-int",
    "literal",
    "tuple",
    "dict",
)  # pydantic's, in a union
_BOUNDS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence for each thing wrong, in the order of the configuration."""
    told: dict[tuple[Key, str], str] = {}
    for found in error.errors():
        detail: dict[str, Any] = dict(found)
        kind = detail["loc"][-1:]
        if kind and str(kind[0]).partition("[")[0] in _KINDS:  # one of several that the value might have been
            whole = {**detail, "loc": detail["loc"][:-1]}
            key, _ = _locate(whole["loc"], model)
            before = told.get((key, repr(detail["input"])))
            one = _expected(detail)
            told[key, repr(detail["input"])] = (
                f"Expected {'.'.join(key)} {one}, got {'.'.join(key)}={detail['input']!r}."
                if before is None
                else before.replace(", got ", f" or {one.removeprefix('to be ')}, got ", 1)
            )
        else:
            told[tuple(map(str, detail["loc"])), repr(detail["input"])] = _sentence(detail, model)
    return "\n".join(told.values())


def _unknown(key: Key, owner: type[BaseModel] | None) -> str:
    """The sentence for a key that does not exist, with the one of that name in a table or the closest, else all."""
    parent, fields = ".".join(key[:-1]), owner.model_fields if owner else {}
    tables = ((name, table) for name, field in fields.items() for table in models(field.annotation))
    close = [f"{name}.{key[-1]}" for name, table in tables if key[-1] in table.model_fields]
    close = close or get_close_matches(key[-1], fields, n=1, cutoff=0.5)
    if close:
        return f"Unknown key {'.'.join(key)}; did you mean {'.'.join((*key[:-1], close[0]))}?"
    where = f"[{parent}]" if parent else "a configuration"
    return f"Unknown key {'.'.join(key)}. Known in {where}: {', '.join(sorted(fields)) or 'nothing'}."


def _sentence(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    key, owner = _locate(detail["loc"], model)
    dotted, kind, value, context = ".".join(key), detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(key, owner)
    if kind == "missing" and isinstance(detail["loc"][-1], int):
        whole, many = ".".join(key[:-1]), detail["loc"][-1] + 1
        return f"Expected {whole} to have {many} entries, got {whole}={list(value)!r}."
    if kind == "missing":
        field = owner.model_fields.get(key[-1]) if owner else None
        meaning = f" ({field.description})" if field and field.description else ""
        return f"Missing key {dotted}{meaning}; set it in the file or with --set {dotted}=VALUE."
    if kind == "union_tag_not_found":
        return f"Missing key {dotted}.kind; set it to one of {context['discriminator_options']}."
    if kind == "union_tag_invalid":
        return f"Expected {dotted}.kind to be one of {context['expected_tags']}, got {dotted}.kind={context['tag']!r}."
    if kind == "value_error":
        return f"Expected {dotted} {context['error']}, got {dotted}={value!r}."
    return f"Expected {dotted} {_expected(detail)}, got {dotted}={value!r}."


def _expected(detail: Mapping[str, Any]) -> str:
    """What the value should have been."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        return f"{_BOUNDS[kind]} {next(iter(context.values())):g}"
    if kind in ("literal_error", "enum"):
        return f"to be {context['expected']}"
    if kind == "too_long":
        return f"to have {context['max_length']} entries"
    return _EXPECTED.get(kind, f"to be valid ({detail['msg']})")


def _locate(location: tuple[str | int, ...], model: type[BaseModel]) -> tuple[Key, type[BaseModel] | None]:
    """The dotted key without pydantic's union tags, and the section that owns its last part."""
    key: list[str] = []
    sections: tuple[type[BaseModel], ...] = (model,)
    owner: type[BaseModel] | None = model
    for position, part in enumerate(location):
        tagged = [section for section in sections if _tag(section) == part]
        if len(sections) > 1 and tagged:
            sections = (tagged[0],)
            continue
        if str(part).startswith(("tuple[", "dict[")):  # one of several that a value might have been
            continue
        key.append(str(part))
        owner = sections[0] if len(sections) == 1 else None
        if position + 1 < len(location):
            sections = models(owner.model_fields[str(part)].annotation) if owner and part in owner.model_fields else ()
    return tuple(key), owner


def models(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The model classes an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(section for part in getattr(annotation, "__args__", ()) for section in models(part))


def _tag(section: type[BaseModel]) -> object:
    return section.model_fields["kind"].default if "kind" in section.model_fields else None
