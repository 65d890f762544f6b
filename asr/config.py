"""Configuration: a dataclass a stage, filled from YAML files and ``key=value`` overrides."""

import copy
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from asr.errors import UserError

Config = TypeVar("Config")


def load_config(kind: type[Config], files: Sequence[Path], overrides: Sequence[str]) -> Config:
    """Fill dataclass ``kind`` from YAML ``files`` (later ones win), then from ``overrides``.

    An override reads ``key=value`` or ``part.key=value``; its value is YAML. UserError for a
    missing file, bad YAML, an unknown key (the nearest valid one is named) or a wrong type.
    """
    layers = [*map(read_yaml, files), *map(_parse_override, overrides)]
    return build_config(kind, layers, ", ".join(map(str, files)) or kind.__name__)


def build_config(kind: type[Config], layers: Sequence[Mapping[str, Any]], where: str) -> Config:
    """Fill dataclass ``kind`` from ``layers`` of plain values, later ones over earlier ones.

    UserError, which says ``where``, for an unknown key or a wrong type.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        _merge(values, layer)
    return _build(kind, values, where, prefix="")


def to_dict(config: Any) -> dict[str, Any]:
    """The resolved configuration as plain types, for markers and for the copy beside outputs."""
    return dataclasses.asdict(config)


def dump_yaml(config: Any) -> str:
    """The resolved configuration as YAML that ``load_config`` reads back."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def read_yaml(file: Path) -> dict[str, Any]:
    """The top level of a YAML file; UserError if it is not there, or is no mapping."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file}: no such configuration file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not valid YAML: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{file}: expected 'key: value' lines at the top level")
    return values


def _parse_override(override: str) -> dict[str, Any]:
    name, separator, text = override.partition("=")
    if not separator or not name:
        raise UserError(f"{override!r}: an override is written key=value, e.g. model.hidden=256")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{override!r}: the value is not valid YAML: {error}") from None
    return nested(name, value)


def nested(key: str, value: Any) -> dict[str, Any]:
    """``part.key`` and a value as the mapping ``{part: {key: value}}``."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def _build(kind: type[Config], values: Any, where: str, prefix: str) -> Config:
    if not isinstance(values, Mapping):
        raise UserError(f"{where}: {prefix.rstrip('.')} takes 'key: value' lines, not {values!r}")
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.0)
            raise UserError(
                f"{where}: unknown key '{prefix}{key}'; did you mean '{prefix}{near[0]}'? "
                f"(valid: {', '.join(names)})"
            )
    filled = {
        key: _convert(hints[key], value, where, prefix + str(key)) for key, value in values.items()
    }
    try:
        return kind(**filled)
    except TypeError as error:
        raise UserError(f"{where}: {prefix.rstrip('.') or kind.__name__}: {error}") from None
    except ValueError as error:  # a dataclass' own check of its values
        raise UserError(f"{where}: {error}") from None


def _convert(hint: Any, value: Any, where: str, name: str) -> Any:
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where, prefix=name + ".")  # type: ignore[arg-type]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        for option in arguments:
            if option is not type(None) and _fits(option, value):
                return _convert(option, value, where, name)
    elif origin is typing.Literal:
        if value in arguments and type(value) in {type(choice) for choice in arguments}:
            return value
        choices = ", ".join(map(str, arguments))
        raise UserError(f"{where}: {name}={value!r}; choose one of: {choices}")
    elif origin is list and isinstance(value, list):
        return [_convert(arguments[0], item, where, f"{name}[{i}]") for i, item in enumerate(value)]
    elif origin is dict and isinstance(value, Mapping):
        return {
            str(key): _convert(arguments[1], item, where, f"{name}.{key}")
            for key, item in value.items()
        }
    elif origin is None and _fits(hint, value):
        return hint(value)
    shown = getattr(hint, "__name__", None) if origin is None else str(hint)
    raise UserError(f"{where}: {name}={value!r} has the wrong type; expected {shown}")


def _fits(hint: Any, value: Any) -> bool:
    if dataclasses.is_dataclass(hint):
        return isinstance(value, Mapping)
    origin = typing.get_origin(hint)
    if origin is not None:
        return (
            origin is typing.Literal
            and value in typing.get_args(hint)
            or (isinstance(origin, type) and isinstance(value, origin))
        )
    if hint is float:
        return _is_number(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _is_number(value: Any) -> bool:
    """True for what a person would call a number: YAML reads ``1e-3`` as a string."""
    if isinstance(value, bool):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
