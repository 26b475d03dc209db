"""A snapshot, or what an entry says of the file table, that contradicts the log: the log is believed, nothing is
deleted, and it is said. I4, I7, I15.

| forged | what used to happen |
|---|---|
| an empty snapshot with the right digest of its entry; local state is gone | rows were gone, and gc deleted objects |
| a snapshot that lacks a file, has one more, or names another object | the same |
| the same below entries of an older version, which do not tell what the table is | the same |
| an entry that says of the table what is not so | there was no such word |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from oplog.revision import commit_key, snapshot_key
from tests.hostile.forge import ROWS, TABLE, Forged
from tests.hostile.kept import cached_store

pytestmark = pytest.mark.in_turn

Rows = list[bytes]
COLD = 1_000
"""Rows of the part in the bucket."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forged")


@pytest.fixture
def store(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Forged:
    """A snapshot of the newest revision, and retention that is over."""
    store = cached_store(place, monkeypatch, capsys)
    store.frostline("snapshot", "cold")
    return store


def one_more(rows: Rows) -> Rows:
    row = json.loads(rows[-1])
    return [*rows, json.dumps([f"{row[0]}.more", *row[1:]], separators=(",", ":")).encode() + b"\n"]


def another_object(rows: Rows) -> Rows:
    return [row.replace(b"-file-", b"-file-a", 1)[:-1] + b"\n" if b"-file-" in row else row for row in rows]


def another_revision(rows: Rows) -> Rows:
    row = json.loads(rows[-1])
    return [*rows[:-1], json.dumps([*row[:6], row[6] % 2 + 1], separators=(",", ":")).encode() + b"\n"]


FORGERIES: dict[str, Callable[[Rows], Rows]] = {
    "empty": lambda rows: [],
    "a file less": lambda rows: [row for row in rows if b".parquet" not in row],
    "a part less": lambda rows: [row for row in rows if b"all_1_1_0" not in row],
    "a file more": one_more,
    "another object": another_object,
    "another revision": another_revision,
}


def objects(store: Forged) -> list[str]:
    """Those that are data."""
    return sorted(path.name for path in store.bucket.iterdir() if path.name.startswith("r0"))


def refused(store: Forged) -> str:
    """Why a collection deletes nothing. It must not."""
    before = objects(store)
    code, out, err = store.run("gc", "cold", "--delete", "--yes", "--json")
    assert code == 13, (code, out, err)
    assert objects(store) == before
    answer = json.loads(out) if out else json.loads(err)["error"]
    return str(answer.get("refused") or answer.get("message") or answer["disks"][0]["refused"])


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_a_snapshot_that_contradicts_the_log_is_passed_over(store: Forged, change: Callable[[Rows], Rows]) -> None:
    """I7, I4, I15: all rows are answered, the snapshot is named, nothing is collected."""
    key = store.rewrite_snapshot(change)
    store.lose_state()
    code, out, err = store.run("query", f"SELECT count(*) FROM {TABLE}", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == [[ROWS]]
    assert f"{key} cannot be read: its files" in err
    assert key in refused(store)
    assert key in [problem["object"] for problem in store.problems()]


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_below_entries_of_an_older_version_too(store: Forged, change: Callable[[Rows], Rows]) -> None:
    """I4, I15: no entry tells what the table is, so older ones are looked at; a new entry tells what the log says."""
    store.without("table_digest")
    key = store.rewrite_snapshot(change)
    assert re.search(f"{key} contradicts the log|the entries before it", refused(store))
    assert key in [problem["object"] for problem in store.problems()]
    store.run("table", "alter", TABLE, "--add-column", "x:int64")
    assert "table_digest" in store.entry(store.head())
    assert store.count() == ROWS
    assert {problem["object"] for problem in store.problems()} == {key}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_a_start_below_older_entries_looks_at_older_starts(store: Forged, change: Callable[[Rows], Rows]) -> None:
    """I7: the whole log is there and says otherwise, so all rows are answered; and `restore` says the same.
    A start that a new version wrote below entries of an older version."""
    store.without("table_digest")
    key = store.rewrite_snapshot(change)
    store.lose_state()
    code, out, err = store.run("query", f"SELECT count(*) FROM {TABLE}", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == [[ROWS]]
    assert re.search(f"{key} (contradicts the log|cannot be read)|the entries before it", err)
    store.lose_state()
    code, out, err = store.run("restore", "cold", "--apply", "--yes", "--json")
    assert code == 0, err
    assert store.count() == ROWS


def test_of_two_snapshots_nobody_knows_which_is_right(store: Forged) -> None:
    """I4: the log begins at one, the other contradicts it: it is said at each opening, and nothing is collected."""
    store.frostline("move", TABLE, "--part", "all_2_2_0", "--to-disk", "cold")
    store.frostline("snapshot", "cold")
    store.without("table_digest")
    store.rewrite_snapshot(FORGERIES["a part less"])
    store.cut(before=store.snapshots()[-2])
    store.lose_state()
    for _ in range(2):
        _, _, err = store.run("query", f"SELECT count(*) FROM {TABLE}", "--json")
        assert "contradicts" in err
    assert "contradicts the log" in refused(store)


def test_a_later_entry_shows_that_an_older_snapshot_is_wrong(store: Forged) -> None:
    """I7: the table is then read from an older start, and each row is there. The snapshot is of an older version."""
    head = store.head()
    store.frostline("move", TABLE, "--part", "all_2_2_0", "--to-disk", "cold")
    assert "table_digest" in store.entry(store.head())
    store.without("table_digest", until=head)
    store.rewrite_snapshot(FORGERIES["a part less"])
    code, out, err = store.run("query", f"SELECT count(*) FROM {TABLE}", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == [[ROWS]]
    assert "contradicts the log" in err
    assert "contradicts the log" in refused(store)


def test_what_an_older_version_left_is_collected_and_goes_on(store: Forged) -> None:
    """I5: where older starts say the same, gc works; entries tell what the table is again once one of them is there."""
    store.without("table_digest")
    code, _, err = store.run("gc", "cold", "--delete", "--yes")
    assert code == 0, err
    assert store.count() == ROWS
    assert store.problems() == []


def test_an_untrue_entry_is_reported_and_nothing_goes(store: Forged) -> None:
    """I4, I15: nobody knows which of them is right; what can be read is answered, and no entry builds upon it."""
    document = store.entry(store.head())
    path = next(one["path"] for one in document["operations"] if "path" in one)
    extra = store.create(f"{path.rpartition('/')[0].rpartition('/')[0]}/blocks-9.json", b"{}")
    key = store.append(extra, table_digest="ab" * 32)
    code, out, err = store.run("query", f"SELECT count(*) FROM {TABLE}", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == [[ROWS]]
    assert "contradicts the log" in err
    assert "contradicts the log" in refused(store)
    assert any(str(store.head()) in problem["what"] for problem in store.problems()), key
    store.run("table", "alter", TABLE, "--add-column", "x:int64")
    assert "table_digest" not in store.entry(store.head())
    assert store.count() == ROWS


def wrong_entry(store: Forged) -> int:
    """The newest entry says of the table what is not so; its revision."""
    document = store.entry(store.head())
    path = next(one["path"] for one in document["operations"] if "path" in one)
    extra = store.create(f"{path.rpartition('/')[0].rpartition('/')[0]}/blocks-9.json", b"{}")
    store.append(extra, table_digest="ab" * 32)
    return store.head()


@pytest.mark.parametrize("local", ["kept", "lost", "lost after it"])
def test_a_repair_says_that_what_the_log_does_counts(store: Forged, local: str) -> None:
    """I4, I7: then nothing contradicts any more, on any machine, and gc goes on."""
    wrong = wrong_entry(store)
    if local == "lost":
        store.lose_state()
    assert "contradicts the log" in refused(store)
    out = store.frostline("fsck", "cold", "--repair", "--dry-run", code=4)
    assert f"would commit that entry {wrong} is wrong" in out
    assert store.head() == wrong
    out = store.frostline("fsck", "cold", "--repair")
    assert f"committed that entry {wrong} is wrong" in out
    assert store.entry(store.head())["details"] == {"contradicted": str(wrong)}
    assert len(store.entry(store.head())["table_digest"]) == 64
    if local == "lost after it":
        store.lose_state()
    code, out, err = store.run("query", f"SELECT count(*) FROM {TABLE}", "--json")
    assert (code, json.loads(out)["rows"]) == (0, [[ROWS]])
    assert "contradicts" not in err
    assert store.problems() == []
    store.frostline("table", "alter", TABLE, "--add-column", "x:int64")
    assert "table_digest" in store.entry(store.head())
    code, _, err = store.run("gc", "cold", "--delete", "--yes")
    assert code == 0, err
    assert store.count() == ROWS
    store.frostline("fsck", "cold", "--repair")
    assert store.problems() == []


def test_a_repair_that_says_what_is_not_so_settles_nothing(store: Forged) -> None:
    """I4: it is an entry like any other, compared with what the log does."""
    wrong = wrong_entry(store)
    store.append(kind="repair", details={"contradicted": str(wrong)}, table_digest="cd" * 32)
    store.lose_state()
    assert "contradicts the log" in refused(store)
    assert store.count() == ROWS


def test_each_entry_tells_what_the_table_is(store: Forged) -> None:
    """I7: and the snapshot of its revision is that."""
    for revision in range(1, store.head() + 1):
        assert len(store.entry(revision)["table_digest"]) == 64
    assert (store.bucket / snapshot_key(store.head())).exists()
    assert (store.bucket / commit_key(store.head())).exists()
    assert store.problems() == []
