"""Buckets as ClickHouse writes them: the captured one, and synthetic ones, in memory and on real servers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from disks.stores.base import ObjectInfo
from disks.stores.memory import MemoryStore
from oplog.clickhouse.cityhash import FileHash
from tests.compat.captures import CLICKHOUSE, KEY_PREFIX

TABLE = "store/abc/abc00000-0000-4000-8000-000000000001"
START = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Object:
    """One object: key below the disk's prefix, bytes, user metadata, time."""

    key: str
    data: bytes
    metadata: Mapping[str, str]
    modified: datetime = START


def captured() -> Iterator[Object]:
    """The objects of the captured bucket, by key."""
    for line in (CLICKHOUSE / "bucket.jsonl").read_text().splitlines():
        entry = json.loads(line)
        data = (CLICKHOUSE / "bucket" / entry["key"]).read_bytes()
        yield Object(entry["key"].removeprefix(KEY_PREFIX), data, entry["metadata"])


def in_memory(objects: Iterator[Object] | list[Object], name: str = "clickhouse") -> MemoryStore:
    """A store that holds the objects with the names of their metadata as they are: `put` would refuse the `_`."""
    store = MemoryStore(name)
    for item in objects:
        info = ObjectInfo(item.key, len(item.data), item.modified, item.metadata)
        store._objects[item.key] = (item.data, info)
    return store


def put_on_server(client: Any, bucket: str, prefix: str, objects: Iterator[Object] | list[Object]) -> None:
    """The objects in a bucket of a real server, with metadata names as ClickHouse sends them."""
    for item in objects:
        client.put_object(Bucket=bucket, Key=prefix + item.key, Body=item.data, Metadata=dict(item.metadata))


class ClickHouse:
    """Writes the objects of a server with `send_metadata` on: one counter, one second between two objects."""

    def __init__(self, *, host: str | None = "vm", old_keys: bool = False, schema: str | None = "1") -> None:
        self.objects: dict[str, Object] = {}
        self.host = host
        self.old_keys = old_keys
        self.revision = 0
        self._written = 0
        if schema is not None:
            self._put(".SCHEMA_VERSION", schema.encode(), {})

    def file(self, path: str, data: bytes = b"data", *, revision: int | None = None) -> str:
        """A new object of a file; its key."""
        letters = _letters(self._written)
        name = letters if self.old_keys else f"{letters[:3]}/{letters[3:]}"
        return self._put(f"r{self._next(revision):064b}-file-{name}", data, {"path": path})

    def bare(self, path: str | None, data: bytes = b"data") -> str:
        """An object from before `send_metadata`; with its path it was copied onto itself later."""
        letters = _letters(self._written)
        return self._put(f"{letters[:3]}/{letters[3:]}", data, {"path": path} if path else {})

    def rename(self, source: str, target: str, *, revision: int | None = None) -> str:
        return self._operation("rename", {"from_path": source, "to_path": target}, revision)

    def link(self, source: str, target: str, *, revision: int | None = None) -> str:
        return self._operation("hardlink", {"src_path": source, "dst_path": target}, revision)

    def restart(self) -> None:
        """The server starts again: the counter is lost."""
        self.revision = 0
        self._written += 60

    def part(self, directory: str, *files: str, checksums: Mapping[str, int] | None = None) -> None:
        """The files of a part, with checksums that list them."""
        for name in files:
            self.file(f"{directory}/{name}", b"x" * 10)
        self.file(f"{directory}/columns.txt", b"columns")
        listed = checksums if checksums is not None else dict.fromkeys(files, 10)
        self.file(f"{directory}/checksums.txt", checksums_txt(listed))

    def insert(self, name: str, *files: str) -> None:
        """A part as an INSERT writes it: in a temporary directory, then renamed."""
        self.part(f"{TABLE}/tmp_insert_{name}", *(files or ("k.bin", "count.txt")))
        self.rename(f"{TABLE}/tmp_insert_{name}/", f"{TABLE}/{name}/")

    def delete(self, key: str) -> None:
        del self.objects[key]

    def store(self) -> MemoryStore:
        return in_memory(list(self.objects.values()))

    def _operation(self, kind: str, metadata: Mapping[str, str], revision: int | None) -> str:
        host = f"{self.host}-" if self.host else ""
        return self._put(f"operations/r{self._next(revision):064b}-{host}{kind}", b"0", metadata)

    def _next(self, revision: int | None) -> int:
        if revision is None:
            self.revision += 1
            return self.revision
        return revision

    def _put(self, key: str, data: bytes, metadata: Mapping[str, str]) -> str:
        self._written += 1
        self.objects[key] = Object(key, data, metadata, START + timedelta(seconds=self._written))
        return key


def checksums_txt(files: Mapping[str, int | bytes]) -> bytes:
    """`checksums.txt` of version 4 with one block that is not compressed. Of files whose bytes are given it has the
    hash."""
    body = _varint(len(files))
    for name, data in files.items():
        size, digest = (data, bytes(16)) if isinstance(data, int) else (len(data), _hash(data))
        body += _varint(len(name)) + name.encode() + _varint(size) + digest + b"\0"
    return b"checksums format version: 4\n" + bytes(16) + struct.pack("<BII", 2, len(body) + 9, len(body)) + body


def _hash(data: bytes) -> bytes:
    state = FileHash()
    state.update(data)
    return state.digest()


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def _letters(number: int) -> str:
    """32 letters, other ones for each number."""
    out = ""
    for _ in range(32):
        number, letter = divmod(number, 26)
        out += chr(ord("a") + letter)
    return out
