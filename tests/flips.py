"""Single bits of a data file turned over, one at a time, in every kind of place that a Parquet file has."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from oplog.errors import Damaged
from tests.servers import Server
from tiering.catalog.catalog import StoredPart
from tiering.catalog.context import Context
from tiering.parquet.sections import stated_sections
from tiering.table.part import DataFile

HEADER_BYTES = 48
"""A page's header is about so long: what no checksum of Parquet covers."""


class StoredFile:
    """The bytes of a data file where they lie, to be altered behind the store's back."""

    def __init__(self, context: Context, stored: StoredPart, server: Server | None = None) -> None:
        self.file: DataFile = stored.part.files[0]
        location = context.disk(stored.disk).location(stored.path(self.file.name))
        self._path: Path | None = None
        if location.url.startswith("file://"):
            self._path = Path(location.url.removeprefix("file://"))
            self.written = self._path.read_bytes()
        else:
            assert server is not None
            self._client = server.client()
            bucket, _, key = location.url.removeprefix("s3://").partition("/")
            self._place = {"Bucket": bucket, "Key": key}
            self.written = self._client.get_object(**self._place)["Body"].read()
        self.label = f"{self.file.name} of part {stored.part.name} of {stored.definition.full_name}"

    def put(self, data: bytes) -> None:
        """Replace what is stored."""
        if self._path is None:
            self._client.put_object(**self._place, Body=data)
        else:
            self._path.chmod(0o644)
            self._path.write_bytes(data)


def flipped(stored: StoredFile, count: int, *, seed: int) -> Iterator[tuple[int, bytes]]:
    """Places and what the file is with a bit of them turned over: a third in pages, in headers, and after them."""
    chance = random.Random(seed)
    sections = stated_sections(stored.file)
    chunks = [section for section in sections if section.column is not None]
    for number in range(count):
        chunk = chance.choice(chunks)
        match number % 3:
            case 0:
                position = chance.randrange(chunk.start, chunk.stop)
            case 1:
                position = chance.randrange(chunk.start, min(chunk.start + HEADER_BYTES, chunk.stop))
            case _:
                position = chance.randrange(sections[-1].start, sections[-1].stop)
        altered = bytearray(stored.written)
        altered[position] ^= 1 << chance.randrange(8)
        yield position, bytes(altered)


def never_another_answer(
    stored: StoredFile,
    ask: Callable[[], object],
    *,
    count: int = 150,
    seed: int = 1,
    errors: tuple[type[Exception], ...] = (Damaged,),
) -> int:
    """Ask with one bit of the file turned over, many times: the answer is the right one, or one of the errors.
    `Damaged` alone has to name the file. How often it was an error."""
    right = ask()
    found = 0
    try:
        for position, data in flipped(stored, count, seed=seed):
            stored.put(data)
            try:
                answer = ask()
            except errors as error:
                found += 1
                message = str(error)
            else:
                message = stored.label
                assert answer == right, f"a bit at {position} of {len(stored.written)} is answered as data"
            assert stored.label in message or errors != (Damaged,)
    finally:
        stored.put(stored.written)
    assert ask() == right
    return found


def without_sums(file: DataFile) -> DataFile:
    """The file as a `part.json` of before describes it."""
    groups = tuple(msgspec.structs.replace(group, chunk_sums=b"") for group in file.row_groups)
    return msgspec.structs.replace(file, row_groups=groups, tail_crc32=None)
