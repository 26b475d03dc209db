"""Every verb, and the module that has it. A verb is built when it is asked for: all of them take 50 ms to build."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tiering.cli.frame.verb import new_app

VERBS = {
    "tiering.cli.commands.tables": ("table",),
    "tiering.cli.commands.data": ("insert", "query", "parts", "disks", "policies"),
    "tiering.cli.commands.moves": ("move", "plan", "apply", "explain", "pause", "resume", "pin", "unpin", "moves"),
    "tiering.cli.commands.maintenance": ("tick", "snapshot"),
    "tiering.cli.commands.merging": ("merge",),
    "restore.verbs.integrity": ("fsck", "gc"),
    "restore.verbs.history": ("log", "diff", "blame", "undo"),
    "restore.verbs.partitions": ("partition",),
    "restore.verbs.recovery": ("restore",),
    "backup.verbs.group": ("backup",),
    "restore.verbs.clickhouse": ("clickhouse",),
    "tiering.cli.commands.status": ("status", "du"),
    "tiering.cli.commands.cost": ("cost",),
    "tiering.cli.commands.cache": ("warmup", "cache"),
    "zerocopy.verbs.replica": ("replica",),
    "zerocopy.verbs.keeper": ("keeper",),
    "spark_tiering.verbs.ingest": ("ingest",),
    "tui.verbs": ("top", "dashboard"),
    "tiering.cli.commands.disk": ("disk",),
    "tiering.cli.commands.doctor": ("doctor",),
    "tiering.cli.commands.objbench": ("objbench",),
    "tiering.cli.commands.config": ("config",),
    "tiering.cli.commands.daemon": ("daemon",),
    "tiering.cli.commands.hook": ("hook",),
    "tiering.cli.commands.inbox": ("inbox",),
    "tiering.cli.commands.metrics": ("metrics",),
    "tiering.cli.demo.demo": ("demo",),
}
"""Module, of whichever package -> the verbs and groups of verbs that its `register` adds, in the order of the help."""

CLICKHOUSE_SHARING = "zerocopy.verbs.clickhouse"
"""Module whose `register` adds `zero-copy` to the verbs of ClickHouse, which stand below it."""

PIN_RECORDS = "backup.verbs.counted_pins"
"""Module whose `counted_pins` says which pins of buckets are counted on, for `fsck`, which stands below it."""

LAST_BACKUPS = "backup.verify.last_seen"
"""Module that tells `status`, which stands below it, of the newest backup of each table."""


def build(module: str) -> dict[str, Any]:
    """The verbs of a module, by name."""
    app = new_app("")
    import_module(module).register(app)
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
