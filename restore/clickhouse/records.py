"""Ask the objects of a ClickHouse bucket for the paths that they bear: one request each, many side by side."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import NamedTuple

import msgspec

from disks.stores.base import ObjectInfo, ObjectStore
from disks.workers.parallel import HERE, Askers, ask
from disks.workers.progress import Task
from oplog.clickhouse.checksums import SIZES_BYTES, are_checksums
from oplog.clickhouse.names import FILE, PATH_NAMES, RENAME, ListedObject, LogObject, Name, parse_key, record
from oplog.clickhouse.replay import LogProblem
from oplog.errors import NotFound

_SHOWN_EVERY_SECONDS = 0.2


class MetadataQuestion(NamedTuple):
    """An object whose user metadata is wanted. `whole`: its bytes too, if they are checksums, as is likely."""

    key: str
    whole: bool


class ObjectAnswer(NamedTuple):
    """The object's user metadata, None when it is gone; its bytes if they are the checksums of a part."""

    metadata: Mapping[str, str] | None
    checksums: bytes | None = None


class Answers(msgspec.Struct):
    """Answers by key."""

    metadata: dict[str, Mapping[str, str] | None] = msgspec.field(default_factory=dict)
    checksums: dict[str, bytes] = msgspec.field(default_factory=dict)

    def add(self, key: str, answer: ObjectAnswer) -> None:
        """Keep it."""
        self.metadata[key] = answer.metadata
        if answer.checksums is not None:
            self.checksums[key] = answer.checksums


class Records(msgspec.Struct, frozen=True):
    """The objects of a log with their paths, in the log's order."""

    records: list[LogObject]
    lost: list[LogProblem]
    """One for each object that went away since the listing."""
    checksums: Mapping[str, bytes]
    """Object key -> bytes, of the files of checksums that have been read on the way."""


def read_records(
    store: ObjectStore,
    objects: Sequence[ListedObject],
    ahead: PathsAhead | None = None,
    askers: Askers = HERE,
) -> Records:
    """What the objects say. What `ahead` was asked for is not asked for again."""
    with askers.progress.task("reading paths", items=len(objects)) as task:
        known = ahead.finish(task) if ahead is not None else Answers()
        wanted = [one for one in _questions(objects) if one.key not in known.metadata]
        what = f"reading paths in {store.name}"
        found = ask(store, look, wanted, askers, title=what, task=task)
        for question, answer in zip(wanted, found, strict=True):
            known.add(question.key, answer)
    answers = [_record(listed, known.metadata) for listed in objects]
    gone = [
        LogProblem(
            "vanished",
            f"object {listed.key} was in the listing and is gone now: another writer is active in the bucket",
            object=listed.key,
            revision=listed.revision,
        )
        for listed, answer in zip(objects, answers, strict=True)
        if answer is None
    ]
    return Records([answer for answer in answers if answer is not None], gone, known.checksums)


def _record(listed: ListedObject, metadata_by_key: Mapping[str, Mapping[str, str] | None]) -> LogObject | None:
    """The object with its paths; None when it is gone."""
    if not _bears_paths(listed.name):
        return LogObject(listed, None, None)
    metadata = metadata_by_key[listed.key]
    return record(listed, metadata) if metadata is not None else None


def _questions(objects: Iterable[ListedObject]) -> list[MetadataQuestion]:
    renames = {listed.revision for listed in objects if listed.name.kind == RENAME}
    return [
        MetadataQuestion(listed.key, are_likely_checksums(listed.name, listed.size_bytes, renames))
        for listed in objects
        if _bears_paths(listed.name)
    ]


def _bears_paths(name: Name) -> bool:
    return name.kind == FILE or name.kind in PATH_NAMES


def are_likely_checksums(name: Name, size_bytes: int, renames: Collection[int]) -> bool:
    """Whether the object is likely a part's `checksums.txt`, going by the revisions of the renames.

    ClickHouse writes a part into a temporary directory, its checksums last, and then renames that. A GET of these
    costs as much as the HEAD in its stead, and saves another GET, for the checksums are read in any case. A wrong
    guess, as where several parts are written at a time, costs the bytes of a small object, or that other GET.
    """
    return name.kind == FILE and name.revision + 1 in renames and size_bytes in SIZES_BYTES


def look(store: ObjectStore, question: MetadataQuestion) -> ObjectAnswer:
    """Ask one object."""
    try:
        if not question.whole:
            return ObjectAnswer(store.head(question.key).metadata)
        data, info = store.get_with_info(question.key)
    except NotFound:
        return ObjectAnswer(None)
    return ObjectAnswer(info.metadata, data if are_checksums(data) else None)


class PathsAhead:
    """Asks objects for their paths while the listing still comes in. Operations are listed before files."""

    def __init__(self, store: ObjectStore, workers: int) -> None:
        self._store = store
        self._workers = workers
        self._questions: SimpleQueue[MetadataQuestion | None] = SimpleQueue()
        self._renames: set[int] = set()
        self._answers = Answers()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="clickhouse")
        self._running: list[Future[None]] = []

    def __enter__(self) -> PathsAhead:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._end()
        self._pool.shutdown()

    def ask(self, info: ObjectInfo) -> None:
        """Have the object looked at soon, if it bears paths."""
        name = parse_key(info.key)
        if name is None or not _bears_paths(name):
            return
        if name.kind == RENAME:
            self._renames.add(name.revision)
        if not self._running:
            self._running = [self._pool.submit(self._read) for _ in range(self._workers)]
        self._questions.put(MetadataQuestion(info.key, are_likely_checksums(name, info.size_bytes, self._renames)))

    def finish(self, task: Task) -> Answers:
        """What all of them said. Raises the first error."""
        self._end()
        shown = 0
        while True:
            ended, running = wait(self._running, timeout=_SHOWN_EVERY_SECONDS, return_when=FIRST_EXCEPTION)
            for future in ended:
                future.result()
            read = len(self._answers.metadata)
            task.advance(items=read - shown)
            shown = read
            if not running:
                return self._answers

    def _end(self) -> None:
        for _ in self._running:
            self._questions.put(None)

    def _read(self) -> None:
        while (question := self._questions.get()) is not None:
            if self._stopped.is_set():
                continue
            try:
                self._answers.add(question.key, look(self._store, question))
            except BaseException:
                self._stopped.set()
                raise
