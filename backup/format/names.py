"""The keys of a repository's objects, and what may be a name.

    .frostline-backup                      the repository: its id and format, put once
    backups/<name>/<machine>-<id>.json     a backup: put last, and only if absent
    lists/<2>/<sha256>-<nonce>             a table's list or a partition's
    packs/<2>/<sha256>-<nonce>             small files side by side
    blobs/<2>/<sha256>-<nonce>             one file
    unfinished/<id>.json                   a backup that is being made, or was given up
    claims/<id>.json                       the header of a backup that is about to be complete: what it names stays
    verified/<id>/<time>-<nonce>.json      what a verification found
    drilled/<id>/<time>-<nonce>.json       what a drill found
    damaged/<key>                          an object that a verification found changed: no later backup counts on it
    gc/<id>.json                           what a collection is about to delete

A nonce is new for every object that is sent, so a key is never used twice: deleting what was once found unused,
late or again, never takes an object that a newer backup counts on.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from oplog.errors import UsageError

FORMAT = 2
"""The newest format that this version reads. Fields that a reader may leave alone need no new one."""
PLAIN_FORMAT = 1
"""That of most documents."""
TREES_FORMAT = 2
"""That of headers of backups with trees: who does not know those would collect what they name."""
MARKER_KEY = ".frostline-backup"
BACKUPS_PREFIX = "backups/"
LISTS_PREFIX = "lists/"
PACKS_PREFIX = "packs/"
BLOBS_PREFIX = "blobs/"
UNFINISHED_PREFIX = "unfinished/"
CLAIMS_PREFIX = "claims/"
VERIFIED_PREFIX = "verified/"
DRILLED_PREFIX = "drilled/"
DAMAGED_PREFIX = "damaged/"
PREFIXES = (BACKUPS_PREFIX, LISTS_PREFIX, PACKS_PREFIX, BLOBS_PREFIX)
"""Of what backups consist of."""
LARGEST_OBJECT_BYTES = 256 << 20
"""Of a list or pack: each is read whole. None that is written comes near it."""
LATEST = "latest"
"""What a user says for the newest backup; no backup is called so."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_NONCE = re.compile(r"[0-9a-f]{16}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_CONTENT = re.compile(r"(?:blobs|packs|lists)/([0-9a-f]{2})/(\1[0-9a-f]{62})-([0-9a-f]{16})\Z")
_HEADER = re.compile(r"backups/([A-Za-z0-9][A-Za-z0-9._-]{0,99})/([a-z0-9-]{1,80})-([0-9a-f]{16})\.json\Z")
_UNFINISHED = re.compile(r"unfinished/([0-9a-f]{16})\.json\Z")
_CLAIM = re.compile(r"claims/([0-9a-f]{16})\.json\Z")
_RECORD = re.compile(r"(?:verified|drilled)/([0-9a-f]{16})/[0-9TZ]+-[0-9a-f]{16}\.json\Z")


Sha256 = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
Nonce = Annotated[str, msgspec.Meta(min_length=16, max_length=16)]
"""Their lengths are looked at while a list is decoded: what is in one then takes memory in proportion to its bytes."""


class Ref(msgspec.Struct, frozen=True, array_like=True):
    """An object by its content: the digest of its stored bytes, the nonce of its key, its size."""

    sha256: Sha256
    nonce: Nonce
    size_bytes: int


def fresh_nonce() -> str:
    """A nonce, or the id of a backup."""
    return secrets.token_hex(8)


def content_key(prefix: str, sha256: str, nonce: str) -> str:
    """Where an object that is named by its content lies."""
    return f"{prefix}{sha256[:2]}/{sha256}-{nonce}"


def parse_content_key(key: str) -> tuple[str, str] | None:
    """SHA-256 and nonce; None when the key is not that of a list, pack or blob."""
    match = _CONTENT.match(key)
    return (match[2], match[3]) if match else None


def header_key(name: str, machine: str, backup_id: str) -> str:
    """Where a backup's header lies."""
    return f"{BACKUPS_PREFIX}{name}/{machine}-{backup_id}.json"


def parse_header_key(key: str) -> tuple[str, str, str] | None:
    """Name, machine and id; None when the key is not a header's."""
    match = _HEADER.match(key)
    return (match[1], match[2], match[3]) if match else None


def unfinished_key(backup_id: str) -> str:
    """Where it is said that a backup is being made."""
    return f"{UNFINISHED_PREFIX}{backup_id}.json"


def parse_unfinished_key(key: str) -> str | None:
    """The id; None when the key is not such a mark's."""
    match = _UNFINISHED.match(key)
    return match[1] if match else None


def claim_key(backup_id: str) -> str:
    """Where a backup says what it is about to name."""
    return f"{CLAIMS_PREFIX}{backup_id}.json"


def parse_claim_key(key: str) -> str | None:
    """The id; None when the key is not a claim's."""
    match = _CLAIM.match(key)
    return match[1] if match else None


def record_key(prefix: str, backup_id: str, time: datetime) -> str:
    """Where the record of a verification, or of a drill, goes; later ones sort later."""
    return f"{prefix}{backup_id}/{time.astimezone(UTC):%Y%m%dT%H%M%S%fZ}-{fresh_nonce()}.json"


def parse_record_key(key: str) -> str | None:
    """The id of the backup; None when the key is no record's."""
    match = _RECORD.match(key)
    return match[1] if match else None


def check_name(name: str) -> str:
    """The name of a new backup. Raises `UsageError`."""
    if not _NAME.match(name) or name == LATEST:
        raise UsageError(
            f"not a name for a backup: {name!r}",
            hint=f"letters, digits, '.', '_' and '-', at most 100 of them, and not {LATEST!r}",
        )
    return name


def name_at(now: datetime) -> str:
    """The name of a backup that nobody named."""
    return f"{now.astimezone(UTC):%Y-%m-%dT%H-%M-%SZ}"


def machine_word(host: str, state: str) -> str:
    """What a machine is called in keys: its host's name, and a mark of the place where this store keeps its state."""
    readable = re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")[:60] or "machine"
    return f"{readable}-{hashlib.sha256(f'{host} {state}'.encode()).hexdigest()[:6]}"


def is_ref(ref: Ref) -> bool:
    """Whether the digest and the nonce have their form, and the size can be one."""
    return is_sha256(ref.sha256) and is_nonce(ref.nonce) and 0 <= ref.size_bytes <= LARGEST_OBJECT_BYTES


def is_sha256(text: str) -> bool:
    return _SHA256.match(text) is not None


def is_nonce(text: str) -> bool:
    return _NONCE.match(text) is not None
