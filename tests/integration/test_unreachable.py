"""The bucket does not answer: what lies on the SSD works, what needs the bucket says so, nothing wrong is answered (I1,
I15)."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from disks.config import ObjectDiskConfig
from disks.object_disk import disk as object_disk
from disks.stores.wrappers.retry import Backoff
from oplog.errors import DiskUnreachable, FrostlineError, Transient
from tests.broken_line import Line, line_to
from tests.servers import Server
from tiering.catalog import catalog
from tiering.cli.main import run
from tiering.config.settings import Config, embedded
from tiering.daemon.daemon import _Daemon
from tiering.engine import write_job
from tiering.engine.store import Store
from tiering.merge.request import MergeRequest
from tiering.table.definitions import define_table

JANUARY, FEBRUARY = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 2, 5, tzinfo=UTC)


@dataclass
class Site:
    home: Path
    line: Line
    bucket: str

    def config(self, machine: str = "a") -> Config:
        config = embedded(self.home / machine)
        shared = ObjectDiskConfig(
            url=f"s3://{self.bucket}/store/",
            endpoint_url=self.line.endpoint_url,
            access_key_id="frostline",
            secret_access_key="frostline-secret",
            region="us-east-1",
        )
        return msgspec.structs.replace(config, disks={**config.disks, "s3": shared})

    def open(self, machine: str = "a") -> Store:
        return Store.open(self.config(machine))


@pytest.fixture
def site(tmp_path: Path, ministack: Server) -> Iterator[Site]:
    """A table with a cold January and a hot February; the line to the bucket is up."""
    with line_to(ministack.endpoint_url) as line:
        site = Site(tmp_path, line, ministack.new_bucket())
        with site.open() as store:
            store.create_table(
                define_table(
                    "d.t",
                    columns=["ts:timestamp[us, UTC]", "k:int64"],
                    order_by="ts",
                    partition_by="month(ts)",
                    policy="hot_cold",
                )
            )
            insert(store, JANUARY, 1)
            store.apply(store.plan_manual_move("d.t", partition="202601", to_disk="s3"))
            insert(store, FEBRUARY, 2)
        yield site


def insert(store: Store, day: datetime, *keys: int) -> None:
    times = [day + timedelta(hours=number) for number in range(len(keys))]
    store.table("d.t").insert(pa.table({"ts": times, "k": list(keys)}).to_batches())
    store.refresh()


def keys(store: Store, where: str = "true") -> list[int]:
    return sorted(store.query(f"SELECT k FROM d.t WHERE {where}").read_all().column("k").to_pylist())


HOT = "ts >= TIMESTAMP '2026-02-01T00:00:00Z'"


@pytest.mark.in_turn
def test_hot_rows_are_read_written_and_merged_without_the_bucket(site: Site) -> None:
    site.line.cut()
    began = time.monotonic()
    with site.open() as store:
        assert store.unreachable() == ["s3"]
        assert keys(store, HOT) == [2]
        for number in (3, 4, 5):
            insert(store, FEBRUARY, number)
        assert keys(store, HOT) == [2, 3, 4, 5]
        assert [result.rows_out for result in store.merge("d.t", MergeRequest(final=True))] == [4]
        assert keys(store, HOT) == [2, 3, 4, 5]
        assert time.monotonic() - began < 12, "each step waited for the bucket"
        with pytest.raises(DiskUnreachable, match="disk s3 cannot be reached"):
            keys(store)
        with pytest.raises(DiskUnreachable, match="part 202601_"):
            store.table("d.t").scan().read_all()
    site.line.mend()
    with site.open() as store:
        assert store.unreachable() == []
        assert keys(store) == [1, 2, 3, 4, 5]


def test_a_silent_server_is_not_waited_for_long(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are taken and never answered, as behind some firewalls: a minute a request would be a hang."""
    monkeypatch.setattr(catalog, "_PATIENCE_SECONDS", 0.5)
    site.line.silence()
    began = time.monotonic()
    with site.open() as store:
        assert store.unreachable() == ["s3"]
        assert keys(store, HOT) == [2]
    assert time.monotonic() - began < 15


