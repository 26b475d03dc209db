"""The node's journal, `<state>/journal.db`: moves, merges, block numbers, claims, pauses, pins and intents, in SQLite.

Every change is durable when the call returns (WAL, synchronous=FULL). Several threads and processes may use it at once.
The journal never decides what data exists - the disks do - so losing it loses history, pins and pauses, never a row.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from oplog.errors import Locked, UsageError
from tiering.journal.file import JournalFile, advance_generation, now_text, renew_id, time_of
from tiering.journal.known_disks import KnownDisks
from tiering.journal.known_replicas import ReplicaRecords
from tiering.journal.overrides import Overrides
from tiering.journal.records import ACTIVE_MERGES, ACTIVE_MOVES, Drop, UnfinishedDrop, decode_drop, encode_drop
from tiering.journal.work import WorkRecords

_KEPT = 100_000
_UNSEEN = """CREATE TABLE IF NOT EXISTS unseen (
  number INTEGER PRIMARY KEY AUTOINCREMENT, table_uuid TEXT NOT NULL UNIQUE)"""
_INBOX_FILES = (
    "CREATE TABLE IF NOT EXISTS inbox_files (table_uuid TEXT NOT NULL, sha256 TEXT NOT NULL, name TEXT NOT NULL,"
    " created TEXT NOT NULL, PRIMARY KEY (table_uuid, sha256))"
)
_KEPT_FILES = 1_000_000
SOURCE_COPIES = (
    "CREATE TABLE IF NOT EXISTS source_copies (table_uuid TEXT NOT NULL, part TEXT NOT NULL,"
    " PRIMARY KEY (table_uuid, part)) WITHOUT ROWID"
)
_LISTED = "source_copies"
"""In `meta`: the list holds all of them."""


class Journal:
    """The journal of one store; its own part keeps processes out of each other's way. A damaged file is set aside."""

    def __init__(self, state_directory: Path, *, reserve_bytes: int = 0) -> None:
        """`reserve_bytes`: how much is kept free for work that makes room (`JournalFile.rescue`)."""
        self.file = JournalFile(state_directory, reserve_bytes=reserve_bytes)
        self.work = WorkRecords(self.file)
        """The moves and merges of this machine."""
        self.overrides = Overrides(self.file)
        """What people told automatic work to leave alone."""
        self.capacity = Capacity(self.file)
        """How much lay on each disk, and when."""
        self.disks = KnownDisks(self.file)
        """The disks that this machine knows."""
        self.replicas = ReplicaRecords(self.file)
        """What Keeper last said of replicated tables."""
        self.source_copies = SourceCopyRecords(self.file)
        """The parts of which this machine may hold a copy beside the one in a bucket."""
        self.ingested = Ingested(self.file)
        """The files that the inbox brought in."""
        self._released: set[str] = set()
        """Tokens of claims that ended; their rows may still be there when deleting them failed."""

    def take_notices(self) -> list[str]:
        """What opening the journal had to repair; told once."""
        told, self.file.notices = self.file.notices, []
        return told

    def close(self) -> None:
        """Release the file. Claims that were not released are stale from here on."""
        self.file.close()

    # Block numbers

    def allocate_blocks(self, table_uuid: str, count: int, floor: int = 1) -> int:
        """Reserve `count` block numbers nobody else gets; returns the first, which is at least `floor`."""
        if count < 1:
            raise UsageError(f"cannot allocate {count} blocks", hint="at least one")
        with self.file.write("allocate_blocks", table_uuid) as connection:
            row = connection.execute("SELECT next FROM blocks WHERE table_uuid = ?", (table_uuid,)).fetchone()
            first = max(floor, row["next"] if row else 1)
            connection.execute(
                "INSERT INTO blocks VALUES (?, ?) ON CONFLICT (table_uuid) DO UPDATE SET next = excluded.next",
                (table_uuid, first + count),
            )
            advance_generation(connection)
            return int(first)

    def next_block(self, table_uuid: str) -> int:
        """The number after the last one that was reserved; 1 before the first. Reserves nothing."""
        return self.known_block(table_uuid) or 1

    def known_block(self, table_uuid: str) -> int | None:
        """The same; None when this journal does not know which numbers were given."""
        rows = self.file.read("SELECT next FROM blocks WHERE table_uuid = ?", (table_uuid,))
        return int(rows[0]["next"]) if rows else None

    def add_block_range(self, table_uuid: str, number: int, *, first_block: int | None = None) -> None:
        """Remember that a range of block numbers is this machine's. Nothing when it is known. `first_block`: it was
        taken just now, and the next number comes from it."""
        with self.file.write("add_block_range", table_uuid) as connection:
            connection.execute("INSERT OR IGNORE INTO block_ranges VALUES (?, ?)", (table_uuid, number))
            if first_block is not None:
                connection.execute(
                    "INSERT INTO blocks VALUES (?, ?) ON CONFLICT (table_uuid) DO UPDATE SET "
                    "next = max(next, excluded.next)",
                    (table_uuid, first_block),
                )
            advance_generation(connection)

    def generation(self) -> tuple[str, int]:
        """The id of the journal, and how far it is; "" before anything was noted."""
        return self.file.generation()

    def go_on_from(self, seen: int) -> bool:
        """The journal was seen at this generation. Where it is behind, it is an older copy of itself: it goes on after
        that one, gives no more of the block numbers that it may have given, and counts the disks again. Whether it
        was."""
        with self.file.write("go_on_from", seen) as connection:
            if self.file.generation()[1] >= seen:
                return False
            connection.execute("DELETE FROM blocks")
            if self.file.has_table("disks"):  # what it counted there was counted before what it has forgotten
                connection.execute("UPDATE disks SET counted = 0, changes = changes + 1 WHERE holdings != '{}'")
            advance_generation(connection, seen)
            return True

    def renew(self) -> None:
        """Another home has a copy of this journal and writes to it: it gets an id of its own, and gives no more of the
        block numbers that the copy may give."""
        with self.file.write("renew_journal", "") as connection:
            connection.execute("DELETE FROM blocks")
            renew_id(connection)

    def block_ranges(self, table_uuid: str) -> set[int]:
        """The ranges of block numbers that are this machine's."""
        rows = self.file.read("SELECT number FROM block_ranges WHERE table_uuid = ?", (table_uuid,))
        return {row["number"] for row in rows}

    def forget_block_range(self, table_uuid: str, number: int) -> None:
        """Another machine has the range: no number of it is given any more."""
        with self.file.write("forget_block_range", table_uuid) as connection:
            connection.execute("DELETE FROM block_ranges WHERE table_uuid = ? AND number = ?", (table_uuid, number))
            advance_generation(connection)

    # What was put in without a look at the buckets

    def note_unseen(self, table_uuid: str) -> None:
        """Rows go into the table, and whether somebody else has dropped it since the last look, nobody has asked.
        Durable with the next change that is."""
        with self.file.write("note_unseen", table_uuid, durable=False) as connection:
            connection.execute(_UNSEEN)
            connection.execute("INSERT OR REPLACE INTO unseen (table_uuid) VALUES (?)", (table_uuid,))

    def unseen(self) -> dict[str, int]:
        """Those tables, each with the number of its last note."""
        if not self.file.has_table("unseen"):
            return {}
        return {row["table_uuid"]: row["number"] for row in self.file.read("SELECT * FROM unseen")}

    def seen(self, numbers: Iterable[int]) -> None:
        """A look that began after these notes found the tables there."""
        if rows := [(number,) for number in numbers]:
            with self.file.write("seen", durable=False) as connection:
                connection.executemany("DELETE FROM unseen WHERE number = ?", rows)

    # Claims

    @contextmanager
    def claim(self, table_uuid: str, parts: Iterable[str], owner_kind: str) -> Iterator[None]:
        """Hold the parts so that no other move, merge or drop touches them. Raises `Locked` naming part and holder.

        All parts or none. Claims of processes that are gone are taken over.
        """
        names = sorted(set(parts))
        token = uuid.uuid4().hex
        try:
            self._take_claims(table_uuid, names, owner_kind, token)
            yield
        finally:
            self._release_claims(table_uuid, token)

    def _release_claims(self, table_uuid: str, token: str) -> None:
        self._released.add(token)  # first: a claim whose row cannot be deleted now must not hold for ever
        if self.file.is_open:
            with self.file.write("release", table_uuid, durable=False) as connection:
                deleted = self._delete_released(connection)
            self._released.difference_update(deleted)

    def _delete_released(self, connection: sqlite3.Connection) -> list[str]:
        """Also what an earlier release could not delete; after a rollback the next claim or release tries again."""
        tokens = list(self._released)
        connection.executemany("DELETE FROM claims WHERE token = ?", [(token,) for token in tokens])
        return tokens

    def claimed(self, table_uuid: str) -> dict[str, str]:
        """Parts that a living process holds: part -> what for."""
        rows = self.file.read("SELECT * FROM claims WHERE table_uuid = ?", (table_uuid,))
        held: dict[str, bool] = {}  # by token: a claim of thousands of parts has one owner to ask for
        for row in rows:
            if row["token"] not in held:
                held[row["token"]] = row["token"] not in self._released and self.file.is_held(row)
        return {row["part"]: row["owner_kind"] for row in rows if held[row["token"]]}

    def _take_claims(self, table_uuid: str, names: list[str], owner_kind: str, token: str) -> None:
        with self.file.write("claim", table_uuid, durable=False) as connection:
            self._delete_released(connection)
            wanted = set(names)
            for row in connection.execute("SELECT * FROM claims WHERE table_uuid = ?", (table_uuid,)):
                if row["part"] in wanted and self.file.is_held(row):
                    kind, process = row["owner_kind"], row["pid"]
                    shown = "; 'frostline moves list --active' shows it" if kind == "move" else ""
                    raise Locked(
                        f"part {row['part']} is in use by a {kind} of process {process}",
                        hint=f"run it again when process {process} is done with it{shown}",
                    )
            claim = (owner_kind, *self.file.owner, token, now_text())
            connection.executemany(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(table_uuid, name, *claim) for name in names],
            )

    def confirmed_time(self) -> datetime | None:
        """What time it was when this machine's clock was last confirmed."""
        rows = self.file.read("SELECT value FROM meta WHERE key = 'confirmed_time'")
        return time_of(rows[0]["value"]) if rows else None

    def confirm_time(self, now: datetime) -> None:
        """Note that the clock was right."""
        with self.file.write("confirm_time") as connection:
            connection.execute(
                "INSERT INTO meta VALUES ('confirmed_time', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (now.isoformat(),),
            )

    def written_ahead(self) -> datetime | None:
        """Until when parts are dated by a clock that was wrong, as somebody said who looked at it."""
        rows = self.file.read("SELECT value FROM meta WHERE key = 'written_ahead'")
        return time_of(rows[0]["value"]) if rows else None

    def note_written_ahead(self, newest: datetime) -> None:
        """Note that parts that are dated in the future, the last of them then, tell of a clock that was wrong."""
        with self.file.write("note_written_ahead") as connection:
            connection.execute(
                "INSERT INTO meta VALUES ('written_ahead', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (newest.isoformat(),),
            )

    # Drops

    def begin_drop(self, drop: Drop) -> int:
        """Record that a drop begins, which goes over several disks; recovery finishes it if we die. Returns its id."""
        kind, payload = encode_drop(drop)
        with self.file.write("begin_intent", kind) as connection:
            cursor = connection.execute(
                "INSERT INTO intents (kind, payload, created) VALUES (?, ?, ?)", (kind, payload, now_text())
            )
            return cursor.lastrowid or 0

    def finish_drop(self, drop_id: int) -> None:
        """The drop is complete. Nothing when it was finished before."""
        with self.file.write("finish_intent", drop_id) as connection:
            connection.execute("DELETE FROM intents WHERE id = ?", (drop_id,))

    def drops(self) -> list[UnfinishedDrop]:
        """Drops begun and not finished, oldest first. What a later version began and calls otherwise is left to it.
        Raises `Damaged`."""
        rows = self.file.read("SELECT * FROM intents ORDER BY id")
        found = ((row, decode_drop(row["kind"], row["payload"], journal=str(self.file.path))) for row in rows)
        return [UnfinishedDrop(id=row["id"], drop=drop) for row, drop in found if drop is not None]

    def being_dropped(self) -> set[str]:
        """The directories of these drops: the decision, whatever the disks still hold."""
        return {directory for unfinished in self.drops() for directory in unfinished.drop.directories}

    def forget_table(self, table_uuid: str) -> None:
        """Drop what belongs to a table that is gone: pins and pauses. Its history stays, and its block numbers: a table
        that comes back must not give them again."""
        with self.file.write("forget_table", table_uuid) as connection:
            connection.execute(_UNSEEN)
            connection.execute(SOURCE_COPIES)
            for table in ("pins", "pauses", "claims", "unseen", "source_copies"):
                connection.execute(f"DELETE FROM {table} WHERE table_uuid = ?", (table_uuid,))

    def trim(self) -> None:
        """Forget finished moves and merges beyond the newest 100,000 of each."""
        with self.file.write("trim") as connection:
            for table, active in (("moves", ACTIVE_MOVES), ("merges", ACTIVE_MERGES)):
                marks = ", ".join("?" * len(active))
                connection.execute(
                    f"DELETE FROM {table} WHERE state NOT IN ({marks}) AND id <= (SELECT max(id) FROM {table}) - ?",
                    (*active, _KEPT),
                )


