"""Format 1 of the operations log, the writing side: which objects say what a transaction did. Pure; no I/O.

ClickHouse logs a file where its object is (user metadata `path`), a rename and a hard link as an object each. A
transaction of ours is put into these words so that a replay, ours or ClickHouse's, sees all of a group of new files or
none: they are uploaded below a staging directory and appear by one rename. A removal, for which there is no word, is a
rename to `delete_tmp_…`, where ClickHouse puts what it is about to delete: a replay drops it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from oplog.clickhouse.names import HARDLINK, PATH_NAME, PATH_NAMES, RENAME, SHADOW_LINK, operation_key
from oplog.clickhouse.replay import DELETING, STAGING

SHADOW = "shadow/"
"""Where FREEZE puts its hard links. ClickHouse does not log them: it must not see that we do."""

OPERATION_BODY = b"0"
PLAIN_TWINS = {"from_path": "source", "to_path": "target", "src_path": "source", "dst_path": "target"}
"""Names without `_` for the same values, for stores and proxies that drop or change the others."""
WRITER = "writer"
_LIMIT_BYTES = 1024
_METADATA_LIMIT_BYTES = 2048
"""S3's limit for the user metadata of an object, names and values."""

Kind = Literal["rename", "hardlink", "shadowlink"]


class LogStep(msgspec.Struct, frozen=True, array_like=True):
    """One operation's object. Directories end with `/`, as ClickHouse writes them."""

    kind: Kind
    source: str
    target: str

    def key(self, revision: int, host: str) -> str:
        """The object's key below the disk's prefix."""
        return operation_key(revision, self.kind, host)

    def metadata(self, writer: str) -> dict[str, str]:
        """The object's user metadata. `writer` tells the transaction, for an answer that was lost."""
        source, target = PATH_NAMES[self.kind]
        values = {source: header_value(self.source), target: header_value(self.target), WRITER: writer}
        twins = {PLAIN_TWINS[source]: values[source], PLAIN_TWINS[target]: values[target]}
        return {**values, **twins} if _size({**values, **twins}) <= _METADATA_LIMIT_BYTES else values


def file_metadata(path: str) -> dict[str, str]:
    """The user metadata of a file's object."""
    return {PATH_NAME: header_value(path)}


def header_value(path: str) -> str:
    """The path as an HTTP header carries it: as it is, or in the form of RFC 2047, which AWS itself gives back."""
    plain = path.isascii() and path.isprintable() and path == path.strip() and not path.startswith("=?")
    return path if plain else f"=?utf-8?b?{base64.b64encode(path.encode()).decode()}?="


def staged(staging: str, group: int, path: str) -> str:
    """Where a new file lies until its group appears."""
    return f"{staging}/{group}/{path}"


def fits(path: str) -> bool:
    """Whether the path still is one after it was staged, and its renames fit into an object's metadata."""
    longest = staged(f"{STAGING}{'0' * 16}", 10_000, path)
    size = _size(LogStep(RENAME, longest, path).metadata("0" * 32))
    return len(longest.encode()) <= _LIMIT_BYTES and size <= _METADATA_LIMIT_BYTES


def _size(metadata: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in metadata.items())


def publish(staging: str, group: int, paths: Iterable[str]) -> list[LogStep]:
    """What makes a group of staged files appear: one rename for each name at the root that they lie below.

    ClickHouse merges the directory into the one that is there. It makes no directory for the target, so a deeper one
    could be renamed only where its parent is known to exist.
    """
    tops = {path.partition("/")[0] + ("/" if "/" in path else "") for path in paths}
    return [LogStep(RENAME, staged(staging, group, top), top) for top in sorted(tops)]


def rename(source: str, target: str, *, is_file: bool) -> LogStep:
    """A file or a directory changes its path. The target's directory must exist: see `publish`."""
    slash = "" if is_file else "/"
    return LogStep(RENAME, f"{source}{slash}", f"{target}{slash}")


def rename_to_new_directory(
    source: str, target: str, files: Iterable[str], mark: str, *, is_file: bool
) -> list[LogStep]:
    """The same where the target's directory does not exist: a link makes it, for every one of the source's files."""
    links = [link(path, target + path[len(source) :]) for path in files]
    return [*links, remove(source, mark, is_file=is_file)]


def link(source: str, target: str) -> LogStep:
    """A second path for a file."""
    return LogStep(SHADOW_LINK if target.startswith(SHADOW) else HARDLINK, source, target)


def remove(path: str, mark: str, *, is_file: bool) -> LogStep:
    """A file or a directory goes. `mark` is unique: two removals never share a place."""
    directory, slash, _ = path.rpartition("/")
    place = f"{directory}{slash}{DELETING}{mark}"
    return rename(path, place if len(place.encode()) < _LIMIT_BYTES else f"{DELETING}{mark}", is_file=is_file)


def host_word(host: str) -> str:
    """The name of the machine as it stands in a key: ClickHouse's own reader takes letters, digits and `-`."""
    return re.sub(r"[^A-Za-z0-9]+", "-", host.partition(".")[0]).strip("-")[:64] or "frostline"
