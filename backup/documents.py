"""Backups as documents: what `--json` prints and the dashboard shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiering.config.units import counted

if TYPE_CHECKING:
    from backup.format.header import BackupHeader
    from backup.repository import Listed


def listed_document(listed: Listed) -> dict[str, Any]:
    """One line of `backup list --json`."""
    from backup.format.names import parse_header_key

    if listed.header is not None:
        made = listed.header
        return {
            "name": made.name,
            "id": made.id,
            "machine": made.machine,
            "state": "complete",
            "taken": time_text(made.taken),
            "tables": [table.name for table in made.tables],
            "clickhouse": [tree.name for tree in made.trees],
            "parts": made.parts,
            "files": made.files,
            "bytes": made.size_bytes,
            "new_bytes": made.new_bytes,
            "cold": made.cold,
            "tags": made.tags,
            "scope": made.scope,
            "left_out": left_out_documents(made),
            "verified": _verified(listed),
            "drilled": _drilled(listed),
        }
    if listed.unfinished is not None:
        name, machine, backup_id = listed.unfinished.name, listed.unfinished.machine, listed.unfinished.id
        state, taken = "incomplete", time_text(listed.unfinished.started)
    else:
        assert listed.broken is not None
        name, machine, backup_id = parse_header_key(listed.broken.key) or (listed.broken.key, "", "")
        state, taken = f"damaged: {listed.broken.error.message}", None
    return {
        "name": name,
        "id": backup_id,
        "machine": machine,
        "state": state,
        "taken": taken,
        "tables": [],
        "clickhouse": [],
        "parts": None,
        "files": None,
        "bytes": None,
        "new_bytes": None,
        "cold": None,
        "tags": [],
        "scope": [],
        "left_out": [],
        "verified": None,
        "drilled": None,
    }


def left_out_documents(made: BackupHeader) -> list[dict[str, str]]:
    """The tables that the backup lacks, for they could not be read when it was made."""
    return [{"table": table.table, "uuid": table.uuid, "why": table.why} for table in made.left_out]


def _verified(listed: Listed) -> dict[str, Any] | None:
    record = listed.verified
    if record is None:
        return None
    return {
        "time": time_text(record.time),
        "depth": record.depth,
        "slice": f"{record.slice + 1} of {record.slices}" if record.slices > 1 else "",
        "read_bytes": record.read_bytes,
        "problems": record.problem_count,
        "ok": not record.problem_count,
    }


def _drilled(listed: Listed) -> dict[str, Any] | None:
    record = listed.drilled
    if record is None:
        return None
    return {
        "time": time_text(record.time),
        "whole": record.whole,
        "parts": record.parts,
        "rows": record.rows,
        "bytes": record.size_bytes,
        "problems": record.problem_count,
        "ok": not record.problem_count,
    }


def verified_text(verified: dict[str, Any] | None) -> str:
    """When it was verified, how deep, and what was found."""
    if verified is None:
        return "never"
    how = {"quick": "quick", "subset": f"share {verified['slice']}", "data": "all data"}[verified["depth"]]
    return f"{verified['time']} {how}: {_outcome(verified)}"


def drilled_text(drilled: dict[str, Any] | None) -> str:
    """When it was drilled, how much of it, and what was found."""
    if drilled is None:
        return "never"
    return f"{drilled['time']} {'whole' if drilled['whole'] else 'a share'}: {_outcome(drilled)}"


def _outcome(record: dict[str, Any]) -> str:
    return "ok" if record["ok"] else counted(record["problems"], "problem").upper()


def time_text(moment: Any) -> str:
    from datetime import UTC

    return str(moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
