"""Revisions and the names they give to objects: `r` + 64 binary digits, so that key order is revision order.

The form is ClickHouse's (`r0000…0101-file-<name>`), kept so that one reader understands both logs.
"""

from __future__ import annotations

import hashlib
import re
import secrets

OPERATIONS_PREFIX = "operations/"
SNAPSHOTS_PREFIX = "snapshots/"
PINS_PREFIX = "pins/"
PUBLICATIONS_PREFIX = "iceberg/"
"""Metadata of published tables, each in a directory of its uuid. It follows from the log."""
BLOBS_PREFIX = "r"
"""What every blob's key begins with; foreign names may do so too."""
LEASES_PREFIX = "lease/"
GC_PREFIX = "gc/"
"""What collections say there: `disks.garbage.announcements`."""
LOGS_PREFIX = "logs/"
"""In a prefix of several logs: `logs/<NAME>/` has what the log NAME owns."""
WRITERS_PREFIX = "writers/"
"""Of such a log: which machine writes it."""
MARKS_PREFIX = "marks/"
"""Of such a prefix: which Keeper holds the marks of its objects."""
SCHEMA_VERSION_KEY = ".SCHEMA_VERSION"
DISK_KEY = ".frostline-disk"
"""The id of the disk, put by its first commit and never changed."""
DOCTOR_PREFIX = "doctor/"
OBJBENCH_PREFIX = "objbench/"

LARGEST_REVISION = (1 << 63) - 1
"""What SQLite can hold. A key with a larger number is none that Frostline gives."""

_DIGITS = 64
_LETTERS = bytes(ord("a") + byte % 26 for byte in range(256))
"""A random byte as a letter. Some letters are a little likelier: 32 of them still hold more than 149 bits."""
_COMMIT = re.compile(r"operations/r(0[01]{63})-commit\Z")
_SNAPSHOT = re.compile(r"snapshots/r(0[01]{63})\.zst\Z")
_FLOOR = re.compile(r"snapshots/r(0[01]{63})-floor\Z")
_SCRATCH = re.compile(rf"(?:{DOCTOR_PREFIX}|{OBJBENCH_PREFIX})[0-9a-f]{{16}}/[a-z0-9-]+\Z")
_BLOB = re.compile(r"r(0[01]{63})-file-([a-z]{32})\Z")


def _name(revision: int) -> str:
    return f"r{revision:0{_DIGITS}b}"


def commit_key(revision: int) -> str:
    """The key of a commit below the disk's prefix."""
    return f"{OPERATIONS_PREFIX}{_name(revision)}-commit"


def snapshot_key(revision: int) -> str:
    """The key of the file table at a revision."""
    return f"{SNAPSHOTS_PREFIX}{_name(revision)}.zst"


def floor_key(revision: int) -> str:
    """The key that says: entries below this revision were collected. Beside the snapshots that stand in for them, so
    that one listing shows both."""
    return f"{SNAPSHOTS_PREFIX}{_name(revision)}-floor"


def blob_key(revision: int) -> str:
    """A fresh key for a blob uploaded for `revision`; 32 random letters, so never reused."""
    return f"{blob_prefix(revision)}{secrets.token_bytes(32).translate(_LETTERS).decode()}"


def derived_blob_key(revision: int, seed: bytes) -> str:
    """The key that belongs to the seed: the same one when interrupted work goes on. The seed holds a nonce of that
    work, so that no other work ever gets it."""
    return f"{blob_prefix(revision)}{hashlib.sha256(seed).digest().translate(_LETTERS).decode()}"


def blob_prefix(revision: int) -> str:
    """What the keys of all blobs uploaded for this revision begin with."""
    return f"{_name(revision)}-file-"


def parse_commit_key(key: str) -> int | None:
    """The revision, or None when the key is not a commit's."""
    match = _COMMIT.match(key)
    return int(match[1], 2) if match else None


def parse_snapshot_key(key: str) -> int | None:
    """The revision, or None when the key is not a snapshot's."""
    match = _SNAPSHOT.match(key)
    return int(match[1], 2) if match else None


def parse_floor_key(key: str) -> int | None:
    """The revision, or None when the key is not a floor's."""
    match = _FLOOR.match(key)
    return int(match[1], 2) if match else None


def is_blob_key(key: str) -> bool:
    """Whether the key is a blob's."""
    return _BLOB.match(key) is not None


def parse_blob_key(key: str) -> int | None:
    """The revision the blob was uploaded for, or None when the key is not a blob's."""
    match = _BLOB.match(key)
    return int(match[1], 2) if match else None


def scratch_prefix(kind: str) -> str:
    """A fresh place for objects that live for one command: `doctor/` or `objbench/` with 16 hexadecimal digits."""
    return f"{kind}{secrets.token_hex(8)}/"


def is_scratch_key(key: str) -> bool:
    """Whether a command that tries a store out made the object. Nothing names it: gc removes what a kill left."""
    return _SCRATCH.match(key) is not None
