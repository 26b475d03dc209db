"""Work on buckets that a verb gives to others, such as the executors of Spark (`--spark`)."""

from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import UsageError
from tiering.cli.frame.session import Session
from tiering.config.units import parse_size

if TYPE_CHECKING:
    from disks.config import ObjectDiskConfig
    from disks.workers.runner import ClusterRunner, Remote, Runner

Spark = Annotated[bool, typer.Option("--spark", help="list, read and copy on Spark executors")]
Master = Annotated[
    str | None, typer.Option("--master", metavar="M", help="with --spark: master URL; default: from the configuration")
]


def wanted(spark: bool, master: str | None) -> bool:
    """Whether Spark is asked for. Raises `UsageError` for a master without it."""
    if master is not None and not spark:
        raise UsageError("--master needs --spark", hint="add --spark")
    return spark


class SparkWork:
    """Spark, started for one verb."""

    def __init__(self, session: Session, verb: str, master: str | None) -> None:
        self._session = session
        self.runner: ClusterRunner = session.spark_runner(f"frostline {verb}", master)

    def remote(self, config: "ObjectDiskConfig", *, shown: bool = False) -> "Remote":
        """Work on the bucket of a disk. `shown`: what the verb does not show by itself has a bar."""
        return remote(self._session, self.runner, config, slots=self.runner.slots, shown=shown)

    def report(self) -> None:
        """Put what Spark did beside the document, and into a remark for people."""
        figures = self.runner.figures
        self._session.output.beside["spark"] = {
            "master": self.runner.master,
            "tasks": figures.tasks,
            "retried_tasks": figures.retried_tasks,
            "seconds": round(figures.seconds, 3),
        }
        if not self._session.options.json:
            again = f", {figures.retried_tasks} made again" if figures.retried_tasks else ""
            self._session.output.note(f"Spark on {self.runner.master}: {figures.tasks} tasks{again}")


def remote(
    session: Session, runner: "Runner", config: "ObjectDiskConfig", *, slots: int, shown: bool = False
) -> "Remote":
    """Work on the bucket of a disk by a runner of so many slots, which share the limits of this run."""
    from disks.stores.address import StoreAddress
    from disks.workers import runner as runners

    limits, options = session.loaded.config.limits, session.options
    size = _size(options.bwlimit) or limits.bytes_per_second
    requests = options.tpslimit or limits.requests_per_second
    store = StoreAddress.of(
        config,
        bytes_per_second=size / slots if size else None,
        requests_per_second=requests / slots if requests else None,
    )
    return runners.Remote(runner.hooked(runners.shown(session.progress())) if shown else runner, store)


def _size(text: str | None) -> int | None:
    return parse_size(text) if text else None
