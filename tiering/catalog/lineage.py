"""Which part was made from which: the proof before a part in a bucket hides another one, or takes its place.

A part's name and its `part.json` say what it covers and replaces; where its digests deny it, it is not so. On a disk of
this machine that is believed; from a bucket it is not, for others write there. A part from there hides another one when
this machine's journal names it among the inputs, or the log of that bucket does: in the inputs of the commit that made
the part, with their content; or by merges that lead from what this machine had brought there to the part. In each case
the rows must add up.

What lies on a disk of this machine came from this machine: a part that claims others without a proof is not
moved there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from disks.base import Disk
from disks.contracts.bucket_disk import BucketDisk, LoggedDisk
from disks.kinds import as_disk
from oplog.entry import Commit, Create, Remove
from oplog.errors import FrostlineError
from oplog.kinds import Merged
from tiering.table import part as part_format
from tiering.table.part import PART_FILE, Part
from tiering.table.schema import Delete, TableDefinition

if TYPE_CHECKING:
    from tiering.catalog.stored import StoredPart
    from tiering.journal.records import MergeRecord

Merges = Callable[[str], Sequence["MergeRecord"]]
"""The merges of a table, by its uuid, that this machine's journal knows."""


def no_merges(table_uuid: str) -> Sequence[MergeRecord]:
    """Of a machine without a journal."""
    return ()


def inputs_of(parts: Iterable[Part]) -> dict[str, tuple[int, str]]:
    """What a commit says of the parts that were merged: of each its rows, and the digest of its `part.json`."""
    return {part.name: (part.rows, content_digest(part)) for part in parts}


def content_digest(part: Part) -> str:
    """The digest of what a `part.json` says, however it was written."""
    return hashlib.sha256(part_format.encode(part)).hexdigest()


def claims(cover: StoredPart, hidden: StoredPart) -> bool:
    """Whether the one says of itself that it takes the other's place: it was made from it, or replaces it."""
    made = cover.name.covers(hidden.name) and cover.part.was_made_from(hidden.name)
    return made or hidden.part.name in cover.part.replaces


class Lineage(msgspec.Struct):
    """Proofs, each looked for once: what the log says of the past does not change."""

    disks: Mapping[str, Disk]
    merges: Merges = no_merges
    search: bool = True
    """Also in the local index of the logs, which is brought up to date for that."""
    _proved: set[tuple[str, int | None, str, str, str]] = set()

    def hides(self, cover: StoredPart, hidden: StoredPart) -> bool:
        """Whether the part takes the place of the other. A name is no proof: that of a cloned machine's part stands for
        other rows."""
        window = cover.definition.settings.deduplication_window
        if not claims(cover, hidden) or not cover.part.may_hold(hidden.part, window=window):
            return False
        if as_disk(self.disks[cover.disk], BucketDisk) is None:
            return True
        what = (cover.disk, cover.revision, cover.directory, hidden.directory, content_digest(hidden.part))
        if what not in self._proved and not self._is_proved(cover, hidden):
            return False
        self._proved.add(what)
        return True

    def _is_proved(self, cover: StoredPart, hidden: StoredPart) -> bool:
        if self._journal_names(cover, hidden):
            return True
        logged = as_disk(self.disks[cover.disk], LoggedDisk)
        if logged is None or logged.unreachable:
            return False
        try:
            return self._commit_names(logged, cover, hidden) or (
                self.search and self._merges_lead(logged, cover, hidden)
            )
        except FrostlineError:  # an entry that is gone, or altered, proves nothing
            return False

    def _journal_names(self, cover: StoredPart, hidden: StoredPart) -> bool:
        """Whether merges of this machine lead from the one to the other."""
        found = {hidden.part.name}
        for record in reversed(self.merges(cover.definition.uuid)):  # the oldest first
            if found.isdisjoint(record.inputs) or (record.state == "failed" and record.rows_in):
                continue  # where one that failed did commit, its commit says so
            found.add(record.output)
            if record.output == cover.part.name:
                if record.rows_out:
                    return cover.part.rows == record.rows_out
                return _fits(cover, record.rows_in) if record.rows_in else _may_hold(cover, hidden.part.rows)
        return False

    def _commit_names(self, disk: LoggedDisk, cover: StoredPart, hidden: StoredPart) -> bool:
        """Whether the commit that made the part says that the other one went into it."""
        if cover.revision is None:
            return False
        kind = disk.log.read(cover.revision).commit.kind
        return isinstance(kind, Merged) and _is_named(hidden, kind) and _adds_up(cover, kind)

    def _merges_lead(self, disk: LoggedDisk, cover: StoredPart, hidden: StoredPart) -> bool:
        """Whether this very part was there, as after the first half of a move, and merges lead from it to the cover,
        each of which took its inputs away."""
        definition, rows = hidden.definition, hidden.part.rows
        name, sha256, after = hidden.part.name, self._digest(hidden), 0
        while (commit := _merge_of(disk, definition.part_directory(name), sha256, after)) is not None:
            kind, made = commit.kind, _made_by(commit, definition)
            assert isinstance(kind, Merged)
            if kind.inputs and (name not in kind.inputs or (not after and not _is_named(hidden, kind))):
                return False
            if made is None:  # every row of it was past its time
                return not is_lossless(definition)
            name, sha256, after = made.path.split("/")[-2], made.sha256, commit.revision
            if name == cover.part.name and sha256 == self._digest(cover):
                return _adds_up(cover, kind) if kind.inputs else _may_hold(cover, rows)
        return False

    def _digest(self, stored: StoredPart) -> str:
        return hashlib.sha256(self.disks[stored.disk].read(stored.path(PART_FILE))).hexdigest()


