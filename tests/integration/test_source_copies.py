"""Copies that `move --keep-source` left on a machine, while another machine takes the part off the bucket: they are
outdated at once, and go. Guards I1, I2 and I17. What returns to the machine stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from oplog.entry import now
from tests.homes import Home

Homes = tuple[Home, Home]


@pytest.fixture
def homes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Homes:
    """B inserted a part, moved it to the bucket, and kept its copy."""
    a, b = Home(tmp_path, "a", capsys), Home(tmp_path, "b", capsys)
    a.create()
    b.insert(1, 2)
    keep(b)
    return a, b


def keep(home: Home, disk: str = "s3") -> None:
    home("move", "d.t", "--partition", "all", "--to-disk", disk, "--keep-source")


def copies(home: Home) -> int:
    """Parts on the SSD of the machine."""
    return sum(1 for _ in (home.path / "ssd").glob("store/*/*/all_*/part.json"))


def dropped(a: Home) -> None:
    a("partition", "drop", "d.t", "all")


def replaced(a: Home) -> None:
    source = a.path / "rows.csv"
    source.write_text("k\n9\n")
    a("insert", "d.t", str(source), "--replace-partitions")


def by_ttl(a: Home) -> None:
    a("table", "alter", "d.t", "--add-column", "ts:timestamp[us, UTC]", "--default", "2013-01-01T00:00:00Z")
    a("merge", "d.t", "--adopt")
    a("table", "alter", "d.t", "--ttl", "1d on ts delete")
    a("tick", "--believe-clock")


def merged(a: Home) -> None:
    a("merge", "d.t", "--cold", "--final")


def adopted(a: Home) -> None:
    a("merge", "d.t", "--adopt")


def detached(a: Home) -> None:
    a("partition", "detach", "d.t", "all")


def restored(a: Home) -> None:
    a("restore", "s3", "--revision", str(a.head() - 1), "--apply")


def undone_twice(a: Home) -> None:
    """Dropped, back, and dropped."""
    dropped(a)
    a("undo", "s3", str(a.head()))
    dropped(a)


GONE: list[tuple[Callable[[Home], None], list[int]]] = [
    (dropped, []),
    (replaced, [9]),
    (by_ttl, []),
    (adopted, [1, 2]),
    (detached, []),
    (restored, []),
    (undone_twice, []),
]


@pytest.mark.in_turn
@pytest.mark.parametrize("loses_journal", [False, True], ids=["journal", "no journal"])
@pytest.mark.parametrize(("change", "keys"), GONE, ids=lambda value: getattr(value, "__name__", ""))
def test_what_another_machine_takes_away_stays_away(
    homes: Homes, change: Callable[[Home], None], keys: list[int], loses_journal: bool
) -> None:
    a, b = homes
    change(a)
    if loses_journal:
        shutil.rmtree(b.path / "state")
    assert b.keys() == a.keys() == keys
    assert copies(b) == 0
    assert b.keys() == keys
    assert "recovered" not in b.error, "a second opening does nothing"


def test_an_insert_without_a_look_leaves_the_list_to_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal is lost, and the insert goes by an earlier look: the copy is still found, and no row comes back."""
    a, b = Home(tmp_path, "a", capsys), Home(tmp_path, "b", capsys, look_seconds=100_000)
    a.create()
    b.insert(1, 2)
    keep(b)
    assert b.keys() == [1, 2]
    dropped(a)
    for file in (b.path / "state").glob("journal*"):
        file.unlink()
    b.insert(3)
    assert copies(b) == 2, "nothing went without a look"
    assert b.keys() == [3]
    assert copies(b) == 1


@pytest.mark.in_turn
@pytest.mark.parametrize("change", [dropped, replaced, detached, restored])
def test_an_undo_brings_the_rows_back_once(homes: Homes, change: Callable[[Home], None]) -> None:
    a, b = homes
    before = a.head()
    change(a)
    assert b.keys() == a.keys() != [1, 2]
    for revision in range(a.head(), before, -1):
        a("undo", "s3", str(revision))
    assert b.keys() == a.keys() == [1, 2]


@pytest.mark.in_turn
@pytest.mark.parametrize("change", [dropped, detached])
def test_a_copy_that_nobody_looked_at_is_valid_after_an_undo(homes: Homes, change: Callable[[Home], None]) -> None:
    a, b = homes
    change(a)
    a("undo", "s3", str(a.head()))
    assert b.keys() == a.keys() == [1, 2]
    assert copies(b) == 1


def test_attach_on_the_other_machine_brings_the_rows_back_once(homes: Homes) -> None:
    a, b = homes
    detached(a)
    assert b.keys() == []
    a("partition", "attach", "d.t", "all")
    assert b.keys() == a.keys() == [1, 2]


def test_detach_and_attach_here_keep_the_rows(homes: Homes) -> None:
    a, b = homes
    detached(b)
    assert b.keys() == a.keys() == []
    b("partition", "attach", "d.t", "all")
    assert b.keys() == a.keys() == [1, 2]


