"""Everything that can be said about a bucket that ClickHouse may have written, for people and for scripts."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from disks.stores.base import ObjectStore
from disks.stores.wrappers.metered import MeteredStore
from disks.workers.parallel import HERE, Askers
from oplog.clickhouse.names import FILE, HARDLINK, RENAME
from oplog.clickhouse.replay import File, LogProblem
from restore.clickhouse.bucket import ClickHouseTree, no_tree, read_bucket, survey
from restore.clickhouse.listing import Contents, Kind
from restore.clickhouse.parts import ClickHouseTable, State, find_tables
from restore.clickhouse.table_facts import TableFacts, draft_of, read_facts
from tiering.config.units import counted, format_size

TITLES: Mapping[Kind, str] = {
    Kind.SEND_METADATA: "a disk with its log in the bucket (send_metadata, format 1)",
    Kind.FROSTLINE: "a disk of ours (log format 2)",
    Kind.PLAIN: "a ClickHouse disk of type plain: keys are paths",
    Kind.PLAIN_REWRITABLE: "a ClickHouse disk of type plain_rewritable",
    Kind.WITHOUT_METADATA: "a ClickHouse disk without send_metadata",
    Kind.UNKNOWN: "an unknown disk",
    Kind.EMPTY: "empty",
}


class Report(msgspec.Struct):
    """What `inspect` found."""

    store: str
    contents: Contents
    tree: ClickHouseTree | None
    """None where the bucket does not say which file an object is."""
    tables: list[ClickHouseTable] = msgspec.field(default_factory=list)
    findings: list[LogProblem] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    requests: dict[str, int] = msgspec.field(default_factory=dict)
    seconds: float = 0.0
    facts_of: dict[str, TableFacts] = msgspec.field(default_factory=dict)
    """Directory of a table -> what its active parts tell."""

    @property
    def kind(self) -> Kind:
        return self.contents.kind

    @property
    def title(self) -> str:
        """One phrase that says what the bucket is."""
        return TITLES[self.kind]

    @property
    def files(self) -> dict[str, File]:
        return self.tree.files if self.tree else {}

    def rows_in(self, table: ClickHouseTable) -> str:
        """How many rows the active parts of the table have, for people."""
        rows = self.facts_of[table.directory].rows
        return "?" if rows is None else f"{rows:,}"

    def drafts(self) -> list[str]:
        """A statement that attaches the table, for each that has columns."""
        return [draft_of(table, facts) for table in self.tables if (facts := self.facts_of[table.directory]).columns]

    def part_counts(self, table: ClickHouseTable) -> tuple[int, ...]:
        """Parts of the table: active, covered, detached, unfinished, frozen."""
        order = (State.ACTIVE, State.COVERED, State.DETACHED, State.TEMPORARY, State.FROZEN)
        return tuple(table.count(state) for state in order)

    def facts(self) -> list[tuple[str, str]]:
        """Name and text of each fact, for people."""
        objects = f"{self.contents.objects:,}, {format_size(self.contents.size_bytes)}"
        facts = [("schema", self.contents.schema_version or "no .SCHEMA_VERSION"), ("objects", objects)]
        if self.tree is None:
            return facts
        counts = self._counts()
        if self.kind is Kind.SEND_METADATA:
            facts.append(
                (
                    "log",
                    f"{counted(counts[FILE], 'file')}, {counted(counts[RENAME], 'rename')}, "
                    + counted(counts[HARDLINK], "hard link")
                    + (f", {counts['other']:,} others" if counts["other"] else ""),
                )
            )
            runs = len(self.tree.order.runs)
            restarted = (
                f"; the counter restarted {counted(runs - 1, 'time')}, highest {self.tree.head}" if runs > 1 else ""
            )
            facts.append(("revision", f"{self.tree.revision} of {self.tree.order.newest}{restarted}"))
        facts.append(("tree", f"{counted(len(self.files), 'file')}, {format_size(self.tree.size_bytes)}"))
        return facts

    def document(self, *, files: bool = False) -> dict[str, object]:
        """The JSON of the command line."""
        tree = self.tree
        counts = self._counts()
        document: dict[str, object] = {
            "url": self.store,
            "kind": self.kind.value,
            "schema_version": self.contents.schema_version,
            "objects": self.contents.objects,
            "bytes": self.contents.size_bytes,
            "revision": tree.revision if tree else None,
            "newest_revision": tree.order.newest if tree else None,
            "highest_revision": tree.head if tree else None,
            "counter_restarts": max(0, len(tree.order.runs) - 1) if tree else 0,
            "file_objects": counts[FILE],
            "renames": counts[RENAME],
            "hard_links": counts[HARDLINK],
            "other_operations": counts["other"],
            "files": len(self.files),
            "file_bytes": tree.size_bytes if tree else 0,
            "tables": [self._table_document(table) for table in self.tables],
            "duplicate_revisions": [
                {"revision": number, "objects": list(keys)} for number, keys in sorted(tree.order.duplicates.items())
            ]
            if tree
            else [],
            "deleted_revisions": [list(gap) for gap in tree.gaps] if tree else [],
            "being_deleted": list(tree.replayed.being_deleted) if tree else [],
            "foreign_objects": list(self.contents.foreign),
            "problems": [
                {
                    "kind": finding.kind,
                    "what": finding.what,
                    "path": finding.path,
                    "object": finding.object,
                    "revision": finding.revision,
                }
                for finding in self.findings
            ],
            "notes": self.notes,
            "ok": not self.findings,
            "requests": self.requests,
            "seconds": round(self.seconds, 3),
        }
        if files:
            document["tree"] = [_file_document(file) for file in self.files.values()]
        return document

    def _counts(self) -> dict[str, int]:
        counts = {FILE: 0, RENAME: 0, HARDLINK: 0, "other": 0}
        for listed in self.contents.log:
            counts[listed.name.kind if listed.name.kind in counts else "other"] += 1
        return counts

    def _table_document(self, table: ClickHouseTable) -> dict[str, object]:
        names = ("active", "covered", "detached", "unfinished", "frozen")
        facts = self.facts_of[table.directory]
        return {
            "table": table.uuid,
            "directory": table.directory,
            "parts": dict(zip(names, self.part_counts(table), strict=True)),
            "files": table.files,
            "bytes": table.size_bytes,
            "rows": facts.rows,
            "columns": {column.name: column.kind for column in facts.columns},
            "attach": draft_of(table, facts) if facts.columns else None,
        }


def inspect(store: ObjectStore, *, revision: int | None = None, askers: Askers = HERE) -> Report:
    """Recognise the bucket and, where it says of its objects what they are, read and check it. Writes nothing.

    Raises `NotFound` when nothing is there, `UsageError` for a revision of a bucket that has none.
    """
    started = time.monotonic()
    contents = survey(store)
    if contents.kind is Kind.EMPTY:
        raise no_tree(store.name, contents)
    if contents.kind in (Kind.SEND_METADATA, Kind.PLAIN, Kind.PLAIN_REWRITABLE):
        tree = read_bucket(store, revision=revision, contents=contents, askers=askers)
        report = Report(store.name, contents, tree, find_tables(tree.files), tree.findings)
        report.facts_of = read_facts(store, report.tables, askers)
        report.notes = _notes(tree, revision)
    else:
        report = Report(store.name, contents, None)
        _explain(report)
    if isinstance(store, MeteredStore):
        report.requests = {verb: count for verb, count in store.counts().items() if count}
    report.seconds = time.monotonic() - started
    return report


def _explain(report: Report) -> None:
    """What to do with a bucket that has no tree to read."""
    match report.kind:
        case Kind.FROSTLINE:
            report.notes.append("configure it as a disk: then 'restore', 'fsck', 'log' and 'query' read it")
        case Kind.WITHOUT_METADATA:
            what = (
                f"{_counted(len(report.contents.log), 'object')} without a path: only the server's local metadata "
                "knows which file each of them is"
            )
            report.findings.append(LogProblem("without_metadata", what))
            report.notes.append("with a copy of the server's directory of this disk, 'clickhouse import' adopts it")
        case _:
            what = f"{_counted(report.contents.objects, 'object')}, and no disk is known whose objects have such names"
            report.findings.append(LogProblem("unknown_bucket", what))
            if report.contents.below:
                report.notes.append(f"{report.contents.below} in it looks like a disk: add it to the URL")


def _notes(tree: ClickHouseTree, revision: int | None) -> list[str]:
    """What is ordinary for such a disk, and good to know."""
    notes = []
    replayed = tree.replayed
    if tree.kind is Kind.SEND_METADATA and tree.schema_version is None:
        notes.append("there is no .SCHEMA_VERSION: ClickHouse itself refuses to restore from this prefix")
    if revision is not None and revision > tree.head:
        notes.append(f"the newest revision in the bucket is {tree.order.newest}: that is what is shown")
    if tree.gaps and not tree.ours:  # a disk of ours takes numbers in blocks and may leave some
        gone = sum(last - first + 1 for first, last in tree.gaps)
        shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in tree.gaps[:5])
        more = ", …" if len(tree.gaps) > 5 else ""
        notes.append(
            f"{gone:,} of the revisions up to {tree.revision} have no object any more ({shown}{more}): what was "
            "written then has been deleted since"
        )
    if replayed.being_deleted:
        directories = len({path.rpartition("/")[0] for path in replayed.being_deleted})
        notes.append(
            f"{_counted(len(replayed.being_deleted), 'path')} in {_counted(directories, 'directory', 'directories')} "
            "delete_tmp_… are left out: parts that the server had begun to delete (deletions are not in the log)"
        )
    if replayed.without_source:
        notes.append(
            f"renames and hard links without a source: {replayed.without_source:,} (their objects are gone with their "
            "parts)"
        )
    if replayed.filled:
        path, key = next(iter(replayed.filled.items()))
        notes.append(
            f"{_counted(len(replayed.filled), 'file')} found by size and hash (copies made inside the store bear the "
            f"path of their source): first {path}, object {key}"
        )
    if replayed.merged and not tree.ours:
        notes.append(
            f"{counted(len(replayed.merged), 'rename')} filled up a directory that existed, first {replayed.merged[0]}"
        )
    if tree.contents.foreign:
        notes.append(
            f"{counted(len(tree.contents.foreign), 'object')} with names that no such disk gives, first "
            f"{tree.contents.foreign[0]}"
        )
    return notes


def _file_document(file: File) -> dict[str, object]:
    return {
        "path": file.path,
        "bytes": file.size_bytes,
        "objects": [{"key": key, "bytes": size} for key, size in file.blobs],
        "inode": file.inode,
        "ref_count": file.ref_count,
        "revision": file.revision,
    }


def _counted(number: int, noun: str, several: str = "") -> str:
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
