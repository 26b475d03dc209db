"""Reads the configuration: file, environment and defaults become one frozen `tiering.config.settings.Config`.

Where it comes from, the first that exists: the given file, `$FROSTLINE_CONFIG`, `./frostline.yaml`,
`~/.config/frostline/frostline.yaml`, else the embedded default below `$FROSTLINE_HOME`. A file replaces the default
one top-level key at a time. On top of it every key has an environment form: `FROSTLINE_DISKS__S3__URL=…`, with `__`
between the steps and a number for a place in a list (`FROSTLINE_POLICIES__HOT_COLD__VOLUMES__0__NAME`).

Everything wrong is a `UsageError` that names the file with its line (or the variable), the key and the nearest known
one.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from disks.config import SECRET_KEYS
from oplog.errors import Refused, UsageError
from tiering.config.checks import FILE_KEYS, check_files, check_references
from tiering.config.conversion import (
    TOO_DEEP,
    EnvironmentText,
    KeyPath,
    ValueSource,
    Yaml,
    converted,
    dotted,
    kind_of,
    nearest_hint,
)
from tiering.config.disk_locations import check_locations
from tiering.config.finding import HERE, PREFIX, default_home, find_file
from tiering.config.given_file import CONFIGURATION_BYTES, text_of
from tiering.config.secrets import MASK, SECRET_PROPERTY, without_passwords
from tiering.config.settings import Config, embedded

RESERVED = ("FROSTLINE_CONFIG", "FROSTLINE_HOME", "FROSTLINE_BACKUP")
_MOST_VALUES = 100_000
_LONGEST_PATH, _LONGEST_NAME = 3_800, 255
"""In bytes: what Linux takes, less the names that Frostline puts below."""

_ROOT = 0
logger = logging.getLogger(__name__)


class LoadedConfig(msgspec.Struct, frozen=True):
    """The configuration and where it came from."""

    config: Config
    file: Path | None
    """None: the embedded default."""
    variables: tuple[str, ...] = ()
    """Environment variables that changed something."""


def load(given: str | Path | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Find, read, overlay and check. Raises `UsageError`; `Refused` for a file whose secret others can read."""
    return load_from(given, environment).config


def load_from(given: str | Path | None = None, environment: Mapping[str, str] | None = None) -> LoadedConfig:
    """As `load`, with where everything came from."""
    environment = os.environ if environment is None else environment
    home = default_home(environment)
    raw: Yaml = msgspec.json.decode(msgspec.json.encode(embedded(home)))
    file = find_file(given, environment)
    source = ValueSource(str(file) if file else "the embedded default")
    base = home
    if file is not None:
        base = file.absolute().parent
        text = _read(file)
        raw.update(_parse(text, source))
        _refuse_open_secret(file, raw)
        if file is HERE:
            _refuse_foreign(file, raw)
    used = _overlay(raw, environment, source)
    plain = converted(raw, Config, (), source)
    config = msgspec.convert(_absolute(plain, base), Config)
    check_references(config, source.error)
    check_locations(config, environment, source.error)
    return LoadedConfig(config, file, used)


def check_named_files(loaded: LoadedConfig) -> None:
    """That what the configuration names as files of certificates can be read. Raises `UsageError`."""
    source = ValueSource(str(loaded.file) if loaded.file else "the embedded default")
    if loaded.file is not None:
        _parse(_read(loaded.file), source)
    check_files(loaded.config, source.error)


def checked(config: Config) -> Config:
    """A configuration that a program made, if no two of its disks are one. Raises `UsageError`."""
    check_locations(config, os.environ, ValueSource("the configuration").error)
    return config


