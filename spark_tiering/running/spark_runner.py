"""Runs pieces of work as the tasks of a Spark job: `disks.workers.runner.Runner`, one task a piece.

Items travel as rows, each to its own task alone; results come back pickled, through an accumulator as each task ends
and once more with the job's answer, which is what counts for any that the accumulator did not bring. Spark repeats
what crashes and what raises `Transient`; every other error is an answer, since trying again would not change it.
"""

from __future__ import annotations

import logging
import pickle
import re
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from disks.workers.runner import ClusterRunner, Figures, Run, check_stop
from oplog.errors import FrostlineError, Transient

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")

POLL_SECONDS = 0.05
"""How often the driver looks for results and for a wish to stop."""
WITHOUT_EXECUTOR_SECONDS = 20.0
"""How long a cluster may take to give an executor, or a new one, before users see what they wait for."""
_ANSWER = "answer binary"
_CAUSE = re.compile(r"^(?:: |Caused by: )[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
"""A failure of Java, and what it was caused by."""


class SparkRunner(ClusterRunner):
    """Runs the pieces as tasks of jobs of one session. Several jobs may run at once, from several threads."""

    def __init__(self, session: SparkSession, *, log: str = "") -> None:
        """`log` names the file that Spark writes to, for messages."""
        super().__init__()
        self.session = session
        self._log = log
        # Asked now: a Java process that has died answers nothing, and the end of a verb tells these.
        self.master = str(session.conf.get("spark.master", "") or "connect")
        """Where the tasks run."""
        self.last_attempt = _last_attempt(getattr(session, "_sc", None), session)
        """The number of a task's last attempt: what it raises ends the job."""
        self._told = threading.Event()
        self._telling = threading.Lock()
        self._elapsed = Elapsed()

    @property
    def slots(self) -> int:
        """About how many tasks run at once: limits are divided among them. At least 1. Raises `FrostlineError` when
        Spark has died."""
        from py4j.protocol import Py4JError

        context = getattr(self.session, "_sc", None)
        try:
            return max(1, int(context.defaultParallelism)) if context is not None else 1
        except (Py4JError, ConnectionError) as error:
            raise _failed("Spark", error, self._log) from error

    def work(self, run: Run, stop: threading.Event | None) -> None:
        """The first error, and `stop`, cancel the tasks that run. It waits for a cluster that gives no executor, with a
        warning."""
        if not run.items:
            return
        title = run.title
        job = _SparkJob(self.session, run.function, run.items, title, self.last_attempt)
        answers = _Answers(run.on_done, self.figures)
        look_at = time.monotonic() + WITHOUT_EXECUTOR_SECONDS
        with self._at_work():
            try:
                job.start()
                while not job.ended.wait(POLL_SECONDS):
                    answers.take(job.early())
                    check_stop(stop, title)
                    if time.monotonic() > look_at:
                        look_at += WITHOUT_EXECUTOR_SECONDS
                        self._warn_without_executor(title)
                answers.take(job.early())
                answers.take(job.result(self._log))
                if answers.count != len(run.items):
                    raise FrostlineError(f"{title}: Spark answered {answers.count} of {len(run.items)} pieces of work")
            except BaseException:
                job.cancel()
                raise

    def collect(
        self, action: Callable[[], R], *, title: str, show: Callable[[], None], stop: threading.Event | None = None
    ) -> R:
        """What the action on data frames answers; `show` is called again and again meanwhile. `stop` and Ctrl-C cancel
        its tasks. Raises `FrostlineError` with Spark's reason when it fails."""
        context, group = self.session.sparkContext, f"frostline-{uuid.uuid4().hex[:12]}"
        ended: Future[R] = Future()

        def run() -> None:
            try:
                context.setJobGroup(group, title, interruptOnCancel=True)
                ended.set_result(action())
            except BaseException as error:  # noqa: BLE001  the caller's thread raises it
                ended.set_exception(error)

        look_at = time.monotonic() + WITHOUT_EXECUTOR_SECONDS
        threading.Thread(target=run, name=group, daemon=True).start()
        with self._at_work():
            try:
                while not wait([ended], POLL_SECONDS).done:
                    show()
                    check_stop(stop, title)
                    if time.monotonic() > look_at:
                        look_at += WITHOUT_EXECUTOR_SECONDS
                        self._warn_without_executor(title)
                show()
                status = context.statusTracker()
                for job in status.getJobIdsForGroup(group):
                    for stage in info.stageIds if (info := status.getJobInfo(job)) is not None else ():
                        self.figures.tasks += facts.numTasks if (facts := status.getStageInfo(stage)) is not None else 0
                return ended.result()
            except FrostlineError:
                raise
            except Exception as error:
                raise _failed(title, error, self._log) from error
            finally:
                if not ended.done():
                    with suppress(Exception):  # Spark is ending, and its tasks with it
                        context.cancelJobGroup(group)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """What is done meanwhile counts in the seconds of the figures."""
        try:
            with self._elapsed.running():
                yield
        finally:
            self.figures.seconds = self._elapsed.seconds

    def _warn_without_executor(self, title: str) -> None:
        """Once, if there is none: Spark itself would wait for ever, and say so in its log only."""
        context = getattr(self.session, "_sc", None)
        if context is None or str(context.master).startswith("local"):
            return
        with self._telling:
            try:
                executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is one
            except Exception:  # noqa: BLE001  Spark is ending, and the job's end will say why
                return
            if executors or self._told.is_set():
                return
            self._told.set()
        logger.warning(
            "%s: waiting for an executor: %s has given none for %.0f s. Has it a worker that is free, with as much "
            "memory and as many cores as spark.executor.memory and spark.executor.cores ask? Ctrl-C ends the wait",
            title,
            context.master,
            WITHOUT_EXECUTOR_SECONDS,
        )


class _Answers:
    """Hands each item's first answer on, once."""

    def __init__(self, on_done: Callable[[int, Any], None], figures: Figures) -> None:
        self._on_done = on_done
        self._figures = figures
        self._seen: set[int] = set()

    @property
    def count(self) -> int:
        """How many items are answered."""
        return len(self._seen)

    def take(self, answers: Iterable[bytes]) -> None:
        """Raises the error that an answer holds."""
        for answer in answers:
            index, value, error, attempt = pickle.loads(answer)
            if index in self._seen:
                continue
            self._seen.add(index)
            self._figures.tasks += 1
            self._figures.retried_tasks += attempt
            if error is not None:
                raise error
            self._on_done(index, value)


class _SparkJob:
    """One Spark job, in a thread of its own so that the caller's can be interrupted."""

    def __init__(
        self,
        session: SparkSession,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        title: str,
        last_attempt: int,
    ) -> None:
        from pyspark import cloudpickle

        self._session = session
        self._context: SparkContext | None = getattr(session, "_sc", None)
        self._group = f"frostline-{uuid.uuid4().hex[:12]}"
        self._title = title
        self._items = [bytes(cloudpickle.dumps(argument)) for argument in items]
        early = None
        if self._context is not None:
            early = self._context.accumulator([], _Collected())
        self._early = early
        self._taken = 0
        self._piece = _Piece(cloudpickle.dumps(function), early, last_attempt)
        self._answers: list[bytes] = []
        self._error: Exception | None = None
        self.ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name=self._group, daemon=True).start()

    def early(self) -> list[bytes]:
        """The answers that came since the last call."""
        if self._early is None:
            return []
        answers: list[bytes] = self._early.value[self._taken :]
        self._taken += len(answers)
        return answers

    def result(self, log: str) -> list[bytes]:
        """All answers. Raises `FrostlineError` when the job failed as a whole."""
        self._forget()
        if self._error is not None:
            raise _failed(self._title, self._error, log) from self._error
        return self._answers

    def cancel(self) -> None:
        """Ends the tasks that run; the caller does not wait for them."""
        self._forget()
        if self.ended.is_set():
            return
        with suppress(Exception):  # Spark is ending, and its tasks with it
            if self._context is not None:
                self._context.cancelJobGroup(self._group)
            else:
                self._session.interruptTag(self._group)

    def _forget(self) -> None:
        from pyspark.accumulators import _accumulatorRegistry

        if self._early is not None:
            _accumulatorRegistry.pop(self._early.aid, None)

    def _run(self) -> None:
        try:
            # What the Spark UI shows, and what is cancelled; both belong to this thread.
            if self._context is not None:
                self._context.setJobGroup(self._group, self._title, interruptOnCancel=True)
                self._answers = self._of_context(self._context)
            else:
                self._session.addTag(self._group)
                self._answers = self._of_connect()
        except Exception as error:  # noqa: BLE001  whatever it is, the caller's thread raises it
            self._error = error
        finally:
            self.ended.set()

    def _of_context(self, context: SparkContext) -> list[bytes]:
        """Without SQL, whose machinery takes two seconds to warm up in a fresh JVM."""
        return list(context.parallelize(enumerate(self._items), len(self._items)).mapPartitions(self._piece).collect())

    def _of_connect(self) -> list[bytes]:
        """Connect knows only data frames."""
        # A session of its own has settings of its own, and so one row is one task, also when several jobs run.
        session = self._session.newSession()
        # One row a batch and one batch a partition, whichever way Spark takes the rows in.
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
        session.conf.set("spark.sql.leafNodeDefaultParallelism", str(len(self._items)))
        numbers, items = pa.array(range(len(self._items)), pa.int64()), pa.array(self._items, pa.binary())
        rows = session.createDataFrame(pa.table({"number": numbers, "item": items}))
        return [bytes(row[0]) for row in rows.mapInArrow(self._piece.of_batches, _ANSWER).collect()]