SLOT_SECONDS = 600
_KEPT_CAPACITY_SLOTS = 7 * 24 * 6
_CAPACITY_TABLE = (
    "CREATE TABLE IF NOT EXISTS capacity (slot INTEGER, disk TEXT, bytes INTEGER, PRIMARY KEY (slot, disk))"
)


class Capacity(msgspec.Struct):
    """Ten minutes in which nobody looked have no entry: it is not known what was there."""

    _file: JournalFile

    def note(self, bytes_by_disk: Mapping[str, int], now: datetime) -> None:
        """Note what lies on each disk now; the last of ten minutes counts. Not durable; what is a week old goes.
        Writes nothing that is known."""
        slot = _slot(now)
        known = {disk: size_bytes for at, disk, size_bytes in self._rows(slot) if at == slot}
        if all(known.get(disk) == size_bytes for disk, size_bytes in bytes_by_disk.items()):
            return
        with self._file.write("note_capacity", durable=False) as connection:
            connection.execute(_CAPACITY_TABLE)  # a journal of an earlier version has none
            connection.execute("DELETE FROM capacity WHERE slot <= ? OR slot > ?", (slot - _KEPT_CAPACITY_SLOTS, slot))
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


class Ingested(msgspec.Struct):
    """The part of the journal that knows files. Losing it loses the comparison with old files, never a row."""

    _file: JournalFile

    def names_of(self, table_uuid: str, digests: Iterable[str]) -> dict[str, str]:
        """Of these SHA-256s, those that are in the table, and under which name they came. Writes nothing."""
        if not self._file.has_table("inbox_files"):
            return {}
        rows = self._file.read(
            "SELECT sha256, name FROM inbox_files WHERE table_uuid = ? AND sha256 IN (SELECT value FROM json_each(?))",
            (table_uuid, json.dumps(list(digests))),
        )
        return {row["sha256"]: row["name"] for row in rows}

    def note(self, table_uuid: str, names: Mapping[str, str]) -> None:
        """These are in, by SHA-256. What is known already stays as it is."""
        with self._file.write("note_ingested", len(names)) as connection:
            connection.execute(_INBOX_FILES)
            connection.executemany(
                "INSERT OR IGNORE INTO inbox_files VALUES (?, ?, ?, ?)",
                [(table_uuid, digest, name, now_text()) for digest, name in names.items()],
            )
            connection.execute(
                "DELETE FROM inbox_files WHERE rowid <= (SELECT max(rowid) FROM inbox_files) - ?", (_KEPT_FILES,)
            )


