"""The node's journal, `<state>/journal.db`: moves, merges, block numbers, claims, pauses, pins and intents, in SQLite.

Every change is durable when the call returns (WAL, synchronous=FULL). Several threads and processes may use it at once.
The journal never decides what data exists - the disks do - so losing it loses history, pins and pauses, never a row.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from disks import effects
from oplog.errors import Damaged, FrostlineError, Locked, NoSpace, NotFound, UsageError
from tiering import journal_file
from tiering.journal_records import (
    ACTIVE_MERGES,
    ACTIVE_MOVES,
    MERGE_TRANSITIONS,
    MOVE_TRANSITIONS,
    PAUSE_KINDS,
    Failure,
    Intent,
    MergeRecord,
    MergeState,
    MoveRecord,
    MoveState,
    NewMove,
    Pause,
    PauseKind,
    Pin,
    check_transition,
)
from tiering.locks import hold_lock, is_alive, process_start

_MOVE_FIELDS = frozenset({"attempts", "error", "seconds", "requests", "revision", "bytes"})
_MERGE_FIELDS = frozenset({"output", "rows_in", "rows_out", "bytes_in", "bytes_out", "seconds", "error"})

_OWNER = frozenset({"pid", "start", "instance"})

_live: weakref.WeakValueDictionary[str, Journal] = weakref.WeakValueDictionary()
"""The open journals of this process: a claim of our own process whose journal is not among them is stale."""


class Journal:
    """The journal of one store. `notices` says in sentences what opening it had to repair."""

    def __init__(self, state_directory: Path) -> None:
        self.path = state_directory / "journal.db"
        self._lock = threading.RLock()
        self._instance = uuid.uuid4().hex
        self._owner = (os.getpid(), process_start(os.getpid()), self._instance)
        self._released: set[str] = set()
        """Tokens of claims that ended; their rows may still be there when deleting them failed."""
        with hold_lock(state_directory / "journal.lock", what="the journal", hint="try again", wait=True):
            self._connection, self.notices = journal_file.open_file(self.path)
        _live[self._instance] = self

    def take_notices(self) -> list[str]:
        """What opening the journal had to repair; told once."""
        told, self.notices = self.notices, []
        return told

    def close(self) -> None:
        """Release the file. Claims that were not released are stale from here on."""
        _live.pop(self._instance, None)
        with self._lock:
            self._connection.close()

    # Moves

    def plan_moves(self, moves: Iterable[NewMove]) -> list[int]:
        """Record the moves as planned, all in one commit; returns their ids in order."""
        ids = []
        stamp = _now()
        with self._write("plan_moves") as connection:
            for move in moves:
                previous = _failure_of(connection, move.table_uuid, move.part, move.target)
                cursor = connection.execute(
                    "INSERT INTO moves (table_name, table_uuid, part, source, target, bytes, reason_kind,"
                    " reason_detail, actor, keep_source, state, attempts, pid, start, instance, created, updated)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'planned', ?, ?, ?, ?, ?, ?)",
                    (
                        *(move.table, move.table_uuid, move.part, move.source, move.target, move.bytes),
                        *(move.reason_kind, move.reason_detail, move.actor, move.keep_source),
                        *((previous.attempts if previous else 0) + 1, *self._owner, stamp, stamp),
                    ),
                )
                ids.append(cursor.lastrowid or 0)
        return ids

    def set_move(self, move_id: int, state: MoveState, **fields: Any) -> None:
        """Bring one move to the state. Raises `NotFound`, and `UsageError` for a step the table does not allow."""
        self.set_moves([move_id], state, **fields)

    def set_moves(self, ids: Sequence[int], state: MoveState, **fields: Any) -> None:
        """Bring the moves to the state with the same fields, all or none, in one commit."""
        self._set("moves", MOVE_TRANSITIONS, _MOVE_FIELDS, [(move_id, fields) for move_id in ids], state)

    def set_moves_each(self, changes: Sequence[tuple[int, dict[str, Any]]], state: MoveState) -> None:
        """Bring the moves to the state, each with fields of its own, all or none, in one commit."""
        self._set("moves", MOVE_TRANSITIONS, _MOVE_FIELDS, changes, state)

    def moves(
        self,
        *,
        active: bool = False,
        failed: bool = False,
        limit: int | None = None,
        table_uuid: str | None = None,
        part: str | None = None,
    ) -> list[MoveRecord]:
        """Moves, newest first: all, the unfinished ones (`active`) or those that failed."""
        states = [*(ACTIVE_MOVES if active else ()), *(("failed",) if failed else ())]
        rows = self._select("moves", states, limit, table_uuid=table_uuid, part=part)
        return [_move(row) for row in rows]

    def orphaned_moves(self) -> list[MoveRecord]:
        """Unfinished moves whose process is gone, oldest first: what recovery settles."""
        rows = self._select("moves", list(ACTIVE_MOVES), None)
        return [_move(row) for row in reversed(rows) if not _held(row)]

    def move(self, move_id: int) -> MoveRecord:
        """One move. Raises `NotFound`."""
        for row in self._read("SELECT * FROM moves WHERE id = ?", (move_id,)):
            return _move(row)
        raise NotFound(f"no move {move_id}", hint="'frostline moves list' shows them")

    def failures(self) -> dict[tuple[str, str, str], Failure]:
        """By (table uuid, part, target): the moves whose last try failed."""
        rows = self._read(
            "SELECT * FROM moves WHERE state = 'failed' AND id IN"
            " (SELECT max(id) FROM moves WHERE state IN ('failed', 'done') GROUP BY table_uuid, part, target)"
        )
        return {
            (row["table_uuid"], row["part"], row["target"]): Failure(
                attempts=row["attempts"], error=row["error"], at=_time(row["updated"])
            )
            for row in rows
        }

    def request_cancel(self, move_id: int) -> MoveState:
        """Ask for the move to stop; one that is only planned is cancelled at its next step. Returns its state."""
        with self._write("request_cancel", move_id) as connection:
            row = connection.execute("SELECT state FROM moves WHERE id = ?", (move_id,)).fetchone()
            if row is None:
                raise NotFound(f"no move {move_id}", hint="'frostline moves list' shows them")
            if row["state"] in ("planned", "copying"):
                connection.execute("UPDATE moves SET cancel_requested = 1, updated = ? WHERE id = ?", (_now(), move_id))
            state: MoveState = row["state"]
            return state

    def cancel_requests(self) -> set[int]:
        """Ids of unfinished moves that somebody asked to stop."""
        rows = self._read("SELECT id FROM moves WHERE cancel_requested = 1 AND state IN ('planned', 'copying')")
        return {row["id"] for row in rows}

    # Merges

    def begin_merge(
        self,
        *,
        table: str,
        table_uuid: str,
        partition: str,
        inputs: Sequence[str],
        output: str,
        reason: str,
        actor: str,
    ) -> int:
        """Record a merge as running; returns its id."""
        stamp = _now()
        with self._write("begin_merge", output) as connection:
            cursor = connection.execute(
                "INSERT INTO merges (table_name, table_uuid, partition, inputs, output, reason, actor, state, pid,"
                " start, instance, created, updated) VALUES (?, ?, ?, ?, ?, ?, ?, 'running', ?, ?, ?, ?, ?)",
                (
                    *(table, table_uuid, partition, json.dumps(list(inputs)), output, reason, actor),
                    *(*self._owner, stamp, stamp),
                ),
            )
            return cursor.lastrowid or 0

    def set_merge(self, merge_id: int, state: MergeState, **fields: Any) -> None:
        """Bring the merge to the state. Raises `NotFound`, and `UsageError` for a step the table does not allow."""
        self._set("merges", MERGE_TRANSITIONS, _MERGE_FIELDS, [(merge_id, fields)], state)

    def merges(
        self, *, active: bool = False, failed: bool = False, limit: int | None = None, table_uuid: str | None = None
    ) -> list[MergeRecord]:
        """Merges, newest first: all, the unfinished ones (`active`) or those that failed."""
        states = [*(ACTIVE_MERGES if active else ()), *(("failed",) if failed else ())]
        return [_merge(row) for row in self._select("merges", states, limit, table_uuid=table_uuid)]

    def orphaned_merges(self) -> list[MergeRecord]:
        """Unfinished merges whose process is gone, oldest first."""
        rows = self._select("merges", list(ACTIVE_MERGES), None)
        return [_merge(row) for row in reversed(rows) if not _held(row)]

    # Block numbers

    def allocate_blocks(self, table_uuid: str, count: int, floor: int = 1) -> int:
        """Reserve `count` block numbers nobody else gets; returns the first, which is at least `floor`.

        `floor` is one more than the highest block on the disks, so that a lost journal never repeats a number.
        """
        if count < 1:
            raise UsageError(f"cannot allocate {count} blocks", hint="at least one")
        with self._write("allocate_blocks", table_uuid) as connection:
            row = connection.execute("SELECT next FROM blocks WHERE table_uuid = ?", (table_uuid,)).fetchone()
            first = max(floor, row["next"] if row else 1)
            connection.execute(
                "INSERT INTO blocks VALUES (?, ?) ON CONFLICT (table_uuid) DO UPDATE SET next = excluded.next",
                (table_uuid, first + count),
            )
            return int(first)

    def add_block_range(self, table_uuid: str, number: int) -> None:
        """Remember that a range of block numbers is this machine's. Nothing when it is known."""
        with self._write("add_block_range", table_uuid) as connection:
            connection.execute("INSERT OR IGNORE INTO block_ranges VALUES (?, ?)", (table_uuid, number))

    def block_ranges(self, table_uuid: str) -> set[int]:
        """The ranges of block numbers that are this machine's."""
        rows = self._read("SELECT number FROM block_ranges WHERE table_uuid = ?", (table_uuid,))
        return {row["number"] for row in rows}

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
        if self._instance in _live:
            with self._write("release", table_uuid, durable=False) as connection:
                deleted = self._delete_released(connection)
            self._released.difference_update(deleted)

    def _delete_released(self, connection: sqlite3.Connection) -> list[str]:
        """Also what an earlier release could not delete; after a rollback the next claim or release tries again."""
        tokens = list(self._released)
        connection.executemany("DELETE FROM claims WHERE token = ?", [(token,) for token in tokens])
        return tokens

    def claimed(self, table_uuid: str) -> dict[str, str]:
        """Parts that a living process holds: part -> what for."""
        rows = self._read("SELECT * FROM claims WHERE table_uuid = ?", (table_uuid,))
        held: dict[str, bool] = {}  # by token: a claim of thousands of parts has one owner to ask for
        for row in rows:
            if row["token"] not in held:
                held[row["token"]] = row["token"] not in self._released and _held(row)
        return {row["part"]: row["owner_kind"] for row in rows if held[row["token"]]}

    # Pauses and pins

    def pause(self, table_uuid: str | None, kinds: Iterable[PauseKind] = PAUSE_KINDS, *, actor: str = "") -> None:
        """Let automatic work of these kinds wait, for one table or (None) for all."""
        with self._write("pause") as connection:
            for kind in _checked_kinds(kinds):
                connection.execute(
                    "INSERT OR IGNORE INTO pauses VALUES (?, ?, ?, ?)", (table_uuid or "", kind, _now(), actor)
                )

    def resume(self, table_uuid: str | None, kinds: Iterable[PauseKind] = PAUSE_KINDS) -> None:
        """End the pause of the table or, with None, the one for all. Nothing when there is none."""
        with self._write("resume") as connection:
            for kind in _checked_kinds(kinds):
                connection.execute("DELETE FROM pauses WHERE table_uuid = ? AND kind = ?", (table_uuid or "", kind))

    def pauses(self) -> list[Pause]:
        """Every pause."""
        return [
            Pause(
                table_uuid=row["table_uuid"] or None,
                kind=row["kind"],
                created=_time(row["created"]),
                actor=row["actor"],
            )
            for row in self._read("SELECT * FROM pauses ORDER BY created")
        ]

    def paused(self, table_uuid: str | None) -> set[PauseKind]:
        """What waits for this table: its own pauses and those for all."""
        rows = self._read("SELECT kind FROM pauses WHERE table_uuid IN ('', ?)", (table_uuid or "",))
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
        with self._write("pin", name) as connection:
            connection.execute(
                "INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?, ?, ?)",
                (table_uuid, scope, name, volume, _now(), actor),
            )

    def unpin(self, table_uuid: str, *, partition: str | None = None, part: str | None = None) -> None:
        """End the pin. Raises `NotFound` when there is none."""
        scope, name = _pin_key(partition, part)
        with self._write("unpin", name) as connection:
            done = connection.execute(
                "DELETE FROM pins WHERE table_uuid = ? AND scope = ? AND name = ?", (table_uuid, scope, name)
            )
            if not done.rowcount:
                raise NotFound(
                    f"{scope} {name} is not pinned", hint="pins hold a part or a partition; name it the same way"
                )

    def pins(self, table_uuid: str | None = None) -> list[Pin]:
        """The pins of the table, or of all tables."""
        rows = self._read("SELECT * FROM pins WHERE ? IS NULL OR table_uuid = ?", (table_uuid, table_uuid))
        return [
            Pin(
                table_uuid=row["table_uuid"],
                scope=row["scope"],
                name=row["name"],
                volume=row["volume"],
                created=_time(row["created"]),
                actor=row["actor"],
            )
            for row in rows
        ]

    # Intents

    def begin_intent(self, kind: str, payload: dict[str, str]) -> int:
        """Record that an operation over several disks begins; it is finished by recovery if we die. Returns its id."""
        with self._write("begin_intent", kind) as connection:
            cursor = connection.execute(
                "INSERT INTO intents (kind, payload, created) VALUES (?, ?, ?)", (kind, json.dumps(payload), _now())
            )
            return cursor.lastrowid or 0

    def finish_intent(self, intent_id: int) -> None:
        """The operation is complete. Nothing when it was finished before."""
        with self._write("finish_intent", intent_id) as connection:
            connection.execute("DELETE FROM intents WHERE id = ?", (intent_id,))

    def intents(self) -> list[Intent]:
        """Operations begun and not finished, oldest first."""
        return [
            Intent(id=row["id"], kind=row["kind"], payload=json.loads(row["payload"]), created=_time(row["created"]))
            for row in self._read("SELECT * FROM intents ORDER BY id")
        ]

    def forget_table(self, table_uuid: str) -> None:
        """Drop what belongs to a table that is gone: pins, pauses and block numbers. Its history stays."""
        with self._write("forget_table", table_uuid) as connection:
            for table in ("pins", "pauses", "blocks", "block_ranges", "claims"):
                connection.execute(f"DELETE FROM {table} WHERE table_uuid = ?", (table_uuid,))

    def trim(self, keep: int = 100_000) -> None:
        """Forget finished moves and merges beyond the newest `keep`."""
        with self._write("trim") as connection:
            for table, active in (("moves", ACTIVE_MOVES), ("merges", ACTIVE_MERGES)):
                marks = ", ".join("?" * len(active))
                connection.execute(
                    f"DELETE FROM {table} WHERE state NOT IN ({marks}) AND id <= (SELECT max(id) FROM {table}) - ?",
                    (*active, keep),
                )

    # Inside

    def _take_claims(self, table_uuid: str, names: list[str], owner_kind: str, token: str) -> None:
        with self._write("claim", table_uuid, durable=False) as connection:
            self._delete_released(connection)
            for name in names:
                row = connection.execute(
                    "SELECT * FROM claims WHERE table_uuid = ? AND part = ?", (table_uuid, name)
                ).fetchone()
                if row is not None and _held(row):
                    raise Locked(
                        f"part {name} is in use by a {row['owner_kind']} of process {row['pid']}",
                        hint="wait for it to finish; 'frostline moves list --active' shows running work",
                    )
                connection.execute(
                    "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (table_uuid, name, owner_kind, *self._owner, token, _now()),
                )

    def _set(
        self,
        table: Literal["moves", "merges"],
        transitions: dict[str, frozenset[str]],
        allowed: frozenset[str],
        changes: Sequence[tuple[int, dict[str, Any]]],
        state: str,
    ) -> None:
        if not changes:
            return
        with self._write(f"set_{table}", state) as connection:
            for row_id, fields in changes:
                if unknown := set(fields) - allowed:
                    raise UsageError(f"{table} have no field {', '.join(sorted(unknown))}")
                row = connection.execute(f"SELECT state FROM {table} WHERE id = ?", (row_id,)).fetchone()
                if row is None:
                    raise NotFound(f"no such {table[:-1]}: {row_id}")
                check_transition(transitions, f"{table[:-1]} {row_id}", row["state"], state)
                columns = ["state", "updated", *fields]
                connection.execute(
                    f"UPDATE {table} SET {', '.join(f'{column} = ?' for column in columns)} WHERE id = ?",
                    (state, _now(), *fields.values(), row_id),
                )

    def _select(self, table: str, states: list[str], limit: int | None, **equal: str | None) -> list[sqlite3.Row]:
        where, arguments = ["1 = 1"], list[Any]()
        if states:
            where.append(f"state IN ({', '.join('?' * len(states))})")
            arguments += states
        for column, value in equal.items():
            if value is not None:
                where.append(f"{column} = ?")
                arguments.append(value)
        arguments.append(-1 if limit is None else limit)
        return self._read(
            f"SELECT * FROM {table} WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?", tuple(arguments)
        )

    def _read(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        with self._lock, _translated(self.path):
            return self._connection.execute(sql, arguments).fetchall()

    @contextmanager
    def _write(self, what: str, *details: object, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction, durable when this returns; rolled back on any error.

        `durable=False` spares the fsync, for what means nothing after a power cut: then no owner of a claim lives.
        """
        with self._lock, _translated(self.path):
            self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                with effects.op("journal.commit", what, *details):
                    self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            raise Locked(
                f"the journal {path} is busy: {text}", hint="another process writes to it; try again"
            ) from error
        if "full" in text:
            raise NoSpace(
                f"no space left for the journal {path}", hint="free space below the state directory"
            ) from error
        raise FrostlineError(
            f"the journal {path} failed: {text}", hint="check the disk that holds the state"
        ) from error
    except sqlite3.DatabaseError as error:
        raise Damaged(
            f"the journal {path} is damaged: {error}", hint="run the command again: it is set aside and begun anew"
        ) from error


def _held(row: sqlite3.Row) -> bool:
    """Whether the claim's owner lives: another process, or an open journal of this one."""
    if row["pid"] == os.getpid() and row["start"] == process_start(os.getpid()):
        return row["instance"] in _live
    return is_alive(row["pid"], row["start"])


def _failure_of(connection: sqlite3.Connection, table_uuid: str, part: str, target: str) -> Failure | None:
    row = connection.execute(
        "SELECT state, attempts, error, updated FROM moves WHERE table_uuid = ? AND part = ? AND target = ?"
        " AND state IN ('failed', 'done') ORDER BY id DESC LIMIT 1",
        (table_uuid, part, target),
    ).fetchone()
    if row is None or row["state"] != "failed":
        return None
    return Failure(attempts=row["attempts"], error=row["error"], at=_time(row["updated"]))


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


def _move(row: sqlite3.Row) -> MoveRecord:
    fields = {key: row[key] for key in row.keys() if key not in _OWNER}  # noqa: SIM118
    fields["table"] = fields.pop("table_name")
    for flag in ("keep_source", "cancel_requested"):
        fields[flag] = bool(fields[flag])
    return MoveRecord(**{**fields, "created": _time(row["created"]), "updated": _time(row["updated"])})


def _merge(row: sqlite3.Row) -> MergeRecord:
    fields = {key: row[key] for key in row.keys() if key not in _OWNER}  # noqa: SIM118
    fields["table"] = fields.pop("table_name")
    fields["inputs"] = tuple(json.loads(row["inputs"]))
    return MergeRecord(**{**fields, "created": _time(row["created"]), "updated": _time(row["updated"])})


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