@pytest.mark.in_turn
@pytest.mark.parametrize("loses_journal", [False, True], ids=["journal", "no journal"])
def test_a_part_that_moved_back_stays(homes: Homes, loses_journal: bool) -> None:
    """Also when another machine had brought it back to the bucket for a while."""
    a, b = homes
    there = a.head()
    b.to_bucket()
    b.to_bucket("ssd")
    assert (b.keys(), a.keys()) == ([1, 2], [])
    a("restore", "s3", "--revision", str(there), "--apply")
    assert b.keys() == a.keys() == [1, 2]
    dropped(a)
    if loses_journal:
        shutil.rmtree(b.path / "state")
    assert b.keys() == [1, 2], "it had come home before"
    assert copies(b) == 1


@pytest.mark.in_turn
@pytest.mark.parametrize("loses_journal", [False, True], ids=["journal", "no journal"])
def test_the_undo_of_the_move_leaves_the_part_here(homes: Homes, loses_journal: bool) -> None:
    """No other disk has its rows then."""
    a, b = homes
    b("undo", "s3", str(b.head()))
    if loses_journal:
        shutil.rmtree(b.path / "state")
    assert (b.keys(), copies(b)) == ([1, 2], 1)
    keep(b)
    dropped(a)
    assert b.keys() == []