def masked(config: Config) -> Yaml:
    """The configuration as plain values with every secret covered; what `config show` prints."""
    plain: Yaml = msgspec.to_builtins(config)
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
        return text_of(file, CONFIGURATION_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the configuration {file}: {error}") from error


def _parse(text: str, source: ValueSource) -> Yaml:
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        value = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{source.file}{line}: not YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise UsageError(f"{source.file}: {TOO_DEEP}") from error
    if value is None or value == {}:  # a file that was cut to nothing must not mean another, empty store
        raise UsageError(
            f"{source.file}: the configuration holds no keys",
            hint="'frostline config default' prints one to begin with; without any file the embedded default is used",
        )
    if not isinstance(value, dict):
        raise UsageError(f"{source.file}: the configuration is a mapping of keys, not {kind_of(value)}")
    _check_size(node, source)
    _remember_lines(node, (), source)
    return value


def _check_size(node: Any, source: ValueSource) -> None:
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


def _remember_lines(node: Any, path: KeyPath, source: ValueSource) -> None:
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


def _refuse_foreign(file: Path, raw: Yaml) -> None:
    """Of a file that merely was in the current directory: nobody else may say what runs here, or where secrets go."""
    others = {status.st_uid for status in (file.stat(), file.lstat())} - {os.geteuid(), _ROOT}
    if others:
        why, remedy = f"it belongs to another user (uid {min(others)})", f"chown {os.geteuid()} {file}"
    elif file.stat().st_mode & 0o022:
        why, remedy = "its group or others may write to it", f"chmod go-w {file}"
    else:
        return
    trusted = [key for key in ("hooks", "spark") if raw.get(key)] + (["a secret"] if _has_secret(raw) else [])
    name = f"the configuration {file.absolute()}"
    if trusted:
        raise Refused(
            f"{name} was found in the current directory and has {', '.join(trusted)}, but {why}",
            hint=f"{remedy}, or name it if you trust it: --config {file}",
        )
    logger.warning("%s was found in the current directory, and %s; --config names one that you trust", name, why)


def _refuse_open_secret(file: Path, raw: Yaml) -> None:
    if _has_secret(raw) and file.stat().st_mode & 0o044:
        raise Refused(
            f"{file} holds a secret and others can read it",
            hint=f"chmod 600 {file}, or leave keys to the AWS credential chain (environment, a role, …)",
        )


def _has_secret(raw: Yaml) -> bool:
    disks = raw.get("disks")
    holders = disks.values() if isinstance(disks, dict) else ()
    secret = any(isinstance(disk, dict) and any(disk.get(key) for key in SECRET_KEYS) for disk in holders)
    keeper = raw.get("keeper")
    secret = secret or (isinstance(keeper, dict) and bool(keeper.get("password")))
    between = raw.get("interserver")
    secret = secret or (isinstance(between, dict) and bool(between.get("secret")))
    hooks = raw.get("hooks")
    told = hooks.values() if isinstance(hooks, dict) else ()
    return secret or any(isinstance(hook, dict) and bool(hook.get("secret")) for hook in told)


# -- environment ---------------------------------------------------------------------------------------------------


def _overlay(raw: Yaml, environment: Mapping[str, str], source: ValueSource) -> tuple[str, ...]:
    top = list(Config.__struct_fields__)
    used: list[str] = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in RESERVED:
            continue
        first, *rest = name.removeprefix(PREFIX).lower().split("__")
        if first not in top:
            nearest = get_close_matches(first, top, 1)
            if rest or nearest:
                raise UsageError(f"environment variable {name}: no such key: {first}", hint=nearest_hint(first, top))
            continue
        _set(raw, [first, *rest], EnvironmentText(environment[name]), name, source)
        used.append(name)
    return tuple(used)


def _set(raw: Yaml, steps: list[str], value: EnvironmentText, variable: str, source: ValueSource) -> None:
    where: Any = raw
    path: KeyPath = ()
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        key: str | int
        if isinstance(where, list):
            if not step.isdigit() or int(step) >= len(where):
                raise UsageError(
                    f"environment variable {variable}: {dotted(path)} is a list of {len(where)}; no place {step!r}"
                )
            key = int(step)
        elif isinstance(where, dict):
            key = next((known for known in where if str(known).lower() == step), step)
        else:
            raise UsageError(f"environment variable {variable}: {dotted(path)} holds no keys")
        path = (*path, key)
        if last:
            where[key] = value
            source.variables[path] = variable
        else:
            if isinstance(where, dict) and where.get(key) is None:
                where[key] = {}
                source.variables[path] = variable
            where = where[key]


# -- paths and words -----------------------------------------------------------------------------------------------


def _absolute(plain: Yaml, base: Path) -> Yaml:
    """Relative paths and `file:` URLs are meant from the file's directory. Raises `UsageError` for one that no file
    system takes."""

    def path(text: str) -> str:
        absolute = (base / Path(text).expanduser()).absolute()
        if (
            "\0" in text
            or len(bytes(absolute)) > _LONGEST_PATH
            or any(len(os.fsencode(name)) > _LONGEST_NAME for name in absolute.parts)
        ):
            raise UsageError(
                f"the path {text[:80]!r} is too long, or has a zero byte",
                hint=f"{_LONGEST_PATH} bytes, and {_LONGEST_NAME} for each directory, are the most",
            )
        return str(absolute)

    plain["state_path"] = path(plain["state_path"])
    for section in (plain.get("keeper", {}), plain.get("interserver", {})):
        for key in FILE_KEYS:
            if section.get(key):
                section[key] = path(section[key])
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


# -- the schema ----------------------------------------------------------------------------------------------------


def json_schema() -> Yaml:
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


def _or_text(key: Yaml, example: str) -> Yaml:
    kept: Yaml = {name: key.pop(name) for name in ("default", "description") if name in key}
    text = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*[A-Za-z]*\s*$", "examples": [example]}
    choices: list[Yaml] = key.get("anyOf", [key])
    return {**kept, "anyOf": [*choices, text]}


_STATE_PATH = re.compile(r"""^state_path:[ \t]+(?:"([^"]+)"|'([^']+)'|([^\s'"#&*!|>{\[][^#\n]*))""", re.MULTILINE)


def state_directory_of(given: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    """Where the state of a configuration lies that cannot be read, as far as the file tells; None where it is gone or
    does not. A daemon works on by what the file said before, and its clients find it by the file as it is now."""
    try:
        file = find_file(given, environment)
        base = default_home(environment) if file is None else file.absolute().parent
        path = environment.get(f"{PREFIX}STATE_PATH") or (
            None if file is None else _state_path_in(text_of(file, CONFIGURATION_BYTES))
        )
    except (UsageError, OSError, UnicodeDecodeError):
        return None
    return (base / Path(path).expanduser()).absolute() if path else embedded(default_home(environment)).state_directory


def _state_path_in(text: str) -> str | None:
    """The file's `state_path`, by itself where the file is no YAML. None where it has none."""
    import yaml

    value: Any = None
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        if (line := _STATE_PATH.search(text)) is not None:
            return next(part for part in line.groups() if part is not None).strip()
    path = value.get("state_path") if isinstance(value, dict) else None
    return path if isinstance(path, str) else None
