"""What servers say that they have, what their marks say, and what the bucket holds: where the three differ. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import PurePosixPath

import msgspec

from disks.stores.base import ObjectInfo
from oplog.clickhouse.replay import LogProblem
from oplog.clickhouse.writing import SHADOW
from oplog.replay import FileRow
from oplog.revision import OPERATIONS_PREFIX, SCHEMA_VERSION_KEY
from tiering.config.units import counted
from zerocopy.clickhouse.nodes import ServerMarks, unique_id

YOUNG = timedelta(hours=1)
"""An object that nobody names may be one of an upload that goes on, if it is no older."""
_CHECKSUMS = "checksums.txt"
_UNFINISHED = re.compile(r"(?:^|/)(?:delete_)?tmp[-_]")
_ORDER = (
    *("object_missing", "unreadable", "part_without_mark", "mark_without_object"),
    *("mark_without_part", "mark_of_nobody", "orphan"),
)


class SharingServer(msgspec.Struct, frozen=True):
    """One server's metadata of the disk."""

    name: str
    """Of the replica, as in its marks."""
    rows: Sequence[FileRow]
    problems: Sequence[str] = ()
    """Files that cannot be read: what they name is not known."""


class ServerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server's metadata names."""

    server: str
    files: int
    parts: int
    marks: int
    unreadable: int


class SharingProblem(msgspec.Struct, frozen=True):
    """Where metadata, marks and bucket differ."""

    kind: str
    what: str
    path: str | None
    object: str | None


class SharingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`clickhouse zero-copy inspect --json`."""

    url: str
    servers: list[ServerCounts]
    marks: int
    objects: int
    bytes: int
    shared: int
    shared_bytes: int
    orphaned: int
    orphaned_bytes: int
    young: int
    problems: list[SharingProblem]
    notes: list[str]
    ok: bool


class Sharing(msgspec.Struct):
    """What was found."""

    servers: list[ServerCounts] = msgspec.field(default_factory=list)
    marks: int = 0
    objects: int = 0
    size_bytes: int = 0
    shared: int = 0
    """Objects that more than one server names."""
    shared_bytes: int = 0
    orphaned: int = 0
    orphaned_bytes: int = 0
    young: int = 0
    findings: list[LogProblem] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)

    def document(self, url: str) -> SharingDocument:
        """Of the disk at this address."""
        return SharingDocument(
            url=url,
            servers=self.servers,
            marks=self.marks,
            objects=self.objects,
            bytes=self.size_bytes,
            shared=self.shared,
            shared_bytes=self.shared_bytes,
            orphaned=self.orphaned,
            orphaned_bytes=self.orphaned_bytes,
            young=self.young,
            problems=[SharingProblem(one.kind, one.what, one.path, one.object) for one in self.findings],
            notes=self.notes,
            ok=not self.findings,
        )


def compare(
    servers: Sequence[SharingServer],
    marks: ServerMarks,
    objects: Iterable[ObjectInfo],
    *,
    key_prefix: str,
    now: datetime,
) -> Sharing:
    """Compare them. `objects` is the listing of the disk's prefix, whose keys the rows have, too; `key_prefix` is what
    stands before them in the bucket."""
    listed = {info.key: info for info in objects if not _is_of_the_log(info.key)}
    sharing = Sharing(objects=len(listed), size_bytes=sum(info.size_bytes for info in listed.values()))
    sharing.marks = len(marks.marks)
    users = _users(servers)
    twice = [key for key, names in users.items() if len(names) > 1 and key in listed]
    sharing.shared, sharing.shared_bytes = len(twice), sum(listed[key].size_bytes for key in twice)
    findings = [finding for server in servers for finding in _of_server(server, marks, listed, key_prefix, sharing)]
    findings += _of_marks(servers, marks, listed, key_prefix)
    findings += _orphans(listed, users, now, sharing)
    sharing.findings = sorted(findings, key=lambda finding: (_ORDER.index(finding.kind), finding.what))
    sharing.notes += _notes(servers, marks, sharing)
    return sharing


def _is_of_the_log(key: str) -> bool:
    return key == SCHEMA_VERSION_KEY or key.startswith(OPERATIONS_PREFIX)


def _users(servers: Sequence[SharingServer]) -> Mapping[str, set[str]]:
    """Object -> the servers that name it."""
    users: dict[str, set[str]] = defaultdict(set)
    for server in servers:
        for row in server.rows:
            for key, _ in row.blobs:
                users[key].add(server.name)
    return users


def _is_frozen(directory: str) -> bool:
    return directory.startswith(SHADOW)


def _parts(server: SharingServer, key_prefix: str) -> Iterator[tuple[str, str]]:
    """The directory of each part in its place, and its unique id."""
    for row in server.rows:
        path = PurePosixPath(row.path)
        if path.name == _CHECKSUMS and row.key is not None and not _UNFINISHED.search(row.path):
            yield str(path.parent), unique_id(key_prefix + row.key)


def _of_server(
    server: SharingServer, marks: ServerMarks, listed: Mapping[str, ObjectInfo], key_prefix: str, sharing: Sharing
) -> Iterator[LogProblem]:
    own = {mark.unique_id for mark in marks.marks if mark.replica == server.name}
    parts = [(directory, known_as) for directory, known_as in _parts(server, key_prefix) if not _is_frozen(directory)]
    sharing.servers.append(
        ServerCounts(
            server=server.name,
            files=len(server.rows),
            parts=len(parts),
            marks=sum(mark.replica == server.name for mark in marks.marks),
            unreadable=len(server.problems),
        )
    )
    for sentence in server.problems:
        yield LogProblem("unreadable", f"{server.name}: {sentence}")
    for row in server.rows:
        for key, size in row.blobs:
            if key not in listed or listed[key].size_bytes != size:
                fault = "is not in the bucket" if key not in listed else f"has {listed[key].size_bytes:,} bytes there"
                sentence = f"{server.name}: {row.path}: object {key} ({size:,} bytes) {fault}"
                yield LogProblem("object_missing", sentence, path=row.path, object=key)
    for directory, known_as in parts:
        if known_as not in own:
            sentence = f"{server.name}: {directory}: no mark says so; another server's drop deletes its objects"
            yield LogProblem("part_without_mark", sentence, path=directory, object=known_as)


def _of_marks(
    servers: Sequence[SharingServer], marks: ServerMarks, listed: Mapping[str, ObjectInfo], key_prefix: str
) -> Iterator[LogProblem]:
    there = {unique_id(key_prefix + key) for key in listed}
    had = {server.name: {known_as for _, known_as in _parts(server, key_prefix)} for server in servers}
    ours = unique_id(key_prefix)
    unread = {server.name: "\n".join(server.problems) for server in servers}
    for mark in marks.marks:
        if not mark.unique_id.startswith(ours):  # of another disk
            continue
        if mark.unique_id not in there:
            sentence = f"{mark.replica}: {mark.table}/{mark.part}: its first object is not in the bucket"
            yield LogProblem("mark_without_object", sentence, path=mark.node, object=mark.unique_id)
        elif mark.replica in had and mark.unique_id not in had[mark.replica]:
            if f"/{mark.part}/" in unread[mark.replica]:
                continue  # the part is there, and reported as unreadable
            sentence = f"{mark.replica}: {mark.table}/{mark.part}: it has no such part; its objects stay for ever"
            yield LogProblem("mark_without_part", sentence, path=mark.node, object=mark.unique_id)
    for node in marks.empty:
        if (known_as := node.rpartition("/")[2]) in there:
            sentence = f"{node}: no replica holds it, and its objects are in the bucket"
            yield LogProblem("mark_of_nobody", sentence, path=node, object=known_as)


def _orphans(
    listed: Mapping[str, ObjectInfo], users: Mapping[str, set[str]], now: datetime, sharing: Sharing
) -> Iterator[LogProblem]:
    for key, info in listed.items():
        if key in users:
            continue
        if now - info.modified < YOUNG:
            sharing.young += 1
            continue
        sharing.orphaned += 1
        sharing.orphaned_bytes += info.size_bytes
        sentence = (
            f"object {key} ({info.size_bytes:,} bytes, of {info.modified:%Y-%m-%d}): none of the servers names it"
        )
        yield LogProblem("orphan", sentence, object=key)


def _notes(servers: Sequence[SharingServer], marks: ServerMarks, sharing: Sharing) -> Iterator[str]:
    given = {server.name for server in servers}
    others = Counter(mark.replica for mark in marks.marks if mark.replica not in given)
    if others:
        listed = ", ".join(f"{name} ({count:,})" for name, count in sorted(others.items()))
        yield f"no metadata was given of {listed} with marks: what is called an orphan may be theirs"
    for server in servers:
        if server.problems:
            count = counted(len(server.problems), "metadata file")
            yield f"{server.name}: {count} cannot be read: what is called an orphan may be theirs"
    if sharing.young:
        young = counted(sharing.young, "object")
        yield f"{young} unreferenced and less than an hour old: uploads may be running"
    if marks.moved_now:
        yield f"servers move or merge {counted(len(marks.moved_now), 'part')} now: run it again when they have ended"
