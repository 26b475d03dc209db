"""Reads the configuration: file, environment and defaults become one frozen `tiering.config.settings.Config`.

Where it comes from, the first that exists: the given file, `$FROSTLINE_CONFIG`, `./frostline.yaml`,
`~/.config/frostline/frostline.yaml`, else the embedded default below `$FROSTLINE_HOME`. A file replaces the default
one top-level key at a time. On top of it every key has an environment form: `FROSTLINE_DISKS__S3__URL=…`, with `__`
between the steps and a number for a place in a list (`FROSTLINE_POLICIES__HOT_COLD__VOLUMES__0__NAME`).

Everything wrong is a `UsageError` that names the file with its line (or the variable), the key and the nearest known
one.
"""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import unquote

import msgspec

from disks.config import SECRET_KEYS
from oplog.errors import FrostlineError, Refused, UsageError
from tiering.config.checks import check_references
from tiering.config.finding import PREFIX, default_home, find_file
from tiering.config.places import check_places
from tiering.config.secrets import MASK, SECRET_PROPERTY, without_passwords
from tiering.config.settings import Config, embedded

RESERVED = ("FROSTLINE_CONFIG", "FROSTLINE_HOME", "FROSTLINE_BACKUP")
_MOST_VALUES = 100_000
_TOO_DEEP = "lists and mappings lie within each other more deeply than any configuration has them"

Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The configuration and where it came from."""

    config: Config
    file: Path | None
    """None: the embedded default."""
    variables: tuple[str, ...] = ()
    """Environment variables that changed something."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What an error message says about a key's place."""

    file: str
    lines: dict[Path_, int] = field(default_factory=dict)
    variables: dict[Path_, str] = field(default_factory=dict)

    def place(self, path: Path_) -> str:
        for length in range(len(path), 0, -1):
            if name := self.variables.get(path[:length]):
                return f"environment variable {name}"
            if line := self.lines.get(path[:length]):
                return f"{self.file}, line {line}"
        return self.file

    def error(self, path: Path_, problem: str, hint: str = "") -> UsageError:
        return UsageError(
            f"{self.place(path)}: {_dotted(path)}: {problem}" if path else f"{self.file}: {problem}", hint=hint
        )


