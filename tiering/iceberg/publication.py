"""A table's publication in a bucket: Iceberg metadata beside the parts, which other engines read in place.

Below `iceberg/<uuid>/metadata/` of the disk's prefix are manifests, a manifest list for each snapshot, and
`vN.metadata.json`, whose conditional put is the commit. A snapshot shows the table as `query --revision` shows it, at
the revision that is its id. Metadata follows from the log, and is never a source of anything: what another program
commits into it is noticed and not followed. Only garbage collection and `unpublish` delete it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from disks.contracts.bucket_disk import LoggedDisk
from disks.effects import make_directory, remove_file, replace_file
from disks.garbage.publications import REVISION, remove_publication, version_of
from disks.kinds import as_disk
from oplog import bounds
from oplog.documents import Document
from oplog.errors import (
    AlreadyExists,
    Conflict,
    Damaged,
    FrostlineError,
    NotFound,
    OutcomeUnknown,
    Refused,
    UsageError,
)
from oplog.kinds import Fenced
from oplog.revision import PUBLICATIONS_PREFIX
from tiering.catalog.stored import StoredPart, described
from tiering.iceberg import metadata as format_
from tiering.iceberg.metadata import IcebergSnapshot, Reference, SnapshotLogEntry, TableMetadata
from tiering.iceberg.schema import check_stored, iceberg_schema, partition_spec, published_columns, sort_orders
from tiering.table.part import Part
from tiering.table.schema import Column, TableDefinition

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile

    from tiering.catalog.context import Context
    from tiering.engine.store import Store
    from tiering.iceberg.manifests import AvroTypes, Group, Mapped

_MOST_SNAPSHOTS = 1_000
"""Readers read all of them each time."""
_TRIES = 8
_NO_SNAPSHOT = -1


class Published(msgspec.Struct, frozen=True):
    """The newest metadata of a publication."""

    version: int
    metadata: TableMetadata
    manifests: bytes
    """The manifest list of its current snapshot."""

    @property
    def revision(self) -> int:
        """The revision that readers see."""
        return self.metadata.current_snapshot_id

    @property
    def is_ours(self) -> bool:
        """Whether its current snapshot is one that Frostline made."""
        current = self.metadata.current
        return current is not None and current.summary.get(REVISION) == str(current.snapshot_id)


class PublishedRevision(msgspec.Struct, frozen=True):
    """What this machine published last: until the table changes again, the bucket need not be asked."""

    revision: int


_seen = Document("publication as this machine last saw it", PublishedRevision)


class RowsElsewhere(msgspec.Struct, frozen=True):
    """Rows of a table that are on other disks than its publication, as this machine knows them."""

    rows: int
    complete_until: datetime | None
    """No row that is earlier, by the table's time column, is among them; None where it has none, or there are none."""


