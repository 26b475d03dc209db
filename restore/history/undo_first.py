"""What has to be undone before a commit can be: named, so that a refused user can go on. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oplog.entry import Commit, Create, Link, Remove, Rename
from oplog.errors import Damaged
from oplog.kinds import Moved, undone_revision
from restore.history.undo_context import Situation
from tiering.policy.part_events import event
from tiering.table import schema, tombstones
from tiering.table.paths import locate
from tiering.table.tombstones import essence

_NAMED = 6


def undo_first(situation: Situation, directories: Iterable[str]) -> str:
    """The hint for parts and other files that later commits changed."""
    chosen = list(directories)
    found: list[Commit] = []
    for commit in situation.newer:
        if any(event(commit, directory) is not None for directory in chosen):
            _take(found, commit)
    if found and isinstance(found[-1].kind, Moved) and (hint := _move_back(situation, found[-1], chosen)):
        return hint
    return _named(situation, found)


def undo_first_of_table(situation: Situation, path: str) -> str:
    """The hint for a definition that later commits changed or took away."""
    found: list[Commit] = []
    last = _essence(situation.after[path].inline) if path in situation.after else None
    for commit in situation.newer:
        for said in _sayings(commit, path):
            if said != last:
                last = said
                _take(found, commit)
    return _named(situation, found)


def _take(commits: list[Commit], commit: Commit) -> None:
    """A commit that takes another one back leaves neither."""
    taken = undone_revision(commit.kind)
    for other in commits:
        if other.revision == taken:
            commits.remove(other)
            return
    if commit not in commits:
        commits.append(commit)


def _named(situation: Situation, commits: list[Commit]) -> str:
    revisions = sorted({commit.revision for commit in commits}, reverse=True)
    if not revisions:
        return f"'frostline log {situation.disk}' shows the later commits"
    first = f"frostline undo {situation.disk} {revisions[0]}"
    if len(revisions) == 1:
        return f"undo revision {revisions[0]} first: {first}"
    *some, last = map(str, revisions[:_NAMED])
    more = f" and {len(revisions) - _NAMED} more" if len(revisions) > _NAMED else ""
    return f"undo revisions {', '.join(some)} and {last}{more} first, the newest first: {first}"


def _move_back(situation: Situation, commit: Commit, directories: list[str]) -> str:
    """How to bring back a part that the commit moved to another disk; empty when none of these was."""
    for directory in directories:
        place = locate(f"{directory}/x")
        seen = event(commit, directory)
        if place is not None and place.part is not None and seen is not None and not seen.arrived:
            table = next((table.full_name for table in situation.tables if table.uuid == place.uuid), place.uuid)
            return f"move it back first: frostline move {table} --part {place.part} --to-disk {situation.disk}"
    return ""


def _sayings(commit: Commit, path: str) -> Iterator[object]:
    """What the commit says of the definition there, step by step; None where it takes it away."""
    for operation in commit.operations:
        match operation:
            case Create(path=made, inline=data) if made == path:
                yield _essence(data)
            case Remove(path=gone) if path == gone or path.startswith(f"{gone}/"):
                if not any(isinstance(step, Create) and step.path == path for step in commit.operations):
                    yield None
            case Link(target=made) | Rename(target=made) if made == path:
                yield commit.revision
            case _:
                continue


def _essence(data: bytes | None) -> object:
    try:
        return essence(schema.decode(data or b"", path=tombstones.DROPPED_DIRECTORY))
    except Damaged:
        return data
