"""Where pieces of work run: in threads, in processes (`disks.workers.process_runner`), or as the tasks of a Spark job
(`spark_tiering.running.spark_runner`).

What is run this way is a plain function of one picklable item. It reads and writes a bucket by itself and returns a
small result; the caller, on the driver, is the only one that commits anything.
"""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import msgspec

from disks.stores.base import ObjectStore
from disks.workers.progress import Progress
from oplog.errors import FrostlineError, Transient

T = TypeVar("T")
R = TypeVar("R")


class Run(NamedTuple):
    """One call of `Runner.run`: what hooks see, and may change."""

    title: str
    function: Callable[[Any], Any]
    items: Sequence[Any]
    on_done: Callable[[int, Any], None]


Hook = Callable[[Run], AbstractContextManager[Run]]
"""Entered around each run of a runner: it gives the run back, with a function, items or an `on_done` of its own."""


class Runner:
    """Runs independent pieces of work in a pool: never more at once than it has workers, however many callers."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._hooks: tuple[Hook, ...] = ()

    def hooked(self, *hooks: Hook) -> Self:
        """The same runner with these hooks around its runs, the last one outermost."""
        runner = copy.copy(self)
        runner._hooks = (*self._hooks, *hooks)
        return runner

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

        Raises the first error of a piece after the running ones have ended; no new ones begin then. Another thread may
        set `stop`: then it raises `Transient`, soon.
        """
        with ExitStack() as stack:
            run = Run(title, function, items, on_done)
            for hook in self._hooks:
                run = stack.enter_context(hook(run))
            self.work(run, stop)

    def work(self, run: Run, stop: threading.Event | None) -> None:
        """Do the run. A runner that has no pool of this machine overrides this."""
        running: dict[Future[Any], int] = {}
        try:
            running |= {self._pool.submit(run.function, item): index for index, item in enumerate(run.items)}
            for future in as_completed(running):
                check_stop(stop, run.title)
                run.on_done(running[future], future.result())
        except BrokenExecutor as error:
            raise FrostlineError(
                f"{run.title}: a process that worked on it died; for lack of memory, perhaps", hint="run it again"
            ) from error
        finally:
            wait([future for future in running if not future.cancel()])


def threads(workers: int = 1) -> Runner:
    """Runs the pieces in threads of this process."""
    return Runner(ThreadPoolExecutor(max(1, workers), thread_name_prefix="run"))


def shown(progress: Progress) -> Hook:
    """Gives each run a task of the progress."""

    @contextmanager
    def hook(run: Run) -> Iterator[Run]:
        with progress.task(run.title, items=len(run.items)) as task:

            def done(index: int, result: Any) -> None:
                run.on_done(index, result)
                task.advance(items=1)

            yield run._replace(on_done=done)

    return hook


def check_stop(stop: threading.Event | None, title: str) -> None:
    """Raises `Transient` when somebody wants the work to end."""
    if stop is not None and stop.is_set():
        raise Transient(f"{title}: stopped", hint="finished work is kept; run it again to continue")


class Figures(msgspec.Struct):
    """What a runner's jobs were."""

    tasks: int = 0
    retried_tasks: int = 0
    """Attempts that failed, or were lost with their executor, and were made again."""
    seconds: float = 0.0
    """In which at least one job ran: those that run side by side count once."""


class ClusterRunner(Runner):
    """A runner on machines elsewhere, such as Spark's."""

    master: str
    """Where it runs, for people."""

    def __init__(self) -> None:
        self._hooks = ()
        self.figures = Figures()

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many pieces run at once."""

    @abstractmethod
    def work(self, run: Run, stop: threading.Event | None) -> None: ...


class OpensStore(Protocol):
    """A description of a bucket that can be pickled: `disks.stores.address.StoreAddress`."""

    def open(self) -> ObjectStore:
        """The store; the caller does not close it."""


class Remote(msgspec.Struct, frozen=True):
    """Work on one bucket that other processes do: who runs it, and how they reach the bucket."""

    runner: Runner
    store: OpensStore