def test_what_an_outage_is_told_by_does_not_grow_while_it_lasts(site: Site) -> None:
    """An error that is raised again and again keeps all frames of all calls: a daemon took megabytes a minute."""

    def told() -> Iterator[tuple[str, int]]:
        for _ in range(3):
            with pytest.raises(DiskUnreachable) as raised:
                disk.refresh()
            raised.value.message += ", and what a caller adds"
            yield str(raised.value), sum(1 for _ in traceback.walk_tb(raised.value.__traceback__))

    site.line.cut()
    with site.open() as store:
        disk = store.disk("s3")
        assert disk.unreachable
        assert len({*told()}) == 1
        assert "what a caller adds" not in disk.unreachable


def test_what_needs_the_bucket_is_refused_before_any_change(site: Site) -> None:
    site.line.cut()
    with site.open() as store:
        before = {path for path in (site.home / "a" / "ssd").rglob("*") if path.name == "table.json"}
        old = store.definition("d.t")
        for attempt in (
            lambda: store.create_table(define_table("d.u", columns=["k:int64"], order_by="k", policy="hot_cold")),
            lambda: store.alter_table(old, msgspec.structs.replace(old, version=old.version)),
            lambda: store.drop_table("d.t"),
            lambda: store.plan_manual_move("d.t", partition="202602", to_disk="s3"),
            lambda: store.plan_manual_move("d.t", partition="202601", to_disk="ssd"),
            lambda: store.definition("d.other"),
            lambda: store.query("SELECT * FROM d.t", revision=1),
            lambda: write_job.target(store.context, store.definition("d.t"), write_job.WriteOptions("d.t", None)),
        ):
            with pytest.raises(DiskUnreachable):
                attempt()
        assert before == {path for path in (site.home / "a" / "ssd").rglob("*") if path.name == "table.json"}
        assert not store.context.journal.drops()
    site.line.mend()
    with site.open() as store:
        assert keys(store) == [1, 2]
        assert [table.full_name for table in store.definitions()] == ["d.t"]


@pytest.mark.in_turn
def test_moves_wait_with_a_reason_and_the_daemon_makes_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_disk, "_ASK_AGAIN_SECONDS", 0.0)
    import threading

    from tiering.config.settings import DaemonConfig

    with site.open() as store:
        old = store.definition("d.t")
        from tiering.table.definitions import set_ttl

        store.alter_table(old, set_ttl(old, ["1d on ts to volume cold"]))
        daemon = _Daemon(store, DaemonConfig(), threading.Event())
        part = next(stored.part.name for stored in store.parts() if stored.disk == "ssd")
        site.line.cut()
        daemon.tick()
        assert daemon.status.failures == 0
        assert daemon.trouble.away == "not to be reached: s3"
        explanation = store.explain("d.t", part)
        assert explanation.decision == "stay"
        assert "cannot be reached" in explanation.reason.detail
        assert not store.context.journal.work.failures(), "an attempt was counted though nothing was tried"
        site.line.mend()
        daemon.tick()
        assert daemon.status.moved == 1
        assert not daemon.trouble.away
        assert {stored.disk for stored in store.parts()} == {"s3"}


@pytest.mark.in_turn
def test_no_answer_when_another_machine_writes_the_table_too(site: Site) -> None:
    with site.open("b") as other:
        insert(other, FEBRUARY, 10)
        other.apply(other.plan_manual_move("d.t", partition="202602", to_disk="s3"))
    with site.open() as store:
        assert keys(store) == [1, 2, 10]
    site.line.cut()
    with site.open() as store, pytest.raises(DiskUnreachable, match=r"another machine writes d\.t"):
        keys(store, "k = 2 AND ts < TIMESTAMP '2020-01-01T00:00:00Z'")


