"""Where the marks of a bucket are in Keeper, and what a mark's name means. Pure.

/zero_copy/<store>                          one prefix of a bucket, by the id that lies in it; its data: the last audit
/zero_copy/<store>/<blob set>               what was written together; its data: the keys of its objects
/zero_copy/<store>/<blob set>/<log>:<dir>   the replica that writes this log uses the set for the files of a directory

All are persistent: a session that is over proves nothing. The directory is the part's on the disk, so marks follow the
blobs into another table, into `detached/` and back.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from disks.file_table.blob_sets import BlobReference
from oplog.errors import Damaged
from oplog.paths import is_safe
from oplog.revision import blob_prefix, is_blob_key, parse_blob_key

ROOT = "/zero_copy"
_LETTERS = 32
"""How many random letters a blob's key ends with."""
_DIRECTORIES = 1024
"""Those seen last: the marks of a set come together, and are of one directory in several logs."""


class Holder(NamedTuple):
    """Whose mark it is."""

    log: str
    directory: str


class StoreNodes(msgspec.Struct, frozen=True):
    """The nodes of one prefix of a bucket."""

    store: str

    @property
    def path(self) -> str:
        return f"{ROOT}/{self.store}"

    def blob_set(self, name: str) -> str:
        return f"{self.path}/{name}"

    def mark(self, reference: BlobReference, log: str) -> str:
        return f"{self.blob_set(reference.blob_set)}/{holder_name(Holder(log, reference.directory))}"


def holder_name(holder: Holder) -> str:
    """The last word of a mark's path."""
    return f"{holder.log}:{_quoted(holder.directory)}"


@lru_cache(maxsize=_DIRECTORIES)
def _quoted(directory: str) -> str:
    return quote(directory, safe=" +,=@")


@lru_cache(maxsize=_DIRECTORIES)
def _unquoted(text: str) -> str | None:
    """The directory; None where it is none, or is written in another way than here."""
    directory = unquote(text)
    return directory if is_safe(directory) and _quoted(directory) == text else None


def parse_holder(name: str) -> Holder:
    """Whose mark has this name. Raises `Damaged` for one that Frostline does not give."""
    log, colon, text = name.partition(":")
    directory = _unquoted(text)
    if not colon or not log or directory is None:
        raise Damaged(
            f"the node {name} below a blob set in Keeper is no mark", hint="find out who made it, and remove it"
        )
    return Holder(log, directory)


def encode_keys(keys: Iterable[str]) -> bytes:
    """The keys in a fourth of their length: a number is not written in binary digits."""
    return "\n".join(f"{parse_blob_key(key):x}-{key[-_LETTERS:]}" for key in keys).encode()


def decode_keys(data: bytes, *, path: str) -> tuple[str, ...]:
    """The keys that a set's node lists. Raises `Damaged` with the node for what is none."""
    try:
        lines = [line.partition("-") for line in data.decode("ascii").split("\n")] if data else []
        keys = tuple(f"{blob_prefix(int(number, 16))}{letters}" for number, _, letters in lines)
    except ValueError:
        keys = ("",)
    if not all(map(is_blob_key, keys)) or encode_keys(keys) != data:
        raise Damaged(
            f"{path} in Keeper does not list the keys of a blob set", hint=f"look with 'frostline keeper get {path}'"
        )
    return keys
