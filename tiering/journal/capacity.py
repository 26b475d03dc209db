"""The journal's record of how much lay on each disk, every ten minutes of a week. Only for who looks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tiering.journal.opened import JournalFile

SLOT_SECONDS = 600
_KEPT_SLOTS = 7 * 24 * 6
_TABLE = "CREATE TABLE IF NOT EXISTS capacity (slot INTEGER, disk TEXT, bytes INTEGER, PRIMARY KEY (slot, disk))"


class Capacity:
    """Ten minutes in which nobody looked have no entry: it is not known what was there."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def note(self, bytes_by_disk: Mapping[str, int], now: datetime) -> None:
        """Note what lies on each disk now; the last of ten minutes counts. Not durable; what is a week old goes.
        Writes nothing that is known."""
        slot = _slot(now)
        known = {disk: size_bytes for at, disk, size_bytes in self._rows(slot) if at == slot}
        if all(known.get(disk) == size_bytes for disk, size_bytes in bytes_by_disk.items()):
            return
        with self._file.write("note_capacity", durable=False) as connection:
            connection.execute(_TABLE)  # a journal of an earlier version has none
            connection.execute("DELETE FROM capacity WHERE slot <= ? OR slot > ?", (slot - _KEPT_SLOTS, slot))
            connection.executemany(
                "INSERT OR REPLACE INTO capacity VALUES (?, ?, ?)",
                [(slot, disk, size_bytes) for disk, size_bytes in bytes_by_disk.items()],
            )

    def hours(self, count: int, now: datetime) -> dict[str, list[int | None]]:
        """By disk: what lay there at the end of each of the last hours, oldest first, the running one last; None where
        nobody looked."""
        last = _slot(now)
        found: dict[str, list[int | None]] = {}
        for slot, disk, size_bytes in self._rows(last - count * 6 + 1):
            if slot <= last:
                found.setdefault(disk, [None] * count)[count - 1 - (last - slot) // 6] = size_bytes
        return found

    def _rows(self, since: int) -> list[tuple[int, str, int]]:
        if not self._file.has_table("capacity"):
            return []
        rows = self._file.read("SELECT slot, disk, bytes FROM capacity WHERE slot >= ? ORDER BY slot", (since,))
        return [(row["slot"], row["disk"], row["bytes"]) for row in rows]


def _slot(now: datetime) -> int:
    return int(now.timestamp()) // SLOT_SECONDS
