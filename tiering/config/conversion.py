"""Turns what a configuration file or the environment says into plain data of the expected types, or names the key that
is wrong: its file and line (or variable), and the nearest known one."""

from __future__ import annotations

import re
import types
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from oplog.errors import FrostlineError, UsageError

TOO_DEEP = "lists and mappings are nested too deeply"

KeyPath = tuple[str | int, ...]

Yaml = dict[str, Any]
"""A mapping of a configuration file, a default or a schema before it is checked: it may hold anything."""


class ValueSource(msgspec.Struct, frozen=True):
    """What an error message says about a key's place: `lines` of the file and `variables` of the environment by key."""

    file: str
    lines: dict[KeyPath, int] = msgspec.field(default_factory=dict)
    variables: dict[KeyPath, str] = msgspec.field(default_factory=dict)

    def location(self, path: KeyPath) -> str:
        for length in range(len(path), 0, -1):
            if name := self.variables.get(path[:length]):
                return f"environment variable {name}"
            if line := self.lines.get(path[:length]):
                return f"{self.file}, line {line}"
        return self.file

    def error(self, path: KeyPath, problem: str, hint: str = "") -> UsageError:
        return UsageError(
            f"{self.location(path)}: {dotted(path)}: {problem}" if path else f"{self.file}: {problem}", hint=hint
        )


class EnvironmentText(str):
    """A value of the environment: text that stands for any type."""

    __slots__ = ()


def converted(value: Any, expected: Any, path: KeyPath, source: ValueSource) -> Any:
    """The value as plain data of the expected type. Raises naming the key; text stands for sizes and durations."""
    origin = get_origin(expected)
    if isinstance(expected, type) and issubclass(expected, msgspec.Struct):
        return _convert_struct(value, expected, path, source)
    if tagged := _by_tag(expected):
        return _convert_tagged(value, tagged, path, source)
    if origin is dict:
        mapping = _mapping(value, path, source)
        return {
            str(key): converted(item, get_args(expected)[1], (*path, str(key)), source) for key, item in mapping.items()
        }
    if origin is tuple:
        if isinstance(value, EnvironmentText):
            value = _flow(value, path, source)
        if not isinstance(value, list | tuple):
            raise source.error(path, f"expected a list, got {kind_of(value)}")
        return [converted(item, get_args(expected)[0], (*path, index), source) for index, item in enumerate(value)]
    return _convert_scalar(value, expected, path, source)


def _convert_struct(value: Any, expected: type[msgspec.Struct], path: KeyPath, source: ValueSource) -> Yaml:
    mapping = _mapping(value, path, source)
    fields = {item.name: item for item in msgspec.structs.fields(expected)}
    for key in mapping:
        if str(key) not in fields:
            raise source.error((*path, str(key)), "no such key", nearest_hint(str(key), list(fields)))
    missing = [name for name, item in fields.items() if item.required and name not in mapping]
    if missing:
        raise source.error(path, f"the key {missing[0]!r} is missing")
    return {
        name: converted(mapping[name], fields[name].type, (*path, name), source) for name in fields if name in mapping
    }


def _by_tag(expected: Any) -> dict[str, type[msgspec.Struct]]:
    """The structs of a tagged union by their tags; empty for every other type."""
    members = get_args(expected) if get_origin(expected) in (Union, types.UnionType) else ()
    structs = [member for member in members if isinstance(member, type) and issubclass(member, msgspec.Struct)]
    return {str(struct.__struct_config__.tag): struct for struct in structs}


