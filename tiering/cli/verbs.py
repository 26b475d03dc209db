"""Every verb, and the module that has it. A verb is built when it is asked for: all of them take 50 ms to build."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tiering.cli.verb import new_app

VERBS = {
    "tables": ("table",),
    "data": ("insert", "query", "parts", "disks", "policies"),
    "moves": ("move", "plan", "apply", "explain", "pause", "resume", "pin", "unpin", "moves"),
    "maintenance": ("tick", "snapshot"),
    "merging": ("merge",),
    "integrity": ("fsck", "gc"),
    "history": ("log", "diff", "blame", "undo"),
    "recovery": ("restore",),
    "clickhouse": ("clickhouse",),
    "status": ("status", "du"),
    "doctor": ("doctor",),
    "objbench": ("objbench",),
    "config": ("config",),
    "daemon": ("daemon",),
    "demo": ("demo",),
}
"""Module of `tiering.cli` -> the verbs and groups of verbs that its `register` adds, in the order of the help."""


def build(module: str) -> dict[str, Any]:
    """The verbs of a module, by name."""
    app = new_app("")
    import_module(f"tiering.cli.{module}").register(app)
    return dict(get_group(app).commands)


class VerbGroup(TyperGroup):
    """The verbs of `frostline`."""

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """The verb; None when there is no such. What suggests others then knows them all."""
        if cmd_name not in self.commands:
            module = next((module for module, names in VERBS.items() if cmd_name in names), None)
            if module is None:
                self.list_commands(ctx)
            else:
                self.commands.update(build(module))
        return self.commands.get(cmd_name)

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """The names of all of them, each built."""
        self.commands = {name: command for module in VERBS for name, command in build(module).items()}
        return list(self.commands)
