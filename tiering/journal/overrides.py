"""The journal's pauses and pins, and the disks that are drained: what people told automatic work to leave alone."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oplog.errors import NotFound, UsageError
from tiering.journal.file import JournalFile, now_text, time_of
from tiering.journal.records import PAUSE_KINDS, PartPin, Pause, PauseKind

_DRAINED = """CREATE TABLE IF NOT EXISTS drained_disks (
  name TEXT PRIMARY KEY, created TEXT NOT NULL, actor TEXT NOT NULL) WITHOUT ROWID"""


class Overrides(msgspec.Struct):
    """The part of the journal that people write."""

    _file: JournalFile

    def pause(self, table_uuid: str | None, kinds: Iterable[PauseKind] = PAUSE_KINDS, *, actor: str = "") -> None:
        """Let automatic work of these kinds wait, for one table or (None) for all."""
        with self._file.write("pause") as connection:
            for kind in _checked_kinds(kinds):
                connection.execute(
                    "INSERT OR IGNORE INTO pauses VALUES (?, ?, ?, ?)", (table_uuid or "", kind, now_text(), actor)
                )

    def resume(self, table_uuid: str | None, kinds: Iterable[PauseKind] = PAUSE_KINDS) -> None:
        """End the pause of the table or, with None, the one for all. Nothing when there is none."""
        with self._file.write("resume") as connection:
            for kind in _checked_kinds(kinds):
                connection.execute("DELETE FROM pauses WHERE table_uuid = ? AND kind = ?", (table_uuid or "", kind))

    def pauses(self) -> list[Pause]:
        """Every pause."""
        return [
            Pause(
                table_uuid=row["table_uuid"] or None,
                kind=row["kind"],
                created=time_of(row["created"]),
                actor=row["actor"],
            )
            for row in self._file.read("SELECT * FROM pauses ORDER BY created")
        ]

    def paused(self, table_uuid: str | None) -> set[PauseKind]:
        """What waits for this table: its own pauses and those for all."""
        rows = self._file.read("SELECT kind FROM pauses WHERE table_uuid IN ('', ?)", (table_uuid or "",))
        return {row["kind"] for row in rows}

    def pin(
        self,
        table_uuid: str,
        *,
        partition: str | None = None,
        part: str | None = None,
        volume: str | None = None,
        actor: str = "",
    ) -> None:
        """Keep a part or partition where it is, or on `volume`. Replaces an earlier pin of the same name."""
        scope, name = _pin_key(partition, part)
        with self._file.write("pin", name) as connection:
            connection.execute(
                "INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?, ?, ?)",
                (table_uuid, scope, name, volume, now_text(), actor),
            )

    def unpin(self, table_uuid: str, *, partition: str | None = None, part: str | None = None) -> None:
        """End the pin. Raises `NotFound` when there is none."""
        scope, name = _pin_key(partition, part)
        with self._file.write("unpin", name) as connection:
            done = connection.execute(
                "DELETE FROM pins WHERE table_uuid = ? AND scope = ? AND name = ?", (table_uuid, scope, name)
            )
            if not done.rowcount:
                raise NotFound(
                    f"{scope} {name} is not pinned", hint="pins hold a part or a partition; name it the same way"
                )

    def pins(self, table_uuid: str | None = None) -> list[PartPin]:
        """The pins of the table, or of all tables."""
        rows = self._file.read("SELECT * FROM pins WHERE ? IS NULL OR table_uuid = ?", (table_uuid, table_uuid))
        return [
            PartPin(
                table_uuid=row["table_uuid"],
                scope=row["scope"],
                name=row["name"],
                volume=row["volume"],
                created=time_of(row["created"]),
                actor=row["actor"],
            )
            for row in rows
        ]

    def drain(self, disk: str, *, actor: str = "") -> None:
        """Let nothing new come to the disk from now on. Nothing when that is so already."""
        with self._file.write("drain", disk) as connection:
            connection.execute(_DRAINED)
            connection.execute("INSERT OR IGNORE INTO drained_disks VALUES (?, ?, ?)", (disk, now_text(), actor))

    def end_drain(self, disk: str) -> None:
        """Let parts come to the disk again. Nothing when they may."""
        if disk in self.drained():
            with self._file.write("end_drain", disk) as connection:
                connection.execute("DELETE FROM drained_disks WHERE name = ?", (disk,))

    def drained(self) -> frozenset[str]:
        """The disks that nothing new may come to."""
        if not self._file.has_table("drained_disks"):
            return frozenset()
        return frozenset(row["name"] for row in self._file.read("SELECT name FROM drained_disks"))


def _checked_kinds(kinds: Iterable[PauseKind]) -> list[PauseKind]:
    chosen = list(kinds)
    for kind in chosen:
        if kind not in PAUSE_KINDS:
            raise UsageError(f"cannot pause {kind!r}", hint=f"one of: {', '.join(PAUSE_KINDS)}")
    return chosen


def _pin_key(partition: str | None, part: str | None) -> tuple[str, str]:
    if (partition is None) == (part is None):
        raise UsageError("name either a partition or a part", hint="--partition P or --part X")
    return ("partition", partition) if partition is not None else ("part", str(part))