def _convert_tagged(value: Any, structs: dict[str, type[msgspec.Struct]], path: KeyPath, source: ValueSource) -> Yaml:
    """A mapping of the struct that its tag names. The error for a key of another of the structs says so."""
    mapping = _mapping(value, path, source)
    field = str(next(iter(structs.values())).__struct_config__.tag_field)
    tag = mapping.get(field)
    chosen = [structs[str(tag)]] if tag in list(structs) else list(structs.values())
    known = [field, *dict.fromkeys(name for struct in chosen for name in struct.__struct_fields__)]
    for key in mapping:
        if key not in known:
            elsewhere = any(key in struct.__struct_fields__ for struct in structs.values())
            problem = f"a {_one(path)} of {field} {tag} has no {str(key)!r}" if elsewhere else "no such key"
            raise source.error((*path, str(key)), problem, nearest_hint(str(key), known))
    if field not in mapping:
        raise source.error(path, f"the key {field!r} is missing")
    if len(chosen) > 1:
        raise source.error((*path, field), f"expected {' or '.join(structs)}, got {tag!r}")
    required = [item.name for item in msgspec.structs.fields(chosen[0]) if item.required]
    if missing := [name for name in required if name not in mapping]:
        raise source.error(path, f"a {_one(path)} of {field} {tag} needs the key {missing[0]!r}")
    own = {key: item for key, item in mapping.items() if key != field}
    return {field: str(tag), **_convert_struct(own, chosen[0], path, source)}


def _one(path: KeyPath) -> str:
    """What one entry of the mapping is called: `disks` holds a disk each."""
    return str(path[-2]).removesuffix("s")


_NUMBER = re.compile(r"\d+(\.\d+)?\Z")
_YAML_WORDS = {False: ("no", "off"), True: ("yes", "on")}


def _convert_scalar(value: Any, expected: Any, path: KeyPath, source: ValueSource) -> Any:
    name = str(path[-1]) if path else ""
    words = name.split("_")
    if isinstance(value, str) and ("bytes" in words or "seconds" in words) and not _NUMBER.match(value.strip()):
        from tiering.config.units import parse_duration, parse_size

        try:
            seconds = 0.0 if "bytes" in words else parse_duration(value).total_seconds()
            value = parse_size(value) if "bytes" in words else int(seconds) if seconds.is_integer() else seconds
        except FrostlineError as error:
            if not (isinstance(value, EnvironmentText) and value in ("", "null", "none")):
                raise source.error(path, error.message, error.hint) from error
    if isinstance(value, bool):  # YAML 1.1 takes an unquoted no for false
        value = next((word for word in _choices(expected) if word in _YAML_WORDS[value]), value)
    lax = isinstance(value, EnvironmentText)
    if lax and value == "" and _optional(expected):
        return None
    try:
        return msgspec.convert(str(value) if lax else value, expected, strict=not lax)
    except msgspec.ValidationError as error:
        choices = _choices(expected)
        problem = f"expected {' or '.join(choices)}, got {value!r}" if choices else _readable(str(error), value)
        raise source.error(path, problem) from error


def _mapping(value: Any, path: KeyPath, source: ValueSource) -> dict[Any, Any]:
    if isinstance(value, EnvironmentText):
        value = _flow(value, path, source)
    if not isinstance(value, dict):
        hint = "leave the section out, or indent its keys below it" if value is None else ""
        raise source.error(path, f"expected keys and values, got {kind_of(value)}", hint)
    return value


def _flow(value: EnvironmentText, path: KeyPath, source: ValueSource) -> Any:
    import yaml

    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise source.error(path, "not YAML", "such as {key: value} or [one, two]") from error
    except RecursionError as error:
        raise source.error(path, TOO_DEEP) from error


def _optional(expected: Any) -> bool:
    return get_origin(expected) in (Union, types.UnionType) and type(None) in get_args(expected)


def _choices(expected: Any) -> list[str]:
    return [str(choice) for choice in get_args(expected)] if get_origin(expected) is Literal else []


def _readable(message: str, value: Any) -> str:
    shown = "" if isinstance(value, dict | list) else f", got {value!r}"
    return (
        message.partition(" - at ")[0]
        .replace("Expected", "expected")
        .replace("Invalid", "invalid")
        .partition(", got")[0]
        + shown
    )


def dotted(path: KeyPath) -> str:
    """The key as users write it: `disks.s3.url`."""
    return ".".join(str(step) for step in path)


def nearest_hint(key: str, keys: list[str]) -> str:
    """The hint of a key that nobody knows: the one most like it, else all."""
    nearest = get_close_matches(key, keys, 1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known keys: {', '.join(keys)}"


def kind_of(value: Any) -> str:
    """The kind of a value, for messages: `a list`."""
    names = {type(None): "nothing", list: "a list", dict: "a mapping", str: "text", bool: "true/false", int: "a number"}
    return names.get(type(value), type(value).__name__)
