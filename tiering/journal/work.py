"""The journal's moves and merges: what is under way, what was done, and what failed how often."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from oplog.documents import Document
from oplog.errors import NotFound, UsageError
from tiering.journal.file import JournalFile, now_text, time_of
from tiering.journal.records import (
    ACTIVE_MERGES,
    ACTIVE_MOVES,
    MERGE_TRANSITIONS,
    MOVE_TRANSITIONS,
    Failures,
    MergeRecord,
    MergeState,
    MoveRecord,
    MoveState,
    NewMove,
    check_transition,
)

_MOVE_FIELDS = frozenset({"attempts", "error", "seconds", "requests", "revision", "bytes"})
_MERGE_FIELDS = frozenset({"output", "rows_in", "rows_out", "bytes_in", "bytes_out", "seconds", "error"})

_OWNER = frozenset({"pid", "start", "instance"})


_PLAN_MOVE = """
INSERT INTO moves (table_name, table_uuid, part, source, target, bytes, reason_kind, reason_detail, actor, keep_source,
  pid, start, instance, created, updated, state, attempts)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?14, 'planned', 1 + ifnull((
  SELECT CASE state WHEN 'failed' THEN attempts ELSE 0 END FROM moves
  WHERE table_uuid = ?2 AND part = ?3 AND target = ?5 AND state IN ('failed', 'done') ORDER BY id DESC LIMIT 1), 0))
