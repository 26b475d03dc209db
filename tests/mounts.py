"""Real small file systems for tests: mounted in memory, filled to the last byte, or mounted read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_FILLER = "filler"


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted tmpfs."""

    path: Path

    def fill(self, *, leaving_bytes: int = 0) -> None:
        """Leave so much room, or none at all; what fills it is called `filler`."""
        page = 4096
        with (self.path / _FILLER).open("ab", buffering=0) as file:
            while self.free_bytes() > leaving_bytes:
                missing = self.free_bytes() - leaving_bytes
                try:
                    file.write(bytes(min(1 << 20, -(-missing // page) * page)))
                except OSError:
                    return

    def free(self) -> None:
        """Make room again."""
        (self.path / _FILLER).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def remount(self, how: str) -> None:
        """`ro` or `rw`."""
        _run("mount", "-o", f"remount,{how}", str(self.path))


@contextmanager
def mounted(path: Path, *, size: str = "16m") -> Iterator[Mount]:
    """A tmpfs of its own at the path. Where that is not allowed the test is skipped with its reason; in CI it fails."""
    path.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        why = f"a file system cannot be mounted here: {done.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    try:
        yield Mount(path)
    finally:
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