@dataclass(frozen=True)
class _Piece:
    """What a task does: its one row in, one answer out."""

    function: bytes
    early: Any
    last_attempt: int

    def __call__(self, rows: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        # All rows are taken before the answer: a worker with rows left over would not be used again.
        for number, item in list(rows):
            answer = self._answer(number, item)
            if self.early is not None:
                self.early.add([answer])
            yield answer

    def of_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same, as data frames have it."""
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        yield pa.record_batch({"answer": pa.array(list(self(rows)), pa.binary())})

    def _answer(self, number: int, argument: bytes) -> bytes:
        from pyspark import TaskContext, cloudpickle

        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        last = context is None or attempt >= self.last_attempt
        try:
            value, error = pickle.loads(self.function)(pickle.loads(argument)), None
        except FrostlineError as failed:
            if isinstance(failed, Transient) and not last:
                raise
            value, error = None, failed
        except Exception as failed:
            if not last:
                raise
            said = f"a task failed: {type(failed).__name__}: {failed}"
            value, error = None, FrostlineError(said, hint=traceback.format_exc(limit=-3))
        return bytes(cloudpickle.dumps((number, value, error, attempt)))


class _Collected:
    """An accumulator's rule: answers are put one after the other."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, collected: list[bytes], more: list[bytes]) -> list[bytes]:  # noqa: N802  Spark's name
        collected.extend(more)
        return collected


def _last_attempt(context: SparkContext | None, session: SparkSession) -> int:
    """The number of a task's last attempt, counted from 0: its error ends the job."""
    local = re.fullmatch(r"local\[[^,\]]*(?:,\s*(\d+))?\]|local", str(context.master) if context else "")
    failures = (local[1] or "1") if local else session.conf.get("spark.task.maxFailures", "4")
    return int(failures or 4) - 1


def _failed(title: str, error: Exception, log: str) -> FrostlineError:
    hint = f"all that Spark said: {log}" if log else "see the log of the Spark driver"
    return FrostlineError(f"{title}: {_reason(error)}", hint=hint)


def _reason(error: Exception) -> str:
    """Why a job failed, in a line: the last failure of the task that failed too often."""
    from spark_tiering.running.session import (
        java_has_ended,  # here: executors, which import this module, need none of that
    )

    if java_has_ended(error):
        return "the Java process of Spark's driver ended; for lack of memory, perhaps (spark.driver.memory)"
    text = str(error)
    if "cancelled" in text and "job group" in text:
        return "the job was cancelled"
    found = re.search(r"most recent failure: (?:Lost task \S+ in stage \S+ \([^)]*\)[^:]*: )?(.*)", text)
    if found is None:
        causes = [_plain(cause) for cause in _CAUSE.findall(text)]
        if causes:  # of Java's, from the outermost to the first
            return ": ".join(dict.fromkeys((causes[0], causes[-1])))
        return next((line for line in text.splitlines() if line.strip()), type(error).__name__).strip()[:300]
    if "exited unexpectedly" in found[1]:
        return "the process of a task died again and again; for lack of memory, perhaps"
    return f"a task failed again and again: {found[1].strip()[:300]}"


def _plain(cause: str) -> str:
    """What Spark says, without its codes."""
    return re.sub(r"\A\[[A-Z0-9_.]+\] | *SQLSTATE: \w+\Z", "", cause.strip())[:300].rstrip(" .")


class Elapsed:
    """The time in which at least one of several pieces of work was under way: what goes on side by side counts once.
    Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._under_way, self._since, self._before = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Up to now."""
        with self._lock:
            return self._before + (self._clock() - self._since if self._under_way else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A piece of work, however it ends."""
        with self._lock:
            if not self._under_way:
                self._since = self._clock()
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                if not self._under_way:
                    self._before += self._clock() - self._since
