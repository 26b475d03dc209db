"""`--spark` of the verbs that check, collect and restore buckets: their pieces of work run as tasks of Spark."""

import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import UsageError
from tiering.cli.session import Session

if TYPE_CHECKING:
    from disks.config import DiskConfig
    from disks.runner import Remote
    from spark_tiering.runner import SparkRunner

Spark = Annotated[bool, typer.Option("--spark", help="let the executors of Spark list, read and copy")]
Master = Annotated[
    str | None, typer.Option("--master", metavar="M", help="with --spark: where; else as the configuration says")
]


def wanted(spark: bool, master: str | None) -> bool:
    """Whether Spark is asked for. Raises `UsageError` for a master without it."""
    if master is not None and not spark:
        raise UsageError("--master says where Spark runs", hint="add --spark")
    return spark


class SparkWork:
    """Spark, started for one verb."""

    def __init__(self, session: Session, verb: str, master: str | None, *, stop: threading.Event | None = None) -> None:
        """Setting `stop` cancels what runs."""
        self._session = session
        self.runner: SparkRunner = session.spark_runner(f"frostline {verb}", master, stop)

    def remote(self, config: "DiskConfig", *, shown: bool = False) -> "Remote":
        """Work on the bucket of a disk. The limits of this run are divided among the tasks. `shown`: what the verb
        does not show by itself has a bar."""
        from disks.runner import Remote
        from disks.stores.shared import SharedStore
        from tiering.runner import ShownRunner

        limits, options, slots = self._session.loaded.config.limits, self._session.options, self.runner.slots
        size = _size(options.bwlimit) or limits.bytes_per_second
        requests = options.tpslimit or limits.requests_per_second
        store = SharedStore.of(
            config,
            bytes_per_second=size / slots if size else None,
            requests_per_second=requests / slots if requests else None,
        )
        return Remote(ShownRunner(self.runner, self._session.progress()) if shown else self.runner, store)

    def tell(self) -> None:
        """Put what Spark did beside the document, and into a remark for people."""
        figures = self.runner.figures
        document: dict[str, Any] = {
            "master": self.runner.master,
            "tasks": figures.tasks,
            "retried_tasks": figures.retried_tasks,
            "seconds": round(figures.seconds, 3),
        }
        self._session.output.beside["spark"] = document
        if not self._session.options.json:
            again = f", {figures.retried_tasks} made again" if figures.retried_tasks else ""
            self._session.output.note(f"Spark on {self.runner.master}: {figures.tasks} tasks{again}")


def _size(text: str | None) -> int | None:
    from tiering.units import parse_size

    return parse_size(text) if text else None
