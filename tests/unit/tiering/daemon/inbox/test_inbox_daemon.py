"""The inbox of a daemon, and its verbs. Guards P15's promise for inserts: nothing is lost, nothing doubled."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from disks.workers.progress import Silent
from oplog.errors import FrostlineError, Locked, NoSpace, NotFound
from tests.command_line import Frostline
from tests.unit.tiering.daemon.inbox.places import Place
from tests.unit.tiering.daemon.inbox.places import place as place
from tiering.config.settings import DaemonConfig
from tiering.daemon import daemon
from tiering.daemon.inbox.inbox import Inbox
from tiering.daemon.inbox.table_inbox import TableInbox
from tiering.daemon.inbox.worker import InboxWorker, end_observer
from tiering.daemon.status import read_status
from tiering.engine.store import Store, Table
from tiering.table.definitions import define_table


class TestDaemon:
    def test_files_that_land_go_in_beside_the_passes(self, place: Place) -> None:
        """Renamed and closed files are whole at once: directory events say so."""
        settings = msgspec.structs.replace(place.settings, stable_seconds=1000.0, poll_seconds=0.05)
        stop = threading.Event()
        config = msgspec.structs.replace(place.config, inbox=settings)
        with Store.open(config, workers=1) as store:
            thread = threading.Thread(target=daemon.run, args=(store, DaemonConfig(), stop))
            thread.start()
            state = store.context.config.state_directory
            until = threading.Event()
            while place.files(".") and not until.wait(0.01):
                pass
            number = 0
            while not read_status(state).ingested:  # events begin when the worker does
                number += 1
                place.land(f"{number}.tmp", number).rename(place.home / f"{number}.csv")
                until.wait(0.1)
            stop.set()
            thread.join(60)
        assert not thread.is_alive()
        assert read_status(state).failures == 0
        place.once()
        assert place.keys() == list(range(1, number + 1))

    def test_what_keeps_files_out_is_trouble_until_they_are_in(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A full disk is shown while it lasts, not only as the last error, and `daemon status` ends with 3."""
        settings = msgspec.structs.replace(place.settings, stable_seconds=0.0, poll_seconds=0.05)
        stop, until = threading.Event(), threading.Event()
        place.land("a.csv", 1)
        insert = Table.insert

        def full(self: Table, batches: Any) -> Any:
            list(batches)
            raise NoSpace(full_disk)

        full_disk = "no space left on device: ssd"
        said = f"d.t: {full_disk}"
        monkeypatch.setattr(Table, "insert", full)
        (place.home / "link.csv").symlink_to("a.csv")
        config = msgspec.structs.replace(place.config, inbox=settings)
        with Store.open(config, workers=1) as store:
            thread = threading.Thread(target=daemon.run, args=(store, DaemonConfig(), stop))
            thread.start()
            state = store.context.config.state_directory
            try:
                while not read_status(state).problem:
                    until.wait(0.05)
                assert read_status(state).problem.startswith(f"inbox: {said}")
                monkeypatch.setattr(Table, "insert", insert)
                while read_status(state).problem:
                    until.wait(0.05)
            finally:
                stop.set()
                thread.join(60)
        assert read_status(state).ingested == 1
        assert read_status(state).last_error == f"inbox: {said}"
        link, *inbox = (record.message for record in caplog.records)
        assert "d.t/link.csv: a symbolic link" in link
        began, over = inbox
        assert began == f"the inbox: {said}"
        assert "all is well" in over

    def test_a_table_that_is_slow_keeps_no_other_waiting(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """P15: a file of 10 GB, or a bucket that hangs, kept the files of all tables waiting."""
        place.store.create_table(define_table("d.slow", columns=["k:int64"], order_by="k", policy="hot_cold"))
        slow = place.root / "inbox" / "d.slow"
        slow.mkdir()
        (slow / "a.csv").write_text("k\n1\n")
        place.land("a.csv", 2)
        insert, free, until = Table.insert, threading.Event(), threading.Event()

        def hanging(self: Table, batches: Any) -> Any:
            assert self.definition.name != "slow" or free.wait(200)
            return insert(self, batches)

        monkeypatch.setattr(Table, "insert", hanging)
        settings = msgspec.structs.replace(place.settings, stable_seconds=0.0, poll_seconds=0.05)
        worker = InboxWorker(lambda stop: place.store.beside(place.config, stop, Silent()), settings)
        worker.begin()
        try:
            for _ in range(1200):
                if place.files("done"):
                    break
                until.wait(0.05)
            assert place.files("done") == ["a.csv", "a.csv.report.json"], "it did not wait"
            assert (slow / ".taken" / "a.csv").exists()
        finally:
            free.set()
            worker.end()
        assert (slow / "done" / "a.csv").exists(), "a stop ends between files"
        assert sorted(file.table for done in worker.ended() for file in done.files) == ["d.slow", "d.t"]

    def test_two_do_not_work_on_one_inbox(self, place: Place) -> None:
        other = Inbox(place.store, place.settings)
        with place.inbox.alone(), pytest.raises(Locked, match="the inbox"), other.alone():
            pass

    def test_what_fails_rests_longer_each_time(self, place: Place) -> None:
        (place.home / ".batch.json").write_text("{")
        tries = []
        for _ in range(40):
            if not place.inbox.is_idle():
                tries.append(place.clock.now)
                place.inbox.round()
            place.clock.wait(1)
        assert tries == [1000, 1001, 1003, 1007, 1015, 1031]


class TestVerbs:
    @pytest.fixture
    def frostline(self, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Frostline:
        monkeypatch.setenv("FROSTLINE_HOME", str(place.root))
        monkeypatch.setenv("FROSTLINE_INBOX__PATH", str(place.root / "inbox"))
        monkeypatch.setenv("FROSTLINE_INBOX__STABLE_SECONDS", "0")
        monkeypatch.chdir(place.root)
        return Frostline(capsys)

    def test_run_status_and_retry(self, place: Place, frostline: Frostline) -> None:
        place.land("a.csv", 1)
        place.land("b.csv", "two")
        (waiting,) = frostline.json("inbox", "status")["tables"]
        assert [file["file"] for file in waiting["waiting"]] == ["a.csv", "b.csv"]
        done = frostline.json("inbox", "run", "--once", code=3)
        assert (done["rows"], [file["state"] for file in done["files"]]) == (1, ["failed", "done"])
        (table,) = frostline.json("inbox", "status")["tables"]
        assert (table["done"], table["failed"][0]["file"]) == (1, "b.csv")
        assert "line 2" in table["failed"][0]["error"]
        assert "failed   d.t/b.csv" in frostline("inbox", "status")
        frostline("inbox", "retry", "d.t/b.csv", "--dry-run")
        assert "b.csv" in place.files("failed")
        frostline("inbox", "retry", "d.t/b.csv")
        assert place.files("failed") == []
        place.land("b.csv", 2)
        assert "1 file, 1 row in 1 part." in frostline("inbox", "run", "--once")
        assert frostline.json("inbox", "run", "--once", "--error-on-nothing", code=9)["files"] == []
        frostline("inbox", "retry", "d.t/b.csv", code=10)
        frostline("inbox", "retry", "d.t/../../secret", code=10)

    def test_without_an_inbox(self, frostline: Frostline, monkeypatch: pytest.MonkeyPatch) -> None:
        frostline("inbox", "run", code=2)
        monkeypatch.setenv("FROSTLINE_INBOX__PATH", "/nowhere/at/all")
        frostline("inbox", "status", code=10)
        monkeypatch.delenv("FROSTLINE_INBOX__PATH")
        frostline("inbox", "run", "--once", code=2)

    def test_retry_of_a_name_that_landed_anew(self, place: Place) -> None:
        inbox = TableInbox(place.root / "inbox", "d.t")
        place.land("a.csv", "x")
        place.once()
        place.land("a.csv", 1)
        with pytest.raises(FrostlineError, match="has landed meanwhile"):
            inbox.retry("a.csv")
        with pytest.raises(NotFound):
            inbox.retry("a.csv.report.json")


def test_the_end_of_the_observer_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from watchdog.events import FileSystemEventHandler
    from watchdog.observers import Observer
    from watchdog.observers.api import ObservedWatch
    from watchdog.observers.inotify import InotifyEmitter

    ended = InotifyEmitter.on_thread_stop

    def ended_while_an_event_comes(self: InotifyEmitter) -> None:
        ended(self)
        self.queue_events(0)

    monkeypatch.setattr(InotifyEmitter, "on_thread_stop", ended_while_an_event_comes)
    observer = Observer()
    observer.schedule(FileSystemEventHandler(), str(tmp_path))
    observer.start()
    end_observer(observer)
    assert not observer.is_alive()
    assert caplog.records == []
    other = InotifyEmitter(observer.event_queue, ObservedWatch(str(tmp_path), recursive=False))
    other.queue_events(0)
    assert len(caplog.records) == 1, "at any other time it is one"