class Publication:
    """That of one table. What it sends goes to the only bucket of the table's policy."""

    def __init__(self, store: Store, definition: TableDefinition) -> None:
        """Raises `UsageError` or `Refused` where the table cannot be published at all."""
        self.definition = definition
        self.disk = _bucket_of(store, definition)
        self._store = store
        self._objects = self.disk.store
        self._directory = format_.directory_of(definition.uuid)
        self._kept_at = self.disk.state_path / PUBLICATIONS_PREFIX / f"{definition.uuid}.json"

    # -- reading -----------------------------------------------------------------------------------------------------

    def url(self, key: str = "") -> str:
        """The URL of the publication, or of an object of it."""
        return self._objects.url(f"{self._directory}/{key}" if key else self._directory)

    def metadata_url(self, version: int) -> str:
        """The URL of the metadata of a version."""
        return self._objects.url(format_.metadata_key(self.definition.uuid, version))

    def newest(self, *, or_nothing: bool = False) -> Published | None:
        """The newest metadata in the bucket. Raises `Damaged` where it cannot be read; with `or_nothing` it is metadata
        without a snapshot then."""
        versions = self._versions()
        if not versions:
            return None
        try:
            return self._read(max(versions))
        except Damaged:
            if or_nothing:
                return Published(max(versions), _unreadable(self.definition, self.url()), b"")
            raise

    def _versions(self) -> list[int]:
        listed = self._objects.list(f"{self._directory}/metadata/v")
        return [version for info in listed if (version := version_of(info.key)) is not None]

    def _read(self, version: int) -> Published:
        key = format_.metadata_key(self.definition.uuid, version)
        metadata = format_.decode(self._objects.get(key), path=self._objects.url(key))
        assert metadata.current is not None
        name = metadata.current.manifest_list.rpartition("/")[2]
        try:
            manifests = self._objects.get(f"{self._directory}/metadata/{name}")
        except NotFound:
            manifests = b""  # of another program, or gone: all manifests are written again
        return Published(version, metadata, manifests)

    def _seen_revision(self) -> int | None:
        try:
            return _seen.decode(self._kept_at.read_bytes()).revision
        except (OSError, *bounds.UNREADABLE):
            return None

    def _keep(self, published: Published) -> None:
        try:
            make_directory(self._kept_at.parent)
            replace_file(self._kept_at, _seen.encode(PublishedRevision(published.revision)))
        except (OSError, FrostlineError):
            pass  # the next publication asks the bucket

    def objects(self) -> int:
        """How many objects it has."""
        return sum(1 for _ in self._objects.list(f"{self._directory}/"))

    def check(self, definition: TableDefinition) -> None:
        """Raise `Refused` or `UsageError` for a definition that cannot be published, or without the library."""
        _require_library()
        iceberg_schema(definition, definition.left_out)
        partition_spec(definition)

    def remove(self) -> None:
        """Delete what the bucket has of it; all of it follows from the log."""
        remove_publication(self._objects, f"{self._directory}/")
        remove_file(self._kept_at, missing_ok=True)

    # -- publishing --------------------------------------------------------------------------------------------------

    def due(self, last: Published | None) -> tuple[int, int] | None:
        """The newest revision of the disk that changed the table and is not published, and that of the disk; None when
        there is none."""
        return self._changed_since(last.revision if last is not None and last.is_ours else 0)

    def _changed_since(self, revision: int) -> tuple[int, int] | None:
        head = self.disk.revision
        touching = self.disk.commits().touching(self.definition.directory, since=revision, until=head, limit=1)
        newest = next(iter(touching), None)
        if newest is not None:
            return newest.commit.revision, head
        return (head, head) if revision == 0 else None

    def publish(self, *, rewrite: bool = False, look: bool = False) -> Published | None:
        """Publish the table as it is now; None when there is nothing to do. Several machines may do so at once: each
        revision is published once. A publication that was cut off is begun again by the next. Before anything is put,
        the bucket is asked for the newest metadata: another machine may have ended the publication and begun it again.
        `look`: ask it first, also where nothing changed, for what another program commits.

        Raises `Refused` for what Iceberg cannot say, `Damaged` for metadata that cannot be read, unless it is to
        `rewrite` it, and `Conflict` when others were faster each time.
        """
        seen = None if look or rewrite else self._seen_revision()
        if seen is not None and self._changed_since(seen) is None:
            return None
        others = self._on_other_disks()
        for _ in range(_TRIES):
            last = self.newest(or_nothing=rewrite)
            due = self.due(None if rewrite else last)
            if due is None:
                return None
            try:
                published = self._publish(*due, last, others, rewrite=rewrite)
            except AlreadyExists:
                self.disk.refresh()
                continue
            self._keep(published)
            if not self._collected_since(due[1]):
                return published
            rewrite = True
        raise Conflict(
            f"others published {self.definition.full_name} each time, or collected garbage",
            hint="the next publication shows all of it",
        )

    def _collected_since(self, revision: int) -> bool:
        """Whether a collection began after the revision. It may not have seen this publication in time, and delete
        what later revisions do not name."""
        self.disk.refresh()
        return any(isinstance(entry.commit.kind, Fenced) for entry in self.disk.entries(since=revision))

    def _publish(
        self, revision: int, head: int, last: Published | None, others: Sequence[StoredPart], *, rewrite: bool
    ) -> Published:
        _require_library()
        from tiering.iceberg import manifests

        before = last if last is not None and last.is_ours and not rewrite else None
        with self._store.past(head, self.disk.name) as past:
            definition = past.catalog.table(self.definition.uuid)
            without = definition.left_out
            mapped = manifests.Mapped(
                definition,
                iceberg_schema(definition, without),
                partition_spec(definition),
                published_columns(definition, without),
            )
            parts = past.catalog.parts(definition)
            kept = self._retained(before.metadata.snapshots) if before is not None else []
            carried = {} if before is None else self._carried(before)
            checked = partial(_checked, past, mapped, {definition.schema_version})
            shown = [one.snapshot_id for one in kept]
            write = partial(self._manifest, past, mapped, mapped.avro(), revision, shown, checked)
            rows = [carried.get(group.digest) or write(group) for group in manifests.groups_of(parts, mapped)]
        totals = {
            "total-data-files": str(
                sum((row.added_files_count or 0) + (row.existing_files_count or 0) for row in rows)
            ),
            "total-records": str(sum(part.facts.rows for part in parts)),
        }
        token = secrets.token_hex(4)
        list_key = f"metadata/snap-{revision}-{token}.avro"
        parent = kept[-1].snapshot_id if kept else None
        listed = manifests.write_list(rows, url=self.url(list_key), revision=revision, parent=parent)
        self._put(list_key, listed)
        snapshot = IcebergSnapshot(
            snapshot_id=revision,
            sequence_number=revision,
            timestamp_ms=self._moment(revision, kept),
            manifest_list=self.url(list_key),
            summary={"operation": "overwrite" if kept else "append", REVISION: str(revision), **totals},
            parent_snapshot_id=parent,
            schema_id=mapped.schema.schema_id,
        )
        version = (last.version if last is not None else 0) + 1
        metadata = self._metadata(mapped, [*kept, snapshot], before, self._without(others, parts))
        self._commit(version, format_.encode(metadata))
        return Published(version, metadata, listed)

    def _manifest(
        self,
        past: Context,
        mapped: Mapped,
        types: AvroTypes,
        revision: int,
        published: Sequence[int],
        checked: Callable[[Sequence[StoredPart]], Iterator[tuple[StoredPart, Part]]],
        group: Group,
    ) -> ManifestFile:
        from tiering.iceberg import manifests

        disk = past.disk(self.disk.name)

        def location(path: str) -> str:
            where = disk.location(path)
            if where is None:
                raise Refused(
                    f"{disk.name}:{path} has no URL of its own",
                    hint=f"other engines cannot read disk {disk.name}: 'frostline iceberg unpublish' ends it",
                )
            return where.url

        manifest = manifests.write_manifest(
            group,
            mapped,
            types,
            url=self.url("metadata"),
            revision=revision,
            published=published,
            described=checked,
            location=location,
        )
        self._put(f"metadata/{manifest.name}", manifest.data)
        return manifest.row

    def _carried(self, before: Published) -> dict[str, ManifestFile]:
        """The rows of the manifests that there are, by the digest of their groups."""
        from tiering.iceberg import manifests

        if not before.manifests or before.metadata.current is None:
            return {}
        try:
            rows = manifests.read_list(before.manifests, url=before.metadata.current.manifest_list)
        except Damaged:
            return {}  # all manifests are written again
        return {manifests.digest_in(row.manifest_path): row for row in rows}

    def _retained(self, snapshots: Sequence[IcebergSnapshot]) -> list[IcebergSnapshot]:
        """The snapshots that stay: those whose revision the disk keeps."""
        oldest_ms = (self._store.context.clock().timestamp() - self.disk.retention_seconds) * 1000
        ours = [one for one in snapshots if one.summary.get(REVISION) == str(one.snapshot_id)]
        return [one for one in ours if one.timestamp_ms >= oldest_ms][-_MOST_SNAPSHOTS:]

    def _moment(self, revision: int, kept: Sequence[IcebergSnapshot]) -> int:
        """When the revision was committed, in milliseconds; not before the snapshot that it follows."""
        entry = next(iter(self.disk.entries(since=revision - 1, until=revision)), None)
        moment = entry.commit.time if entry is not None else self._store.context.clock()
        return max(int(moment.timestamp() * 1000), kept[-1].timestamp_ms if kept else 0)

    def _metadata(
        self, mapped: Mapped, snapshots: Sequence[IcebergSnapshot], before: Published | None, elsewhere: RowsElsewhere
    ) -> TableMetadata:
        definition, current = mapped.definition, snapshots[-1]
        named = {one.schema_id for one in snapshots}
        schemas = {one.schema_id: one for one in (before.metadata.schemas if before is not None else ())}
        schemas = {number: schema for number, schema in schemas.items() if number in named}
        schemas[mapped.schema.schema_id] = mapped.schema
        orders = sort_orders(definition, mapped.columns)
        properties = {
            **_PROPERTIES,
            REVISION: str(current.snapshot_id),
            format_.TABLE_VERSION: str(definition.version),
            format_.ROWS_ELSEWHERE: str(elsewhere.rows),
        }
        if elsewhere.complete_until is not None:
            properties[format_.COMPLETE_UNTIL] = elsewhere.complete_until.isoformat()
        return TableMetadata(
            format_version=2,
            table_uuid=definition.uuid,
            location=self.url(),
            last_sequence_number=current.sequence_number,
            last_updated_ms=current.timestamp_ms,
            last_column_id=max(definition.last_column_id, *_ids(mapped.schema)),
            current_schema_id=mapped.schema.schema_id,
            schemas=tuple(schemas[number] for number in sorted(schemas)),
            default_spec_id=mapped.spec.spec_id,
            partition_specs=(mapped.spec,),
            last_partition_id=max([999, *(field.field_id for field in mapped.spec.fields)]),
            default_sort_order_id=orders[-1].order_id,
            sort_orders=orders,
            properties=properties,
            current_snapshot_id=current.snapshot_id,
            refs={"main": Reference(current.snapshot_id)},
            snapshots=tuple(snapshots),
            snapshot_log=tuple(SnapshotLogEntry(one.timestamp_ms, one.snapshot_id) for one in snapshots),
        )

    def _commit(self, version: int, data: bytes) -> None:
        """Raises `AlreadyExists` when another machine published meanwhile."""
        key = format_.metadata_key(self.definition.uuid, version)
        try:
            self._objects.put_if_absent(key, data, sha256=hashlib.sha256(data).digest())
        except OutcomeUnknown:
            if self._objects.get(key) != data:
                raise AlreadyExists(f"{self._objects.url(key)} exists") from None
        # After the metadata, so that the hint never names what is not there. Readers look for later versions.
        self._put("metadata/version-hint.text", str(version).encode())

    def _put(self, key: str, data: bytes) -> None:
        self._objects.put(f"{self._directory}/{key}", data, sha256=hashlib.sha256(data).digest())

    # -- what is elsewhere -------------------------------------------------------------------------------------------

    def elsewhere(self) -> RowsElsewhere:
        """The rows that this machine knows on other disks and that the bucket does not have."""
        parts = self._on_other_disks()
        return self._without(parts, self._store.context.catalog.parts(self.definition, include_outdated=True))

    def _on_other_disks(self) -> list[StoredPart]:
        """Asked before the bucket is: what moves there meanwhile counts as missing, and not as shown."""
        catalog = self._store.context.catalog
        if (tables := catalog.sums(self.definition)) is None:
            parts = catalog.parts(self.definition)
        else:
            others = (table for name, table in tables.items() if name != self.disk.name)
            partitions = sorted(set[str]().union(*(table.partitions for table in others)))
            parts = [part for name in partitions for part in catalog.partition(self.definition, partition=name)]
        return [part for part in parts if part.disk != self.disk.name and part.state == "active"]

    def _without(self, parts: Sequence[StoredPart], everything: Sequence[StoredPart]) -> RowsElsewhere:
        shown = {part.name for part in everything if part.disk == self.disk.name} if parts else set()
        missing = [part for part in parts if part.name not in shown]
        column = _time_column(self.definition)
        moments = [_earliest(part, column) for _, part in described(missing)] if column is not None else []
        return RowsElsewhere(sum(part.facts.rows for part in missing), min(moments, default=None))


