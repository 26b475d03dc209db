"""The files of parts on their way to the target: staged in its transaction by several threads."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from disks.base import Transaction
from disks.contracts.bucket_disk import BucketTransaction
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
        if isinstance(transaction, BucketTransaction):
            sizes = {
                f"{moving.directory}/{file.name}": file.size_bytes for moving in items for file in part_of(moving).files
            }
            transaction.reserve(sizes | {f"{moving.directory}/{PART_FILE}": len(moving.part_bytes) for moving in items})
        work = [(moving, number) for moving in items for number in range(len(part_of(moving).files))]
        queue = Queue(work)
        if self._pool is None:
            self._copy_from(queue, transaction)
        else:  # one job a worker, not one a file: handing over a small file would cost as much as sending it
            hands = min(len(work), self._context.workers)
            wait_for([self._pool.submit(self._copy_from, queue, transaction) for _ in range(hands)])
        for moving in items:
            if moving.problem is None:
                self._outcomes.guarded(moving, lambda moving: _stage_part_file(moving, transaction))
            if moving.problem is not None:
                for path in moving.created:
                    transaction.remove(path)
                self._outcomes.end_by(moving, moving.problem)

    def _copy_from(self, queue: Queue, transaction: Transaction) -> None:
        with queue.stopped_by_errors():
            while (work := queue.take()) is not None:
                self._copy(*work, transaction)

    def _copy(self, moving: MoveItem, number: int, transaction: Transaction) -> None:
        if moving.problem is not None:
            return
        file = part_of(moving).files[number]
        path = f"{moving.directory}/{file.name}"
        source = self._context.disk(moving.move.source)
        try:
            self._checkpoint.check(moving)
            with moving.lock:
                moving.started = moving.started or time.monotonic()
            reads = copying.copy_file(
                source, path, file, transaction, lambda: self._checkpoint.check(moving), moving.local
            )
            with moving.lock:
                moving.created.append(path)
                moving.ended = time.monotonic()
                moving.requests += reads * self._is_remote(moving.move.source) + self._is_remote(moving.move.target)
            self._outcomes.copied(moving, file.size_bytes)
        except (FrostlineError, OSError, Stopped) as error:
            with moving.lock:
                moving.problem = moving.problem or error

    def _is_remote(self, disk: str) -> bool:
        """Remembered: asking a disk for its capabilities may cost it a look at the file system."""
        if disk not in self._remote:
            self._remote[disk] = self._context.disk(disk).capabilities.remote
        return self._remote[disk]


def _stage_part_file(moving: MoveItem, transaction: Transaction) -> None:
    path = f"{moving.directory}/{PART_FILE}"
    transaction.create(path, moving.part_bytes)
    moving.created.append(path)


def wait_for(futures: list[Future[None]]) -> None:
    """Wait for all; the first unexpected error cancels what has not begun and is raised."""
    _, waiting = wait(futures, return_when=FIRST_EXCEPTION)
    for future in waiting:
        future.cancel()
    wait(futures)
    for future in futures:
        if not future.cancelled():
            future.result()
