"""`objbench` on real stores, and that it finds a store that answers wrong. Guards P58, P26, P36 and I15."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from disks.object_disk.references import inventory
from disks.stores.base import ByteRange, ObjectInfo, ObjectStore, Payload
from disks.stores.directory import DirectoryStore
from disks.stores.memory import MemoryStore
from disks.stores.trial.bench import BenchReport, percentile, plan, remove_leftovers, requests_of, run
from disks.stores.wrappers.metered import MeteredStore
from oplog.errors import FrostlineError, Transient
from tests import worm
from tests.servers import REPOSITORY, Server
from tiering.cli import main as cli

STEPS = plan([4096, 200_000], 12, [1, 4])


def bench(store: ObjectStore) -> BenchReport:
    return run(store, STEPS)


def failed(store: ObjectStore) -> set[str]:
    return {check.name for check in bench(store).checks if not check.ok}


def test_a_right_store_passes_and_is_left_empty() -> None:
    store = MemoryStore()
    report = bench(store)
    assert len(report.measurements) == len(STEPS)
    assert len(report.checks) == 7
    assert all(check.ok for check in report.checks)
    for found in report.measurements:
        assert 0 < found.p50 <= found.p95 <= found.p99
    if not worm.ACTIVE:
        assert list(store.list()) == []


def test_the_plan_says_what_is_sent() -> None:
    """The dry run must not promise less than what comes: requests cost money."""
    store = MeteredStore(MemoryStore())
    bench(store)
    planned, counts = requests_of(STEPS), store.counts()
    assert (counts["PUT"], counts["GET"]) == (planned["PUT"], planned["GET"] + 10 * 2), "a race is read back"
    assert counts["DELETE"] <= planned["DELETE"]
    assert counts["LIST"] <= planned["LIST"]
    assert planned["bytes_up"] <= store.bytes_sent <= planned["bytes_up"] + 20_000


def test_large_objects_are_fewer() -> None:
    counts = {step.size_bytes: step.count for step in plan([4096, 64 * 1024**2], 100, [1]) if step.verb == "put"}
    assert counts == {4096: 100, 64 * 1024**2: 4}


class Wrong(MemoryStore):
    """Breaks one promise."""

    fault = ""

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        data = super().get(key, byte_range)
        flipped = self.fault == ("bits" if byte_range is None else "range") and "objbench/" in key
        return bytes([data[0] ^ 1]) + data[1:] if flipped and "race" not in key else data

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = list(super().list(prefix, start_after=start_after))
        if self.fault == "lag" and found:
            found.pop()
        if self.fault == "order":
            found.reverse()
        return iter(found)

    def put_if_absent(self, key: str, payload: bytes, **more: Any) -> None:
        if self.fault == "race" and "race" in key:
            super().put(key, payload, **more)
        else:
            super().put_if_absent(key, payload, **more)

    def delete(self, keys: Iterable[str]) -> dict[str, FrostlineError | None]:
        if self.fault == "ghosts":
            return dict.fromkeys(keys)
        return super().delete(keys)


@pytest.mark.skipif(worm.ACTIVE, reason="breaks promises of its own")
@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("bits", "bytes are returned as written"),
        ("range", "a range gives those bytes"),
        ("lag", "a listing shows every object"),
        ("order", "listings are in key order"),
        ("race", "of several writers exactly one wins"),
        ("ghosts", "what was deleted is gone"),
    ],
)
def test_each_broken_promise_is_named(fault: str, promise: str) -> None:
    store = Wrong()
    store.fault = fault
    assert promise in failed(store)


def test_an_error_is_raised_and_everything_is_cleaned_up() -> None:
    class Breaks(MemoryStore):
        left = 30

        def put(self, key: str, payload: Payload, **more: Any) -> None:
            self.left -= 1
            if not self.left:
                raise Transient("the line broke")
            super().put(key, payload, **more)

    store = Breaks()
    with pytest.raises(Transient):
        bench(store)
    if not worm.ACTIVE:
        assert list(store.list()) == []


@pytest.mark.skipif(worm.ACTIVE, reason="deletes")
def test_leftovers_of_a_killed_run_go_with_the_next_only() -> None:
    """Nothing else goes."""
    store = MemoryStore()
    ours, foreign = f"objbench/{'0a' * 8}/4096-1", "objbench/notes.txt"
    for key in (ours, foreign):
        store.put(key, b"x", sha256=hashlib.sha256(b"x").digest())
    assert bench(store).leftovers_removed == 0, "a young one may be another run's"
    assert remove_leftovers(store, now=datetime.now(UTC) + timedelta(hours=2)) == 1
    assert [info.key for info in store.list()] == [foreign]


@pytest.mark.skipif(worm.ACTIVE, reason="has a lock of its own")
def test_under_a_lock_it_measures_and_says_what_stays() -> None:
    store = MemoryStore(keep_for=timedelta(hours=1))
    report = bench(store)
    assert all(check.ok for check in report.checks)
    assert report.kept == len(list(store.list()))


def test_percentiles_by_nearest_rank() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]
    assert percentile([7.0], 0.99) == 7.0


class TestCommand:
    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FROSTLINE_HOME", str(tmp_path / "home"))

    @pytest.mark.parametrize("kind", ["ministack", "rclone", pytest.param("ceph", marks=pytest.mark.ceph)])
    def test_on_a_server(
        self,
        kind: str,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        server: Server = request.getfixturevalue(kind)
        bucket = server.new_bucket()
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"s3://{bucket}/p/")
        arguments = ["objbench", "s3", "--objects", "6", "--size", "1KiB,100KiB", "-j", "3", "--json"]
        assert cli.run([*arguments, "--dry-run"]) == 0
        dry = json.loads(capsys.readouterr().out)
        assert server.client().list_objects_v2(Bucket=bucket).get("KeyCount", 0) == 0
        assert cli.run(arguments) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["planned"] == dry["planned"]
        assert document["ok"]
        assert document["conditional_put"] == (kind != "rclone")
        assert {item["workers"] for item in document["measurements"]} == {1, 3}
        assert document["parts_per_second"] > 0
        left = server.client().list_objects_v2(Bucket=bucket).get("Contents", [])
        if not worm.ACTIVE:
            assert [item["Key"] for item in left if "objbench" in item["Key"]] == []

    @pytest.mark.skipif(worm.ACTIVE, reason="the last of a listing is a warm-up that is kept")
    def test_a_broken_promise_is_exit_4(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        right = DirectoryStore.list

        def lagging(self: DirectoryStore, *arguments: Any, **more: Any) -> Iterator[ObjectInfo]:
            return iter(list(right(self, *arguments, **more))[:-1])

        monkeypatch.setattr(DirectoryStore, "list", lagging)
        assert cli.run(["objbench", "s3", "--objects", "4", "--size", "1KiB"]) == 4
        assert "PROBLEM  a listing shows every object: " in capsys.readouterr().out

    def test_bad_arguments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert cli.run(["objbench", "nope"]) == 10
        assert cli.run(["objbench", "ssd"]) == 2
        assert cli.run(["objbench", "s3", "--size", "big"]) == 2
        assert cli.run(["objbench", "s3", "--size", "0"]) == 2
        monkeypatch.setenv("FROSTLINE_DISKS__S3__READ_ONLY", "true")
        assert cli.run(["objbench", "s3"]) == 13


def test_threads_do_not_mix_up_their_bodies() -> None:
    """Each object has bytes of its own: a store that swaps two of them is found."""

    class Swaps(MemoryStore):
        def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
            others = sorted(name for name in self._objects if name.rsplit("-", 1)[0] == key.rsplit("-", 1)[0])
            if "race" in key or len(others) < 2:
                return super().get(key, byte_range)
            return super().get(others[0] if key == others[1] else key, byte_range)

    assert "bytes are returned as written" in failed(Swaps())


@pytest.mark.in_turn
@pytest.mark.skipif(worm.ACTIVE, reason="deletes")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.timeout(600)
def test_a_run_that_is_ended_leaves_nothing_or_what_is_known(ending: signal.Signals, tmp_path: Path) -> None:
    """P36: whoever can still act tidies up; what SIGKILL leaves has names that the next run and gc know."""
    environment = {**os.environ, "FROSTLINE_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tiering.cli.main", "objbench", "s3", "--objects", "20000", "--size", "1KiB"]
    process = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    store = DirectoryStore(tmp_path / "bucket" / "store", read_only=True)
    try:
        deadline = time.monotonic() + 240
        while len(list(store.list("objbench/"))) < 20:
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(ending)
        process.communicate(timeout=240)
    finally:
        process.kill()
    left = [info.key for info in store.list()]
    if ending != signal.SIGKILL:
        assert process.returncode == 128 + ending
        assert left == []
        return
    assert len(left) >= 20
    assert inventory(store.list()).foreign == ()
    assert remove_leftovers(store, now=datetime.now(UTC) + timedelta(hours=2)) == len(left)
    assert list(store.list()) == []
