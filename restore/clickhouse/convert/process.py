"""A process with chdb in it: which Python has it, and one request to `engine.py`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from oplog.errors import FrostlineError, UsageError
from restore.clickhouse.convert.engine import Json

ENVIRONMENT = "FROSTLINE_CHDB"
_SCRIPT = Path(__file__).with_name("engine.py")


def find_python() -> str:
    """A Python that has chdb: the first that `FROSTLINE_CHDB` names, else this one. Raises `UsageError` that says what
    to install."""
    named = [path for path in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if path]
    if named:
        return named[0]
    if importlib.util.find_spec("chdb") is not None:
        return sys.executable
    raise UsageError(
        "reading parts of ClickHouse needs chdb, which is ClickHouse as a Python package, and it is not installed",
        hint=f"pip install 'frostline[clickhouse]'; or name a Python that has chdb in {ENVIRONMENT}",
    )


def ask_engine(python: str, request: Json) -> list[Json]:
    """What the engine says of each part. Raises `FrostlineError` with its words when it failed or died."""
    try:
        done = subprocess.run(
            [python, str(_SCRIPT)], input=json.dumps(request).encode(), capture_output=True, check=False
        )
    except OSError as error:
        raise UsageError(f"cannot run {python}: {error.strerror}", hint=f"correct {ENVIRONMENT}") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        answer = {"error": f"it ended with {done.returncode}: {said}"}
    if "error" in answer:
        if "No module named 'chdb'" in answer["error"]:
            raise UsageError(f"{python} has no chdb", hint=f"install it there, or correct {ENVIRONMENT}")
        raise FrostlineError(
            f"ClickHouse could not read the parts: {answer['error'][:500]}",
            hint="nothing of these parts was taken over",
        )
    parts: list[Json] = answer["parts"]
    return parts
