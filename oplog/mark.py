"""The small objects that tell what a prefix is: `.SCHEMA_VERSION` and `.frostline-disk`."""

from __future__ import annotations

import hashlib
from typing import Protocol

from oplog import bounds
from oplog.errors import AlreadyExists, Damaged, NotFound, OutcomeUnknown, Transient, UsageError
from oplog.revision import SCHEMA_VERSION_KEY

SCHEMA_VERSION = b"2"
"""Of a prefix with one log."""
SHARED_SCHEMA_VERSION = b"3"
"""Of a prefix with several logs, and of each of them. Versions that know only one log a prefix refuse it by name."""

_MOST_DIGITS = 9


class UnknownLogFormat(UsageError):
    """The prefix holds a log that this version, or this disk, does not read."""


class MarkStore(Protocol):
    """The part of an object store that reads a mark."""

    name: str

    def get(self, key: str) -> bytes: ...


class MarkingStore(MarkStore, Protocol):
    """The part that puts one, too."""

    def put_if_absent(self, key: str, payload: bytes, *, sha256: bytes) -> None: ...


def read_mark(store: MarkStore, key: str) -> bytes:
    """The object, by one request. Raises `NotFound`; `Damaged` for one that is larger than a mark can be, and reads
    nothing of it: it may be anything that somebody put there."""
    with bounds.at_most(bounds.LARGEST_MARK_BYTES, f"{store.name}{key}"):
        return store.get(key)


class FormatMark:
    """`.SCHEMA_VERSION` of a log: that of its prefix; where the log is one of several, it has one of its own besides,
    so that nobody takes the log for a prefix."""

    def __init__(self, store: MarkingStore, prefix: MarkingStore | None) -> None:
        """`prefix`: where the log is one of several, all that they share."""
        self._store, self._several = store, prefix is not None
        self._prefix = store if prefix is None else prefix
        self._wanted = SCHEMA_VERSION if prefix is None else SHARED_SCHEMA_VERSION
        self._is_ours = False
        """The prefix says so: asked once, before anything else is."""

    def check(self) -> bool:
        """Whether the prefix says it is ours; False when it says nothing. Raises `UnknownLogFormat`, `Damaged` when it
        says what is no format, and `Transient` when it says something else each time."""
        if self._is_ours:
            return True
        try:
            version = self._read()
            # One byte that no checksum covers: a bit that flipped on the way must not read as another format.
            if version != self._wanted and (second := self._read()) != version:
                if second != self._wanted:
                    raise Transient(
                        f"{self._name} was read as {version[:20]!r} and as {second[:20]!r}",
                        hint="something alters answers on their way; run the command again",
                    )
                version = second
        except NotFound:
            return False
        if version != self._wanted:
            raise self._other(version)
        self._is_ours = True
        return True

    def claim(self) -> None:
        """Put the mark where there is none. Raises as `check` does."""
        self._put(self._prefix)
        if self._several:
            self._put(self._store)

    def _put(self, store: MarkingStore) -> None:
        try:
            store.put_if_absent(SCHEMA_VERSION_KEY, self._wanted, sha256=hashlib.sha256(self._wanted).digest())
            self._is_ours = True
        except (AlreadyExists, OutcomeUnknown):
            self.check()

    def _read(self) -> bytes:
        return read_mark(self._prefix, SCHEMA_VERSION_KEY).strip()

    @property
    def _name(self) -> str:
        return f"{self._prefix.name}{SCHEMA_VERSION_KEY}"

    def _other(self, version: bytes) -> UnknownLogFormat | Damaged:
        if version == SHARED_SCHEMA_VERSION:
            return UnknownLogFormat(
                f"{self._prefix.name} has the objects of several logs, and is opened here as if it had one",
                hint="set `log: NAME` for the disk, and end its url before logs/; to restore from "
                "one of the logs, write "
                "--from <prefix>/logs/<NAME>/. Nothing was written here",
            )
        if version == SCHEMA_VERSION:
            return UnknownLogFormat(
                f"{self._prefix.name} has one log, and this disk is configured as one of several",
                hint="leave `log:` out; or take another prefix, and copy there: 'frostline restore DISK --from URL'",
            )
        if version == b"1":
            return UnknownLogFormat(
                f"{self._prefix.name} holds a log of format 1 (ClickHouse's), which this version cannot use as a disk",
                hint="choose another prefix for this disk; nothing was written here",
            )
        if not is_format(version):
            return damaged_format(self._name, version)
        return UnknownLogFormat(
            f"{self._name} says {version[:20]!r}; this version reads log formats 2 and 3",
            hint="upgrade frostline, or choose another prefix",
        )


def is_format(version: bytes) -> bool:
    """Whether it can be the number of a format, of this or of a later version of Frostline."""
    return version.isdigit() and len(version) <= _MOST_DIGITS and int(version) > 0


def damaged_format(name: str, version: bytes) -> Damaged:
    """The error of a `.SCHEMA_VERSION` that no version of Frostline wrote."""
    return Damaged(
        f"{name} reads {version[:20]!r}, which is no number of a log format",
        hint="something alters answers on their way, or the object was damaged: 'frostline doctor' tries the store "
        "out; nothing was written",
    )
