"""A number for the files of a file table, whatever their order: commits say it of the table after them, so that a
snapshot or a cache that contradicts the log is found. Pure; no I/O.

It is the sum, modulo 2^256, of the SHA-256 of the line that a snapshot has for each file. So it follows a commit by the
rows that come and go. It is no signature: who may write entries can write this as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from oplog.entry import Commit
from oplog.errors import Damaged
from oplog.replay import FileRow
from oplog.revision import commit_key

_MODULUS = 1 << 256
_DEFAULTS = b",[],false]"
"""How a row of one object ends: `more` and `read_only` are those of files that ClickHouse wrote."""
_LONG = _DEFAULTS + b"\n"

_encode = msgspec.json.Encoder().encode


def line_of(row: FileRow) -> bytes:
    """The row as JSON; without the fields that files of this format leave at their defaults."""
    line = _encode(row)
    return (line[: -len(_DEFAULTS)] + b"]\n") if line.endswith(_DEFAULTS) else line + b"\n"


class TableDigest:
    """The sum for rows that come and go."""

    __slots__ = ("_sum",)

    def __init__(self, text: str = "") -> None:
        """`text`: as `hex` gave it; that of the empty table by default."""
        self._sum = int(text, 16) if text else 0

    def add(self, row: FileRow) -> None:
        """A file comes."""
        self._sum += int.from_bytes(hashlib.sha256(line_of(row)).digest())

    def remove(self, row: FileRow) -> None:
        """A file goes."""
        self._sum -= int.from_bytes(hashlib.sha256(line_of(row)).digest())

    def add_lines(self, lines: Iterable[bytes]) -> None:
        """Files come, by the lines that a snapshot has for them."""
        total = 0
        for line in lines:
            known = line
            if line.endswith(_LONG):  # as older versions wrote it
                known = line[: -len(_LONG)] + b"]\n"
            total += int.from_bytes(hashlib.sha256(known).digest())
        self._sum += total

    @property
    def hex(self) -> str:
        """64 digits."""
        return f"{self._sum % _MODULUS:064x}"


def agrees(commit: Commit, digest: TableDigest) -> bool:
    """Whether the commit says what the table after it is. Raises `Damaged` when that is another one."""
    if commit.table_digest and commit.table_digest != digest.hex:
        raise Damaged(
            f"the file table at revision {commit.revision} is not the one that log entry {commit_key(commit.revision)} "
            "was written with: what it was begun from contradicts the log, or the entry was altered",
            hint="run 'frostline fsck' on the disk; gc deletes nothing until they agree",
        )
    return bool(commit.table_digest)