"""
"""One more attempt than the last one of the same move, when that failed."""


_names = Document[tuple[str, ...]](
    "inputs of a merge",
    tuple[str, ...],
    write=lambda names: json.dumps(list(names)).encode(),  # journals group by these texts
)

_PROGRESS = "CREATE TABLE IF NOT EXISTS progress (id INTEGER PRIMARY KEY, bytes INTEGER NOT NULL)"
_NOTHING: Mapping[int, int] = {}


class WorkRecords(msgspec.Struct):
    """The part of the journal that movers and mergers write."""

    _file: JournalFile

    # Moves

    def plan_moves(self, moves: Iterable[NewMove]) -> list[int]:
        """Record the moves as planned, all in one commit; returns their ids in order."""
        stamp = now_text()
        rows = [
            (
                *(move.table, move.table_uuid, move.part, move.source, move.target, move.bytes),
                *(move.reason_kind, move.reason_detail, move.actor, move.keep_source),
                *(*self._file.owner, stamp),
            )
            for move in moves
        ]
        with self._file.write("plan_moves") as connection:
            (last,) = connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'moves'").fetchone()
            connection.executemany(_PLAN_MOVE, rows)
        first = (last or 0) + 1  # AUTOINCREMENT: each gets the next one
        return list(range(first, first + len(rows)))

    def set_move(self, move_id: int, state: MoveState, **fields: Any) -> None:
        """Bring one move to the state. Raises `NotFound`, and `UsageError` for a step the table does not allow."""
        self.set_moves([move_id], state, **fields)

    def set_moves(self, ids: Sequence[int], state: MoveState, **fields: Any) -> None:
        """Bring the moves to the state with the same fields, all or none, in one commit."""
        self._set("moves", MOVE_TRANSITIONS, _MOVE_FIELDS, [(move_id, fields) for move_id in ids], state)

    def set_moves_each(self, changes: Sequence[tuple[int, Mapping[str, object]]], state: MoveState) -> None:
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
        done = self._noted_bytes() if any(row["state"] == "copying" for row in rows) else {}
        return [_move(row, done) for row in rows]

    def moves_since(self, since: datetime) -> list[MoveRecord]:
        """The moves that are copying, and those that something became of since then."""
        rows = self._file.read("SELECT * FROM moves WHERE updated >= ? OR state = 'copying'", (since.isoformat(),))
        done = self._noted_bytes() if any(row["state"] == "copying" for row in rows) else {}
        return [_move(row, done) for row in rows]

    def note_bytes(self, bytes_done: Mapping[int, int]) -> None:
        """Note how much of moves that are copying is on the target. Only for who looks: not durable, nothing is
        decided by it, and what ended is forgotten with the next note."""
        with self._file.write("note_bytes", durable=False) as connection:
            connection.execute(_PROGRESS)  # a journal of an earlier version has none
            connection.execute("DELETE FROM progress WHERE id NOT IN (SELECT id FROM moves WHERE state = 'copying')")
            connection.executemany(
                "INSERT INTO progress VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET bytes = max(bytes, excluded.bytes)",
                list(bytes_done.items()),  # of two threads the later one may come first
            )

    def _noted_bytes(self) -> dict[int, int]:
        if not self._file.has_table("progress"):
            return {}
        return {row["id"]: row["bytes"] for row in self._file.read("SELECT id, bytes FROM progress")}

    def move_counts(self) -> list[tuple[str, str, int, int]]:
        """State, kind of reason, number and bytes of the moves that are remembered."""
        rows = self._file.read(
            "SELECT state, reason_kind, count(*), sum(bytes) FROM moves GROUP BY state, reason_kind ORDER BY 1, 2"
        )
        return [tuple(row) for row in rows]

    def orphaned_moves(self) -> list[MoveRecord]:
        """Unfinished moves whose process is gone, oldest first: what recovery settles."""
        rows = self._select("moves", list(ACTIVE_MOVES), None)
        return [_move(row) for row in reversed(rows) if not self._file.is_held(row)]

    def move(self, move_id: int) -> MoveRecord:
        """One move. Raises `NotFound`."""
        for row in self._file.read("SELECT * FROM moves WHERE id = ?", (move_id,)):
            return _move(row)
        raise NotFound(f"no move {move_id}", hint="'frostline moves list' shows them")

    def moved_parts(self, table_uuid: str) -> set[str]:
        """The parts of the table that this machine has moved at some time."""
        rows = self._file.read("SELECT DISTINCT part FROM moves WHERE table_uuid = ?", (table_uuid,))
        return {row["part"] for row in rows}

    def paid_moves(self, since: datetime, until: datetime) -> list[MoveRecord]:
        """The tries that rules asked for in that time and that sent something: also those that failed. What a wrong
        clock noted for the future is in no time that has begun."""
        rows = self._file.read(
            "SELECT * FROM moves WHERE created >= ? AND created < ? AND reason_kind IN ('ttl', 'move_factor')"
            " AND state IN ('copying', 'committed', 'done', 'failed')",
            (since.isoformat(), until.isoformat()),
        )
        return [_move(row) for row in rows]

    def tried_moves(self) -> list[MoveRecord]:
        """The tries that sent something, of every origin, oldest first: also those that failed."""
        rows = self._file.read(
            "SELECT * FROM moves WHERE state IN ('copying', 'committed', 'done', 'failed') ORDER BY created, id"
        )
        return [_move(row) for row in rows]

    def arrivals(self) -> dict[tuple[str, str], datetime]:
        """By table and part: when its last move was done."""
        rows = self._file.read(
            "SELECT table_uuid, part, max(updated) AS at FROM moves WHERE state = 'done' GROUP BY table_uuid, part"
        )
        return {(row["table_uuid"], row["part"]): time_of(row["at"]) for row in rows}

    def failures(self) -> dict[tuple[str, str, str], Failures]:
        """By (table uuid, part, target): the moves whose last try failed."""
        rows = self._file.read(
            "SELECT * FROM moves WHERE state = 'failed' AND id IN"
            " (SELECT max(id) FROM moves WHERE state IN ('failed', 'done') GROUP BY table_uuid, part, target)"
        )
        return {
            (row["table_uuid"], row["part"], row["target"]): Failures(
                attempts=row["attempts"], error=row["error"], at=time_of(row["updated"])
            )
            for row in rows
        }

    def request_cancel(self, move_id: int) -> MoveState:
        """Ask for the move to stop; one that is only planned is cancelled at its next step. Returns its state."""
        with self._file.write("request_cancel", move_id) as connection:
            row = connection.execute("SELECT state FROM moves WHERE id = ?", (move_id,)).fetchone()
            if row is None:
                raise NotFound(f"no move {move_id}", hint="'frostline moves list' shows them")
            if row["state"] in ("planned", "copying"):
                connection.execute(
                    "UPDATE moves SET cancel_requested = 1, updated = ? WHERE id = ?", (now_text(), move_id)
                )
            state: MoveState = row["state"]
            return state

    def cancel_requests(self) -> set[int]:
        """Ids of unfinished moves that somebody asked to stop."""
        rows = self._file.read("SELECT id FROM moves WHERE cancel_requested = 1 AND state IN ('planned', 'copying')")
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
        rows_in: int = 0,
    ) -> int:
        """Record a merge as running; returns its id."""
        stamp = now_text()
        with self._file.write("begin_merge", output) as connection:
            cursor = connection.execute(
                "INSERT INTO merges (table_name, table_uuid, partition, inputs, output, reason, actor, rows_in, state,"
                " pid, start, instance, created, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'running', ?, ?, ?, ?, ?)",
                (
                    *(
                        table,
                        table_uuid,
                        partition,
                        _names.encode(tuple(inputs)).decode(),
                        output,
                        reason,
                        actor,
                        rows_in,
                    ),
                    *(*self._file.owner, stamp, stamp),
                ),
            )
            return cursor.lastrowid or 0

    def set_merge(self, merge_id: int, state: MergeState, **fields: Any) -> None:
        """Bring the merge to the state. Raises `NotFound`, and `UsageError` for a step the table does not allow."""
        self._set("merges", MERGE_TRANSITIONS, _MERGE_FIELDS, [(merge_id, fields)], state)

    def merges(self, *, active: bool = False, table_uuid: str | None = None) -> list[MergeRecord]:
        """Merges, newest first: all, or the unfinished ones (`active`)."""
        states = list(ACTIVE_MERGES) if active else []
        return [_merge(row) for row in self._select("merges", states, None, table_uuid=table_uuid)]

    def merges_since(self, since: datetime) -> list[MergeRecord]:
        """The merges that something became of since then."""
        return [_merge(row) for row in self._file.read("SELECT * FROM merges WHERE updated >= ?", (since.isoformat(),))]

    def merge_counts(self) -> list[tuple[str, str, int, int]]:
        """The same of merges, with the bytes that they took."""
        rows = self._file.read(
            "SELECT state, reason, count(*), sum(bytes_in) FROM merges GROUP BY state, reason ORDER BY 1, 2"
        )
        return [tuple(row) for row in rows]

    def merged_parts(self, table_uuid: str) -> tuple[set[str], set[str]]:
        """What merges of the table took, and what they made."""
        done = "FROM merges WHERE table_uuid = ? AND state = 'done'"
        taken = self._file.read(
            f"SELECT DISTINCT value FROM (SELECT inputs {done}) AS finished, json_each(finished.inputs)", (table_uuid,)
        )
        made = self._file.read(f"SELECT output {done} AND rows_out > 0", (table_uuid,))
        return {row["value"] for row in taken}, {row["output"] for row in made}

    def merge_failures(self, table_uuid: str) -> dict[tuple[str, ...], Failures]:
        """By inputs: the merges that failed, how often, and why the last time. One that succeeds has no inputs left."""
        rows = self._file.read(
            "SELECT inputs, count(*) AS attempts, error, updated, max(id) FROM merges"
            " WHERE state = 'failed' AND table_uuid = ? GROUP BY inputs",
            (table_uuid,),
        )
        return {
            _names.decode(row["inputs"]): Failures(
                attempts=row["attempts"], error=row["error"], at=time_of(row["updated"])
            )
            for row in rows
        }

    def orphaned_merges(self) -> list[MergeRecord]:
        """Unfinished merges whose process is gone, oldest first."""
        rows = self._select("merges", list(ACTIVE_MERGES), None)
        return [_merge(row) for row in reversed(rows) if not self._file.is_held(row)]

    # Inside

    def _set(
        self,
        table: Literal["moves", "merges"],
        transitions: dict[str, frozenset[str]],
        allowed: frozenset[str],
        changes: Sequence[tuple[int, Mapping[str, object]]],
        state: str,
    ) -> None:
        if not changes:
            return
        with self._file.write(f"set_{table}", state) as connection:
            found = connection.execute(
                f"SELECT id, state FROM {table} WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps([row_id for row_id, _ in changes]),),
            )
            states = dict(map(tuple, found))
            stamp = now_text()
            updates: dict[str, list[tuple[object, ...]]] = {}
            for row_id, fields in changes:
                if unknown := set(fields) - allowed:
                    raise UsageError(f"{table} have no field {', '.join(sorted(unknown))}")
                if row_id not in states:
                    raise NotFound(f"no such {table[:-1]}: {row_id}")
                check_transition(transitions, f"{table[:-1]} {row_id}", states[row_id], state)
                columns = ", ".join(f"{column} = ?" for column in ("state", "updated", *fields))
                updates.setdefault(columns, []).append((state, stamp, *fields.values(), row_id))
            for columns, rows in updates.items():
                connection.executemany(f"UPDATE {table} SET {columns} WHERE id = ?", rows)

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
        return self._file.read(
            f"SELECT * FROM {table} WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?", tuple(arguments)
        )


def _move(row: sqlite3.Row, done: Mapping[int, int] = _NOTHING) -> MoveRecord:
    fields = {key: row[key] for key in row.keys() if key not in _OWNER}  # noqa: SIM118
    fields["bytes_done"] = done.get(row["id"], 0) if row["state"] == "copying" else 0
    fields["table"] = fields.pop("table_name")
    for flag in ("keep_source", "cancel_requested"):
        fields[flag] = bool(fields[flag])
    return MoveRecord(**{**fields, "created": time_of(row["created"]), "updated": time_of(row["updated"])})


def _merge(row: sqlite3.Row) -> MergeRecord:
    fields = {key: row[key] for key in row.keys() if key not in _OWNER}  # noqa: SIM118
    fields["table"] = fields.pop("table_name")
    fields["inputs"] = _names.decode(row["inputs"])
    return MergeRecord(**{**fields, "created": time_of(row["created"]), "updated": time_of(row["updated"])})
