"""Ways back as a user meets them: taken back again, previewed, by the times that the log shows (I3, I7, I17)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.homes import Home


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """A machine with a table that has a part in the bucket."""
    one = Home(tmp_path, "one", capsys)
    one.create()
    one.insert(1)
    one.to_bucket()
    return one


@pytest.mark.in_turn
def test_a_way_back_can_be_taken_back_again_and_again(home: Home) -> None:
    """Each verb in between opens the store, and writes what other disks lack."""
    before = home.head()
    home("table", "alter", "d.t", "--add-column", "late:int64")
    home.create("d.other")
    home.insert(2)
    home.to_bucket()
    home("restore", "s3", "--revision", str(before), "--apply")
    assert (home.tables(), home.keys()) == (["d.t"], [1])
    for tables, keys in ((["d.other", "d.t"], [1, 2]), (["d.t"], [1]), (["d.other", "d.t"], [1, 2])):
        home("undo", "s3", str(home.head()))
        home("tick")
        assert (home.tables(), home.keys()) == (tables, keys)
        columns = [column["name"] for column in home.json("table", "show", "d.t")["columns"]]
        assert columns == (["k", "late"] if len(tables) == 2 else ["k"])
        home("fsck")


def test_a_drop_is_undone_redone_and_undone(home: Home) -> None:
    home("table", "drop", "d.t")
    for keys in ([1], None, [1], None, [1]):
        home("undo", "s3", str(home.head()))
        home("tick")
        assert home.tables() == (["d.t"] if keys else [])
        if keys:
            assert home.keys() == keys
        home("fsck")


def test_a_time_as_the_log_shows_it_means_the_whole_second(home: Home) -> None:
    (entry,) = home.json("log", "s3", "--limit", "1")["entries"]
    shown = entry["time"].partition(".")[0]
    home("table", "alter", "d.t", "--ttl", "9000d on k to volume cold_s3", code=2)
    assert home.json("restore", "s3", "--time", shown)["revision"] == entry["revision"]
    assert home.json("restore", "s3", "--time", f"{shown}.000000")["revision"] < entry["revision"]


def test_a_time_before_everything_is_a_mistake(home: Home) -> None:
    home("restore", "s3", "--time", "2006-01-31T12:00:00Z", "--apply", code=13)
    assert "had no revision yet" in home.error
    assert home.keys() == [1]
    home("restore", "s3", "--revision", "0", "--apply")
    assert home.tables() == []


def test_a_time_far_ahead_is_a_mistake_too(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A year's typo meant the newest state."""
    home("restore", "s3", "--time", "2206-01-31T12:00:00Z", code=13)
    assert f"(revision 1) to {datetime.now(UTC):%Y-}" in home.error
    other = Home(tmp_path / "elsewhere", "two", capsys)
    copy = ("restore", "s3", "--from", f"{(tmp_path / 's3').as_uri()}/", "--time")
    other(*copy, "2206-01-31T12:00:00Z", code=13)
    other(*copy, "2006-01-31T12:00:00Z", code=13)
    assert "had no revision yet" in other.error


