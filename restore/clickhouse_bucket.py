"""Read the disk of a ClickHouse server from its bucket: one listing, and at most one HEAD an object. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from disks.stores.base import ObjectStore
from oplog.clickhouse import FILE, PATH_NAMES, Epochs, Listed, Record, epochs, record
from oplog.clickhouse_replay import File, Finding, Replayed, replay
from oplog.errors import FrostlineError, NotFound, UsageError
from oplog.revision import SCHEMA_VERSION_KEY
from restore.clickhouse_listing import Contents, Kind, sort_listing
from restore.clickhouse_plain import read_plain
from restore.parallel import in_parallel
from tiering.progress import SILENT, Progress, Task

WORKERS = 32
FROSTLINE_SCHEMA = "2"


@dataclass(slots=True)
class ClickHouseTree:
    """A ClickHouse disk as its bucket describes it, at one revision. `files` is the tree, `findings` what is wrong."""

    store: str
    """The name of the store, for messages."""
    schema_version: str | None
    contents: Contents
    replayed: Replayed
    head: int = 0
    """The highest revision in the bucket; 0 for kinds of bucket without revisions."""
    revision: int = 0
    """The revision this tree is of."""
    order: Epochs = field(default_factory=lambda: Epochs((), {}))
    findings: list[Finding] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """What wrote the bucket."""
        return self.contents.kind

    @property
    def files(self) -> dict[str, File]:
        """Path -> file, in path order."""
        return self.replayed.files

    @property
    def size_bytes(self) -> int:
        """Bytes of the tree; those shared by hard links once."""
        return self.replayed.size_bytes


def read_bucket(
    store: ObjectStore,
    *,
    revision: int | None = None,
    contents: Contents | None = None,
    workers: int = WORKERS,
    progress: Progress = SILENT,
) -> ClickHouseTree:
    """The tree at the revision, by default at the newest one. A revision above the newest is the newest.

    Objects above the revision are not asked for. `contents` is the listing, when the caller has it already. Raises
    `NotFound` when nothing is there, and `UsageError` when the bucket says of no file where it belongs, or when it has
    no revisions and one is wanted.
    """
    contents = contents or sort_listing(store.list())
    schema_version = read_schema_version(store)
    if contents.kind in (Kind.PLAIN, Kind.PLAIN_REWRITABLE):
        if revision is not None:
            raise UsageError(f"{store.name} is a {contents.kind} disk: it has one state and no revisions")
        replayed = read_plain(store, contents, workers=workers, progress=progress)
        return ClickHouseTree(store.name, schema_version, contents, replayed, findings=replayed.findings)
    if contents.kind is not Kind.SEND_METADATA or schema_version == FROSTLINE_SCHEMA:
        raise no_tree(store.name, contents)
    order = epochs(contents.log)
    wanted = order.head if revision is None else min(revision, order.head)
    listed = order.until(wanted)
    records, lost = read_records(store, listed, workers=workers, progress=progress)
    replayed = replay(records)
    return ClickHouseTree(
        store.name, schema_version, contents, replayed, order.head, wanted, order, [*lost, *replayed.findings]
    )


def read_schema_version(store: ObjectStore) -> str | None:
    """The body of `.SCHEMA_VERSION`, at most 20 characters; None when there is no such object."""
    try:
        return store.get(SCHEMA_VERSION_KEY).decode(errors="replace").strip()[:20]
    except NotFound:
        return None


def read_records(
    store: ObjectStore, objects: Sequence[Listed], *, workers: int = WORKERS, progress: Progress = SILENT
) -> tuple[list[Record], list[Finding]]:
    """The objects with their paths, in the same order; those that went away since the listing are findings instead."""
    answers: list[Record | None] = [None] * len(objects)
    with progress.task("reading paths", items=len(objects)) as task:
        in_parallel(lambda index: _head(store, objects[index], answers, index, task), len(objects), workers)
    gone = [
        Finding(
            "vanished",
            f"object {listed.key} was in the listing and is gone now: somebody is writing to the bucket",
            object=listed.key,
            revision=listed.revision,
        )
        for listed, answer in zip(objects, answers, strict=True)
        if answer is None
    ]
    return [answer for answer in answers if answer is not None], gone


def _head(store: ObjectStore, listed: Listed, answers: list[Record | None], index: int, task: Task) -> None:
    if listed.name.kind != FILE and listed.name.kind not in PATH_NAMES:
        answers[index] = Record(listed, None, None)
        return
    try:
        answers[index] = record(listed, store.head(listed.key).metadata)
    except NotFound:
        pass  # it stays None: the caller reports it
    task.advance(items=1)


def no_tree(name: str, contents: Contents) -> FrostlineError:
    """Why there is nothing to rebuild, and what to do instead."""
    match contents.kind:
        case Kind.EMPTY:
            return NotFound(f"{name} has no objects", hint="check the URL: the prefix must be the disk's own")
        case Kind.FROSTLINE | Kind.SEND_METADATA:
            return UsageError(
                f"{name} is a disk of ours, not of ClickHouse", hint="configure it as a disk and use 'restore'"
            )
        case Kind.WITHOUT_METADATA:
            return UsageError(
                f"{name} was written without send_metadata: only the server's local metadata knows the paths",
                hint="with a copy of that directory use 'frostline clickhouse import'",
            )
        case Kind.UNKNOWN if contents.below:
            return UsageError(
                f"{name} is no disk, but {contents.below} in it is", hint=f"add {contents.below} to the URL"
            )
        case _:
            return UsageError(f"{name} is no bucket that ClickHouse wrote", hint="see 'frostline clickhouse inspect'")
