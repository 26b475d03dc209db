"""Parts that cannot be read any more go to `detached/<reason>_<part>` of their table, by a commit. Nothing is deleted.

They come back by hand: on an object disk by undoing that commit, on a local disk by moving the directory back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext

from disks.base import Disk
from disks.object_disk.references import DETACHED_DIRECTORY
from oplog.errors import FrostlineError
from oplog.kinds import SetAside
from restore.check.findings import Findings, PartKey
from tiering.table.places import directory_of

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
        target = _free_place(disk, uuid, f"{reason}_{part}")
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


def _free_place(disk: Disk, uuid: str, name: str) -> str:
    """A name below `detached/` that no earlier repair took."""
    place = directory_of(uuid, f"{DETACHED_DIRECTORY}/{name}")
    attempt = 1
    while disk.exists(place):
        attempt += 1
        place = directory_of(uuid, f"{DETACHED_DIRECTORY}/{name}_try{attempt}")
    return place
