"""The process of a command does nothing of which the command has no use."""

from __future__ import annotations

import subprocess
import sys

import pytest

THREADS = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
POOL = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
EXTENSIONS = (
    "import sys, msgspec; before = 'typing_extensions' in sys.modules; import typing_extensions; "
    "print(before, msgspec.json.decode(b'[1]', type=list[int]), typing_extensions.__name__)"
)
PANDAS = "import sys, pyarrow; pyarrow.scalar(1); print('pandas' in sys.modules)"


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc, and glibc alone keeps what was freed")
@pytest.mark.parametrize(
    ("made", "asked", "answer"),
    [
        ("set_up", THREADS, "1"),
        ("keep_freed_blocks", POOL, "system"),
        ("set_up", PANDAS, "False"),
        ("set_up", EXTENSIONS, "False [1] typing_extensions"),
    ],
)
def test_it_is_set_up_before_packages_are_imported(made: str, asked: str, answer: str) -> None:
    program = f"from tiering.cli.frame import process; process.{made}(); {asked}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == answer


def test_the_list_of_verbs_is_that_of_typer(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make generate` wrote, in a wide terminal; in a narrow one typer breaks its lines."""
    from tiering.cli import entry
    from tiering.cli.main import run

    monkeypatch.setattr("sys.argv", ["frostline", "--help"])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        entry.main()
    shown = capfd.readouterr().out
    run(["--help"])
    assert shown == capfd.readouterr().out
    monkeypatch.setenv("COLUMNS", "50")
    run(["--help"])
    narrow = capfd.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 50
