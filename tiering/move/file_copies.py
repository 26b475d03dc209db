"""The files of parts on their way to the target: staged in its transaction by several threads."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from disks.base import Transaction
from oplog.errors import FrostlineError
from tiering.catalog.context import Context
from tiering.catalog.copies import copying
from tiering.move.items import Checkpoint, MoveItem, Queue, Stopped, part_of
from tiering.move.outcomes import Outcomes
from tiering.table.part import PART_FILE


class FileCopies:
    """Copies the files of one call's parts. Without a pool in the calling thread, in the order given."""

    def __init__(
        self,
        context: Context,
        outcomes: Outcomes,
        checkpoint: Checkpoint,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        self._context = context
        self._outcomes = outcomes
        self._checkpoint = checkpoint
        self._pool = pool
        self._remote: dict[str, bool] = {}

    def stage(self, items: list[MoveItem], transaction: Transaction) -> None:
        """Stage every file of every part, side by side; what fails is taken out of the transaction again.

        Without a read lease: the claims keep the files in place, and one that a drop of its table takes away fails its
        part. A lease would make the removals of every other batch wait for this one.
        """
        sizes = {f"{item.directory}/{file.name}": file.size_bytes for item in items for file in part_of(item).files}
        sizes |= {f"{item.directory}/{PART_FILE}": len(item.part_bytes) for item in items}
        transaction.reserve(sizes)
        work = [(item, number) for item in items for number in range(len(part_of(item).files))]
        queue = Queue(work)
        if self._pool is None:
            self._copy_from(queue, transaction)
        else:  # one job a worker, not one a file: handing over a small file would cost as much as sending it
            hands = min(len(work), self._context.workers)
            wait_for([self._pool.submit(self._copy_from, queue, transaction) for _ in range(hands)])
        for item in items:
            if item.problem is None:
                self._outcomes.guarded(item, lambda item: _stage_part_file(item, transaction))
            if item.problem is not None:
                for path in item.created:
                    transaction.remove(path)
                self._outcomes.end_by(item, item.problem)

    def _copy_from(self, queue: Queue, transaction: Transaction) -> None:
        with queue.stopped_by_errors():
            while (work := queue.take()) is not None:
                self._copy(*work, transaction)

    def _copy(self, item: MoveItem, number: int, transaction: Transaction) -> None:
        if item.problem is not None:
            return
        file = part_of(item).files[number]
        path = f"{item.directory}/{file.name}"
        source = self._context.disk(item.move.source)
        try:
            self._checkpoint.check(item)
            with item.lock:
                item.started = item.started or time.monotonic()
            reads = copying.copy_file(source, path, file, transaction, lambda: self._checkpoint.check(item), item.local)
            with item.lock:
                item.created.append(path)
                item.ended = time.monotonic()
                item.requests += reads * self._is_remote(item.move.source) + self._is_remote(item.move.target)
            self._outcomes.copied(item, file.size_bytes)
        except (FrostlineError, OSError, Stopped) as error:
            with item.lock:
                item.problem = item.problem or error

    def _is_remote(self, disk: str) -> bool:
        """Remembered: asking a disk for its capabilities may cost it a look at the file system."""
        if disk not in self._remote:
            self._remote[disk] = self._context.disk(disk).capabilities.remote
        return self._remote[disk]


def _stage_part_file(item: MoveItem, transaction: Transaction) -> None:
    path = f"{item.directory}/{PART_FILE}"
    transaction.create(path, item.part_bytes)
    item.created.append(path)


def wait_for(futures: list[Future[None]]) -> None:
    """Wait for all; the first unexpected error cancels what has not begun and is raised."""
    _, waiting = wait(futures, return_when=FIRST_EXCEPTION)
    for future in waiting:
        future.cancel()
    wait(futures)
    for future in futures:
        if not future.cancelled():
            future.result()
