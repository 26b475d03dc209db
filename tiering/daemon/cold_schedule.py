"""The daemon's cold merges: one `frostline merge --cold` or `--spark` after the other, each a process of its own.

A merge of a large partition takes hours, and Spark brings a JVM: neither may hold up the passes that keep the SSD from
filling, nor take the daemon down with it. Claims in the journal keep the two from working on the same parts.
"""

from __future__ import annotations

import json
import logging
import subprocess
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from oplog.errors import FrostlineError
from tiering.config.settings import DaemonConfig
from tiering.engine.store import Store
from tiering.merge.request import ColdOptions, MergeRequest

_STOP_SECONDS = 30.0
_MOST_SAID = 4096

log = logging.getLogger("frostline.daemon")


@dataclass(frozen=True, slots=True)
class Ended:
    """How one run ended. `problem` is empty when everything that was due is merged."""

    table: str
    merged: int
    problem: str


class ColdSchedule:
    """Starts what is due and looks after it. Methods return at once and are called from one thread."""

    def __init__(self, store: Store, settings: DaemonConfig, command: Sequence[str]) -> None:
        """`command` runs frostline with this store's configuration."""
        self._store = store
        self._command = [*command, "--json", "--no-progress"]
        self._options = ["--spark" if settings.cold_merge_spark else "--cold", *settings.cold_merge_options]
        self._waiting: deque[str] = deque()
        self._running: tuple[str, subprocess.Popen[bytes], IO[bytes], IO[bytes]] | None = None

    def begin(self) -> None:
        """Queue every table that has cold merges due, unless the last round still runs."""
        if self._running is not None or self._waiting:
            return
        self._waiting.extend(name for name in self._names() if self._is_due(name))
        self._start_next()

    def look(self) -> Ended | None:
        """What has ended since the last call; the next table's run begins then."""
        if self._running is None or self._running[1].poll() is None:
            return None
        table, process, out, said = self._running
        self._running = None
        ended = _read(table, process.returncode, out, said)
        self._start_next()
        return ended

    def stop(self) -> None:
        """End what runs: groups that are committed stay merged, the others are as they were."""
        self._waiting.clear()
        if self._running is None:
            return
        _, process, out, said = self._running
        self._running = None
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        out.close()
        said.close()

    def _names(self) -> list[str]:
        paused = self._store.context.journal.wishes.paused
        return [table.full_name for table in self._store.definitions() if "merges" not in paused(table.uuid)]

    def _is_due(self, table: str) -> bool:
        try:
            return bool(self._store.plan_merges(table, MergeRequest(cold=ColdOptions())))
        except FrostlineError as error:
            log.warning("cold merges of %s cannot be planned: %s", table, error)
            return False

    def _start_next(self) -> None:
        if not self._waiting:
            return
        table = self._waiting.popleft()
        out, said = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - they live as long as the run
        command = [*self._command, "merge", table, *self._options]
        log.info("cold merges of %s begin", table)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=said)
        self._running = (table, process, out, said)


def _read(table: str, code: int, out: IO[bytes], said: IO[bytes]) -> Ended:
    with out, said:
        out.seek(0)
        said.seek(0)
        document, errors = out.read(), said.read()
    try:
        answer: dict[str, Any] = json.loads(document) if document else {}
    except ValueError:
        answer = {}
    problem = ""
    if code:
        text = errors[-_MOST_SAID:].decode(errors="replace").strip()
        problem = _message(text.rpartition("\n")[2]) or f"exit code {code}"
    return Ended(table, len(answer.get("merges", [])), problem)


def _message(line: str) -> str:
    """The message of the documented error object; the line itself when it is none."""
    try:
        return str(json.loads(line)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return line
