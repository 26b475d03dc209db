"""Read the disk of a ClickHouse server from its bucket: one listing, and one HEAD or GET an object. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from disks.stores.base import ObjectInfo, ObjectStore
from disks.workers.parallel import HERE, Askers
from oplog.clickhouse.names import FILE, SCHEMA_VERSION, Epochs, epochs
from oplog.clickhouse.replay import STAGING, File, LogProblem, Replayed, replay
from oplog.errors import FrostlineError, NotFound, UsageError
from oplog.mark import read_mark
from oplog.revision import SCHEMA_VERSION_KEY
from restore.clickhouse.listing import Contents, Kind, sort_listing
from restore.clickhouse.part_files import look_at_parts
from restore.clickhouse.plain import read_plain
from restore.clickhouse.records import PathsAhead, read_records


class ClickHouseTree(msgspec.Struct):
    """A ClickHouse disk as its bucket describes it, at one revision. `files` is the tree, `findings` what is wrong."""

    store: str
    """The name of the store, for messages."""
    contents: Contents
    replayed: Replayed
    head: int = 0
    """The highest revision in the bucket; 0 for kinds of bucket without revisions."""
    revision: int = 0
    """The revision this tree is of."""
    order: Epochs = msgspec.field(default_factory=lambda: Epochs((), {}))
    findings: list[LogProblem] = msgspec.field(default_factory=list)
    gaps: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Ranges of revisions up to this one without an object: files written then have been deleted since."""
    ours: bool = False
    """Every file was written by a disk of Frostline's, whose log tells of removals and of links into `shadow/` too."""

    @property
    def schema_version(self) -> str | None:
        """The body of `.SCHEMA_VERSION`; None when there is none."""
        return self.contents.schema_version

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


def survey(store: ObjectStore, ask: Callable[[ObjectInfo], None] | None = None) -> Contents:
    """List the bucket once, read its marker and sort what is there. `ask` gets the objects while the listing still
    comes in, once the marker has told that they bear paths; the marker is the first of it."""
    objects, version = [], None
    for info in store.list():
        objects.append(info)
        if info.key == SCHEMA_VERSION_KEY:
            version = _schema_version(store)
        elif ask is not None and version == SCHEMA_VERSION:
            ask(info)
    return sort_listing(objects, version)


def _schema_version(store: ObjectStore) -> str | None:
    try:
        return read_mark(store, SCHEMA_VERSION_KEY).decode(errors="replace").strip()[:20]
    except NotFound:
        return None


def read_bucket(
    store: ObjectStore,
    *,
    revision: int | None = None,
    contents: Contents | None = None,
    askers: Askers = HERE,
) -> ClickHouseTree:
    """The tree at the revision, by default at the newest one. A revision above the newest is the newest.

    Objects above the revision are not asked for. `contents` is the listing, when the caller has it already. With
    `askers.remote` others ask for what objects and the parts' checksums say; the listing is made here. Raises
    `NotFound` when nothing is there, and `UsageError` when the bucket says of no file where it belongs, or when it has
    no revisions and one is wanted.
    """
    with ExitStack() as stack:
        ahead = None
        known = contents is None and revision is None  # which objects will be asked for: all of them
        if known and askers.remote is None:
            ahead = stack.enter_context(PathsAhead(store, askers.workers))
        contents = contents or survey(store, ahead.ask if ahead is not None else None)
        return _read(store, contents, revision, ahead, askers)


