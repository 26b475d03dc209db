"""What is in the inbox, as a document. Changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oplog.errors import FrostlineError
from tiering.daemon.inbox import records, table_inbox
from tiering.daemon.inbox.table_inbox import DONE, FAILED, REPORT, TableInbox
from tiering.journal.locks import lock_holder


def status_document(root: Path, tables: set[str]) -> dict[str, Any]:
    """`inbox status --json`. Raises `NotFound` where there is no inbox."""
    found, strange = table_inbox.tables_of(root)
    problems = [{"table": item.table, "file": item.file, "what": item.what} for item in strange]
    documents = []
    for table in found:
        if table.name not in tables:
            problems.append({"table": records.shown(table.name), "file": "", "what": "there is no such table"})
        documents.append(_table(table, problems))
    holder = lock_holder(root / ".lock")
    return {"path": str(root), "running": holder is not None, "pid": holder, "tables": documents, "problems": problems}


def _table(table: TableInbox, problems: list[dict[str, str]]) -> dict[str, Any]:
    waiting, strange = table.listing()
    problems += [{"table": records.shown(table.name), "file": item.file, "what": item.what} for item in strange]
    going_in: dict[str, Any] | None = None
    try:
        if (batch := table.batch()) is not None:
            going_in = {"files": len(batch.files), "rows": sum(file.rows for file in batch.files), "state": batch.state}
    except FrostlineError as error:
        problems.append({"table": records.shown(table.name), "file": table_inbox.BATCH_FILE, "what": error.message})
    return {
        "table": records.shown(table.name),
        "waiting": [{"file": records.shown(file.name), "bytes": file.size_bytes} for file in waiting],
        "taken": len(table.taken()),
        "batch": going_in,
        "done": len(table.finished(DONE)),
        "failed": [{"file": records.shown(name), "error": _error(table, name)} for name in table.finished(FAILED)],
    }


def _error(table: TableInbox, name: str) -> str:
    """What the report says; empty where there is none any more."""
    try:
        return str(json.loads((table.path / FAILED / f"{name}{REPORT}").read_bytes())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