class SourceCopyRecords(msgspec.Struct):
    """The part of the journal that lists them. A part may be listed that is no copy: the log of the bucket decides."""

    _file: JournalFile

    def parts(self) -> dict[str, set[str]]:
        """The listed parts by the uuid of their table, and those of moves that have not ended."""
        found: dict[str, set[str]] = {}
        rows = self._file.read("SELECT table_uuid, part FROM moves WHERE state IN ('copying', 'committed')")
        if self._file.has_table("source_copies"):
            rows += self._file.read("SELECT table_uuid, part FROM source_copies")
        for row in rows:
            found.setdefault(row["table_uuid"], set()).add(row["part"])
        return found

    def add(self, parts: Iterable[tuple[str, str]], *, all_listed: bool = False) -> None:
        """List parts, each as (uuid of its table, name). `all_listed`: there are no others."""
        rows = list(parts)
        if not rows and not all_listed:
            return
        with self._file.write("add_source_copies", len(rows)) as connection:
            connection.execute(SOURCE_COPIES)  # a journal of an earlier version has none
            connection.executemany("INSERT OR IGNORE INTO source_copies VALUES (?, ?)", rows)
            if all_listed:
                connection.execute("INSERT OR REPLACE INTO meta VALUES (?, 'all')", (_LISTED,))

    def forget(self, parts: Iterable[tuple[str, str]]) -> None:
        """These are no copies: removed, or at home again."""
        if (rows := list(parts)) and self._file.has_table("source_copies"):
            with self._file.write("forget_source_copies", len(rows)) as connection:
                connection.executemany("DELETE FROM source_copies WHERE table_uuid = ? AND part = ?", rows)

    def are_listed(self) -> bool:
        """Whether the list holds all copies: that of a new journal, or of an older version, does not."""
        return bool(self._file.read("SELECT 1 FROM meta WHERE key = ?", (_LISTED,)))

    def kept_between(self, table_uuid: str, part: str) -> tuple[str, ...]:
        """The disks of the part's last move, if that left the part on both; else none."""
        rows = self._file.read(
            "SELECT * FROM moves WHERE table_uuid = ? AND part = ? ORDER BY id DESC LIMIT 1", (table_uuid, part)
        )
        is_kept = bool(rows) and bool(rows[0]["keep_source"]) and rows[0]["state"] in ("committed", "done")
        return (rows[0]["source"], rows[0]["target"]) if is_kept else ()
