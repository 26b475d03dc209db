"""A store whose disks are all wrapped answers and changes as the same store without: nothing asks for a disk's class.

Guards I1 and I7: a check, a collection or a restore that passed over a wrapped disk would look like a clean one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from disks import registry
from disks.base import Disk
from disks.registry import DiskType
from disks.wrappers.wrapped import WrappedDisk
from tests.command_line import Frostline
from tiering.cli import main as cli

ROWS = 3_000
CONFIGURATION = """
state_path: state
disks:
  ssd: {type: local, path: ssd}
  s3: {type: object_disk, url: 'file:bucket/store/', retention_seconds: 0}
  server: {type: object_disk, url: 'file:bucket/server/', log_format: 1, retention_seconds: 0}
policies:
  tiers:
    volumes:
      - {name: hot, disks: [ssd]}
      - {name: cold, disks: [s3]}
      - {name: far, disks: [server]}
"""
QUERY = "SELECT count(*) AS n, sum(id) AS total, min(day) AS first FROM db.t"
READING = [
    ("disks",),
    ("status",),
    ("parts", "db.t"),
    ("plan", "--at", "2100-01-01"),
    ("query", QUERY),
    ("query", QUERY, "--revision", "3"),
    ("fsck", "--read-data"),
    ("gc",),
    ("log", "s3"),
    ("log", "db.t"),
    ("diff", "s3", "2", "3"),
    ("blame", "db.t", "1_1_1_0"),
    ("undo", "s3", "3", "--dry-run"),
    ("restore", "s3"),
    ("restore", "s3", "--revision", "3"),
    ("restore", "server"),
    ("merge", "db.t", "--cold", "--final", "--dry-run"),
    ("clickhouse", "export", "s3", "exported", "--dry-run"),
    ("clickhouse", "export", "server", "exported", "--dry-run"),
]
CHANGING = [
    ("insert", "db.t", "more.parquet"),
    ("move", "db.t", "--partition", "1", "--to-volume", "cold"),
    ("move", "db.t", "--partition", "2", "--to-volume", "far"),
    ("move", "db.t", "--partition", "0", "--to-volume", "hot"),
    ("merge", "db.t", "--cold", "--final"),
    ("snapshot", "s3"),
    ("undo", "s3", "6"),
    ("restore", "s3", "--apply"),
    ("restore", "s3", "--revision", "5", "--apply"),
    ("fsck", "--repair"),
    ("tick",),
]
COLLECT = ("gc", "--delete", "--guard-interval", "1h", "--max-delete-fraction", "1")
AFTERWARDS = [
    ("query", QUERY),
    ("parts", "db.t"),
    ("fsck", "--read-data"),
    ("log", "s3"),
    ("restore", "s3"),
    ("restore", "server", "--apply"),
]
OLD = datetime.now(UTC).timestamp() - 3 * 86400
RANDOM = re.compile(r"[0-9a-f]{8}[-0-9a-f]*|r[01]{64}\S*|\d+(\.\d+)? (s|ms|B|KiB)\b")
MOMENTS = re.compile(r"seconds|free_bytes|used_bytes")
"""Keys whose values differ between two runs on one store."""
RANDOM_KEYS = re.compile(r"seconds|_bytes|bytes|time|digest|sha256|created|key|objects?\b")
"""Keys whose values differ between two runs that change two copies of a store."""


@pytest.fixture
def frostline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_CONFIG", str(home / "frostline.yaml"))
    (home / "frostline.yaml").write_text(CONFIGURATION)
    for name, first in (("rows", 0), ("more", ROWS)):
        ids = range(first, first + ROWS)
        table = pa.table({"id": pa.array(ids, pa.int64()), "day": pa.array([row % 4 for row in ids], pa.int64())})
        pyarrow.parquet.write_table(table, home / f"{name}.parquet")
    monkeypatch.setattr("disks.clickhouse.disk.Lease", _quick_lease())
    opened = Frostline(capsys)
    opened(
        *("table", "create", "db.t", "--column", "id:int64", "--column", "day:int64", "--order-by", "id"),
        *("--partition-by", "day", "--policy", "tiers"),
    )
    opened("insert", "db.t", "rows.parquet")
    opened("move", "db.t", "--partition", "0", "--to-volume", "cold", "--yes")
    opened("move", "db.t", "--partition", "3", "--to-volume", "far", "--yes")
    opened("move", "db.t", "--partition", "1", "--to-volume", "cold", "--yes")
    return opened


def _quick_lease() -> Callable[..., Any]:
    from disks.object_disk.lease import Lease

    return lambda store, path, *, settle_seconds: Lease(store, path, settle_seconds=0.0)


@contextmanager
def wrapped(wrapper: Callable[[Disk], Disk]) -> Iterator[None]:
    """Every disk that is opened meanwhile is inside a wrapper."""
    with pytest.MonkeyPatch.context() as patch:
        for name, known in registry.DISK_TYPES.items():
            patch.setitem(registry.DISK_TYPES, name, msgspec.structs.replace(known, open=_inside(wrapper, known)))
        yield


def _inside(wrapper: Callable[[Disk], Disk], known: DiskType[Any]) -> Callable[..., Disk]:
    return lambda opening, config: wrapper(known.open(opening, config))


def answer(capsys: pytest.CaptureFixture[str], verb: tuple[str, ...], varies: re.Pattern[str]) -> dict[str, Any]:
    """The exit code and what the verb says, without the keys that differ from run to run."""
    capsys.readouterr()
    code = cli.run([*verb, "--json", "--yes"])
    printed = capsys.readouterr()
    return {
        "code": code,
        "said": steady(json.loads(printed.out), varies) if printed.out else None,
        "error": RANDOM.sub("…", printed.err),
    }


def steady(value: Any, varies: re.Pattern[str]) -> Any:
    if isinstance(value, dict):
        return {key: steady(item, varies) for key, item in value.items() if not varies.search(key)}
    if isinstance(value, list):
        return [steady(item, varies) for item in value]
    return RANDOM.sub("…", value) if isinstance(value, str) else value


@pytest.mark.in_turn
@pytest.mark.parametrize("verb", READING, ids=" ".join)
def test_a_verb_that_reads_says_the_same(
    frostline: Frostline, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    expected = answer(capsys, verb, MOMENTS)
    assert expected["code"] == (13 if verb[0] == "undo" else 0)  # to undo a move would lose its rows
    with wrapped(WrappedDisk):
        assert answer(capsys, verb, MOMENTS) == expected


@pytest.mark.in_turn
def test_verbs_that_change_do_the_same(
    frostline: Frostline, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "home", tmp_path / "before", symlinks=True)
    expected = told(capsys)
    assert [(verb, said["error"]) for verb, said in expected if said["code"] != 0] == []
    assert dict(expected)[COLLECT]["said"]["deleted"] > 0
    for entry in (tmp_path / "home").iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(tmp_path / "before", tmp_path / "home", dirs_exist_ok=True)
    with wrapped(WrappedDisk):
        assert told(capsys) == expected


def told(capsys: pytest.CaptureFixture[str]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """What every verb that changes something says, one after the other, and then what the store is."""
    said = [(verb, answer(capsys, verb, RANDOM_KEYS)) for verb in CHANGING]
    for file in Path("bucket").rglob("*-file-*"):
        os.utime(file, (OLD, OLD))
    said.append((COLLECT, answer(capsys, COLLECT, RANDOM_KEYS)))
    return said + [(verb, answer(capsys, verb, RANDOM_KEYS)) for verb in AFTERWARDS]


class ForgetsTheLog(WrappedDisk):
    """What the next mistake would look like: a wrapper that passes on files and nothing else."""

    @property
    def view(self) -> Disk:  # type: ignore[override]
        return self


def test_a_wrapper_that_forgets_what_is_inside_is_found(
    frostline: Frostline, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {verb: answer(capsys, verb, MOMENTS) for verb in READING}
    with wrapped(ForgetsTheLog):
        other = {verb for verb in READING if answer(capsys, verb, MOMENTS) != expected[verb]}
    assert {verb[0] for verb in other} >= {"fsck", "gc", "log", "restore", "diff", "query"}
