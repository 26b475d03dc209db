"""The process of a command does nothing of which the command has no use."""

from __future__ import annotations

import subprocess
import sys

import pytest

THREADS = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
POOL = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
PANDAS = "import sys, pyarrow; pyarrow.scalar(1); print('pandas' in sys.modules)"


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc, and glibc alone keeps what was freed")
@pytest.mark.parametrize(
    ("made", "asked", "answer"),
    [("set_up", THREADS, "1"), ("keep_freed_blocks", POOL, "system"), ("set_up", PANDAS, "False")],
)
def test_it_is_set_up_before_packages_are_imported(made: str, asked: str, answer: str) -> None:
    program = f"from tiering.cli.frame import process; process.{made}(); {asked}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == answer
