"""Real ClickHouse engines, each in a Python of its own, and the disks that they write."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers import Server

ANSWER = [3200, 11646332182728951784]
"""Rows and sum(cityHash64(*)) of the captured table: see the README of the capture."""
SCRIPT = """
import json, sys
from chdb import session
opened = session.Session(sys.argv[1])
print(json.dumps([str(opened.query(query, "JSONCompactEachRow")) for query in json.loads(sys.argv[2])]))
"""


def engines() -> list[str]:
    """The Pythons that have chdb."""
    named = [path for path in os.environ.get("FROSTLINE_CHDB", "").split(os.pathsep) if path]
    return named or ([sys.executable] if importlib.util.find_spec("chdb") else [])


def run(python: str, place: Path, queries: Sequence[str]) -> list[list[Any]]:
    """The first row of each answer."""
    done = subprocess.run(
        [python, "-c", SCRIPT, str(place), json.dumps(queries)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(answer.splitlines()[0]) if answer else [] for answer in json.loads(done.stdout)]


def version_of(python: str, tmp_path: Path) -> tuple[int, ...]:
    (version,) = run(python, tmp_path / "version", ["SELECT version()"])[0]
    return tuple(map(int, version.split(".")[:2]))


WIDE = "min_bytes_for_wide_part = 0, old_parts_lifetime = 1000"


def disk_of(server: Server, bucket: str, metadata: Path, *, send_metadata: bool) -> str:
    """A disk as the settings of a table define it."""
    settings = {
        "name": "frostline",
        "type": "s3",
        "endpoint": f"{server.endpoint_url}/{bucket}/ch/",
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
        "metadata_path": f"{metadata}/",
    }
    words = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
    return f"disk({words}, skip_access_check = 1, support_batch_delete = 0, send_metadata = {int(send_metadata)})"
