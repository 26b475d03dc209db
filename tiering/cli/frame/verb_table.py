"""Every verb, from the module that has it. A verb is built when it is asked for: all of them take 50 ms to build."""

from typing import Any, Protocol

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tiering.cli.frame.verb import new_app
from tiering.plugins import Plug


class Verbs(Protocol):
    """A module that has verbs."""

    def register(self, app: typer.Typer) -> None:
        """Add them to the command line, or to a group of it."""


verbs = Plug[Verbs]("verbs")
verbs_of_clickhouse = Plug[Verbs]("verbs of clickhouse")


def build(module: str) -> dict[str, Any]:
    """The verbs of a module, by name."""
    app = new_app("")
    verbs.load(module).register(app)
    return dict(get_group(app).commands)


class VerbGroup(TyperGroup):
    """The verbs of `frostline`."""

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """The verb; None when there is no such. What suggests others then knows them all."""
        if cmd_name not in self.commands:
            module = next((module for module, names in verbs.modules.items() if cmd_name in names), None)
            if module is None:
                self.list_commands(ctx)
            else:
                self.commands.update(build(module))
        return self.commands.get(cmd_name)

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """The names of all of them, each built."""
        self.commands = {name: command for module in verbs.modules for name, command in build(module).items()}
        return list(self.commands)
