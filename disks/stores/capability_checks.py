"""What a disk asks of a store: each question once, with the promise behind it and what to do when it is not kept.

Three read this list. `doctor` asks every question with a few objects (`disks.stores.trial.examine`) and says what the
answers mean (`tiering.doctor.store_diagnosis`); `objbench` checks them on every request of many workers
(`disks.stores.trial.bench`); an S3 store of unknown make asks the two that its own writes depend on, by `if_none_match`
and `checks_sha256`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from oplog.errors import AlreadyExists, Damaged, FrostlineError


class Question(msgspec.Struct, frozen=True):
    """One promise that a store may keep or not."""

    check: str
    """The word for it in the findings of `doctor`."""
    promise: str
    advice: str = ""
    """What follows when it is not kept."""
    level: Literal["problem", "warning", "note"] = "problem"
    under_load: str = ""
    """The promise in the words of `objbench`, where they are others."""

    @property
    def measured(self) -> str:
        return self.under_load or self.promise


READ_BACK = Question(
    "read-own-write",
    "an object can be read right after its put",
    "the store forgets or delays what it acknowledged: do not keep data here",
    under_load="bytes are returned as written",
)
RANGE = Question("range", "a range gives those bytes")
LISTED = Question(
    "list-after-write",
    "a listing shows an object right after its put",
    "opening a disk and gc rely on listings: put nothing between Frostline and the store that caches them",
    under_load="a listing shows every object",
)
IN_ORDER = Question(
    "list-order",
    "listings are in key order",
    "the log is found by its order: this kind of bucket (such as a directory bucket) cannot hold a disk",
)
DELETES = Question("delete", "deletes are carried out")
GONE = Question(
    "delete-visible",
    "an object is gone right after its delete",
    "a cache or a lagging copy answers: gc may report what it deleted once more",
    level="warning",
    under_load="what was deleted is gone",
)
NEW_KEYS = Question("put-if-absent", "a new key can be put if absent")
ONE_WINNER = Question(
    "conditional-put",
    "a put with If-None-Match: * has one winner",
    "use a store that honours If-None-Match where several machines write to one prefix",
    under_load="of several writers exactly one wins",
)
SHA256 = Question(
    "sha256",
    "a put whose SHA-256 is wrong is refused",
    "Frostline compares the SHA-256 itself and sends an MD5 with each put; nothing needs to be done",
    level="note",
)
CHECKSUMS = Question(
    "checksums",
    "the store takes x-amz-checksum-sha256",
    "the store refuses x-amz-checksum-sha256, so requests go without it: Frostline compares the SHA-256 itself, and "
    "the log has it of every part; set `checksums: none` for the disk to save the question",
    level="note",
)
METADATA = Question(
    "metadata",
    "user metadata is returned",
    "fsck cannot compare the path of a blob with the log; data is not affected",
    level="warning",
)
UNDERSCORES = Question("metadata-underscore", "metadata names with '_' are returned")

Put = Callable[[str, bytes, bytes, Mapping[str, str]], None]
"""Key, body, SHA-256 and headers of one put, without repeats and without any mending of what a weak server does."""


def if_none_match(put: Put, key: str, body: bytes) -> Literal["written", "refused", "unknown"]:
    """What a put with If-None-Match does; `unknown` when the server says that it does not know the header."""
    try:
        put(key, body, hashlib.sha256(body).digest(), {"if-none-match": "*"})
    except AlreadyExists:
        return "refused"
    except FrostlineError as error:
        if "NotImplemented" not in error.message:
            raise
        return "unknown"
    return "written"


def checks_sha256(put: Put, key: str, body: bytes) -> bool:
    """Whether a body is compared with the digest that comes with it."""
    try:
        put(key, body, hashlib.sha256(body + b"!").digest(), {})
    except Damaged:
        return True
    return False
