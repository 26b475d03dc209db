"""The local metadata files of ClickHouse's S3 disk, versions 1 to 5: text that says which objects a file's bytes are.

    <version>
    <number of objects> TAB <total size>
    <size> TAB <key>                 one line an object
    <ref_count>                      hard links beside this one
    <read_only, 0 or 1>              version >= 3
    <inline data>                    version >= 4; an empty line when there is none

Version 1 and 5 hold the full key in the bucket, the others the key below the disk's prefix. Keys and inline data are
escaped as in ClickHouse's TabSeparated format. Pure: no I/O.
"""

from __future__ import annotations

import re

import msgspec

from oplog.errors import Damaged, UsageError

VERSIONS = (1, 2, 3, 4, 5)
_FULL_KEY = (1, 5)
_READ_ONLY_FROM = 3
_INLINE_FROM = 4

_OBJECTS_LIMIT = 1_000_000
_NUMBER = re.compile(rb"[0-9]{1,20}\Z")
_ESCAPED = {8: b"b", 9: b"t", 10: b"n", 12: b"f", 13: b"r", 0: b"0", 39: b"'", 92: b"\\"}
_TO_ESCAPE = re.compile(rb"[\x00\x08\t\n\x0c\r'\\]")
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.|\Z)", re.DOTALL)
_MEANING = {
    b"a": b"\a",
    b"b": b"\b",
    b"e": b"\x1b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"0": b"\0",
}
_STAND_FOR_THEMSELVES = b"\\'\"`/="


class Metadata(msgspec.Struct, frozen=True):
    """What one metadata file says."""

    blobs: tuple[tuple[str, int], ...]
    """Key below the disk's prefix and size in bytes of each object, in the order of the file."""
    ref_count: int = 0
    """Paths of the same file beside this one."""
    read_only: bool = False
    inline: bytes = b""

    @property
    def size_bytes(self) -> int:
        """The sum of the objects' sizes."""
        return sum(size for _, size in self.blobs)


def encode(metadata: Metadata, version: int, *, key_prefix: str) -> bytes:
    """The file's bytes. `key_prefix` is what stands before the disk's keys in the bucket, with its final slash.

    Raises `UsageError` when this version has no place for inline data. Version 1 and 2 forget `read_only`.
    """
    if metadata.inline and version < _INLINE_FROM:
        raise UsageError(
            f"metadata version {version} has no place for a file's own bytes", hint="choose --metadata-version 4 or 5"
        )
    before = key_prefix if version in _FULL_KEY else ""
    lines = [b"%d" % version, b"%d\t%d" % (len(metadata.blobs), metadata.size_bytes)]
    lines += [b"%d\t%s" % (size, _escape((before + key).encode())) for key, size in metadata.blobs]
    lines.append(b"%d" % metadata.ref_count)
    if version >= _READ_ONLY_FROM:
        lines.append(b"%d" % metadata.read_only)
    if version >= _INLINE_FROM:
        lines.append(_escape(metadata.inline))
    return b"\n".join(lines) + b"\n"


def decode(data: bytes, *, key_prefix: str, name: str) -> tuple[Metadata, int]:
    """What the file says, and its version. Raises `Damaged`, which names the file and the line."""
    if not data:
        raise Damaged(
            f"{name} is empty: ClickHouse was stopped while it rewrote it",
            hint="its part is incomplete; if the disk has send_metadata, 'frostline restore' finds "
            "the file in the bucket",
        )
    lines = _Lines(data, name)
    version = lines.number()
    if version not in VERSIONS:
        raise lines.bad(f"version {version} is not one of 1 to 5")
    count, total = lines.pair()
    if count > min(_OBJECTS_LIMIT, len(data)):
        raise lines.bad(f"{count} objects are more than the file can name")
    blobs = tuple(_blob(lines, version, key_prefix) for _ in range(count))
    if sum(size for _, size in blobs) != total:
        raise Damaged(
            f"{name}, line 2: the total is {total} bytes and the objects have {sum(size for _, size in blobs)}",
            hint="if the disk has send_metadata, 'frostline restore' finds the file in the bucket",
        )
    ref_count = lines.number()
    read_only = lines.number() if version >= _READ_ONLY_FROM else 0
    if read_only > 1:
        raise lines.bad(f"the read-only flag is {read_only}, neither 0 nor 1")
    inline = _unescape(lines.next()) if version >= _INLINE_FROM else b""
    lines.end()
    return Metadata(blobs, ref_count, bool(read_only), inline), version


def _blob(lines: _Lines, version: int, key_prefix: str) -> tuple[str, int]:
    size, tab, raw = lines.next().partition(b"\t")
    if not tab or not _NUMBER.match(size):
        raise lines.bad("expected an object's size, a tab and its key")
    try:
        key = _unescape(raw).decode()
    except UnicodeDecodeError as error:
        raise lines.bad("the key is no UTF-8") from error
    if version in _FULL_KEY:
        if not key.startswith(key_prefix):
            raise lines.bad(f"the key {key} does not begin with the disk's prefix {key_prefix}")
        key = key.removeprefix(key_prefix)
    if not key:
        raise lines.bad("the key is empty")
    return key, int(size)


class _Lines:
    """The lines of a file, each ended by a newline, with the number of the last one taken."""

    def __init__(self, data: bytes, name: str) -> None:
        self._lines = data.split(b"\n")
        self._name = name
        self._taken = 0

    def next(self) -> bytes:
        if self._taken >= len(self._lines) - 1:
            self._taken += 1
            raise self.bad("the file is cut off")
        self._taken += 1
        return self._lines[self._taken - 1]

    def number(self) -> int:
        line = self.next()
        if not _NUMBER.match(line):
            raise self.bad("expected a number")
        return int(line)

    def pair(self) -> tuple[int, int]:
        first, _, second = self.next().partition(b"\t")
        if not (_NUMBER.match(first) and _NUMBER.match(second)):
            raise self.bad("expected the number of objects, a tab and the total size")
        return int(first), int(second)

    def end(self) -> None:
        if self._lines[self._taken :] != [b""]:
            self._taken += 1
            raise self.bad("text after the end")

    def bad(self, fault: str) -> Damaged:
        return Damaged(
            f"{self._name}, line {self._taken}: {fault}",
            hint="this is no metadata file of ClickHouse, or it is damaged",
        )


def _escape(data: bytes) -> bytes:
    return _TO_ESCAPE.sub(lambda match: b"\\" + _ESCAPED[match[0][0]], data)


def _unescape(data: bytes) -> bytes:
    return _ESCAPE.sub(_meaning, data) if b"\\" in data else data


def _meaning(match: re.Match[bytes]) -> bytes:
    after = match[1]
    if len(after) == 3:
        return bytes([int(after[1:], 16)])
    if after in _MEANING:
        return _MEANING[after]
    if not after or after in _STAND_FOR_THEMSELVES:
        return after
    return b"\\" + after
