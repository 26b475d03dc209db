"""Verify backups, and keep what was found.

Quick: headers and lists match their digests, and one listing shows every object with its size. With data: each object
is read once, however many backups name it. A subset reads another share each time, until all was read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import asdict

from backup import records
from backup.completeness import Flaw, NamedFile, missing, walk_backup
from backup.format.header import BackupHeader, VerificationRecord
from backup.format.lists import InPack
from backup.objects import Holdings
from backup.storage import BrokenBackup, Storage, deleted_meanwhile
from backup.verify.buckets import PinnedBuckets
from backup.verify.data import ObjectToRead, next_slice, read_object, slice_of
from disks.workers.parallel import in_parallel
from disks.workers.progress import Progress
from oplog.entry import now

logger = logging.getLogger(__name__)

KEPT_PROBLEMS = 100
"""How many a record keeps; the report has all."""


class VerifyRequest(msgspec.Struct, frozen=True):
    """What somebody asks for. `share`: how much of the data to read, 0 to 1."""

    share: float = 0.0
    actor: str = ""
    dry_run: bool = False


class BackupProblem(msgspec.Struct, kw_only=True):
    """What is wrong with a file of a backup."""

    backup: str
    table: str
    partition: str
    part: str
    file: str
    object: str
    what: str
    text: str
    also_in: list[str]
    """Other backups that count on the same object."""


class VerifiedBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A backup in `backup verify --json`."""

    name: str
    id: str
    machine: str
    files: int
    bytes: int
    read_bytes: int
    depth: Literal["quick", "subset", "data"]
    slice: str
    """Of a subset: `3 of 20`."""
    problems: tuple[BackupProblem, ...]
    ok: bool


class VerifyDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`backup verify --json`."""

    name: str
    files: int
    bytes: int
    problems: list[BackupProblem]
    ok: bool
    backups: list[VerifiedBackup]


class VerifyResult(msgspec.Struct, frozen=True):
    """What was found in one backup."""

    name: str
    id: str
    machine: str
    files: int
    bytes: int
    read_bytes: int
    depth: Literal["quick", "subset", "data"]
    slice: str
    """Of a subset: `3 of 20`."""
    problems: tuple[BackupProblem, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def row(self) -> VerifiedBackup:
        return VerifiedBackup(**asdict(self), ok=self.ok)


def verify(
    storage: Storage,
    headers: Sequence[BackupHeader],
    everything: Sequence[BackupHeader],
    buckets: PinnedBuckets,
    request: VerifyRequest,
    *,
    workers: int,
    progress: Progress,
) -> list[VerifyResult]:
    """Verify these backups; `everything` are all of the repository, to tell which others a flaw is in."""
    holdings = storage.holdings()
    chosen = _Share.of(storage, headers, request.share)
    found: dict[str, tuple[list[NamedFile], list[Flaw]]] = {}
    for header in headers:
        flaws: list[Flaw] = []
        named = list(walk_backup(storage, holdings, header, flaws))
        flaws += [flaw for file in named if (flaw := missing(holdings, file)) is not None]
        flaws += buckets.flaws(header, named)
        found[header.id] = named, flaws
    read = _read(storage, holdings, found, headers, buckets, chosen, workers, progress) if chosen.slices else {}
    results = [_result(header, *found[header.id], read, chosen) for header in headers]
    gone = {header.id: header for header in _deleted_meanwhile(storage, headers, results)}
    if headers and len(gone) == len(headers):
        raise deleted_meanwhile(headers[0])
    results = [result for result in results if result.id not in gone]
    results = _with_others(storage, results, [header for header in everything if header.id not in gone])
    if not request.dry_run:
        flawed = {problem.object for result in results for problem in result.problems}
        for key in sorted({flaw.key for flaws, _ in read.values() for flaw in flaws if _is_changed(flaw)} & flawed):
            if holdings.size_of(key) is not None:
                storage.mark_damaged(key)
        for result in results:
            records.put(storage, _record(result, request, chosen))
    return results


def _deleted_meanwhile(
    storage: Storage, headers: Sequence[BackupHeader], results: Sequence[VerifyResult]
) -> Iterator[BackupHeader]:
    """Those that have flaws because they are no more: a header goes before anything that it names."""
    flawed = {result.id for result in results if not result.ok}
    for header in headers:
        if header.id in flawed and not storage.is_complete(header.key):
            logger.warning("backup %s of %s was deleted while it was verified", header.name, header.machine)
            yield header


class _Share(msgspec.Struct, frozen=True):
    """Which objects are read: share `number` of `slices`; none of 0."""

    slices: int
    number: int

    @classmethod
    def of(cls, storage: Storage, headers: Sequence[BackupHeader], share: float) -> _Share:
        if share <= 0:
            return cls(0, 0)
        slices = max(1, round(1 / share))
        if slices == 1:
            return cls(1, 0)
        keys = records.keys(storage)
        found = records.read(
            storage, [key for header in headers for key in keys.get(header.id, ())], VerificationRecord
        )
        done = [record.slice for record in sorted(found, key=lambda record: record.time) if record.slices == slices]
        return cls(slices, next_slice(done, slices))

    def has(self, key: str) -> bool:
        return slice_of(key, self.slices) == self.number


def _read(
    storage: Storage,
    holdings: Holdings,
    named_files: dict[str, tuple[list[NamedFile], list[Flaw]]],
    headers: Sequence[BackupHeader],
    buckets: PinnedBuckets,
    chosen: _Share,
    workers: int,
    progress: Progress,
) -> dict[tuple[str, str], tuple[list[Flaw], int]]:
    """What reading found, and how much was read, by (bucket, key); "" is the repository."""
    files: dict[tuple[str, str], dict[tuple[str, str, str, str], NamedFile]] = {}
    for header in headers:
        for named in named_files[header.id][0]:
            where = buckets.of(header, named), named.key
            if chosen.has(named.key) and (where[0] or holdings.size_of(named.key) is not None):
                files.setdefault(where, {})[named.table, named.part, named.file.name, named.file.sha256] = named
    targets = [(bucket, _object(key, list(named.values()))) for (bucket, key), named in files.items()]
    answers: dict[tuple[str, str], tuple[list[Flaw], int]] = {}
    size_bytes = sum(target.size_bytes for _, target in targets)
    with progress.task("reading the backup's data", items=len(targets), size_bytes=size_bytes) as task:

        def work(number: int) -> None:
            bucket, target = targets[number]
            store = buckets.store(bucket) if bucket else storage.store
            answers[bucket, target.key] = read_object(store, target), target.size_bytes
            task.advance(items=1, size_bytes=target.size_bytes)

        in_parallel(work, len(targets), workers)
    return answers


def _object(key: str, files: list[NamedFile]) -> ObjectToRead:
    first = files[0]
    if isinstance(first.file.at, InPack):
        pack = first.partition.packs[first.file.at.pack]
        return ObjectToRead(key, pack.size_bytes, pack.sha256, tuple(files))
    return ObjectToRead(key, first.file.size_bytes, first.file.sha256, tuple(files))


def _result(
    header: BackupHeader,
    named: list[NamedFile],
    flaws: list[Flaw],
    read: dict[tuple[str, str], tuple[list[Flaw], int]],
    chosen: _Share,
) -> VerifyResult:
    keys = {file.key for file in named} if read else set()
    files = {(file.table, file.part, file.file.name) for file in named} if read else set()
    read_bytes = 0
    for (_, key), (more, size_bytes) in read.items():
        if key in keys:
            read_bytes += size_bytes
            flaws = flaws + [flaw for flaw in more if (flaw.table, flaw.part, flaw.file) in files]
    depth: Literal["quick", "subset", "data"] = "quick" if not chosen.slices else "data"
    depth = "subset" if chosen.slices > 1 else depth
    return VerifyResult(
        name=header.name,
        id=header.id,
        machine=header.machine,
        files=len(named),
        bytes=header.size_bytes,
        read_bytes=read_bytes,
        depth=depth,
        slice=f"{chosen.number + 1} of {chosen.slices}" if chosen.slices > 1 else "",
        problems=tuple(_problem(header, flaw) for flaw in flaws),
    )


def _problem(header: BackupHeader, flaw: Flaw) -> BackupProblem:
    return BackupProblem(
        backup=header.name,
        table=flaw.table,
        partition=flaw.partition,
        part=flaw.part,
        file=flaw.file,
        object=flaw.key,
        what=flaw.what,
        text=flaw.text,
        also_in=[],
    )


def _with_others(
    storage: Storage, results: list[VerifyResult], everything: Sequence[BackupHeader]
) -> list[VerifyResult]:
    """Say of each problem which other backups count on the same object. Reads their lists, when there is a problem."""
    wanted = {problem.object for result in results for problem in result.problems}
    if not wanted:
        return results
    users: dict[str, list[tuple[str, str]]] = {}
    for header in everything:
        for key in wanted & _keys_of(storage, header):
            users.setdefault(key, []).append((header.id, header.name))
    for result in results:
        for problem in result.problems:
            others = {name for other, name in users.get(problem.object, ()) if other != result.id}
            problem.also_in = sorted(others)
    return results


def _keys_of(storage: Storage, header: BackupHeader) -> set[str]:
    flaws: list[Flaw] = []
    found = {named.key for named in walk_backup(storage, None, header, flaws)}
    return found | {flaw.key for flaw in flaws}


def broken_result(broken: BrokenBackup, name: str, machine: str, backup_id: str) -> VerifyResult:
    """What is said of a backup whose header cannot be read."""
    problem = BackupProblem(
        backup=name,
        table="",
        partition="",
        part="",
        file="",
        object=broken.key,
        what=broken.error.message,
        text=broken.error.message,
        also_in=[],
    )
    return VerifyResult(name, backup_id, machine, 0, 0, 0, "quick", "", (problem,))


def _record(result: VerifyResult, request: VerifyRequest, chosen: _Share) -> VerificationRecord:
    return VerificationRecord(
        backup=result.id,
        time=now(),
        actor=request.actor,
        depth=result.depth,
        files=result.files,
        size_bytes=result.bytes,
        read_bytes=result.read_bytes,
        slices=chosen.slices,
        slice=chosen.number,
        problems=tuple(problem.text for problem in result.problems[:KEPT_PROBLEMS]),
        problem_count=len(result.problems),
    )


def _is_changed(flaw: Flaw) -> bool:
    """Whether what was read of an object of the repository is not what was written."""
    return flaw.key.startswith(("blobs/", "packs/")) and not flaw.unread
