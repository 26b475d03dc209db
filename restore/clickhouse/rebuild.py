"""Rebuild the local metadata of a disk with ClickHouse's log from its bucket, or take over that of a server.

The log tells less than the table knew: not the digests, not what ClickHouse deleted, not its frozen parts. So what the
table on this machine still knows of them stays, and where something may be unknown, gc has to keep everything.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from disks.contracts.bucket_disk import ClickHouseLogDisk
from disks.stores.wrappers.metered import MeteredStore
from disks.workers.counting import RequestCount, add_requests
from disks.workers.parallel import HERE, Askers
from disks.workers.progress import SILENT, Progress
from disks.workers.runner import Remote
from oplog.clickhouse.names import FILE, parse_key
from oplog.clickhouse.writing import SHADOW
from oplog.errors import Refused, UsageError
from oplog.replay import FileRow
from restore.clickhouse.bucket import ClickHouseTree, read_tree_of_bucket
from restore.clickhouse.findings import losses, sentences
from restore.clickhouse.tree import MetadataTree, key_prefix, read_tree, rows_of
from restore.rebuild.plan import MissingObject, Tally, compare, in_scope, missing_objects
from restore.rebuild.result import RebuildResult
from tiering.config.units import counted

NOT_IN_THE_LOG = "the table was rebuilt from a log of ClickHouse's, which records neither frozen parts nor deletions"


def rebuild(
    disk: ClickHouseLogDisk,
    *,
    revision: int | None = None,
    scope: Sequence[str] | None = None,
    apply: bool = False,
    askers: Askers = HERE,
) -> RebuildResult:
    """Compare the table on this machine with what the log says, and with `apply` replace the table by that.

    Raises `UsageError` for an older revision of a disk that is written to: the log cannot go back.
    """
    if apply and revision is not None and not disk.read_only:
        raise UsageError(
            f"disk {disk.name} has ClickHouse's log, which cannot go back to an older revision in place",
            hint="a preview works; or restore into a new disk with --from, or set read_only: true to inspect it",
        )
    started = clock.monotonic()
    before = _requests(disk)
    counting = None
    if (remote := askers.remote) is not None:
        counting = RequestCount(remote.store)
        askers = replace(askers, remote=Remote(remote.runner.hooked(counting), remote.store))
    if apply:
        disk.finish()
    disk.check_schema()
    tree = read_tree_of_bucket(disk.store, revision=revision, askers=askers)
    known = disk.known_rows()
    wanted = _with_what_is_known(tree, known or {}, at_head=revision is None)
    current = known or {}
    tally = Tally(scope)
    difference = compare(
        ((path, _comparable(row)) for path, row in sorted(current.items())),
        ((path, _comparable(row)) for path, row in tally.counting(sorted(wanted.items()))),
        scope,
    )
    findings = [finding for finding in tree.findings if finding.path is None or in_scope(finding.path, scope)]
    result = RebuildResult(
        disk=disk.name,
        revision=tree.revision,
        head=tree.head,
        files=tally.files,
        bytes=tally.bytes,
        difference=difference,
        missing_objects=list(missing_objects(wanted, _sizes(tree), scope)),
        digest=tally.digest,
        objects=tree.contents.objects,
        notes=sentences(findings),
        problems=losses(findings),
    )
    if known is None:
        result.notes.insert(0, f"disk {disk.name} has no usable local state")
    if not tree.ours:
        result.notes.append(f"{NOT_IN_THE_LOG}: gc keeps everything until the server's metadata is imported")
    if apply:
        unknown = "" if tree.ours else NOT_IN_THE_LOG
        disk.replace_rows(wanted.values(), tree.head, unknown=unknown, set_aside_damaged=True)
        result.applied = True
    result.requests = {verb: count - before.get(verb, 0) for verb, count in _requests(disk).items()}
    add_requests(result.requests, counting.requests if counting is not None else {})
    result.seconds = clock.monotonic() - started
    return result


def _requests(disk: ClickHouseLogDisk) -> dict[str, int]:
    return disk.store.counts() if isinstance(disk.store, MeteredStore) else {}


def _comparable(row: FileRow) -> FileRow:
    """Without what the log cannot say."""
    return msgspec.structs.replace(row, sha256="", read_only=False, blob_set=None)


def _sizes(tree: ClickHouseTree) -> dict[str, int]:
    return {listed.key: listed.size_bytes for listed in tree.contents.log}


def _with_what_is_known(tree: ClickHouseTree, cached: dict[str, FileRow], *, at_head: bool) -> dict[str, FileRow]:
    """The log's files, with digests and flags that the table still has; at the head also the frozen files that only
    the table knows, as long as their objects are there."""
    facts = {row.blobs: row for row in cached.values() if row.blobs}
    result: dict[str, FileRow] = {}
    for row in rows_of(tree.files.values()):
        fact = facts.get(row.blobs) or _same_empty_file(row, cached.get(row.path))
        result[row.path] = row if fact is None else _with_facts(row, fact)
    if at_head and not tree.ours:
        sizes = _sizes(tree)
        for path, row in cached.items():
            if path.startswith(SHADOW) and all(sizes.get(key) == size for key, size in row.blobs):
                result.setdefault(path, row)
    return dict(sorted(result.items()))


def _same_empty_file(row: FileRow, cached: FileRow | None) -> FileRow | None:
    """The file that the table has at the path of one without an object, if that has none either."""
    return cached if cached is not None and not row.blobs and not cached.blobs and not cached.size_bytes else None


def _with_facts(row: FileRow, fact: FileRow) -> FileRow:
    shared = row.blob_set if row.blobs else fact.blob_set
    return msgspec.structs.replace(row, sha256=fact.sha256, read_only=fact.read_only, blob_set=shared)


# Import


class ImportResult(msgspec.Struct):
    """What an import found in a server's directory, and what it would change here."""

    disk: str
    directory: str
    files: int
    bytes: int
    objects: int
    versions: dict[int, int]
    created: int
    removed: int
    unchanged: int
    missing_objects: list[MissingObject]
    problems: list[str]
    """Metadata files that cannot be read: what they named is unknown."""
    notes: list[str] = msgspec.field(default_factory=list)
    applied: bool = False

    def document(self) -> dict[str, object]:
        """The JSON of the command line."""
        return {
            "disk": self.disk,
            "directory": self.directory,
            "files": self.files,
            "bytes": self.bytes,
            "objects": self.objects,
            "versions": {str(version): count for version, count in sorted(self.versions.items())},
            "created": self.created,
            "removed": self.removed,
            "unchanged": self.unchanged,
            "missing_objects": [lost.document() for lost in self.missing_objects],
            "problems": self.problems,
            "notes": self.notes,
            "applied": self.applied,
        }