def test_a_move_that_was_interrupted_brings_nothing_back(homes: Homes) -> None:
    """Killed between its two commits: nobody asked for the copy to stay, and it goes as one that was kept."""
    a, b = homes
    b.insert(3)
    name = next(part["part"] for part in b.json("parts")["parts"] if part["rows"] == 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiering.move.mover._remove_from", _full_disk)
        b("move", "d.t", "--part", name, "--to-disk", "s3", code=1)
    dropped(a)
    assert b.keys() == a.keys() == []
    assert copies(b) == 0


def _full_disk(*arguments: object) -> None:
    raise OSError("no space left")


def test_a_damaged_original_leaves_the_copy_valid(homes: Homes, tmp_path: Path) -> None:
    """What a check sets aside is not dropped: the copy is the only one that can be read."""
    a, b = homes
    for blob in (tmp_path / "s3").rglob("r*-file-*"):
        blob.unlink()
    a("fsck", "--repair")
    assert a.json("parts")["parts"] == []
    assert (b.keys(), copies(b)) == ([1, 2], 1)


def test_a_copy_that_came_from_the_bucket_is_outdated_too(homes: Homes) -> None:
    """The other direction: the part was in the bucket alone, and a copy of it was made here."""
    a, b = homes
    b.to_bucket()
    assert copies(b) == 0
    keep(b, "ssd")
    assert copies(b) == 1
    dropped(a)
    assert b.keys() == []
    assert copies(b) == 0


def test_a_bucket_that_cannot_be_reached_hides_it_as_well(
    homes: Homes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once this machine knows that the bucket lacks the part; it goes when the bucket answers."""
    a, b = homes
    dropped(a)
    monkeypatch.setattr("tiering.move.recovery._tidy_copies", lambda context: [])
    assert b.keys() == []
    (tmp_path / "s3").rename(tmp_path / "away")
    (tmp_path / "s3").touch()
    assert b.json("parts")["parts"] == []
    assert "unreachable" in b.error or "s3" in b.error
    (tmp_path / "s3").unlink()
    (tmp_path / "away").rename(tmp_path / "s3")
    monkeypatch.undo()
    assert b.keys() == []
    assert copies(b) == 0


def test_a_cold_merge_of_another_machine_takes_both_copies(homes: Homes) -> None:
    a, b = homes
    b.insert(3)
    keep(b)
    assert copies(b) == 2
    a("merge", "d.t", "--cold", "--final")
    assert b.keys() == a.keys() == [1, 2, 3]
    assert copies(b) == 0


def test_a_restored_backup_brings_rows_that_the_log_has_dropped(homes: Homes, tmp_path: Path) -> None:
    """The bucket has seen the table, so it comes back under another uuid: older commits are not about its parts."""
    _, b = homes
    b("undo", "s3", str(b.head()))  # the backup has the part on the SSD
    with b.configuration.open("a") as file:
        file.write(f"backup: {{repository: '{(tmp_path / 'backups').as_uri()}'}}\n")
    b("backup", "init")
    b("backup", "create", "one")
    keep(b)
    dropped(b)
    b("table", "drop", "d.t")
    b("backup", "restore", "one")
    assert (b.keys(), copies(b)) == ([1, 2], 1)
    shutil.rmtree(b.path / "state")
    assert (b.keys(), copies(b)) == ([1, 2], 1)


def test_a_table_that_is_dropped_takes_the_copy_with_it(homes: Homes) -> None:
    a, b = homes
    a("table", "drop", "d.t")
    assert b.tables() == []
    assert copies(b) == 0


def test_rows_that_were_dropped_can_be_inserted_again(homes: Homes) -> None:
    """The copy does not count as a repetition."""
    a, b = homes
    dropped(a)
    b.insert(1, 2)
    assert b.keys() == [1, 2]


def test_what_the_log_does_not_tell_is_kept_and_said(homes: Homes) -> None:
    """No commit that is kept names the part: nothing proves that it was dropped."""
    a, b = homes
    dropped(a)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiering.catalog.copies.source_copies.copy_history", lambda *arguments, **more: None)
        assert b.keys() == [1, 2]
        assert "is kept and counts" in b.error
    assert b.keys() == []


def two_buckets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Homes:
    """B's part came back from s3, and went to s4 with a copy kept."""
    a, b = (Home(tmp_path, name, capsys, buckets=("s3", "s4")) for name in "ab")
    a.create()
    b.insert(1)
    b.to_bucket("s3")
    b.to_bucket("ssd")
    keep(b, "s4")
    return a, b


@pytest.mark.in_turn
@pytest.mark.parametrize("late", [-3600, 0, 3600])
@pytest.mark.parametrize("loses_journal", [False, True], ids=["journal", "no journal"])
def test_no_clock_decides_which_bucket_had_a_part_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], late: int, loses_journal: bool
) -> None:
    a, b = two_buckets(tmp_path, capsys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("disks.object_disk.disk.now", lambda: now() + timedelta(seconds=late))
        dropped(a)
    if loses_journal:
        shutil.rmtree(b.path / "state")
    assert b.keys() == a.keys() == []
    assert copies(b) == 0


def test_where_no_log_says_what_came_last_the_copy_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after commits of versions that did not note what else they had seen."""
    a, b = two_buckets(tmp_path, capsys)
    dropped(a)
    monkeypatch.setattr("tiering.catalog.copies.source_copies.CopyHistory.is_before", lambda word, other: False)
    assert b.keys() == [1]
    assert "the logs do not say" in b.error
    monkeypatch.undo()
    assert b.keys() == []


def test_a_bucket_that_is_away_hides_no_part_it_never_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A check set the part in s4 aside, so that the copy counts, and s3 does not answer."""
    a, b = two_buckets(tmp_path, capsys)
    for blob in (tmp_path / "s4").rglob("r*-file-*"):
        blob.unlink()
    a("fsck", "--repair")
    (tmp_path / "s3").rename(tmp_path / "away")
    (tmp_path / "s3").touch()
    assert len(b.json("parts")["parts"]) == 1


def test_a_move_to_a_bucket_of_another_machine_is_no_return(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What became of the part there, this machine cannot know: the copy counts, and every command says so."""
    a, b = Home(tmp_path, "a", capsys, buckets=("s3", "s4")), Home(tmp_path, "b", capsys)
    a.create()
    b.insert(1)
    keep(b)
    a.to_bucket("s4")
    for _ in range(2):
        assert b.keys() == [1]
        assert "s4, a disk that is not configured" in b.error


def where(home: Home) -> list[str]:
    return [part["disk"] for part in home.json("parts", "--all")["parts"]]


@pytest.mark.in_turn
@pytest.mark.parametrize("which", [("--partition", "all"), ("--part", "all_1000001_1000001_0")])
def test_a_move_to_the_copy_makes_it_the_part(homes: Homes, which: tuple[str, str]) -> None:
    a, b = homes
    b("move", "d.t", *which, "--to-volume", "hot", "--keep-source", "-n")
    assert "without --keep-source copies on other disks" in b.error
    moved = b.json("move", "d.t", *which, "--to-volume", "hot")["moved"]
    assert [(move["from"], move["to"]) for move in moved] == [("s3", "ssd")]
    assert (where(b), b.keys(), a.keys()) == (["ssd"], [1, 2], [])
    a("partition", "drop", "d.t", "all", code=10)
    shutil.rmtree(b.path / "state")
    assert (b.keys(), copies(b)) == ([1, 2], 1)


def test_a_move_to_the_bucket_removes_the_copy(homes: Homes) -> None:
    a, b = homes
    b.to_bucket()
    assert (where(b), b.keys(), a.keys()) == (["s3"], [1, 2], [1, 2])


@pytest.mark.in_turn
@pytest.mark.parametrize("target", ["s3", "s4", "ssd"])
def test_a_move_takes_every_copy_along(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    """Whether a copy is there already or not, the part is on one disk then."""
    home = Home(tmp_path, "a", capsys, buckets=("s3", "s4", "s5"))
    home.create()
    home.insert(1)
    keep(home, "s3")
    keep(home, "s5")
    assert where(home) == ["ssd", "s3", "s5"]
    home.to_bucket(target)
    assert (where(home), home.keys()) == ([target], [1])
    sent = {path.name for path in (tmp_path / target).glob("r*-file-*")}
    assert len(sent) == (target != "ssd"), "no byte goes twice"
    home("fsck", "--read-data")


def test_a_restore_says_what_becomes_of_a_kept_copy(homes: Homes) -> None:
    """Before the move the bucket had no part; the copy goes with it, and an undo brings the rows back."""
    _, b = homes
    before = str(b.head() - 1)
    (note,) = [note for note in b.json("restore", "s3", "--revision", before)["notes"] if "other disks since" in note]
    assert "only copies" not in note
    assert "off s3; other disks have copies of 1" in note
    b("restore", "s3", "--revision", before, "--apply")
    assert (b.keys(), copies(b)) == ([], 0)
    b("undo", "s3", str(b.head()))
    assert b.keys() == [1, 2]
