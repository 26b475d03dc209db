"""What a field of a document can hold. Documents come from a bucket: their content is hostile until it is decoded,
and decoded values must do no harm to their readers: no number that SQLite or a clock cannot hold, no name
that leaves its place, nothing that takes memory without bound. Pure; no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

from oplog import paths
from oplog.errors import Damaged
from oplog.revision import (
    GC_PREFIX,
    LARGEST_REVISION,
    LEASES_PREFIX,
    LOGS_PREFIX,
    OPERATIONS_PREFIX,
    PINS_PREFIX,
    SNAPSHOTS_PREFIX,
)

LARGEST_FILE_BYTES = 1 << 60
"""1 EiB, more than any store holds in one object."""
LARGEST_COUNT = (1 << 63) - 1
"""Of rows, versions, settings: what SQLite and Arrow count with."""
LARGEST_ENTRY_BYTES = 1 << 30
"""An entry is read whole, so its size is asked for first."""
LARGEST_DOCUMENT_BYTES = 256 << 20
"""Of a `part.json` or `table.json`."""
LARGEST_SNAPSHOT_BYTES = 8 << 30
"""As it lies in the bucket: more than a hundred million files."""
LARGEST_NOTE_BYTES = 16 << 20
"""Of a pin or an announcement."""

LARGEST_MARK_BYTES = 1 << 20
"""Of what tells what a prefix is: a mark has less than a hundred, an error page in its place a few thousand."""

_most_received: ContextVar[tuple[float, str]] = ContextVar("most received", default=(math.inf, ""))

_FIRST_YEAR, _LAST_YEAR = 1900, 9000

UNREADABLE = (ValueError, RecursionError, OverflowError)
"""What decoders raise on bytes that are no document: msgspec's errors and those of wrong text are ValueErrors."""

_NO_BLOBS = (".", OPERATIONS_PREFIX, SNAPSHOTS_PREFIX, PINS_PREFIX, LEASES_PREFIX, GC_PREFIX, LOGS_PREFIX)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@contextmanager
def at_most(size_bytes: int, name: str = "an object") -> Iterator[None]:
    """Within the block stores give no larger object to this thread: for one whose size nobody has asked for. `name`:
    what the error calls it."""
    before = _most_received.set((size_bytes, name))
    try:
        yield
    finally:
        _most_received.reset(before)


def check_received(size_bytes: int) -> None:
    """Called by stores before they take so much into memory. Raises `Damaged`."""
    most_bytes, name = _most_received.get()
    if size_bytes > most_bytes:
        raise Damaged(
            f"{name} has {size_bytes} bytes, more than any valid one of its kind",
            hint="bring it back from a copy, or move it away if you put it there; 'frostline fsck' names it",
        )


def fault_in_digest(label: str, text: str) -> str | None:
    """What is wrong with a SHA-256 in hex; None when it is one."""
    return None if _SHA256.match(text) else f"{label} is {text[:80]!r}, which is no SHA-256"


def fault_in_path(path: str) -> str | None:
    """What is wrong with the path of a file."""
    return (
        None
        if paths.is_safe(path)
        else f"it names an unsafe path: {path[:80]!r}; something other than Frostline changed the bucket"
    )


def fault_in_key(path: str, key: str | None) -> str | None:
    """What is wrong with the key of a file's object: it must stay in the disk's prefix, and be none of the log's."""
    if key is None or (paths.is_safe(key) and not key.startswith(_NO_BLOBS)):
        return None
    return f"the key of {path!r} is {key[:80]!r}, which is none of a file's object"


def fault_in_size(label: str, size_bytes: int) -> str | None:
    """What is wrong with a file's size."""
    return None if 0 <= size_bytes <= LARGEST_FILE_BYTES else f"{label} is {_shown(size_bytes)} bytes"


def fault_in_count(label: str, count: int) -> str | None:
    """What is wrong with a count."""
    return None if 0 <= count <= LARGEST_COUNT else f"{label} is {_shown(count)}"


def fault_in_revision(label: str, revision: int) -> str | None:
    """What is wrong with the number of a commit."""
    return None if 1 <= revision <= LARGEST_REVISION else f"{label} is {_shown(revision)}"


def fault_in_time(label: str, time: datetime) -> str | None:
    """What is wrong with a time: one without a zone cannot be compared with any other, and adding a retention to
    one at the end of the calendar fails."""
    if time.tzinfo is None:
        return f"{label} has no time zone"
    return None if _FIRST_YEAR <= time.year <= _LAST_YEAR else f"{label} is in the year {time.year}"


def _shown(number: int) -> str:
    """The number; not the digits of one that has too many to print."""
    return str(number) if number.bit_length() <= 256 else f"a number of {number.bit_length()} bits"
