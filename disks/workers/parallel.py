"""Side by side: many small requests, the one loop for work that is all waiting, here or spread over other processes;
and pieces of a stream, worked on ahead of who reads it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Generic, TypeVar

import msgspec

from disks.stores.base import ObjectStore
from disks.workers.progress import SILENT, Progress, Task
from disks.workers.runner import OpensStore, Remote

T = TypeVar("T")
R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")

WORKERS = 32
"""Requests at a time of this process."""
_THREADS_ELSEWHERE = 16
_QUESTIONS_EACH = 2_000
"""A few seconds of requests."""


def in_parallel(work: Callable[[int], None], count: int, workers: int) -> None:
    """Do `work(0)` to `work(count - 1)` in threads. Raises the first error, after which nothing new begins."""
    numbers = iter(range(count))
    failed = threading.Event()

    def run() -> None:
        while not failed.is_set():
            number = next(numbers, None)
            if number is None:
                return
            try:
                work(number)
            except BaseException:
                failed.set()
                raise

    with ThreadPoolExecutor(max(1, min(workers, count)), thread_name_prefix="clickhouse") as pool:
        running = [pool.submit(run) for _ in range(min(workers, count))]
        try:
            for future in as_completed(running):
                future.result()
        finally:
            failed.set()


def worked_ahead(work: Callable[[T], R], items: Iterable[T], threads: int = 2) -> Iterator[R]:
    """`work(item)` of each item, in their order: at most one more than there are threads is in work or waits for the
    reader, and the items are asked for in the reader's own thread. An error, of the work or of the items, comes where
    its result would have come: what was before it has been handed out."""
    waiting: deque[Future[R]] = deque()
    rest, problem = iter(items), None
    with ThreadPoolExecutor(threads, thread_name_prefix="ahead") as pool:
        while True:
            try:
                item = next(rest)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001  it is raised where its item would have come
                problem = error
                break
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    if problem is not None:
        raise problem


class Questions(msgspec.Struct, Generic[Q, A], frozen=True):
    """Questions about one bucket: a piece of work for another process."""

    store: OpensStore
    answer: Callable[[ObjectStore, Q], A]
    items: Sequence[Q]


class Askers(msgspec.Struct, frozen=True):
    """Who asks a store many small questions, and who watches: one value handed through to the function that asks."""

    workers: int = WORKERS
    """Threads of this process."""
    progress: Progress = SILENT
    remote: Remote | None = None
    """Others who ask instead."""


HERE = Askers()
"""This process, unwatched."""


def ask(
    store: ObjectStore,
    answer: Callable[[ObjectStore, Q], A],
    items: Sequence[Q],
    askers: Askers,
    *,
    title: str,
    task: Task,
    each: int = _QUESTIONS_EACH,
) -> list[A]:
    """`answer(store, item)` of every item, in their order: asked by threads of this process, or by others, who get
    `each` items at a time. Raises the first error."""
    remote = askers.remote
    if remote is None:
        return _answers(store, answer, items, askers.workers, task)
    answers: list[A] = [None] * len(items)  # type: ignore[list-item]
    batches = [Questions(remote.store, answer, items[start : start + each]) for start in range(0, len(items), each)]

    def keep(index: int, batch_answers: list[A]) -> None:
        answers[index * each : index * each + len(batch_answers)] = batch_answers
        task.advance(items=len(batch_answers))

    remote.runner.run(answer_all, batches, title=title, on_done=keep)
    return answers


def answer_all(questions: Questions[Q, A]) -> list[A]:
    """The answers, in the order of the questions."""
    return _answers(questions.store.open(), questions.answer, questions.items, _THREADS_ELSEWHERE)


def _answers(
    store: ObjectStore,
    answer: Callable[[ObjectStore, Q], A],
    items: Sequence[Q],
    workers: int,
    task: Task | None = None,
) -> list[A]:
    answers: list[A] = [None] * len(items)  # type: ignore[list-item]

    def read(index: int) -> None:
        answers[index] = answer(store, items[index])
        if task is not None:
            task.advance(items=1)

    in_parallel(read, len(items), workers)
    return answers
