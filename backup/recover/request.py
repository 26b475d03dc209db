"""What somebody asks of a restore, and what it came to."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from backup.scope import Scope
from oplog.errors import UsageError
from tiering.table.schema import split_table_name


class Renaming(msgspec.Struct, frozen=True):
    """`--map-table A:B`: a table, or with `db.*:other.*` all tables of a database, under another name."""

    source: str
    target: str

    @classmethod
    def parse(cls, text: str) -> Renaming:
        """Raises `UsageError`."""
        source, colon, target = text.partition(":")
        whole = source.endswith(".*"), target.endswith(".*")
        if not colon or whole[0] != whole[1] or "*" in source[:-1] + target[:-1]:
            raise UsageError(f"not a renaming: {text!r}", hint="--map-table db.table:db.other, or 'db.*:other.*'")
        split_table_name(source[:-1] + "x" if whole[0] else source)
        split_table_name(target[:-1] + "x" if whole[0] else target)
        return cls(source, target)

    def applies(self, name: str) -> bool:
        return fnmatchcase(name, self.source)

    def renamed(self, name: str) -> str:
        if not self.target.endswith(".*"):
            return self.target
        return f"{self.target[:-2]}.{name.partition('.')[2]}"


class RestoreRequest(msgspec.Struct, frozen=True):
    """What somebody asks for."""

    name: str
    scope: Scope = msgspec.field(default_factory=Scope)
    renamings: tuple[Renaming, ...] = ()
    schema_only: bool = False
    drop_existing: bool = False
    policy: str | None = None
    """The policy of tables whose own is not configured here."""
    dry_run: bool = False

    def target_name(self, source: str) -> str:
        """What the table is called here."""
        return next((item.renamed(source) for item in self.renamings if item.applies(source)), source)


class RestoredTable(msgspec.Struct, frozen=True):
    """One table of a restore."""

    table: str
    source: str
    uuid: str
    parts: int
    rows: int
    files: int
    bytes: int
    disks: dict[str, int]
    """How many parts go to each disk."""
    replaced: bool
    """A table of this name was dropped for it."""


class RestoreDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`backup restore --json`."""

    name: str
    backups: tuple[str, ...]
    tables: tuple[RestoredTable, ...]
    parts: int
    rows: int
    files: int
    bytes: int
    notes: tuple[str, ...]
    seconds: float
    dry_run: bool


class RestoreResult(msgspec.Struct, frozen=True):
    """What was done, or with a dry run would be."""

    name: str
    backups: tuple[str, ...]
    """The ids of the backups that were restored."""
    tables: tuple[RestoredTable, ...]
    notes: tuple[str, ...]
    seconds: float
    dry_run: bool

    @property
    def document(self) -> RestoreDocument:
        return RestoreDocument(
            name=self.name,
            backups=self.backups,
            tables=self.tables,
            parts=sum(table.parts for table in self.tables),
            rows=sum(table.rows for table in self.tables),
            files=sum(table.files for table in self.tables),
            bytes=sum(table.bytes for table in self.tables),
            notes=self.notes,
            seconds=self.seconds,
            dry_run=self.dry_run,
        )