def _merge_of(disk: LoggedDisk, directory: str, sha256: str, after: int) -> Commit | None:
    """The merge that took away the part with this `part.json`, after a revision."""
    arrived = False
    for found in disk.commits().touching(directory, since=max(0, after - 1)):
        for operation in found.commit.operations:
            if isinstance(operation, Create) and operation.path == f"{directory}/{PART_FILE}":
                arrived = operation.sha256 == sha256
            elif isinstance(operation, Remove) and operation.path == directory and found.commit.revision > after:
                kind = found.commit.kind
                if arrived and isinstance(kind, Merged) and not kind.merged_into:
                    return found.commit
                arrived = False
    return None


def _made_by(commit: Commit, definition: TableDefinition) -> Create | None:
    """What brings the `part.json` of the part that the merge made; None when no row was left."""
    for operation in commit.operations:
        if isinstance(operation, Create):
            directory, *rest = operation.path.rsplit("/", 2)
            if directory == definition.directory and rest[1:] == [PART_FILE]:
                return operation
    return None


def _is_named(hidden: StoredPart, kind: Merged) -> bool:
    """Whether the part, as it is, is among what was merged."""
    return kind.inputs.get(hidden.part.name) == (hidden.part.rows, content_digest(hidden.part))


def _adds_up(cover: StoredPart, kind: Merged) -> bool:
    return _fits(cover, sum(rows for rows, _ in kind.inputs.values()))


def _fits(cover: StoredPart, rows_in: int) -> bool:
    """Whether the part has as many rows as a merge of so many gives."""
    return cover.part.rows == rows_in or (cover.part.rows < rows_in and not is_lossless(cover.definition))


def _may_hold(cover: StoredPart, rows: int) -> bool:
    """The same, where only some of the rows that were merged are known: an older version did not write down all."""
    return cover.part.rows >= rows or not is_lossless(cover.definition)


def is_lossless(definition: TableDefinition) -> bool:
    """Whether merges of the table keep every row."""
    deletes = any(isinstance(rule.action, Delete) for rule in definition.ttl)
    return definition.merge_mode == "ordinary" and not deletes
