"""Directories `key=value` of an inbox are columns of the files that land in them, wherever these go (P15)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from oplog.errors import AlreadyExists, NotFound
from tiering.config.settings import InboxConfig, embedded
from tiering.daemon.inbox.inbox import Inbox, Round
from tiering.daemon.inbox.table_inbox import TableInbox
from tiering.daemon.inbox.worker import _events
from tiering.engine.store import Store
from tiering.table.definitions import define_table


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    """Below a directory that would be a column of the table too, were it not above the inbox."""
    root = tmp_path / "region=above"
    (root / "inbox" / "d.t").mkdir(parents=True)
    settings = InboxConfig(path=str(root / "inbox"), stable_seconds=0, batch_seconds=0)
    store = Store.open(msgspec.structs.replace(embedded(root), inbox=settings), workers=1)
    columns = ["id:int64", "region:string", "day:int64"]
    store.create_table(define_table("d.t", columns=columns, order_by="id", policy="hot_cold"))
    return Inbox(store, settings, clock=lambda: 0.0)


def land(inbox: Inbox, name: str, text: str = "id\n1\n") -> Path:
    path = inbox._root / "d.t" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def once(inbox: Inbox) -> Round:
    return inbox.once(wait=lambda seconds: None)


def rows(inbox: Inbox) -> list[list[object]]:
    inbox._store.refresh()
    found = inbox._store.table("d.t").scan().read_all().to_pylist()
    return sorted(([row["id"], row["region"], row["day"]] for row in found), key=str)


def test_the_same_bytes_in_two_directories_are_other_rows(inbox: Inbox) -> None:
    for name in ("region=eu/day=1/a.csv", "region=us/day=1/a.csv", "region=us/day=1/again.csv", "a.csv"):
        land(inbox, name)
    done = once(inbox)
    assert {file.file: file.state for file in done.files} == {
        "region=eu/day=1/a.csv": "done",
        "region=us/day=1/a.csv": "done",
        "region=us/day=1/again.csv": "duplicate",
        "a.csv": "done",
    }
    assert rows(inbox) == [[1, "eu", 1], [1, "us", 1], [1, None, None]]
    report = json.loads((inbox._root / "d.t/done/region=eu/day=1/a.csv.report.json").read_bytes())
    assert report["file"] == "region=eu/day=1/a.csv"
    land(inbox, "region=eu/day=1/other.csv")
    assert [file.state for file in once(inbox).files] == ["duplicate"]
    land(inbox, "other=1/region=cn/day=1/a.csv")
    land(inbox, "other=2/region=cn/day=1/a.csv")  # `other` is no column of the table: these are the same rows
    assert sorted(file.state for file in once(inbox).files) == ["done", "duplicate"]


def test_a_value_that_does_not_fit_fails_its_file_for_a_retry(inbox: Inbox) -> None:
    land(inbox, "region=eu/day=abc/a.csv")
    land(inbox, "region=eu/day=1/a.csv", "id,region\n2,us\n")
    done = once(inbox)
    errors = {file.file: file.error for file in done.failed}
    assert "the directory day=abc holds no int64" in errors["region=eu/day=abc/a.csv"]
    assert "row 1 has 'us' in column region" in errors["region=eu/day=1/a.csv"]
    place = TableInbox(inbox._root, "d.t")
    assert place.finished("failed") == ["region=eu/day=1/a.csv", "region=eu/day=abc/a.csv"]
    failed = place.path / "failed" / "region=eu/day=1/a.csv"
    failed.write_text("id,region\n2,eu\n")
    land(inbox, "region=eu/day=1/a.csv")
    with pytest.raises(AlreadyExists):
        place.retry("region=eu/day=1/a.csv")
    (place.path / "region=eu/day=1/a.csv").unlink()
    (place.path / "region=eu/day=1").rmdir()
    place.retry("region=eu/day=1/a.csv")
    once(inbox)
    assert rows(inbox) == [[2, "eu", 1]]


@pytest.mark.parametrize("name", ["../d.t/a.csv", "region=eu/../a.csv", "plain/a.csv", "region=link/a.csv"])
def test_only_files_below_failed_are_tried_again(inbox: Inbox, name: str) -> None:
    place = TableInbox(inbox._root, "d.t")
    for directory in ("failed/region=eu", "failed/plain", "elsewhere"):
        (place.path / directory).mkdir(parents=True)
        (place.path / directory / "a.csv").write_text("id\n1\n")
    (place.path / "failed" / "region=link").symlink_to(place.path / "elsewhere")
    with pytest.raises(NotFound, match="no failed file"):
        place.retry(name)


def test_links_and_other_directories_are_left_alone(inbox: Inbox, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.csv").write_text("id\n1\n")
    table = inbox._root / "d.t"
    (table / "region=far").symlink_to(tmp_path / "far")
    land(inbox, "region=eu/plain/a.csv")
    land(inbox, ".region=eu/a.csv")
    done = once(inbox)
    assert {(one.file, one.what.partition(":")[0]) for one in done.problems} == {
        ("region=far", "a symbolic link"),
        ("region=eu/plain", "not a file"),
    }
    assert done.files == []
    assert (tmp_path / "far" / "a.csv").is_file()


def test_a_file_of_a_done_name_gets_a_number(inbox: Inbox) -> None:
    for key in (1, 2):
        land(inbox, "region=eu/a.csv", f"id\n{key}\n")
        once(inbox)
    there = {path.name for path in (inbox._root / "d.t/done/region=eu").iterdir()}
    assert there == {"a.csv", "a.csv.report.json", "a.csv.2", "a.csv.2.report.json"}


def test_an_event_in_such_a_directory_says_the_file_is_whole(inbox: Inbox) -> None:
    import threading

    from watchdog.events import FileClosedEvent

    wake = threading.Event()
    handler = _events(inbox._root, inbox, wake)
    handler.dispatch(FileClosedEvent(str(inbox._root / "d.t" / "failed" / "a.csv")))
    assert not wake.is_set()
    path = land(inbox, "region=eu/day=1/a.csv")
    handler.dispatch(FileClosedEvent(str(path)))
    assert wake.is_set()
    assert [table.name for table in inbox.due()[0]] == ["d.t"]


def test_a_batch_that_a_crash_left_goes_in_once(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its rows, before that is written down."""
    land(inbox, "region=eu/a.csv")
    from tiering.daemon.inbox.ingest import TableIngest

    def crash(*arguments: object) -> None:
        raise OSError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(TableIngest, "_is_in", crash)
        once(inbox)
    assert (inbox._root / "d.t/.taken/region=eu/a.csv").is_file()
    monkeypatch.setattr(inbox, "_rests", lambda table: False)
    assert [file.state for file in once(inbox).files] == ["done"]
    assert rows(inbox) == [[1, "eu", None]]
