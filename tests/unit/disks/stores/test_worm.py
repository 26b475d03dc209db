"""The switch behind `make test-worm` itself: a run that proves nothing must fail (P56)."""

from __future__ import annotations

import os
import subprocess
import sys

from tests import worm
from tests.servers import REPOSITORY

PROGRAM = """
import hashlib, sys
from datetime import UTC, datetime, timedelta
import tests
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.wrappers.retry import RetryingStore
from oplog.errors import AlreadyExists, Retained
from pathlib import Path

for raw in (MemoryStore(), DirectoryStore(Path(sys.argv[1]))):
    store = RetryingStore(raw)
    for key in ("a", "b"):
        store.put(key, b"x", sha256=hashlib.sha256(b"x").digest())
    for change in (lambda: store.put("a", b"x", sha256=hashlib.sha256(b"x").digest()), lambda: store.copy("a", "b")):
        try:
            change()
        except AlreadyExists:
            pass
        else:
            sys.exit("overwritten")
    answer = store.delete(["a", "never"])
    if not isinstance(answer["a"], Retained) or answer["never"] is not None or store.get("a") != b"x":
        sys.exit(f"deleted: {answer}")
print("write-once")
"""


def program(directory: object, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != worm.VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory)],
        env={**kept, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_with_the_switch_nothing_is_overwritten_or_deleted(tmp_path: object) -> None:
    done = program(tmp_path, **{worm.VARIABLE: "1"})
    assert (done.stdout, done.stderr) == ("write-once\n", "")


def test_without_the_switch_everything_is_as_it_was(tmp_path: object) -> None:
    assert program(tmp_path).stderr == "overwritten\n"