def _read(
    store: ObjectStore,
    contents: Contents,
    revision: int | None,
    ahead: PathsAhead | None,
    askers: Askers,
) -> ClickHouseTree:
    if contents.kind in (Kind.PLAIN, Kind.PLAIN_REWRITABLE):
        if revision is not None:
            raise UsageError(f"{store.name} is a {contents.kind} disk: it has one state and no revisions")
        replayed = read_plain(store, contents, askers)
        parts = look_at_parts(store, replayed, (), {}, askers)
        return ClickHouseTree(store.name, contents, replayed, findings=[*replayed.findings, *parts])
    if contents.kind is not Kind.SEND_METADATA:
        raise no_tree(store.name, contents)
    order = epochs(contents.log)
    wanted = order.newest if revision is None or revision > order.head else revision
    listed = order.until(revision)
    found = read_records(store, listed, ahead, askers)
    replayed = replay(found.records, {run[0].key for run in order.runs[1:]})
    gaps = missing_revisions(order, wanted)
    restarted = len(order.runs) > 1
    named = {key for file in replayed.files.values() for key, _ in file.blobs}
    spare = [(one.key, one.size_bytes) for one in listed if one.name.kind == FILE and one.key not in named]
    parts = look_at_parts(store, replayed, gaps, found.checksums, askers, spare=spare, restarted=restarted)
    return ClickHouseTree(
        store.name,
        contents,
        replayed,
        order.head,
        wanted,
        order,
        [*unknown_schema(contents), *found.lost, *repeated(order), *replayed.findings, *parts],
        gaps,
        all((one.target or "").startswith(STAGING) for one in found.records if one.listed.name.kind == FILE),
    )


def read_tree_of_bucket(
    store: ObjectStore,
    *,
    revision: int | None = None,
    askers: Askers = HERE,
) -> ClickHouseTree:
    """The tree at the revision; an empty one for a disk to which nothing was written yet.

    Raises what `read_bucket` does, and `NotFound` for a revision above the newest.
    """
    contents = survey(store)
    if contents.schema_version == SCHEMA_VERSION and not contents.log:
        return ClickHouseTree(store.name, contents, Replayed(), ours=True)
    tree = read_bucket(store, revision=revision, contents=contents, askers=askers)
    if revision is not None and revision > tree.head:
        raise NotFound(f"{store.name} has no revision {revision}", hint=f"the newest is {tree.head}")
    return tree


def unknown_schema(contents: Contents) -> list[LogProblem]:
    """A finding for a marker that says something else than ClickHouse ever wrote."""
    if contents.schema_version in (None, SCHEMA_VERSION):
        return []
    what = f"{SCHEMA_VERSION_KEY} says {contents.schema_version!r}, and only {SCHEMA_VERSION!r} is known: read as that"
    return [LogProblem("unknown_schema", what, object=SCHEMA_VERSION_KEY)]


def missing_revisions(order: Epochs, until: int) -> list[tuple[int, int]]:
    """The ranges (first, last) of revisions up to `until` that no object bears: what was written then is deleted.

    Ascending. Empty when the counter restarted: then a number says nothing.
    """
    if len(order.runs) != 1 or order.duplicates:
        return []
    ranges = []
    expected = 1
    for listed in order.runs[0]:
        if listed.revision > until:
            break
        if listed.revision > expected:
            ranges.append((expected, listed.revision - 1))
        expected = listed.revision + 1
    return [*ranges, (expected, until)] if expected <= until else ranges


def repeated(order: Epochs) -> list[LogProblem]:
    """A finding for every revision that several objects bear."""
    how = (
        "the times are those of a copy of this bucket, so that the order between them is not known"
        if order.times_unusable
        else "the server's counter restarted; they are taken in the order of their times"
    )
    findings = []
    for revision, keys in sorted(order.duplicates.items()):
        more = f" and {len(keys) - 3} others" if keys[3:] else ""
        what = f"revision {revision} is borne by {', '.join(keys[:3])}{more}: {how}"
        findings.append(LogProblem("duplicate_revision", what, None, keys[0], revision))
    return findings


def no_tree(name: str, contents: Contents) -> FrostlineError:
    """Why there is nothing to rebuild, and what to do instead."""
    match contents.kind:
        case Kind.EMPTY:
            return NotFound(f"{name} has no objects", hint="check the URL: the prefix must be the disk's own")
        case Kind.FROSTLINE:
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
