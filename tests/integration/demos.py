"""A directory in which the demo has run, and the commands of a document in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import REPOSITORY

NOT_RUN = re.compile(r"(make |git |export FROSTLINE_HOME=)")
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def environment(home: Path) -> dict[str, str]:
    binaries = Path(sys.executable).parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FROSTLINE_", "AWS_"))}
    return {
        **kept,
        "HOME": str(home),
        "XDG_CACHE_HOME": kept.get("XDG_CACHE_HOME")
        or str(Path.home() / ".cache"),  # drivers of Spark start from there
        "FROSTLINE_HOME": str(home / ".demo"),
        "PATH": f"{binaries}:{kept.get('PATH', '')}",
        "PYTHONPATH": str(REPOSITORY),
    }


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the demo has run."""
    place = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        ["frostline", "demo"],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it worked" in done.stdout
    assert done.stdout.count("the same rows (SHA-256") == 3
    return place


def commands(document: str) -> list[str]:
    """The commands of the document, each with its continuation lines."""
    found: list[str] = []
    for block in CONSOLE.findall((REPOSITORY / document).read_text()):
        lines = iter(block.splitlines())
        for line in lines:
            if line.startswith("$ "):
                command = line[2:]
                while command.endswith("\\"):
                    command = command[:-1] + next(lines).strip()
                found.append(command)
    return [command for command in found if not NOT_RUN.match(command)]


def run_each_command(document: str, demo: Path, tmp_path: Path) -> None:
    """The commands and the Python that a document shows, on a copy of the demo."""
    shutil.copytree(demo / ".demo", tmp_path / ".demo")
    shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    wanted = commands(document)
    assert wanted, f"{document} shows no command"
    # A moved store is one of another bucket to the cache; opening it once rebuilds that, which is not the document's.
    script = "set -euo pipefail\nfrostline status -q > /dev/null\n" + "\n".join(wanted)
    done = subprocess.run(
        ["bash", "-x", "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for code in PYTHON.findall((REPOSITORY / document).read_text()):
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(tmp_path), timeout=600, check=True)
