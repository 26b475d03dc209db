"""The one place of side effects: what it makes is for its owner to change."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import effects
from disks.effects import make_directories, make_directory, write_new_file


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_careless_umask_lets_nobody_else_write(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    write_new_file(tmp_path / "a" / "b" / "c", b"x")
    for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022


def test_many_directories_of_one_are_made_durable_by_one_sync(tmp_path: Path) -> None:
    """And nothing is made in a directory that is not durable yet."""
    seen: list[tuple[str, str]] = []

    def note(when: str, name: str, arguments: tuple[object, ...]) -> None:
        if when == "after":
            seen.append((name.removeprefix("fs."), str(Path(str(arguments[0])).relative_to(tmp_path))))

    (tmp_path / "there").mkdir()
    effects.set_hook(note)
    try:
        make_directories(str(tmp_path / path) for path in ("there", "a/1", "a/2", "a/3", "there/1", "a/2"))
    finally:
        effects.set_hook(None)
    assert seen == [
        ("mkdir", "a"),
        ("fsync_directory", "."),
        *(("mkdir", path) for path in ("a/1", "a/2", "a/3", "there/1")),
        ("fsync_directory", "a"),
        ("fsync_directory", "there"),
    ]
