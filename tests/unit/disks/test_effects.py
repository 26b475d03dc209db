"""The one place of side effects: what it makes is for its owner to change."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks.effects import make_directory, write_new_file


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
