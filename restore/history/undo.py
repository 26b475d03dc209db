"""Undo: a new commit that reverses an old one. History is never rewritten, so an undo can be undone.

The decision is `restore.history.undo_plan`'s. Here it gets what it rests on, and is carried out: claims keep this
machine's moves and merges off the parts, a pin keeps gc off the blobs, and one commit makes it happen or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import partial

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.file_table.row_bytes import read_row
from disks.file_table.table import FileTable
from disks.host.locks import OwnedDirectory
from disks.object_disk.history import available
from disks.object_disk.pending_deletes import announced
from disks.object_disk.references import inventory
from oplog import replay
from oplog.entry import Commit, Create, changed_paths
from oplog.errors import Conflict, Damaged, NotFound, Refused
from oplog.kinds import Moved, TableAltered, Undone
from oplog.replay import FileRow
from oplog.revision import OPERATIONS_PREFIX, SNAPSHOTS_PREFIX
from restore.history.undo_context import Situation, UndoPlan
from restore.history.undo_plan import levels_given, plan
from restore.rebuild.allowed import check_writable, objection_of
from restore.rebuild.duplicates import Elsewhere, PresentPart
from restore.rebuild.elsewhere import present_parts, ways_back_of
from restore.rebuild.held_revision import pinned, require_clock
from tiering.catalog import reachability, tables
from tiering.catalog.context import Context
from tiering.config.units import counted
from tiering.engine import replication
from tiering.table import part as parts_format
from tiering.table import schema, tombstones
from tiering.table.part import PART_FILE, Part
from tiering.table.paths import level_mark, locate, table_directory
from tiering.table.schema import TABLE_FILE, TableDefinition
from tiering.table.tombstones import Tombstone

_COMMIT_ATTEMPTS = 5
_MOST_OBJECTIONS = 9
_HEAD_THREADS = 16
_LOOKED_AT = 100
"""Directories, and commits of each, that are looked at for what has to be undone first."""
_HEADS_AT_MOST = 1000
"""More blobs than this are looked up by listing the prefix."""


class Change(msgspec.Struct, frozen=True):
    """What a commit changed. Past is past: this stays true, so it is read once."""

    commit: Commit
    before: dict[str, FileRow]
    after: dict[str, FileRow]
    documents: dict[str, Part | TableDefinition]


def read_change(disk: LoggedDisk, revision: int) -> Change:
    """What the commit changed. Reads the whole table of before it when the commit took files away.

    Raises `NotFound`, naming the revisions that are kept, when the commit is not among them.
    """
    try:
        commit = disk.commits().read([revision])[revision].commit
    except KeyError:
        raise NotFound(
            f"revision {revision} of disk {disk.name} is not kept, or does not exist", hint=_kept(disk)
        ) from None
    before, after = _around(disk, commit)
    return Change(commit, before, after, _documents(disk, (*before.values(), *after.values())))


def preview(context: Context, disk: LoggedDisk, revision: int, *, change: Change | None = None) -> UndoPlan:
    """What an undo would do, and what speaks against it. Changes nothing. `change`: see `read_change`, which is asked
    without it, and what it raises."""
    change = change or read_change(disk, revision)
    decided = plan(_situation(context, disk, change))
    if not decided.done:
        _check_blobs(disk, decided)
        checks = [
            partial(check_writable, disk),
            partial(_check_reach, context, disk, revision),
            partial(_check_replicas, context, change, decided),
        ]
        if decided.creates and decided.alter is None:
            checks.append(partial(require_clock, disk.store))
        if objection := objection_of(*checks):
            decided.refuse(objection)
    return decided


def _check_reach(context: Context, disk: LoggedDisk, revision: int) -> None:
    reachability.require(context.disks.values(), f"undoing revision {revision} of disk {disk.name}")


def _check_replicas(context: Context, change: Change, decided: UndoPlan) -> None:
    """Raise `Refused` where a table is replicated now, or would be again by its definition of then."""
    places, coming = set(_places(decided)), []
    if decided.alter is not None:
        current, wanted = decided.alter
        places.add(current.directory)
        coming.append(wanted)
    for row in decided.creates:
        document = change.documents.get(row.sha256) if row.path.endswith(f"/{TABLE_FILE}") else None
        if isinstance(document, TableDefinition):
            coming.append(document)
    for definition in context.catalog.tables():
        if definition.directory in places:
            replication.refuse(definition, "undoing a change of", "what a replica did, its replicas take back by verbs")
    for definition in coming:
        replication.refuse_return(definition, "undoing a change of", "nothing was changed")


def undo(
    context: Context, disk: LoggedDisk, revision: int, *, change: Change | None = None
) -> tuple[UndoPlan, int | None]:
    """Reverse the commit; what was done, and the revision that did it. None when there was nothing to do.

    Raises `Refused` with every objection, `Locked` when a part is in use here. A killed undo is run again: it happened
    as a whole or not at all.
    """
    check_writable(disk)
    _check_reach(context, disk, revision)
    change = change or read_change(disk, revision)
    for _ in range(_COMMIT_ATTEMPTS):
        decided = plan(_situation(context, disk, change))
        if not decided.done:
            _check_replicas(context, change, decided)
        _refuse(decided)
        if decided.done:
            return decided, None
        head = disk.revision
        with ExitStack() as stack:
            for uuid, parts in _parts_by_table(decided).items():
                stack.enter_context(context.journal.claim(uuid, parts, "undo"))
            try:
                done = _carry_out(context, disk, change)
            except Conflict as error:
                disk.refresh()
                if disk.revision == head:  # nobody came first: the disk itself is not as the commit left it
                    raise Refused(
                        f"revision {revision} of disk {disk.name} cannot be undone: {error.message}",
                        hint=f"'frostline diff {disk.name} {revision} {head} --files' shows what changed since",
                    ) from error
                continue
        context.catalog.refresh()
        return done
    raise Conflict(f"disk {disk.name} kept changing while revision {revision} was undone", hint="run the command again")


def _carry_out(context: Context, disk: LoggedDisk, change: Change) -> tuple[UndoPlan, int | None]:
    """Decide once more, now that nothing moves, and do it."""
    context.catalog.refresh()
    head = disk.revision
    decided = plan(_situation(context, disk, change))
    _refuse(decided)
    if decided.done:
        return decided, None
    _check_replicas(context, change, decided)
    revision = change.commit.revision
    word = change.commit.kind.word
    reason = f"undo of revision {revision} ({word})"
    if decided.alter is not None:
        tables.replace(context, *decided.alter, reason=reason, kind=TableAltered(undoes=revision, undone=word))
        return decided, disk.revision
    with pinned(disk, revision - 1 if decided.creates else 0, context.actor, reason) as pin:
        _check_blobs(disk, decided)
        _refuse(decided)
        kind = Undone(undoes=revision, undone=word)
        with disk.transaction(kind, reason=reason, actor=context.actor) as transaction:
            transaction.made_from(head, _places(decided))
            transaction.require(present=tuple(decided.present))
            for path in decided.removes:
                transaction.remove(path)
            for row in decided.creates:
                transaction.adopt(row)
            for path in itertools.starmap(level_mark, levels_given(decided).items()):
                if not disk.exists(path):
                    transaction.create(path, b"{}")
            if pin is not None:
                pin.check()
            made = transaction.commit()
        if isinstance(change.commit.kind, Moved):  # the copies that were left behind are the parts again
            back = ((note.table_uuid, note.part) for note in decided.parts_removed)
            context.journal.source_copies.forget(back)
        return decided, made


def _refuse(decided: UndoPlan) -> None:
    if decided.objections:
        first, *others = decided.objections
        more = "".join(f"; {objection}" for objection in others[:_MOST_OBJECTIONS])
        more += f"; and {len(others) - _MOST_OBJECTIONS} more" if len(others) > _MOST_OBJECTIONS else ""
        raise Refused(
            f"revision {decided.commit.revision} of disk {decided.disk} cannot be undone: {first}{more}",
            hint=decided.hint or "nothing was changed",
        )


def _places(decided: UndoPlan) -> list[str]:
    """What the plan is about: the tables whose files come and go, and the files that are in none."""
    paths = {*decided.removes, *(row.path for row in decided.creates)}
    return sorted({table_directory(place.uuid) if (place := locate(path)) else path for path in paths})


def _parts_by_table(decided: UndoPlan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for note in (*decided.parts_removed, *decided.parts_back):
        if note.part not in found.setdefault(note.table_uuid, []):
            found[note.table_uuid].append(note.part)
    return found


# What the decision rests on


def _situation(context: Context, disk: LoggedDisk, change: Change) -> Situation:
    commit, before, after = change.commit, change.before, change.after
    paths = {*before, *after}
    homes = {place.uuid for path in paths if (place := locate(path)) is not None}
    with disk.file_table.read() as view:
        looked_at = {*paths, *map(tombstones.path_of, homes)}
        now = {path: row for path in looked_at if (row := view.get(path)) is not None}
        definitions = {path for uuid in homes if view.get(path := tombstones.definition_path(uuid)) is not None}
    directories = {path.rpartition("/")[0] for path in paths}
    later = disk.commits().last_touching(directories, commit.revision, disk.revision)
    other = {path.rpartition("/")[0] for path in paths if now.get(path) != after.get(path)}
    gone = {table_directory(uuid) for uuid in homes if tombstones.definition_path(uuid) not in definitions}
    return Situation(
        disk=disk.name,
        commit=commit,
        before=before,
        after=after,
        now=now,
        later=tuple(sorted({entry.commit.revision: entry.commit for entry in later.values()}.values(), key=_revision)),
        newer=_touching(disk, sorted(other | gone), commit.revision),
        documents={**_documents(disk, map(now.__getitem__, filter(tombstones.is_definition, now))), **change.documents},
        parts=tuple(_parts(context, homes)),
        tables=tuple(context.catalog.tables()),
        unreadable={
            table.uuid: context.catalog.table_to_change(table.uuid)
            for table in context.catalog.unreadable()
            if table.uuid in homes and table.can_be_changed
        },
        definitions_here=frozenset(definitions),
        tombstones={uuid: stone for uuid in homes if (stone := _tombstone(context, uuid)) is not None},
        elsewhere=Elsewhere(ways_back={uuid: ways_back_of(context, uuid) for uuid in homes}),
        actor=context.actor,
        broken=tuple(
            broken.text
            for broken in context.catalog.broken
            if (place := locate(broken.path)) is not None and place.uuid in homes
        ),
        policies={
            name: frozenset(name for volume in policy.volumes for name in volume.disks)
            for name, policy in context.config.policies.items()
        },
    )


def _touching(disk: LoggedDisk, directories: Sequence[str], since: int) -> tuple[Commit, ...]:
    """Commits that touched the directories, ascending. They are named to a person: so many will do."""
    commits = disk.commits()
    found = {
        entry.commit.revision: entry.commit
        for directory in directories[:_LOOKED_AT]
        for entry in commits.touching(directory, since, limit=_LOOKED_AT)
    }
    return tuple(sorted(found.values(), key=_revision))


def _revision(commit: Commit) -> int:
    return commit.revision


def _kept(disk: LoggedDisk) -> str:
    return available(inventory([*disk.store.list(OPERATIONS_PREFIX), *disk.store.list(SNAPSHOTS_PREFIX)]))


def _around(disk: LoggedDisk, commit: Commit) -> tuple[dict[str, FileRow], dict[str, FileRow]]:
    """The paths that the commit changed, before it and after it."""
    changed = [path for operation in commit.operations for path in changed_paths(operation)]
    takes_away = any(not isinstance(operation, Create) for operation in commit.operations)
    with _table_before(disk, commit.revision if takes_away else 1) as table, table.write() as view:
        before = {row.path: row for path in changed for row in _rows(view, path)}
        replay.apply(view, commit)
        after = {row.path: row for path in (*changed, *before) for row in _rows(view, path)}
    same = {path for path, row in before.items() if after.get(path) == row}
    return (
        {path: row for path, row in before.items() if path not in same},
        {path: row for path, row in after.items() if path not in same},
    )


@contextmanager
def _table_before(disk: LoggedDisk, revision: int) -> Iterator[FileTable]:
    """The file table right before the revision, in a scratch file: it may be large."""
    with ExitStack() as stack:
        if revision == 1:
            yield stack.enter_context(closing(FileTable(None)))
            return
        scratch = OwnedDirectory(disk.state_path / "scratch")
        stack.callback(scratch.remove)
        try:
            table = disk.table_at(revision - 1, path=scratch.path / "before.db")
        except NotFound as error:
            raise NotFound(
                f"revision {revision} of disk {disk.name} took files away, and what it was before, revision "
                f"{revision - 1}, is not kept any more",
                hint=_kept(disk),
            ) from error
        yield stack.enter_context(closing(table))


def _rows(view: replay.ReplayTable, path: str) -> list[FileRow]:
    row = view.get(path)
    return [row] if row is not None else list(view.rows(path))


def _documents(disk: LoggedDisk, rows: Iterable[FileRow]) -> dict[str, Part | TableDefinition]:
    found: dict[str, Part | TableDefinition] = {}
    for row in rows:
        try:
            if row.path.endswith(f"/{PART_FILE}"):
                found[row.sha256] = parts_format.decode(read_row(disk.store, row, disk=disk.name), path=row.path)
            elif row.path.endswith(f"/{TABLE_FILE}"):
                found[row.sha256] = schema.decode(read_row(disk.store, row, disk=disk.name), path=row.path)
        except (Damaged, NotFound):
            continue  # the plan objects to what it cannot read
    return found


def _tombstone(context: Context, uuid: str) -> Tombstone | None:
    """The newest of all disks."""
    path = tombstones.path_of(uuid)
    shared = [disk for disk in context.disks.values() if disk.capabilities.shared and disk.exists(path)]
    found = [tombstones.decode(disk.read(path), path=f"{disk.name}:{path}") for disk in shared]
    return max(found, key=lambda tombstone: tombstone.version, default=None)


def _parts(context: Context, uuids: set[str]) -> Iterator[PresentPart]:
    hidden = [gone.definition for gone in context.catalog.dropped()]
    hidden += [table.before for table in context.catalog.unreadable() if table.before is not None]
    for definition in (*context.catalog.tables(), *hidden):
        if definition.uuid in uuids:
            yield from present_parts(context, definition)


# Blobs


def _check_blobs(disk: LoggedDisk, decided: UndoPlan) -> None:
    """Object to files whose bytes are gone, or are about to go. Taken after the pin, this answer holds."""
    wanted = {key: size for row in decided.creates for key, size in row.blobs}
    if not wanted:
        return
    sizes = _sizes(disk, list(wanted))
    gone = [key for key, size in wanted.items() if sizes.get(key) != size]
    if gone:
        decided.refuse(
            f"{len(gone)} of the {counted(len(wanted), 'object')} it needs are gone from the bucket, such as {gone[0]}",
            "bring them back from a copy of the bucket",
        )
    if not announced(disk, now=datetime.now(UTC)).isdisjoint(wanted):
        decided.refuse(
            "a collection is deleting objects that it needs",
            "wait until it has ended and look again; an abandoned one counts for an hour",
        )


def _sizes(disk: LoggedDisk, keys: Sequence[str]) -> dict[str, int]:
    """The size in bytes of each object that is there."""
    if len(keys) > _HEADS_AT_MOST:
        return {item.key: item.size_bytes for item in disk.store.list()}

    def size(key: str) -> int:
        try:
            return disk.store.head(key).size_bytes
        except NotFound:
            return -1

    with ThreadPoolExecutor(_HEAD_THREADS, thread_name_prefix="head") as pool:
        return dict(zip(keys, pool.map(size, keys), strict=True))
