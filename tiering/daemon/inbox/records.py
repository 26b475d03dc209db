"""What the inbox writes down: the batch that is going in, and a report beside each file. Pure; no I/O.

A batch is written down before its rows go in, and again when they are in. Its files are those, in that order, until it
is settled: an insert that is repeated makes the same blocks, and skips those that are in.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from oplog.bounds import UNREADABLE
from oplog.documents import Document
from oplog.errors import Damaged
from tiering.table.schema import TableDefinition


class BatchFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a batch. `name` is as the system spells it (`surrogateescape`), in hexadecimal."""

    name_hex: str
    sha256: str
    size_bytes: int
    rows: int

    @property
    def name(self) -> str:
        """As the directory lists it."""
        return bytes.fromhex(self.name_hex).decode("utf-8", "surrogateescape")


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Files that go in together. What decides which bytes their rows become is written down with them."""

    id: str
    table_uuid: str
    schema_version: int
    settings: str
    made_by: str
    begun: datetime
    files: tuple[BatchFile, ...]
    state: Literal["begun", "in"] = "begun"
    parts: tuple[str, ...] = ()
    again: int = 0
    """Rows that an insert before had brought: of this batch, before a crash, or of somebody else."""


batch_document = Document("batch of an inbox", Batch)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a table are being worked on. One that is still there at a start belongs to a process that was killed."""

    kills: int = 0
    """How many processes in a row were killed at these files before this one."""
    name_hex: str | None = None
    """The only file that is worked on; None while all are."""

    @property
    def name(self) -> str | None:
        """As the directory lists it."""
        return None if self.name_hex is None else bytes.fromhex(self.name_hex).decode("utf-8", "surrogateescape")


attempt_document = Document("attempt of an inbox", Attempt)


def name_hex(name: str) -> str:
    """A name that no JSON could spell, spelled."""
    return name.encode("utf-8", "surrogateescape").hex()


def decode_batch(data: bytes, where: str) -> Batch:
    """Raises `Damaged`."""
    try:
        return batch_document.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise Damaged(
            f"{where} cannot be read: {error}",
            hint="it says which files of .taken were going in; check with a query whether their rows are in, then"
            " remove it, and move the files back or away",
        ) from error


def after_kill(data: bytes) -> Attempt:
    """The attempt that a killed process left, with its own kill counted. One that cannot be read counts as the first:
    it only decides how careful the next attempt is."""
    try:
        before = attempt_document.decode(data)
        return msgspec.structs.replace(before, kills=max(before.kills, 0) + 1, name_hex=before.name and before.name_hex)
    except UNREADABLE:
        return Attempt(kills=1)


def what_decides(definition: TableDefinition) -> str:
    """The settings of a table that its blocks depend on."""
    return msgspec.json.encode(definition.settings, order="deterministic").decode()


def why_not_again(batch: Batch, definition: TableDefinition, made_by: str) -> str:
    """Why inserting the batch again may not make the blocks that it made: then it cannot be told what is in. Empty when
    it does."""
    if batch.table_uuid != definition.uuid:
        return f"table {definition.full_name} is another one now"
    if batch.schema_version != definition.schema_version or batch.settings != what_decides(definition):
        return f"table {definition.full_name} was altered since"
    if batch.made_by != made_by:
        return f"this is {made_by}, and it was begun by {batch.made_by}"
    return ""


def report(state: str, *, at: datetime, table: str, file: str, **facts: Any) -> bytes:
    """What lies beside a file in `done/` or `failed/`."""
    document = {"state": state, "time": at, "table": table, "file": shown(file), **facts}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def shown(name: str) -> str:
    """The name as a text that UTF-8 can hold."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_text(name: str) -> bool:
    """Whether the name is UTF-8: readers of formats open no other."""
    return shown(name) == name