def test_clocks_that_jumped_do_not_lead_a_time_astray(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """One writer's clock was a year ahead, another's a year behind: what they did lies between what was before and
    after, whatever they say."""
    moments: dict[int, str] = {}
    for key, days in ((2, 0), (3, 365), (4, -365), (5, 0)):
        skewed(monkeypatch, days)
        home.insert(key)
        home.to_bucket(part=f"all_{key}_{key}_0")
        moments[home.head()] = datetime.now(UTC).isoformat()
    monkeypatch.undo()
    for revision, moment in moments.items():
        assert home.json("restore", "s3", "--time", moment)["revision"] == revision


def skewed(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Let the entries that are written from now on have times so many days off."""
    monkeypatch.setattr("disks.object_disk.disk.now", lambda: datetime.now(UTC) + timedelta(days=days))


def test_a_revision_of_several_disks_names_its_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path, "one", capsys, buckets=("s3", "far"))
    home.create()
    for key, disk in ((1, "s3"), (2, "far")):
        home.insert(key)
        home.to_bucket(disk, part=f"all_{key}_{key}_0")
    query = ("query", "SELECT k FROM d.t", "--revision")
    for disk, keys in (("s3", [[1]]), ("far", [[2]])):
        assert home.json(*query, f"{disk}:{home.head(disk)}")["rows"] == keys
    home(*query, "2", code=2)
    assert "--revision far:2" in home.error
    home(*query, "near:2", code=10)
    home(*query, "s3:two", code=2)
    home(*query, "s3:99", code=10)


def test_a_table_that_was_hidden_is_hidden_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A restore took it from one disk, another one from the other: taking the second one back does not bring it back
    beside the table that has its name by now."""
    home = Home(tmp_path, "two", capsys, buckets=("s3", "far"))
    home.create()
    home("restore", "s3", "--revision", "0", "--apply")
    assert home.tables() == []
    home.create()
    home.insert(1)
    home("restore", "far", "--revision", "0", "--apply")
    assert "stays hidden" in home("undo", "far", str(home.head("far")))
    assert home.keys() == [1]
    home("fsck")
    before = home.head("far") - 2
    home("table", "drop", "d.t")
    refused = home("restore", "far", "--revision", str(before))
    assert "another one has that name" in refused
    home("restore", "far", "--revision", str(before), "--apply", code=13)


def test_restoring_a_disk_shows_no_table_hidden_on_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With an older schema, too: else taking it back could not hide the table again.
    A way back of the other disk hides it."""
    home = Home(tmp_path, "two", capsys, buckets=("s3", "far"))
    home.create()
    older = home.head("far")
    home("table", "alter", "d.t", "--add-column", "x:int64")
    home("restore", "s3", "--revision", "0", "--apply")
    for arguments in (("restore", "far", "--revision", str(older)), ("restore", "far", "--revision", "0", "--apply")):
        assert ("stays hidden" in home(*arguments)) == ("0" not in arguments)
        assert home.tables() == []
    home("restore", "far", "--revision", str(older), "--apply")
    assert home.tables() == []
    home("undo", "far", str(home.head("far")))
    assert home.tables() == []
    home("restore", "far", "--revision", str(older), "--table", "d.t", "--apply")
    assert home.tables() == ["d.t"]
    home("fsck")


def test_what_a_restore_says_names_tables_and_parts(home: Home) -> None:
    assert "such as all_1_1_0 of d.t." in home("restore", "s3", "--revision", "1")
    (blob,) = (home.path.parent / "s3").glob("r*-file-*")
    blob.unlink()
    home("fsck", code=4)
    home("table", "drop", "d.t")
    said = home("restore", "s3", "--revision", "2", code=4)
    assert "MISSING    data-0000.parquet of all_1_1_0 of d.t (object r" in said
    assert "1 object that is gone" in said
    assert "store/" not in said


def test_a_restore_that_finds_nothing_to_do_says_so(home: Home) -> None:
    home("--error-on-nothing", "restore", "s3", "--revision", str(home.head()), "--apply", code=9)
    assert "Restored" not in home("restore", "s3", "--revision", str(home.head()), "--apply")
    assert "Nothing to do" in home.error


def test_fsck_finds_nothing_right_after_a_restore(home: Home) -> None:
    before = home.head()
    home("table", "alter", "d.t", "--add-column", "late:int64")
    home("restore", "s3", "--revision", str(before), "--apply")
    home("fsck")


def test_a_preview_says_that_it_would_be_refused(home: Home) -> None:
    before = str(home.head())
    home("table", "drop", "d.t")
    home.create()
    assert "would be refused: revision" in home("restore", "s3", "--revision", before, "--table", "d.t")
    preview = home.json("restore", "s3", "--revision", before, "--table", "d.t")
    assert "another one has that name now" in preview["objection"]
    home("restore", "s3", "--revision", before, "--table", "d.t", "--apply", code=13)


def test_a_preview_says_that_there_is_nothing_to_do(home: Home) -> None:
    head = str(home.head())
    for which in ((), ("--revision", head), ("--revision", head, "--path", "nowhere")):
        preview = home("restore", "s3", *which)
        assert "there is nothing to do" in preview
        assert "--apply" not in preview


def with_times(home: Home) -> None:
    """A table whose rows are of long ago, and one part of it in the bucket."""
    home("table", "create", "d.e", "--column", "k:int64", "--column", "at:timestamp", "--order-by", "k")
    again(home)
    home.to_bucket(table="d.e")


def again(home: Home) -> None:
    """The same file once more."""
    source = home.path / "events.csv"
    source.write_text("k,at\n1,2020-01-01T00:00:00Z\n2,2020-01-01T00:00:00Z\n3,2020-01-01T00:00:00Z\n")
    home("insert", "d.e", str(source))


@pytest.mark.in_turn
@pytest.mark.parametrize("scope", [("--table", "d.e", "--partition", "all"), ("--table", "d.e"), ()])
def test_rows_that_were_inserted_again_do_not_come_twice(home: Home, scope: tuple[str, ...]) -> None:
    """A rule deletes, the file is inserted again as the handbook says, and then the partition is restored, too: six
    rows for three were the answer. I1."""
    with_times(home)
    before = home.head()
    home("table", "alter", "d.e", "--ttl", "10d on at delete")
    altered = home.head()
    home("tick", "--believe-clock")
    home("undo", "s3", str(altered))
    again(home)
    assert home.keys("d.e") == [1, 2, 3]
    restore = ("restore", "s3", "--revision", str(before), *scope)
    preview = home.json(*restore)
    assert [(one["part"], one["why"], one["in"]) for one in preview["left_out"]] == [
        ("all_1_1_0", "again", "all_2_2_0")
    ]
    assert "part all_1_1_0 of d.e were inserted again" in home(*restore)
    home(*restore, "--apply", code=3)
    assert "in part all_2_2_0 on disk ssd" in home.error
    assert "frostline move d.e --part all_2_2_0 --to-disk s3" in home.error
    assert home.keys("d.e") == [1, 2, 3]
    home("move", "d.e", "--part", "all_2_2_0", "--to-disk", "s3")
    home(*restore, "--apply")
    assert home.keys("d.e") == [1, 2, 3]
    assert [part["part"] for part in home.json("parts", "d.e")["parts"]] == ["all_1_1_0"]
    home("fsck")


def test_what_is_on_another_disk_by_now_stays_there(home: Home) -> None:
    """Moved out since, or moved out and merged there: the bucket's copy would be one too many."""
    home.insert(2)
    home.to_bucket(part="all_2_2_0")
    before = str(home.head())
    home("move", "d.t", "--part", "all_1_1_0", "--to-disk", "ssd")
    home("restore", "s3", "--revision", before, "--apply", code=3)
    assert "part all_1_1_0 of d.t is on disk ssd" in home.error
    home("move", "d.t", "--part", "all_2_2_0", "--to-disk", "ssd")
    home("merge", "d.t", "--final")
    home("restore", "s3", "--revision", before, "--apply", code=3)
    assert home.keys() == [1, 2]
    assert {part["disk"] for part in home.json("parts", "d.t", "--all")["parts"]} == {"ssd"}
    home("fsck")


def test_a_part_with_rows_elsewhere_is_refused_and_previewed_so(home: Home) -> None:
    """Some of its rows are elsewhere, and the preview says that it would be refused."""
    home.insert(2)
    home.to_bucket(part="all_2_2_0")
    home("merge", "d.t", "--final", "--cold")
    before = str(home.head())
    assert len(home.json("parts", "d.t")["parts"]) == 1
    home("undo", "s3", before)
    home("move", "d.t", "--part", "all_1_1_0", "--to-disk", "ssd")
    restore = ("restore", "s3", "--revision", before)
    assert "of part all_1_1_0 on disk ssd" in home.json(*restore)["objection"]
    home(*restore, "--apply", code=13)
    assert "frostline move d.t --part all_1_1_0 --to-disk s3" in home.error
    assert home.keys() == [1, 2]
    home("move", "d.t", "--part", "all_1_1_0", "--to-disk", "s3")
    home(*restore, "--apply")
    assert home.keys() == [1, 2]
    home("fsck")


def test_a_restore_from_a_copy_doubles_nothing_either(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Home(tmp_path / "elsewhere", "two", capsys)
    copy = ("restore", "s3", "--from", f"{(tmp_path / 's3').as_uri()}/")
    other(*copy, "--apply")
    other("merge", "d.t", "--adopt")
    other("move", "d.t", "--partition", "all", "--to-disk", "ssd")
    assert [one["why"] for one in other.json(*copy)["left_out"]] == ["merged"]
    other(*copy, "--apply", code=3)
    assert other.keys() == [1]
    other("fsck")


def test_a_preview_of_a_restore_from_a_copy_says_it_is_refused(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Home(tmp_path / "elsewhere", "two", capsys)
    other.create()
    copy = ("restore", "s3", "--from", f"{(tmp_path / 's3').as_uri()}/")
    assert "another one has that name now" in other.json(*copy)["objection"]
    assert "would be refused" in other(*copy)
    other(*copy, "--apply", code=13)


def test_a_restore_from_a_copy_brings_lost_objects_back(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Home(tmp_path / "elsewhere", "two", capsys)
    copy = ("restore", "s3", "--from", f"{(tmp_path / 's3').as_uri()}/")
    other(*copy, "--apply")
    (lost,) = (path for path in (tmp_path / "elsewhere" / "s3").glob("r*-file-*"))
    lost.unlink()
    other("fsck", code=4)
    assert other.json(*copy)["copy"]["objects"] == 1
    other(*copy, "--apply")
    assert other.keys() == [1]
    left = other.json("fsck", code=4)["problems"]
    assert [problem["invariant"] for problem in left] == ["I4"]  # of the revision before, which cannot be had any more