@pytest.mark.in_turn
@pytest.mark.parametrize("how", ["deleted", "half filled"])
def test_nothing_is_answered_from_a_table_that_may_lack_parts(
    site: Site, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that was lost, or that the outage caught while it was read anew, knows too little."""
    shutil.rmtree(site.home / "a" / "state" / "disks")
    if how == "half filled":
        from disks.object_disk import cache as table_cache

        with monkeypatch.context() as patch:

            def breaks(view: Any, entries: Any) -> None:
                raise Transient("the line broke after the snapshot was read")

            patch.setattr(table_cache, "apply_entries", breaks)
            with pytest.raises(FrostlineError):
                site.open()
    site.line.cut()
    with pytest.raises(DiskUnreachable, match="not known here"):
        site.open()
    site.line.mend()
    with site.open() as store:
        assert keys(store) == [1, 2]


@pytest.mark.in_turn
def test_a_move_whose_answer_was_lost_is_settled_by_the_bucket(site: Site) -> None:
    """The journal says `copying`; only the bucket knows that the commit was made."""
    with site.open() as store:
        part = next(stored for stored in store.parts() if stored.disk == "ssd")
        store.apply(store.plan_manual_move("d.t", part=part.part.name, to_disk="s3", keep_source=True))
        journal = store.context.journal
        record = journal.work.moves(limit=1)[0]
        with journal.file.write("test") as connection:
            connection.execute(
                "UPDATE moves SET state = 'copying', keep_source = 0, pid = 0 WHERE id = ?", (record.id,)
            )
    site.line.cut()
    with site.open() as store:
        assert store.context.journal.work.move(record.id).state == "copying"
        assert keys(store, HOT) == [2], "the copy on the SSD answers"
    site.line.mend()
    with site.open() as store:
        assert store.context.journal.work.move(record.id).state == "done"
        assert keys(store) == [1, 2]


def written(site: Site, directory: Path) -> Path:
    """The site's configuration as a file."""
    path = directory / "frostline.yaml"
    path.touch(mode=0o600)
    path.write_text(json.dumps(msgspec.to_builtins(site.config())))
    return path


def test_the_command_line_says_what_it_could_not_reach(
    site: Site, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "pause_seconds", lambda *_: 0.0)
    path = written(site, tmp_path)
    site.line.cut()

    def command(*arguments: str) -> tuple[int, dict[str, Any], str]:
        code = run(["-c", str(path), "--json", *arguments])
        captured = capfdbinary.readouterr()
        return code, json.loads(captured.out or b"{}"), captured.err.decode()

    code, document, said = command("query", f"SELECT k FROM d.t WHERE {HOT}")
    assert (code, document["rows"], document["unreachable"]) == (0, [[2]], ["s3"])
    assert "disk s3 cannot be reached" in said
    assert "as of revision" in said
    code, document, said = command("query", "SELECT count(*) FROM d.t")
    assert code == 5
    assert json.loads(said.strip().splitlines()[-1])["error"]["kind"] == "unreachable"
    for arguments in (["parts"], ["disks"], ["status"], ["plan"], ["table", "list"], ["merge", "d.t"]):
        code, document, _ = command(*arguments)
        assert (code, document["unreachable"]) == (0, ["s3"]), arguments
    code, document, _ = command("disks")
    assert {disk["name"]: disk["unreachable"] for disk in document["disks"]} == {"ssd": False, "s3": True}
    part = command("parts", "--disk", "ssd")[1]["parts"][0]["part"]
    assert command("explain", "d.t", part)[1]["unreachable"] == ["s3"]


def test_due_parts_that_wait_for_the_bucket_are_not_nothing(
    site: Site, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "pause_seconds", lambda *_: 0.0)
    path = written(site, tmp_path)
    assert run(["-c", str(path), "table", "alter", "d.t", "--ttl", "1d on ts to volume cold"]) == 0
    site.line.cut()
    capfd.readouterr()
    assert run(["-c", str(path), "plan"]) == 0
    said = capfd.readouterr()
    assert "Nothing moves: 2 parts cannot move" in said.out + said.err
    assert "Nothing is due" not in said.out + said.err
    run(["-c", str(path), "tick"])
    said = capfd.readouterr()
    assert "waits: part" in said.err
    assert "Nothing was due" not in said.out + said.err