def import_tree(
    disk: ClickHouseLogDisk,
    directory: Path,
    *,
    prefix: str | None = None,
    apply: bool = False,
    progress: Progress = SILENT,
) -> ImportResult:
    """Compare a server's metadata with the disk's table and with one listing of the bucket; with `apply` take it over.

    `prefix` is what stands before the disk's keys in versions 1 and 5; by default that of the disk's own URL. Raises
    `Refused` to apply a tree with files that cannot be read: gc would take their objects for orphans.
    """
    if apply:
        disk.finish()
    before = key_prefix(disk.store) if prefix is None else prefix
    tree = read_tree(directory, key_prefix=before, progress=progress)
    disk.check_schema()
    listing = {item.key: item.size_bytes for item in disk.store.list()}
    known = disk.known_rows() or {}
    facts = {row.blobs: row for row in known.values() if row.blobs and row.sha256}
    rows = {path: _digest_of(row, facts) for path, row in tree.rows.items()}
    difference = compare(sorted(known.items()), sorted(rows.items()), paths=False)
    keys = {key for row in rows.values() for key, _ in row.blobs}
    result = ImportResult(
        disk=disk.name,
        directory=str(directory),
        files=len(rows),
        bytes=sum(size for _, size in {blob for row in rows.values() for blob in row.blobs}),
        objects=len(keys),
        versions=dict(tree.versions),
        created=difference.created_files,
        removed=difference.removed_files,
        unchanged=difference.unchanged,
        missing_objects=list(missing_objects(rows, listing)),
        problems=[problem.message for problem in tree.problems],
        notes=list(_notes(tree, keys, listing)),
    )
    if apply:
        _apply(disk, result, rows, listing)
    return result


def _digest_of(row: FileRow, facts: dict[tuple[tuple[str, int], ...], FileRow]) -> FileRow:
    fact = facts.get(row.blobs)
    return row if fact is None else msgspec.structs.replace(row, sha256=fact.sha256)


def _apply(disk: ClickHouseLogDisk, result: ImportResult, rows: dict[str, FileRow], listing: Iterable[str]) -> None:
    if result.problems:
        raise Refused(
            f"{counted(len(result.problems), 'file')} of {result.directory} cannot be read, such as: "
            f"{result.problems[0]}",
            hint="gc would treat the objects they name as unused; repair these files, or remove them",
        )
    disk.replace_rows(rows.values(), highest(listing), set_aside_damaged=True)
    result.applied = True


def highest(keys: Iterable[str]) -> int:
    """The highest number that one of the keys bears."""
    return max((name.revision for name in map(parse_key, keys) if name is not None), default=0)


def _notes(tree: MetadataTree, keys: set[str], listing: dict[str, int]) -> Iterable[str]:
    if tree.miscounted:
        yield (
            f"{counted(len(tree.miscounted), 'file')} count other names that are not in this directory, such as "
            f"{tree.miscounted[0]}: is it the whole of the disk's metadata?"
        )
    names = {key: parse_key(key) for key in listing if key not in keys}
    if unnamed := sum(name is not None and name.kind == FILE for name in names.values()):
        yield f"{counted(unnamed, 'object')} in the bucket are named by no file of this directory"
