"""docs/clickhouse.md: every command runs on the captured disk, and prints the lines that the page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.buckets import captured, put_on_server
from tests.compat.captures import CLICKHOUSE
from tests.servers import Server, ministack

REPOSITORY = Path(__file__).parents[2]
DOCUMENT = REPOSITORY / "docs" / "clickhouse.md"


@pytest.fixture
def server() -> Iterator[Server]:
    """One of its own: the page names its buckets."""
    with ministack() as running:
        for bucket in ("old-server", "rescue"):
            running.client().create_bucket(Bucket=bucket)
        put_on_server(running.client(), "old-server", "disks/s3/", captured())
        yield running


def shown(text: str) -> list[tuple[str, list[str]]]:
    """Each command with the lines below it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
    return found


CONVERT = r"```sh\n.*?^(frostline clickhouse convert .*?)\n```"


@pytest.fixture
def environment(server: Server, tmp_path: Path) -> dict[str, str]:
    """What the page's commands run in."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("FROSTLINE_")},
        **server.environment(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(REPOSITORY),
        "HOME": str(tmp_path),
    }


def configuration(text: str, *, adopted: bool) -> str:
    """The page's configuration, with the disk that it adds to adopt it or without."""
    first, added = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    return first.replace("disks:\n", added) if adopted else first


@pytest.mark.in_turn
def test_every_command_prints_what_the_page_shows(tmp_path: Path, environment: dict[str, str]) -> None:
    text = DOCUMENT.read_text()
    shutil.copytree(CLICKHOUSE / "local", tmp_path / "server-metadata")
    commands = shown(text)
    assert len(commands) > 8
    for command, lines in commands:
        config = configuration(
            text, adopted="clickhouse import" in command or (tmp_path / "state/disks/server").exists()
        )
        (tmp_path / "frostline.yaml").write_text(config)
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode in (0, 4), f"{command}\n{done.stdout}{done.stderr}"
        said = (done.stdout + done.stderr).splitlines()
        for line in lines:
            assert line in said, f"{command} does not print:\n{line}\nbut:\n{done.stdout}{done.stderr}"


@pytest.mark.in_turn
def test_rows_are_taken_over_by_the_page_s_earlier_configuration(tmp_path: Path, environment: dict[str, str]) -> None:
    """As far as it goes without chdb: the bucket is read, the columns have types, the table would be made.
    The configuration is the one that the page shows first."""
    text = DOCUMENT.read_text()
    (command,) = re.findall(CONVERT, text, re.DOTALL | re.MULTILINE)
    for adopted, code in ((False, 0), (True, 13)):
        (tmp_path / "frostline.yaml").write_text(configuration(text, adopted=adopted))
        done = subprocess.run(
            ["bash", "-c", f"{command} --dry-run"],
            cwd=tmp_path,
            env={**environment, "FROSTLINE_CHDB": "a Python with chdb"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