def load(given: str | Path | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Find, read, overlay and check. Raises `UsageError`; `Refused` for a file whose secret others can read."""
    return load_from(given, environment).config


def load_from(given: str | Path | None = None, environment: Mapping[str, str] | None = None) -> LoadedConfig:
    """As `load`, with where everything came from."""
    environment = os.environ if environment is None else environment
    home = default_home(environment)
    raw: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(embedded(home)))
    file = find_file(given, environment)
    source = _Source(str(file) if file else "the embedded default")
    base = home
    if file is not None:
        base = file.absolute().parent
        text = _read(file)
        raw.update(_parse(text, source))
        _refuse_open_secret(file, raw)
    used = _overlay(raw, environment, source)
    plain = _convert(raw, Config, (), source)
    config = msgspec.convert(_absolute(plain, base), Config)
    check_references(config, source.error)
    check_places(config, environment, source.error)
    return LoadedConfig(config, file, used)


def checked(config: Config) -> Config:
    """A configuration that a program made, if no two of its disks are one. Raises `UsageError`."""
    check_places(config, os.environ, _Source("the configuration").error)
    return config


def masked(config: Config) -> dict[str, Any]:
    """The configuration as plain values with every secret covered; what `config show` prints."""
    plain: dict[str, Any] = msgspec.to_builtins(config)
    for disk in plain["disks"].values():
        for key in SECRET_KEYS:
            if disk.get(key):
                disk[key] = MASK
    for holder in (*plain["disks"].values(), plain.get("backup", {})):
        for key in ("url", "endpoint_url", "repository"):
            if holder.get(key):
                holder[key] = without_passwords(holder[key])
    if plain.get("keeper", {}).get("password"):
        plain["keeper"]["password"] = MASK
    if plain.get("interserver", {}).get("secret"):
        plain["interserver"]["secret"] = MASK
    for hook in plain.get("hooks", {}).values():
        if hook.get("secret"):
            hook["secret"] = MASK
        if hook.get("url"):  # who knows the path of a webhook may post to it
            hook["url"] = f"{'/'.join(hook['url'].split('/')[:3])}/{MASK}"
    properties = plain.get("spark", {}).get("conf", {})
    properties.update({name: MASK for name in properties if SECRET_PROPERTY.search(name)})
    return plain


# -- reading -------------------------------------------------------------------------------------------------------


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the configuration {file}: {error}") from error


def _parse(text: str, source: _Source) -> dict[str, Any]:
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{source.file}{line}: not YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise UsageError(f"{source.file}: {_TOO_DEEP}") from error
    if value is None or value == {}:  # a file that was cut to nothing must not mean another, empty store
        raise UsageError(
            f"{source.file}: the configuration holds no keys",
            hint="'frostline config default' prints one to begin with; without any file the embedded default is used",
        )
    if not isinstance(value, dict):
        raise UsageError(f"{source.file}: the configuration is a mapping of keys, not {_kind(value)}")
    _check_size(node, source)
    _remember_lines(node, (), source)
    return value


def _check_size(node: Any, source: _Source) -> None:
    """Aliases of aliases are small in the file and without end in memory."""
    waiting, seen = [node], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if seen > _MOST_VALUES:
            raise UsageError(
                f"{source.file}: more than {_MOST_VALUES:,} values, aliases written out",
                hint="a configuration needs few aliases",
            )
        if isinstance(one.value, list):
            waiting += [item for pair in one.value for item in (pair if isinstance(pair, tuple) else (pair,))]


def _remember_lines(node: Any, path: Path_, source: _Source) -> None:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            repeated = below in source.lines
            source.lines[below] = key.start_mark.line + 1
            if repeated:
                raise source.error(below, "given twice")
            _remember_lines(value, below, source)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            source.lines[(*path, index)] = value.start_mark.line + 1
            _remember_lines(value, (*path, index), source)


def _refuse_open_secret(file: Path, raw: dict[str, Any]) -> None:
    disks = raw.get("disks")
    holders = disks.values() if isinstance(disks, dict) else ()
    secret = any(isinstance(disk, dict) and any(disk.get(key) for key in SECRET_KEYS) for disk in holders)
    keeper = raw.get("keeper")
    secret = secret or (isinstance(keeper, dict) and bool(keeper.get("password")))
    between = raw.get("interserver")
    secret = secret or (isinstance(between, dict) and bool(between.get("secret")))
    hooks = raw.get("hooks")
    told = hooks.values() if isinstance(hooks, dict) else ()
    secret = secret or any(isinstance(hook, dict) and bool(hook.get("secret")) for hook in told)
    if secret and file.stat().st_mode & 0o044:
        raise Refused(
            f"{file} holds a secret and others can read it",
            hint=f"chmod 600 {file}, or leave keys to the AWS credential chain (environment, a role, …)",
        )


# -- environment ---------------------------------------------------------------------------------------------------


class _Text(str):
    """A value of the environment: text that stands for any type."""

    __slots__ = ()


def _overlay(raw: dict[str, Any], environment: Mapping[str, str], source: _Source) -> tuple[str, ...]:
    top = list(Config.__struct_fields__)
    used: list[str] = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in RESERVED:
            continue
        first, *rest = name.removeprefix(PREFIX).lower().split("__")
        if first not in top:
            nearest = get_close_matches(first, top, 1)
            if rest or nearest:
                raise UsageError(f"environment variable {name}: no such key: {first}", hint=_nearest_hint(first, top))
            continue
        _set(raw, [first, *rest], _Text(environment[name]), name, source)
        used.append(name)
    return tuple(used)


def _set(raw: dict[str, Any], steps: list[str], value: _Text, variable: str, source: _Source) -> None:
    where: Any = raw
    path: Path_ = ()
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        key: str | int
        if isinstance(where, list):
            if not step.isdigit() or int(step) >= len(where):
                raise UsageError(
                    f"environment variable {variable}: {_dotted(path)} is a list of {len(where)}; no place {step!r}"
                )
            key = int(step)
        elif isinstance(where, dict):
            key = next((known for known in where if str(known).lower() == step), step)
        else:
            raise UsageError(f"environment variable {variable}: {_dotted(path)} holds no keys")
        path = (*path, key)
        if last:
            where[key] = value
            source.variables[path] = variable
        else:
            if isinstance(where, dict) and where.get(key) is None:
                where[key] = {}
                source.variables[path] = variable
            where = where[key]


# -- typing --------------------------------------------------------------------------------------------------------


def _convert(value: Any, expected: Any, path: Path_, source: _Source) -> Any:
    """The value as plain data of the expected type. Raises naming the key; text stands for sizes and durations."""
    origin = get_origin(expected)
    if isinstance(expected, type) and issubclass(expected, msgspec.Struct):
        return _convert_struct(value, expected, path, source)
    if tagged := _by_tag(expected):
        return _convert_tagged(value, tagged, path, source)
    if origin is dict:
        mapping = _mapping(value, path, source)
        return {
            str(key): _convert(item, get_args(expected)[1], (*path, str(key)), source) for key, item in mapping.items()
        }
    if origin is tuple:
        if isinstance(value, _Text):
            value = _flow(value, path, source)
        if not isinstance(value, list | tuple):
            raise source.error(path, f"expected a list, got {_kind(value)}")
        return [_convert(item, get_args(expected)[0], (*path, index), source) for index, item in enumerate(value)]
    return _convert_scalar(value, expected, path, source)


def _convert_struct(value: Any, expected: type[msgspec.Struct], path: Path_, source: _Source) -> dict[str, Any]:
    mapping = _mapping(value, path, source)
    fields = {item.name: item for item in msgspec.structs.fields(expected)}
    for key in mapping:
        if str(key) not in fields:
            raise source.error((*path, str(key)), "no such key", _nearest_hint(str(key), list(fields)))
    missing = [name for name, item in fields.items() if item.required and name not in mapping]
    if missing:
        raise source.error(path, f"the key {missing[0]!r} is missing")
    return {
        name: _convert(mapping[name], fields[name].type, (*path, name), source) for name in fields if name in mapping
    }


def _by_tag(expected: Any) -> dict[str, type[msgspec.Struct]]:
    """The structs of a tagged union by their tags; empty for every other type."""
    members = get_args(expected) if get_origin(expected) in (Union, types.UnionType) else ()
    structs = [member for member in members if isinstance(member, type) and issubclass(member, msgspec.Struct)]
    return {str(struct.__struct_config__.tag): struct for struct in structs}


def _convert_tagged(
    value: Any, structs: dict[str, type[msgspec.Struct]], path: Path_, source: _Source
) -> dict[str, Any]:
    """A mapping of the struct that its tag names. A key that only another of the structs has is told as that."""
    mapping = _mapping(value, path, source)
    field = str(next(iter(structs.values())).__struct_config__.tag_field)
    tag = mapping.get(field)
    chosen = [structs[str(tag)]] if tag in list(structs) else list(structs.values())
    known = [field, *dict.fromkeys(name for struct in chosen for name in struct.__struct_fields__)]
    for key in mapping:
        if key not in known:
            elsewhere = any(key in struct.__struct_fields__ for struct in structs.values())
            problem = f"a {_one(path)} of {field} {tag} has no {str(key)!r}" if elsewhere else "no such key"
            raise source.error((*path, str(key)), problem, _nearest_hint(str(key), known))
    if field not in mapping:
        raise source.error(path, f"the key {field!r} is missing")
    if len(chosen) > 1:
        raise source.error((*path, field), f"expected {' or '.join(structs)}, got {tag!r}")
    required = [item.name for item in msgspec.structs.fields(chosen[0]) if item.required]
    if missing := [name for name in required if name not in mapping]:
        raise source.error(path, f"a {_one(path)} of {field} {tag} needs the key {missing[0]!r}")
    own = {key: item for key, item in mapping.items() if key != field}
    return {field: str(tag), **_convert_struct(own, chosen[0], path, source)}


def _one(path: Path_) -> str:
    """What one entry of the mapping is called: `disks` holds a disk each."""
    return str(path[-2]).removesuffix("s")


_YAML_WORDS = {False: ("no", "off"), True: ("yes", "on")}


def _convert_scalar(value: Any, expected: Any, path: Path_, source: _Source) -> Any:
    name = str(path[-1]) if path else ""
    words = name.split("_")
    if isinstance(value, str) and ("bytes" in words or "seconds" in words) and not value.strip().isdigit():
        from tiering.config.units import parse_duration, parse_size

        try:
            return parse_size(value) if "bytes" in words else int(parse_duration(value).total_seconds())
        except FrostlineError as error:
            if not (isinstance(value, _Text) and value in ("", "null", "none")):
                raise source.error(path, error.message, error.hint) from error
    if isinstance(value, bool):  # YAML 1.1 takes an unquoted no for false
        value = next((word for word in _choices(expected) if word in _YAML_WORDS[value]), value)
    lax = isinstance(value, _Text)
    if lax and value == "" and _optional(expected):
        return None
    try:
        return msgspec.convert(str(value) if lax else value, expected, strict=not lax)
    except msgspec.ValidationError as error:
        choices = _choices(expected)
        problem = f"expected {' or '.join(choices)}, got {value!r}" if choices else _readable(str(error), value)
        raise source.error(path, problem) from error


def _mapping(value: Any, path: Path_, source: _Source) -> dict[Any, Any]:
    if isinstance(value, _Text):
        value = _flow(value, path, source)
    if not isinstance(value, dict):
        hint = "leave the section out, or indent its keys below it" if value is None else ""
        raise source.error(path, f"expected keys and values, got {_kind(value)}", hint)
    return value


def _flow(value: _Text, path: Path_, source: _Source) -> Any:
    import yaml

    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise source.error(path, "not YAML", "such as {key: value} or [one, two]") from error
    except RecursionError as error:
        raise source.error(path, _TOO_DEEP) from error


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


# -- paths and words -----------------------------------------------------------------------------------------------


def _absolute(plain: dict[str, Any], base: Path) -> dict[str, Any]:
    """Relative paths and `file:` URLs are meant from the file's directory."""

    def path(text: str) -> str:
        return str((base / Path(text).expanduser()).absolute())

    plain["state_path"] = path(plain["state_path"])
    keeper = plain.get("keeper", {})
    for key in ("ca_bundle", "certificate", "certificate_key"):
        if keeper.get(key):
            keeper[key] = path(keeper[key])
    if plain.get("inbox", {}).get("path"):
        plain["inbox"]["path"] = path(plain["inbox"]["path"])
    for disk in plain["disks"].values():
        for key in ("path", "ca_bundle"):
            if disk.get(key):
                disk[key] = path(disk[key])
        url = disk.get("url") or ""
        if url.startswith("file:") and not url.startswith("file:///"):
            disk["url"] = Path(path(unquote(url.removeprefix("file:")))).as_uri() + "/"
    return plain


def _dotted(path: Path_) -> str:
    return ".".join(str(step) for step in path)


def _nearest_hint(key: str, known: list[str]) -> str:
    nearest = get_close_matches(key, known, 1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known keys: {', '.join(known)}"


def _kind(value: Any) -> str:
    names = {type(None): "nothing", list: "a list", dict: "a mapping", str: "text", bool: "true/false", int: "a number"}
    return names.get(type(value), type(value).__name__)


# -- the schema ----------------------------------------------------------------------------------------------------


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors. Sizes and durations are numbers or text."""
    schema = msgspec.json.schema(Config)
    for definition in schema["$defs"].values():
        for name, key in definition.get("properties", {}).items():
            words = name.split("_")
            if "bytes" in words or "seconds" in words:
                definition["properties"][name] = _or_text(key, "10GiB" if "bytes" in words else "30d")
    config = schema["$defs"]["Config"]
    config["required"] = []
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "frostline.yaml", **schema}


def _or_text(key: dict[str, Any], example: str) -> dict[str, Any]:
    kept: dict[str, Any] = {name: key.pop(name) for name in ("default", "description") if name in key}
    text = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[A-Za-z]*\s*$", "examples": [example]}
    choices: list[dict[str, Any]] = key.get("anyOf", [key])
    return {**kept, "anyOf": [*choices, text]}


def environment_name(path: tuple[str, ...]) -> str:
    """The variable that sets a key."""
    return PREFIX + "__".join(path).upper()
