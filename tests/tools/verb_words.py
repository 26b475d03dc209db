"""Writes down every verb with what its words name, for the shell's completion, which has no time to build them."""

import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from tiering.cli.completion.words import ONE_OF
from tiering.cli.reports import query
from tiering.config.jobs import JOB_NAMES
from tiering.config.settings import DaemonConfig
from tiering.engine.maintenance import TickStep
from tiering.insert.inputs import source_files

_KINDS = {
    "table": "table",
    "partition": "partition",
    "part": "part",
    "disk": "disk",
    "to_disk": "disk",
    "to_volume": "volume",
    "policy": "policy",
    "drop_column": "column",
    "rename_column": "column:",
    "widen_column": "column:",
}
"""Parameter -> what it names."""
_EXCEPTIONS = {
    ("table create", "table"): "",
    ("table create", "rename_column"): "",
    ("clickhouse convert", "table"): "",
    ("unpin", "part"): "pinned part",
    ("unpin", "partition"): "pinned partition",
    ("insert", "default"): "column=",
    ("log", "target"): "disk or table",
    ("cost", "what_if"): "policy",
    **{(f"disk {verb}", "name"): "disk" for verb in ("adopt", "replace", "forget", "drain")},
    ("disk retire-log", "disk"): "disk",
}
_WORDS = {
    ("query", "output_format"): query.FORMATS,
    ("insert", "format"): source_files.FORMATS,
    ("insert", "dedup_by"): ("block", "file", "none"),
    ("ingest", "format"): tuple(one for one in source_files.FORMATS if one != "arrow"),
    ("tick", "only"): get_args(TickStep),
    ("backup create", "cold"): ("copy", "pin"),
    ("daemon run", "log_format"): get_args(get_type_hints(DaemonConfig)["log_format"]),
    **{(f"daemon {verb}", "job"): JOB_NAMES for verb in ("run", "trigger", "pause", "resume")},
}
"""The words that these take."""
_LONGEST_HELP = 80


def verb_words(command: Any) -> str:
    """The text of `tiering/cli/completion/verbs.json`: a line for each verb."""
    lines = [f"{json.dumps(path)}: {json.dumps(entry, ensure_ascii=False)}" for path, entry in _entries(command, "")]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entries(command: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    entry = {"help": command.get_short_help_str(_LONGEST_HELP), "options": _options(command, path)}
    if not isinstance(command, TyperGroup):
        arguments = [item for item in command.params if item.param_type_name == "argument"]
        yield path, {**entry, "arguments": [{**_named(item, path), "many": item.nargs == -1} for item in arguments]}
        return
    names = command.list_commands(typer.Context(command))
    yield path, {**entry, "verbs": names}
    for name in names:
        yield from _entries(command.commands[name], f"{path} {name}".strip())


def _options(command: Any, path: str) -> dict[str, dict[str, Any]]:
    shown = [item for item in command.params if item.param_type_name == "option" and not item.hidden]
    return {
        name: {
            **_named(item, path),
            "values": 0 if item.is_flag or item.count else item.nargs,
            "help": (item.help or "").partition(";")[0][:_LONGEST_HELP],
        }
        for item in shown
        for name in sorted((*item.opts, *item.secondary_opts), key=len, reverse=True)
    }


def _named(parameter: Any, path: str) -> dict[str, Any]:
    if words := _WORDS.get((path, parameter.name)):
        return {"name": parameter.name, "kind": ONE_OF + ",".join(words)}
    return {"name": parameter.name, "kind": _EXCEPTIONS.get((path, parameter.name), _KINDS.get(parameter.name, ""))}
