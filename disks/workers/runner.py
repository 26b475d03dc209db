"""Where pieces of work run: in threads, in processes (`disks.workers.process_runner`), or as the tasks of a Spark job
(`spark_tiering.spark_runner`).

What is run this way is a plain function of one picklable item. It reads and writes a bucket by itself and returns a
small result; the caller, on the driver, is the only one that commits anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from typing import Protocol, TypeVar

import msgspec

from disks.stores.base import ObjectStore
from oplog.errors import Transient

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Runs independent pieces of work."""

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        title: str,
        on_done: Callable[[int, R], None],
        stop: threading.Event | None = None,
    ) -> None:
        """Do `function(item)` for every item, in any order; hand each result with the item's index to `on_done`, one
        after the other. `title` names the work for people. A piece may run more than once; one result of it counts.

        Raises the first error of a piece after those in work have ended; no new ones begin then. Another thread may
        set `stop`: then it is `Transient` that is raised, soon.
        """


class Figures(msgspec.Struct):
    """What a runner's jobs were."""

    tasks: int = 0
    retried_tasks: int = 0
    """Attempts that failed, or were lost with their executor, and were made again."""
    seconds: float = 0.0
    """In which at least one job ran: those that run side by side count once."""


class ClusterRunner(Runner, Protocol):
    """A runner on machines elsewhere, such as Spark's."""

    master: str
    """Where it runs, for people."""
    figures: Figures

    @property
    def slots(self) -> int:
        """How many pieces run at once."""


def check_stop(stop: threading.Event | None, title: str) -> None:
    """Raises `Transient` when somebody wants the work to end."""
    if stop is not None and stop.is_set():
        raise Transient(f"{title}: stopped", hint="what is done stays done; run it again to go on")


class PoolRunner:
    """Runs the pieces in a pool: never more at once than it has workers, however many callers."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def run(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        title: str,
        on_done: Callable[[int, R], None],
        stop: threading.Event | None = None,
    ) -> None:
        """As `Runner.run`."""
        running = {self._pool.submit(function, argument): index for index, argument in enumerate(items)}
        try:
            for future in as_completed(running):
                check_stop(stop, title)
                on_done(running[future], future.result())
        finally:
            wait([future for future in running if not future.cancel()])


class LocalRunner(PoolRunner):
    """Runs the pieces in threads of this process."""

    def __init__(self, workers: int = 1) -> None:
        super().__init__(ThreadPoolExecutor(max(1, workers), thread_name_prefix="run"))


class OpensStore(Protocol):
    """A description of a bucket that can be pickled: `disks.stores.address.StoreAddress`."""

    def open(self) -> ObjectStore:
        """The store; the caller does not close it."""


class Remote(msgspec.Struct, frozen=True):
    """Work on one bucket that other processes do: who runs it, and how they reach the bucket."""

    runner: Runner
    store: OpensStore