def _earliest(part: Part, column: Column) -> datetime:
    """The earliest moment of a part; the earliest of all where it does not say one."""
    known = part.columns.get(str(column.id))
    least = known.min if known is not None else None
    moment = datetime.fromisoformat(least) if isinstance(least, str) else datetime.min
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_PROPERTIES = {
    "gc.enabled": "false",
    "write.format.default": "parquet",
    # The first text of the sort order is stored as differences, which Iceberg for Java reads row by row only.
    "read.parquet.vectorization.enabled": "false",
}


def _require_library() -> None:
    if find_spec("pyiceberg") is None:
        raise UsageError("publications need pyiceberg", hint="pip install 'frostline[iceberg]'")


def _checked(
    past: Context, mapped: Mapped, versions: set[int], parts: Sequence[StoredPart]
) -> Iterator[tuple[StoredPart, Part]]:
    """Each part with what its `part.json` says. Raises `Refused` for one that other engines would read otherwise.
    `versions`: those of the columns that were checked; each is checked once, by a footer."""
    from tiering.query.checked_parts import read_schema

    for stored, part in described(parts):
        if part.schema_version not in versions and part.files:
            versions.add(part.schema_version)
            stored_schema = read_schema(past, stored, part.files[0])
            check_stored(mapped.definition, mapped.columns, stored_schema, part.name)
        yield stored, part


