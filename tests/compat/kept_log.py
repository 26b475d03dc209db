"""What is asked of the bucket kept in `log-0.1` (see its README). The version that wrote it answered the
same questions; what it said is `answers.json` there.

A question is a command line, its answer the exit code and the JSON document, without what is never the same twice.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "log-0.1"
ANSWERS = HERE / "answers.json"
HEAD = 44
PARTS = {
    "demo.events": "202601_1_1_0 202601_2_2_0 202601_1_2_1 202602_3_3_0 202604_5_5_0 202605_4_4_0",
    "demo.archive": "202601_1_1_0 202601_1_2_1 202601_1_50_2 202601_1000001_1000001_0 202601_50_50_0 202602_3_3_0 "
    "202603_4_4_0",
    "demo.gone": "202601_1_1_0",
    "demo.imported": "202601_1_1_0 202602_1000001_1000001_0",
}
COMPARED = "0-44 5-13 13-23 7-8 9-10 14-15 16-17 22-23 23-24 26-27 30-31 34-35 38-39 41-42 43-44"
CHANGES = (
    ("undo s3 44 --yes", "parts --all", "undo s3 44 --dry-run"),
    ("undo s3 43 --yes", "undo s3 45 --dry-run", "diff s3 44 45"),
    ("restore s3 --revision 22 --apply --yes", "parts --all"),
    ("restore s3 --apply --yes", "parts --all", "fsck"),
)
"""Each on a machine of its own: what changes something, and what is asked afterwards."""
_NEVER_THE_SAME = ("seconds", "requests", "time", "epoch", "elapsed_seconds")
_CONFIG = """
state_path: {home}/state
disks:
  ssd: {{type: local, path: {home}/ssd}}
  s3: {{type: object_disk, url: "{url}/bucket/"}}
policies:
  hot_cold: {{volumes: [{{name: hot, disks: [ssd]}}, {{name: cold, disks: [s3]}}]}}
  cold: {{volumes: [{{name: cold, disks: [s3]}}]}}
"""


class Machine:
    """A machine that has a copy of the bucket, in a directory of its own, and nothing else."""

    def __init__(self, home: Path, run: Callable[[list[str]], int], *, left: bool = False) -> None:
        """`run` is the command line: it prints, and returns its exit code. With `left`, two parts still lie on the
        local disk that a commit of the log has moved."""
        self.home = home
        self._run = run
        shutil.copytree(HERE / "bucket", home / "bucket")
        if left:
            shutil.copytree(HERE / "left", home / "ssd")
        self._config = home / "frostline.yaml"
        self._config.write_text(_CONFIG.format(home=home, url=home.as_uri()))

    def ask(self, question: str) -> Any:
        """The answer to a command line."""
        code, said = captured(self._run, ["--json", "--config", str(self._config), *question.split()])
        said = said.replace(self.home.as_uri(), "file:///home")
        said = said.replace(f"{getpass.getuser()}@{socket.gethostname()}", "me@here")
        return {"exit": code, "answer": _constant(json.loads(said))}


def captured(run: Callable[[list[str]], int], words: list[str]) -> tuple[int, str]:
    """The exit code of a command line, and what it printed; what it said of an error where it printed nothing."""
    printed, errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = run(words)
    printed.flush()
    return code, printed.buffer.getvalue().decode() or errors.getvalue()  # type: ignore[attr-defined]


def questions() -> Iterator[str]:
    """What changes nothing."""
    yield from ("log s3", "log demo.gone", "parts --all", "restore s3")
    for table, parts in PARTS.items():
        yield from (f"blame {table} {part}" for part in parts.split())
    for span in COMPARED.split():
        before, _, after = span.partition("-")
        yield f"diff s3 {before} {after}"
    yield from (f"undo s3 {revision} --dry-run" for revision in range(1, HEAD + 1))
    yield from (f"restore s3 --revision {revision}" for revision in range(1, HEAD + 1, 4))


def _constant(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _constant(inner) for name, inner in value.items() if name not in _NEVER_THE_SAME}
    if isinstance(value, list):
        return [_constant(inner) for inner in value]
    return value
