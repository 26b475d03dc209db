"""Copying the files of one part between disks, proving that a copy is the whole part, and taking copies away."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from disks.base import Disk, Transaction
from disks.contracts.bucket_disk import LoggedDisk
from disks.contracts.directory_disk import DirectoryDisk
from disks.kinds import as_disk
from disks.stores.base import ByteRange
from oplog.errors import Conflict, Damaged, NotFound
from oplog.kinds import Moved, Tidied
from tiering.catalog.catalog import Catalog, StoredPart
from tiering.catalog.context import Context
from tiering.policy import cost
from tiering.table import part as parts_format
from tiering.table.part import PART_FILE, DataFile, Part
from tiering.table.schema import TableDefinition

_READ = "run 'frostline fsck --read-data'"

Checkpoint = Callable[[], None]
"""Called between steps of a copy; raises to stop it."""


def read_part(disk: Disk, directory: str) -> tuple[Part, bytes]:
    """The part of a directory and the bytes of its `part.json`. Raises `NotFound` or `Damaged`."""
    path = f"{directory}/{PART_FILE}"
    data = disk.read(path)
    return parts_format.decode(data, path=f"{disk.name}:{path}"), data


def moved_from(disk: Disk, copy: StoredPart) -> tuple[str, bool] | None:
    """From the commit that created the copy: the disk it was moved from, and whether that one was to keep it."""
    logged = as_disk(disk, LoggedDisk)
    if copy.revision is None or logged is None:
        return None
    for entry in logged.entries(copy.revision - 1, copy.revision):
        commit = entry.commit
        if isinstance(commit.kind, Moved) and (source := commit.kind.source_of(copy.part.name)):
            return source, copy.part.name in commit.kind.kept
    return None


def had_by_buckets(
    catalog: Catalog, disks: Mapping[str, Disk], definitions: Iterable[TableDefinition]
) -> list[tuple[str, str]]:
    """The parts on disks of this machine that the log of a bucket tells of: uuid of the table, and name."""
    found: list[tuple[str, str]] = []
    for definition in definitions:
        parts = catalog.parts(definition, include_outdated=True)
        here = {stored.directory: stored.label for stored in parts if not disks[stored.disk].capabilities.shared}
        for disk in disks.values():
            if (logged := as_disk(disk, LoggedDisk)) is not None and catalog.copies.follows(definition):
                known = logged.commits().directories(f"{definition.directory}/")
                found += [(definition.uuid, here[directory]) for directory in known if directory in here]
    return found


def check_files(disk: Disk, directory: str, part: Part) -> None:
    """Whether the directory holds exactly the files that `part.json` names, with their sizes. Raises `Damaged`."""
    found = {info.path.rpartition("/")[2]: info for info in disk.walk(directory)}
    check_names(disk, directory, (file.name for file in part.files), found)
    for file in part.files:
        info = found[file.name]
        if info.size_bytes != file.size_bytes:
            raise _wrong_size(f"{disk.name}:{directory}/{file.name}", info.size_bytes, file)
        if info.sha256 is not None and info.sha256 != file.sha256:
            raise Damaged(
                f"{disk.name}:{directory}/{file.name} is not the file that part.json names",
                hint="run 'frostline fsck'",
            )


def check_names(disk: Disk, directory: str, named: Iterable[str], names: Iterable[str]) -> None:
    """Check that the names in the directory are those of the files that `part.json` names. Raises `Damaged`."""
    where = f"{disk.name}:{directory}"
    expected, there = set(named), set(names)
    for name in sorted(expected - there):
        raise Damaged(f"{where}/{name} is missing", hint="run 'frostline fsck'; restore the part from a backup")
    strangers = sorted(there - expected - {PART_FILE})
    if strangers:
        raise Damaged(
            f"{where} holds files that part.json does not name: {', '.join(strangers)}",
            hint="move them elsewhere; a move would lose them",
        )


def _wrong_size(where: str, size_bytes: int, file: DataFile) -> Damaged:
    return Damaged(
        f"{where} has {size_bytes} bytes, part.json says {file.size_bytes}",
        hint="run 'frostline fsck'; restore the part from a backup",
    )


def is_complete(disk: Disk, directory: str, part_bytes: bytes, *, proof: bool = False) -> bool:
    """Whether the disk holds this very part whole. False when it has nothing there.

    Raises `Conflict` when something else is there, `Damaged` when the part is but not whole. Names, sizes and known
    digests are compared. With `proof`, as before the other copy is removed, more: a local disk's bytes are read, a
    bucket is asked for every object, and this machine remembers that the part is there.
    """
    if not disk.exists(directory):
        return False
    try:
        part, found = read_part(disk, directory)
    except NotFound:
        raise Conflict(
            f"{disk.name}:{directory} exists without a {PART_FILE}",
            hint="run 'frostline fsck'; nothing was overwritten",
        ) from None
    if found != part_bytes:
        raise Conflict(
            f"{disk.name} holds another part of the name {part.name}",
            hint="run 'frostline fsck'; nothing was overwritten",
        )
    check_files(disk, directory, part)
    if proof and (logged := as_disk(disk, LoggedDisk)) is not None:
        logged.remember()
        _check_objects(logged, directory)
    elif proof:
        for file in part.files:
            _check_digest(disk, f"{directory}/{file.name}", file)
    return True


def _check_objects(disk: LoggedDisk, directory: str) -> None:
    for info in disk.walk(directory):
        if info.key is None:
            continue
        try:
            size = disk.store.head(info.key).size_bytes
        except NotFound:
            size = -1
        if size != info.size_bytes:
            what = "is gone" if size < 0 else f"has {size} bytes instead of {info.size_bytes}"
            raise Damaged(
                f"object {info.key} of {disk.name}:{info.path} {what}",
                hint="run 'frostline fsck'; the other copy of the part was kept",
            )


def copy_file(
    source: Disk, path: str, file: DataFile, transaction: Transaction, checkpoint: Checkpoint, local: str | None
) -> int:
    """Stage the file in the target's transaction; returns how many reads of the source it took.

    The bytes are read once and must have the SHA-256 of `part.json`: else `Damaged`, and nothing is staged. `local` is
    the part's directory as `local_directory` gives it.
    """
    if local is not None:
        there = Path(f"{local}/{file.name}")
        try:
            transaction.create(path, there, sha256=file.sha256)
        except Damaged as error:  # the store names the object that it refused; it is asked of the source what is wrong
            if (size := there.stat().st_size) != file.size_bytes:
                raise _wrong_size(f"{source.name}:{path}", size, file) from error
            if _sha256(there) == file.sha256:
                raise
            raise Damaged(
                f"{source.name}:{path} does not have the SHA-256 of its part.json; nothing was moved",
                hint=f"{_READ}; restore the part from a backup",
            ) from error
        return 1
    if file.size_bytes <= cost.WHOLE_FILE_BYTES:
        transaction.create(path, source.read(path), sha256=file.sha256)
        return 1
    scratch = transaction.scratch() / path.replace("/", "_")
    reads = _download(source, path, file, scratch, checkpoint)
    transaction.create(path, scratch, sha256=file.sha256)
    return reads


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(source: Disk, path: str, file: DataFile, scratch: Path, checkpoint: Checkpoint) -> int:
    digest, reads = hashlib.sha256(), 0
    with scratch.open("wb") as output:
        for start in range(0, file.size_bytes, cost.RANGE_BYTES):
            checkpoint()
            data = source.read(path, ByteRange(start, min(start + cost.RANGE_BYTES, file.size_bytes)))
            digest.update(data)
            output.write(data)
            reads += 1
    if digest.hexdigest() != file.sha256:
        raise Damaged(
            f"{source.name}:{path} does not have the SHA-256 of its part.json",
            hint=f"{_READ}; restore the part from a backup",
        )
    return reads


def local_directory(disk: Disk, directory: str) -> str | None:
    """Where a part of a local disk lies in the file system: its files are read there, without asking for each."""
    local = as_disk(disk, DirectoryDisk)
    return None if local is None else str(local.local_path(directory))


def _check_digest(disk: Disk, path: str, file: DataFile) -> None:
    digest = hashlib.sha256()
    for start in range(0, file.size_bytes, cost.RANGE_BYTES):
        digest.update(disk.read(path, ByteRange(start, min(start + cost.RANGE_BYTES, file.size_bytes))))
    if digest.hexdigest() != file.sha256:
        raise Damaged(f"{disk.name}:{path} does not have the SHA-256 of its part.json", hint=_READ)


def remove_copies(context: Context, copies: Iterable[StoredPart], *, reason: str) -> None:
    """Remove outdated or duplicate copies, one transaction a disk. The caller has proved that they are not needed."""
    by_disk: dict[str, list[StoredPart]] = defaultdict(list)
    for copy in copies:
        by_disk[copy.disk].append(copy)
    for name, group in by_disk.items():
        with context.disk(name).transaction(Tidied(), reason=reason, actor=context.actor) as transaction:
            for copy in group:
                transaction.remove(copy.directory)
            transaction.commit()
