"""Parts that cannot be read any more go to `detached/<reason>_<part>` of their table, by a commit. Nothing is deleted.

They come back by `partition attach`, once their files are what was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext

from disks.base import Disk
from disks.object_disk.references import DETACHED_DIRECTORY
from disks.stores.base import ByteRange
from oplog.errors import Damaged, FrostlineError, NotFound
from oplog.kinds import SetAside
from restore.check.findings import Findings, PartKey
from tiering.catalog.copies.set_aside import part_aside
from tiering.table import part as part_format
from tiering.table import schema, tombstones
from tiering.table.part import PART_FILE, Part
from tiering.table.paths import directory_of, free_path, locate

_PIECE_BYTES = 8 * 1024 * 1024

Claim = Callable[[str, list[str], str], AbstractContextManager[object]]
"""(table uuid, parts, why): held while the parts are changed, so that no move or merge works on them."""


def no_claim(uuid: str, parts: list[str], why: str) -> AbstractContextManager[object]:
    """For disks that nobody else works on."""
    return nullcontext()


def set_aside(
    disks: Mapping[str, Disk],
    findings: Findings,
    *,
    seen: Mapping[str, int] | None = None,
    keep: Collection[tuple[str, str]] = (),
    claim: Claim = no_claim,
    actor: str = "",
    dry_run: bool = False,
) -> list[str]:
    """Set aside every part that the findings call unusable; one sentence each. Their problems are settled then.

    `seen`: the revision that was checked, of disks with a log; a part that changed since is left to the next check.
    `keep` names (table uuid, part) that are being moved. A disk that cannot be written to keeps its parts and problems.
    """
    sentences: list[str] = []
    for key, reason in sorted(findings.unusable().items()):
        name, uuid, part = key
        disk = disks.get(name)
        if disk is None or disk.read_only or (uuid, part) in keep:
            continue
        target = free_path(directory_of(uuid, f"{DETACHED_DIRECTORY}/{reason}_{part}"), disk.exists)
        if dry_run:
            sentences.append(f"disk {name}: would set part {part} aside as {target}")
            continue
        try:
            _rename(disk, key, target, reason, claim, actor, (seen or {}).get(name))
        except FrostlineError as error:
            sentences.append(f"disk {name}: part {part} could not be set aside: {error.message}")
            continue
        findings.settle(key)
        sentences.append(f"disk {name}: set part {part} aside as {target}")
    return sentences


def _rename(disk: Disk, key: PartKey, target: str, reason: str, claim: Claim, actor: str, revision: int | None) -> None:
    _, uuid, part = key
    why = f"fsck: part {part} is {reason}"
    with claim(uuid, [part], why), disk.transaction(SetAside(), reason=why, actor=actor) as transaction:
        transaction.made_from(revision, [directory_of(uuid, part)])
        transaction.rename(directory_of(uuid, part), target)
        transaction.commit()


def fault_in_files(disk: Disk, directory: str, part: Part, *, reading: bool = True) -> str | None:
    """Which data file of a part is not what was written, and how; None where all are. `reading`: the bytes as well, in
    pieces; else whether they are there."""
    for file in part.files:
        path = f"{directory}/{file.name}"
        where = f"{disk.name}:{path}"
        try:
            size_bytes = disk.stat(path).size_bytes
            if size_bytes != file.size_bytes:
                return f"{where} has {size_bytes} bytes, and part.json says {file.size_bytes}"
            digest, read = hashlib.sha256(), disk.reader(path)
            for start in range(0 if reading else max(0, size_bytes - 1), size_bytes, _PIECE_BYTES):
                digest.update(read(ByteRange(start, min(start + _PIECE_BYTES, size_bytes))))
        except (NotFound, Damaged) as error:
            return error.message if where in error.message else f"{where}: {error.message}"
        if reading and digest.hexdigest() != file.sha256:
            return f"{where}: the bytes do not match their SHA-256"
    return None


def attachable(disk: Disk, directory: str) -> tuple[str, str] | None:
    """The table and the partition of a part that was set aside and whose files are all there again; None for any other.
    Their bytes are compared when it is attached."""
    place = locate(f"{directory}/{PART_FILE}")
    aside = part_aside(directory.rpartition("/")[2])
    if place is None or aside is None:
        return None
    try:
        part = part_format.decode(disk.read(f"{directory}/{PART_FILE}"), path=f"{disk.name}:{directory}/{PART_FILE}")
        table = tombstones.definition_path(place.uuid)
        name = schema.decode(disk.read(table), path=f"{disk.name}:{table}").full_name
        if part.name != aside or fault_in_files(disk, directory, part, reading=False) is not None:
            return None
    except FrostlineError:
        return None
    return name, part.part_name.partition
