"""Copies of files onto a local disk: every byte arrives and is hashed, however the file system takes it. Guards I3."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from disks.local.copied import copy_file
from oplog.errors import Damaged, NoSpace

LARGE = 8 << 20
SIZES = [0, 1, 4095, 4096, LARGE - 1, LARGE, LARGE + 1, LARGE + 4096, LARGE + (1 << 20) + 777]


def source_of(tmp_path: Path, size_bytes: int) -> tuple[Path, bytes]:
    data = (hashlib.sha256(str(size_bytes).encode()).digest() * (size_bytes // 32 + 1))[:size_bytes]
    source = tmp_path / "source"
    source.write_bytes(data)
    return source, data


def check_copied(tmp_path: Path, size_bytes: int) -> None:
    source, data = source_of(tmp_path, size_bytes)
    target = tmp_path / "target"
    descriptor, size, digest = copy_file(source, target)
    os.fsync(descriptor)
    os.close(descriptor)
    assert (size, digest) == (size_bytes, hashlib.sha256(data).hexdigest())
    assert target.read_bytes() == data


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_every_byte_arrives(tmp_path: Path, size_bytes: int) -> None:
    check_copied(tmp_path, size_bytes)


@pytest.mark.parametrize("size_bytes", [LARGE, LARGE + 777])
def test_where_the_file_system_has_no_direct_writes(
    tmp_path: Path, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            asked.append(flags)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, command, flags)

    real = fcntl.fcntl
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    check_copied(tmp_path, size_bytes)
    assert asked, "no direct write was tried"


def refusing(real: Callable[..., int]) -> Callable[..., int]:
    """A file system that takes the flag, and says at the first direct write that it cannot do it."""

    def write(descriptor: int, data: memoryview) -> int:
        if is_direct(descriptor):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, data)

    return write


def short(real: Callable[..., int]) -> Callable[..., int]:
    """Takes fewer bytes than it is given, aligned or not, as a disk does that is nearly full; refuses what is not
    aligned."""
    count = 0

    def write(descriptor: int, data: memoryview) -> int:
        nonlocal count
        if is_direct(descriptor):
            place = os.lseek(descriptor, 0, os.SEEK_CUR)
            if place % 512 or len(data) % 512:
                raise AssertionError(f"{len(data)} bytes at {place} are not aligned")
        count += 1
        wanted = len(data) if count % 3 else max(1, len(data) // 4096 // 2 * 4096 - count % 2 * 512)
        return real(descriptor, data[:wanted])

    return write


@pytest.mark.parametrize("size_bytes", [LARGE, LARGE + 777])
@pytest.mark.parametrize("wrapped", [refusing, short])
def test_writes_that_are_refused_or_short(
    tmp_path: Path,
    size_bytes: int,
    wrapped: Callable[[Callable[..., int]], Callable[..., int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "write", wrapped(os.write))
    check_copied(tmp_path, size_bytes)


def test_a_full_disk_is_no_space_and_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    source, _ = source_of(tmp_path, LARGE)
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NoSpace, match="target"):
        copy_file(source, tmp_path / "target")
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Damaged, match="not a regular file"):
        copy_file(tmp_path / "pipe", tmp_path / "target")
    assert not (tmp_path / "target").exists()
