"""The bytes that a store is given: how many, and as one buffer."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disks.stores.base import Payload
from oplog.errors import NotFound

_READ_BYTES = 1 << 20
"""Files up to this size are read: cheaper than the page faults of a mapping."""


def size_bytes(payload: Payload) -> int:
    """How many bytes a put will send."""
    if isinstance(payload, Path):
        try:
            return payload.stat().st_size
        except FileNotFoundError as error:
            raise NotFound(f"file to upload does not exist: {payload}") from error
    return memoryview(payload).nbytes


@contextmanager
def opened(payload: Payload) -> Iterator[memoryview]:
    """The payload as one buffer. A large file is mapped, never read into memory as a whole."""
    if not isinstance(payload, Path):
        yield memoryview(payload).cast("B")
        return
    try:
        descriptor = os.open(payload, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound(f"file to upload does not exist: {payload}") from error
    try:
        size = os.fstat(descriptor).st_size
        if size <= _READ_BYTES and len(data := os.read(descriptor, size)) == size:
            yield memoryview(data)
            return
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    view = memoryview(mapped)
    try:
        yield view
    finally:
        view.release()
        try:
            mapped.close()
        except BufferError:
            pass  # an error on its way up still holds a slice in its frames: the file is unmapped with it
