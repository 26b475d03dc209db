"""What a commit did to parts: made, merged, moved in or out, dropped, brought back. Pure; no I/O.

The words come from the commit alone: its kind and the `part.json` files that ride inside it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from oplog import paths
from oplog.entry import Commit, Create, Link, Remove, Rename
from oplog.errors import Damaged, UsageError
from oplog.kinds import Dropped, Inserted, Merged, Moved, Restored, Tidied, Undone, undone_revision
from tiering.table import part as parts_format
from tiering.table.names import listed
from tiering.table.part import PART_FILE, Part, PartName


class PartEffect(msgspec.Struct, frozen=True):
    """What one commit did to one part."""

    verb: str
    """inserted, merged, moved in, brought back, created; merged away, moved out, dropped, replaced, taken out, removed;
    rewritten"""
    arrived: bool
    """Whether the part was there afterwards."""
    other: str = ""
    """The other disk of a move, the part it was merged into, the revision that was undone or restored."""
    sources: tuple[str, ...] = ()
    """The parts it was merged from."""

    @property
    def text(self) -> str:
        """The event as a phrase, without the name of the part."""
        match self.verb:
            case "merged":
                return f"merged from {listed(self.sources, 4) or 'other parts'}"
            case "merged away":
                return f"merged into {self.other}" if self.other else "merged into another part"
            case "moved in":
                return f"moved in from {self.other}" if self.other else "moved in"
            case "moved out":
                return f"moved to {self.other}" if self.other else "moved away"
            case _:
                return f"{self.verb} ({self.other})" if self.other else self.verb


def event(commit: Commit, directory: str) -> PartEffect | None:
    """What the commit did to the part in this directory; None when it did not touch it."""
    created, removed = _touched(commit, directory)
    if created and removed:
        return PartEffect("rewritten", arrived=True, other=_because(commit))
    if created:
        return _arrival(commit, directory)
    return _departure(commit, directory) if removed else None


def created_part(commit: Commit, directory: str) -> Part | None:
    """The `part.json` that the commit created in the directory; None when it did not, or not inside the commit."""
    for operation in commit.operations:
        if isinstance(operation, Create) and operation.path == f"{directory}/{PART_FILE}":
            return _part(operation)
    return None


def created_parts(commit: Commit) -> Iterator[tuple[str, Part]]:
    """Directory and `part.json` of every part that the commit created."""
    for operation in commit.operations:
        if isinstance(operation, Create) and operation.path.endswith(f"/{PART_FILE}"):
            part = _part(operation)
            if part is not None:
                yield operation.path.rpartition("/")[0], part


def _touched(commit: Commit, directory: str) -> tuple[bool, bool]:
    """Whether the commit created something in the directory, and whether it took something of it away."""
    created = removed = False
    above = {directory, *paths.ancestors(directory)}
    for operation in commit.operations:
        match operation:
            case Create(path=path) | Link(target=path):
                created |= path.startswith(f"{directory}/")
            case Remove(path=path):
                removed |= path in above or path.startswith(f"{directory}/")
            case Rename(source=source, target=target):
                created |= target in above or target.startswith(f"{directory}/")
                removed |= source in above or source.startswith(f"{directory}/")
    return created, removed


def _arrival(commit: Commit, directory: str) -> PartEffect:
    part = created_part(commit, directory)
    match commit.kind:
        case Inserted():
            return PartEffect("inserted", arrived=True)
        case Merged():
            return PartEffect("merged", arrived=True, sources=part.sources if part else ())
        case Moved() as moved:
            return PartEffect("moved in", arrived=True, other=moved.source_of(directory.rpartition("/")[2]))
        case Restored() | Undone():
            return PartEffect("brought back", arrived=True, other=_because(commit))
        case other:
            return PartEffect("created", arrived=True, other=other.word)


def _departure(commit: Commit, directory: str) -> PartEffect:
    match commit.kind:
        case Merged() as merged:
            into = merged.merged_into or _merged_into(commit, directory)
            if into or any(created_parts(commit)):
                return PartEffect("merged away", arrived=False, other=into)
            return PartEffect("removed", arrived=False, other="every row was past its TTL")
        case Tidied():
            return PartEffect("removed", arrived=False, other="a merge had replaced it")
        case Moved(moved_to=target):
            return PartEffect("moved out", arrived=False, other=target)
        case Dropped():
            return PartEffect("dropped", arrived=False)
        case Inserted():
            return PartEffect("replaced", arrived=False)
        case Restored() | Undone():
            return PartEffect("taken out", arrived=False, other=_because(commit))
        case other:
            return PartEffect("removed", arrived=False, other=other.word)


def _because(commit: Commit) -> str:
    if (undone := undone_revision(commit.kind)) is not None:
        return f"undo of revision {undone}"
    if isinstance(commit.kind, Restored) and commit.kind.revision is not None:
        return f"back to revision {commit.kind.revision}"
    return commit.kind.word


def _merged_into(commit: Commit, directory: str) -> str:
    """The part that the commit made of this one, by what it created."""
    parent, _, name = directory.rpartition("/")
    for made, part in created_parts(commit):
        if made.rpartition("/")[0] == parent and (name in part.sources or _covers(part.name, name)):
            return part.name
    return ""


def _covers(name: str, other: str) -> bool:
    try:
        return PartName.parse(name).covers(PartName.parse(other))
    except UsageError:
        return False


def _part(operation: Create) -> Part | None:
    if operation.inline is None:
        return None
    try:
        return parts_format.decode(operation.inline, path=operation.path)
    except Damaged:
        return None