def _ids(schema: format_.Schema) -> Iterator[int]:
    for field in schema.fields:
        yield field.id
        yield from _ids_within(field.type)


def _ids_within(kind: format_.Type) -> Iterator[int]:
    match kind:
        case format_.StructType(fields):
            for field in fields:
                yield field.id
                yield from _ids_within(field.type)
        case format_.ListType(element_id, element):
            yield element_id
            yield from _ids_within(element)
        case format_.MapType(key_id, key, value_id, value):
            yield from (key_id, value_id)
            yield from _ids_within(key)
            yield from _ids_within(value)


def _time_column(definition: TableDefinition) -> Column | None:
    """The column that says how old a row is: that of a rule, of a partition, or the first of moments."""
    names = [rule.column for rule in definition.ttl]
    names += [field.column for field in definition.partition_by]
    names += [column.name for column in definition.columns]
    times = (definition.column(name) for name in names)
    return next((column for column in times if column.type.startswith(("timestamp", "date"))), None)


def _unreadable(definition: TableDefinition, url: str) -> TableMetadata:
    """Stands for metadata that cannot be read: nothing of it is taken over."""
    return TableMetadata(2, definition.uuid, url, 0, 0, 0, 0, (), 0, (), 999, 0, (), {}, _NO_SNAPSHOT, {}, ())


def _bucket_of(store: Store, definition: TableDefinition) -> LoggedDisk:
    """The only bucket that the table's policy names."""
    policy = store.config.policies.get(definition.policy)
    names = [name for volume in (policy.volumes if policy is not None else ()) for name in volume.disks]
    buckets = [disk for name in names if (disk := as_disk(store.disk(name), LoggedDisk)) is not None]
    if len(buckets) != 1:
        raise Refused(
            f"{definition.full_name} has {len(buckets)} buckets with an operations log in its policy, and is published "
            "in one",
            hint=f"give it a policy with one: 'frostline table alter {definition.full_name} --policy P'",
        )
    (disk,) = buckets
    if disk.log_name is not None:
        raise Refused(
            f"disk {disk.name} is one of several logs on a prefix, and a table has one publication there",
            hint="publish from a disk with a prefix of its own",
        )
    if disk.broken is not None:
        raise disk.broken
    return disk
