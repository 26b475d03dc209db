"""What packages above bring to those below, and the one place of the product that imports by name.

Imports point down. Who needs a package above says in a Protocol what it asks for, and takes it from a `Plug` of that
name; the table here says which modules have it. A module is loaded when it is first asked for.

A test compares every module of the table with its Protocol, and finds names of modules above that stand anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Generic, NamedTuple, TypeVar, cast

from oplog.errors import UsageError

Asked = TypeVar("Asked")


class Plugin(NamedTuple):
    """Who has what a Protocol asks for."""

    protocol: str
    modules: dict[str, tuple[str, ...]]
    """Each with the names of what it brings, in the order in which they are shown; none where it is asked for whole."""


PLUGINS = {
    "verbs": Plugin(
        "tiering.cli.frame.verb_table.Verbs",
        {
            "tiering.cli.commands.tables": ("table",),
            "tiering.cli.commands.insert": ("insert",),
            "tiering.cli.commands.data": ("query", "parts", "disks", "policies"),
            "tiering.cli.commands.files": ("files",),
            "tiering.cli.commands.moves": (
                *("move", "plan", "apply", "explain", "pause", "resume", "pin", "unpin", "moves"),
            ),
            "tiering.cli.commands.maintenance": ("tick", "snapshot"),
            "tiering.cli.commands.merging": ("merge",),
            "tiering.cli.commands.iceberg": ("iceberg",),
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
        },
    ),
    "verbs of clickhouse": Plugin("tiering.cli.frame.verb_table.Verbs", {"zerocopy.verbs.clickhouse": ("zero-copy",)}),
    "jobs": Plugin(
        "tiering.daemon.jobs.kinds.JobKinds",
        {
            "tiering.daemon.jobs.own": ("policy", "merges", "cold_merges", "snapshots"),
            "restore.verbs.scheduled": ("gc", "fsck"),
            "backup.verbs.scheduled": ("backup", "verification", "drill", "prune"),
            "spark_tiering.verbs.scheduled": ("ingest",),
        },
    ),
    "unfinished restores": Plugin(
        "tiering.engine.recovery.UnfinishedRestores", {"backup.recover.unfinished_restores": ()}
    ),
    "replication": Plugin("tiering.engine.replication.Replication", {"zerocopy.replication": ()}),
    "replicas examined": Plugin("tiering.doctor.doctor.ReplicaExamination", {"zerocopy.verbs.examination": ()}),
    "replicas compared": Plugin("restore.check.compared.ReplicaComparison", {"zerocopy.verbs.comparing": ()}),
    "replicas shown": Plugin("tiering.cli.demo.demo.ReplicaDemo", {"zerocopy.verbs.guided_demo": ()}),
    "pins of backups": Plugin("restore.check.compared.BackupPins", {"backup.verbs.counted_pins": ()}),
    "newest backups": Plugin("tiering.cli.reports.backups.NewestBackups", {"backup.verify.last_seen": ()}),
    "spark": Plugin("tiering.cli.frame.session.SparkRunners", {"spark_tiering.verbs.runner": ()}),
}
"""What is asked for -> the Protocol, and the modules that have it."""

JOB_PROGRAM = "tiering.cli.child"
"""Runs the verbs of a job: in a process of its own, which this one does not import."""

_EXTRAS = {"zerocopy": "replicas", "spark_tiering": "spark", "tui": "tui"}
"""Package -> what to install for it, beside Frostline."""


class Plug(Generic[Asked]):
    """What one name of the table brings, as the Protocol in brackets: `Plug[Replication]("replication")`."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def modules(self) -> Mapping[str, tuple[str, ...]]:
        """The modules, each with the names of what it brings."""
        return PLUGINS[self._name].modules

    def load(self, module: str) -> Asked:
        """One of the modules. Raises `UsageError` that says what to install where its package is missing."""
        try:
            return cast("Asked", import_module(module))
        except ModuleNotFoundError as error:
            package = module.partition(".")[0]
            if error.name != package:
                raise
            extra = _EXTRAS.get(package)
            raise UsageError(
                f"{package} is not installed", hint=f"pip install '{f'frostline[{extra}]' if extra else 'frostline'}'"
            ) from error

    def each(self) -> Iterator[Asked]:
        """All of the modules."""
        return map(self.load, self.modules)

    def __call__(self) -> Asked:
        """The only module. Raises as `load` does."""
        (module,) = self.modules
        return self.load(module)
