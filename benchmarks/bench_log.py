"""`log` and `blame` on a history of 1,000,000 commits: at most 1 s each, the start of the program included.

The history is real: every entry has its bytes and its place in the chain of digests, and is answered after 10 ms, as a
bucket would. The index is filled as commits would have filled it. `--commits` makes a shorter history.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.measure import bound_figure, python, report, scratch
from disks.object_disk.disk import ObjectDisk
from disks.stores.base import ByteRange, ObjectInfo
from disks.stores.memory import MemoryStore
from oplog import entry, snapshot
from oplog.entry import GENESIS_DIGEST, Commit, Create, Remove
from oplog.errors import NotFound
from oplog.kinds import Inserted, TableCreated
from oplog.log import Entry
from oplog.mark import SCHEMA_VERSION
from oplog.replay import FileRow
from oplog.revision import (
    OPERATIONS_PREFIX,
    SCHEMA_VERSION_KEY,
    SNAPSHOTS_PREFIX,
    commit_key,
    parse_commit_key,
    snapshot_key,
)
from tiering.table import part as part_format
from tiering.table import schema
from tiering.table.part import Part

COMMITS = 1_000_000
TABLES = 10
LIVE_PARTS = 1000
"""Each commit adds a part and takes the one away that was added so many commits before."""
SNAPSHOT_EVERY = 1000
"""Commits, as a disk writes them: a machine that begins anew compares the newest two."""
LATENCY_SECONDS = 0.010
START = datetime(2026, 1, 1, tzinfo=UTC)


def table(number: int) -> schema.TableDefinition:
    return schema.TableDefinition(
        uuid=f"{number:08x}-0000-4000-8000-000000000004",
        database="bench",
        name=f"t{number}",
        columns=(schema.Column(1, "id", "int64"),),
        order_by=("id",),
        policy="hot_cold",
        last_column_id=1,
    )


DEFINITIONS = tuple(table(number) for number in range(TABLES))


def rows(revision: int) -> list[FileRow]:
    """The files that commit `revision` created."""
    if revision == 1:
        return [_file(definition.path, schema.encode(definition), revision) for definition in DEFINITIONS]
    definition = DEFINITIONS[revision % TABLES]
    name = f"all_{revision}_{revision}_0"
    part = Part(table=definition.uuid, name=name, rows=1, size_bytes=1, created=START)
    directory = definition.part_directory(name)
    key = f"r{revision:064b}-file-{'a' * 32}"
    return [
        FileRow(f"{directory}/data-0000.parquet", 1, "00" * 32, key, None, None, revision),
        _file(f"{directory}/part.json", part_format.encode(part), revision),
    ]


def _file(path: str, data: bytes, revision: int) -> FileRow:
    return FileRow(path, len(data), entry.digest(data), None, data, None, revision)


def commit(revision: int, previous: str) -> Commit:
    creates = [Create(row.path, row.size_bytes, row.sha256, row.key, row.inline) for row in rows(revision)]
    old = revision - LIVE_PARTS
    gone = [Remove(DEFINITIONS[old % TABLES].part_directory(f"all_{old}_{old}_0"))] if old > 1 else []
    return Commit(
        revision=revision,
        previous=previous,
        writer=f"{revision:032x}",
        time=START + timedelta(seconds=revision),
        kind=Inserted() if revision > 1 else TableCreated(),
        actor="you@host",
        reason="benchmark",
        operations=(*creates, *gone),
    )


class HistoryStore(MemoryStore):
    """A bucket whose log entries lie in one file, one after the other. Every request takes its time."""

    def __init__(self, directory: Path, latency_seconds: float = LATENCY_SECONDS) -> None:
        super().__init__("history")
        self.put_if_absent(SCHEMA_VERSION_KEY, SCHEMA_VERSION, sha256=hashlib.sha256(SCHEMA_VERSION).digest())
        self._snapshots = {snapshot_key(int(file.stem)): file for file in directory.glob("*.snapshot")}
        self._offsets = array("q")
        with (directory / "offsets").open("rb") as file:
            self._offsets.frombytes(file.read())
        self._file = os.open(directory / "entries", os.O_RDONLY)
        self._latency_seconds = latency_seconds

    @property
    def head_revision(self) -> int:
        return len(self._offsets) - 1

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        time.sleep(self._latency_seconds)
        revision = parse_commit_key(key)
        if revision is None:
            return self._snapshots[key].read_bytes() if key in self._snapshots else super().get(key, byte_range)
        if not 1 <= revision <= self.head_revision:
            raise NotFound(f"no object {key}")
        start, stop = self._offsets[revision - 1], self._offsets[revision]
        return os.pread(self._file, stop - start, start)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        time.sleep(self._latency_seconds)
        if prefix == SNAPSHOTS_PREFIX:
            yield from (ObjectInfo(key, 1, START) for key in sorted(self._snapshots))
        elif prefix == OPERATIONS_PREFIX:
            first = (parse_commit_key(start_after) or 0) + 1
            for number, revision in enumerate(range(first, self.head_revision + 1), 1):
                if number % 1000 == 0:
                    time.sleep(self._latency_seconds)
                yield ObjectInfo(commit_key(revision), 1, START)


def build(directory: Path, home: Path, commits: int) -> tuple[float, int]:
    """Write the history and the local state beside it; seconds of noting all commits, bytes of the notes."""
    directory.mkdir()
    offsets, previous, position = array("q", [0]), GENESIS_DIGEST, 0
    disk = ObjectDisk("s3", MemoryStore("history"), home / "state" / "disks" / "s3")
    noting, batch = 0.0, []
    with (directory / "entries").open("wb") as file:
        for revision in range(1, commits + 1):
            made = commit(revision, previous)
            data = entry.encode(made)
            file.write(data)
            position += len(data)
            offsets.append(position)
            previous = entry.digest(data)
            if commits - revision in (0, SNAPSHOT_EVERY):
                _write_snapshot(directory, revision, previous)
            batch.append(Entry(made, previous))
            if len(batch) == 500 or revision == commits:
                start = time.perf_counter()
                disk.cache.index.note(batch)
                noting += time.perf_counter() - start
                batch = []
    (directory / "offsets").write_bytes(offsets.tobytes())
    disk.close()
    return noting, disk.cache.index.path.stat().st_size


def _write_snapshot(directory: Path, head: int, digest: str) -> None:
    live = [row for revision in range(max(2, head - LIVE_PARTS + 1), head + 1) for row in rows(revision)]
    encoded = snapshot.encode(head, digest, sorted([*rows(1), *live], key=_path))
    (directory / f"{head}.snapshot").write_bytes(encoded)


def _path(row: FileRow) -> bytes:
    return row.path.encode()


def frostline(directory: str, *arguments: str) -> None:
    """In a process of its own: the command line over the history."""
    from disks.stores import open as opening
    from tiering.cli import main as cli

    opening.open_store = lambda config, *, limiter=None: HistoryStore(Path(directory))  # type: ignore[assignment]
    sys.exit(cli.run(arguments))


SCRIPT = "import sys; from benchmarks.bench_log import frostline; frostline(*sys.argv[1:])"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=COMMITS)
    commits = parser.parse_args().commits
    with scratch() as home:
        noting, size_bytes = build(home / "history", home, commits)
        environment = {"FROSTLINE_HOME": str(home)}
        middle = commits // 2
        name = DEFINITIONS[middle % TABLES].full_name
        questions = {
            "log of the disk, the newest 20": ("log", "s3", "--limit", "20"),
            "log of a table, the newest 20": ("log", "bench.t3", "--limit", "20"),
            "blame of a part that is gone": ("blame", name, f"all_{middle}_{middle}_0"),
            "blame of a part that is there": (
                "blame",
                DEFINITIONS[commits % TABLES].full_name,
                f"all_{commits}_{commits}_0",
            ),
        }
        python(SCRIPT, str(home / "history"), "parts", environment=environment)  # the cached file table
        figures = []
        for what, arguments in questions.items():
            runs = [python(SCRIPT, str(home / "history"), *arguments, environment=environment) for _ in range(3)]
            lines = len(runs[0].output.strip().splitlines())
            expected = 21 if arguments[0] == "log" else 4 if "gone" in what else 3
            assert lines == expected, runs[0].output
            median = sorted(runs, key=lambda run: run.seconds)[1]
            start = python(SCRIPT, str(home / "history"), "--version", environment=environment)
            detail = f"({median.cpu_seconds:.2f} s of processor time; starting alone takes {start.seconds:.2f} s now)"
            figures.append(bound_figure(what, median.seconds, at_most=1, unit="s", detail=detail))
        figures.append(
            bound_figure(
                "noting a commit in the index",
                noting / commits * 1e6,
                at_most=500,
                unit="µs",
                detail=f"({commits:,} commits; {size_bytes / commits:.0f} bytes a commit)",
            )
        )
        report(figures)


if __name__ == "__main__":
    main()
