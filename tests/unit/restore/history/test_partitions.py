"""Partitions are listed, dropped, detached and attached by the command line; no row is lost or doubled by it.

Guards I1 (a part on exactly one disk) and I2 (all or nothing on a disk)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from disks.local.disk import LocalDisk
from oplog.errors import Conflict, FrostlineError
from restore.history import partitions
from tests.homes import Home
from tiering.config.reading import load
from tiering.engine.store import Store

JANUARY, FEBRUARY = "20260101", "20260201"


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    """January lies on the SSD and in the bucket, February on the SSD."""
    one = Home(tmp_path, "one", capsys)
    one(
        *("table", "create", "d.t", "--column", "day:date", "--column", "k:int64"),
        *("--order-by", "k", "--partition-by", "day(day)"),
    )
    add(one, "2026-01-01", 1, 2, 3)
    one("move", "d.t", "--partition", JANUARY, "--to-disk", "s3")
    add(one, "2026-01-01", 4, 5)
    add(one, "2026-02-01", 6)
    return one


def add(home: Home, day: str, *keys: int) -> None:
    source = home.path / "rows.csv"
    source.write_text("\n".join(["day,k", *(f"{day},{key}" for key in keys)]))
    home("insert", "d.t", str(source))


def keys(home: Home) -> list[int]:
    return [row[0] for row in home.json("query", "SELECT k FROM d.t ORDER BY k")["rows"]]


def test_list_shows_what_lies_where(home: Home) -> None:
    document = home.json("partition", "list", "d.t")
    assert [(entry["partition"], entry["parts"], entry["rows"]) for entry in document["partitions"]] == [
        (JANUARY, 2, 5),
        (FEBRUARY, 1, 1),
    ]
    january = document["partitions"][0]
    assert set(january["bytes_by_disk"]) == {"ssd", "s3"}
    assert sum(january["bytes_by_disk"].values()) == january["bytes"]
    assert (january["min_time"], january["max_time"]) == ("2026-01-01", "2026-01-01")
    assert document["detached"] == []
    home("partition", "list", "d.nope", code=10)


def test_detached_is_in_no_answer_and_comes_back(home: Home) -> None:
    before = home.json("parts")["parts"]
    dry = home.json("partition", "detach", "d.t", JANUARY, "-n")
    assert (dry["rows"], dry["dry_run"], dry["revisions"]) == (5, True, {})
    assert keys(home) == [1, 2, 3, 4, 5, 6]

    done = home.json("partition", "detach", "d.t", JANUARY)
    assert (done["rows"], {part["disk"] for part in done["parts"]}) == (5, {"ssd", "s3"})
    assert keys(home) == [6]
    home("fsck")
    home("gc", "--delete")
    (aside,) = home.json("partition", "list", "d.t")["detached"]
    assert (aside["partition"], aside["parts"], aside["rows"]) == (JANUARY, 2, 5)
    assert "detached" in home("partition", "list", "d.t")

    dry = home.json("partition", "attach", "d.t", JANUARY, "-n")
    assert (dry["rows"], dry["dry_run"]) == (5, True)
    assert home.json("partition", "attach", "d.t", JANUARY)["rows"] == 5
    assert keys(home) == [1, 2, 3, 4, 5, 6]
    strip = [{**part, "revision": None} for part in home.json("parts")["parts"]]
    assert strip == [{**part, "revision": None} for part in before]
    home("partition", "attach", "d.t", JANUARY, code=10)
    home("fsck", "--read-data")


def test_what_was_merged_round_it_hides_no_row_of_it(home: Home) -> None:
    """A part within the block range of one that was merged meanwhile, and did not go into it, answers again."""
    home("partition", "detach", "d.t", FEBRUARY)
    add(home, "2026-02-01", 7)
    add(home, "2026-02-01", 8)
    home("merge", "d.t", "--partition", FEBRUARY, "--final")
    home("partition", "attach", "d.t", FEBRUARY)
    assert keys(home) == [1, 2, 3, 4, 5, 6, 7, 8]
    home("merge", "d.t", "--partition", FEBRUARY, "--final")
    assert keys(home) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_copies_that_a_merge_replaced_do_not_answer_in_its_place(home: Home) -> None:
    """What is left of the inputs of a merge while somebody reads them goes before the part that hides it."""
    (part,) = [part["part"] for part in home.json("parts")["parts"] if part["partition"] == FEBRUARY]
    (place,) = (home.path / "ssd").rglob(part)
    shutil.copytree(place, home.path / "kept")
    add(home, "2026-02-01", 7)
    home("merge", "d.t", "--partition", FEBRUARY, "--final")
    with Store.open(load(home.configuration)) as store:
        shutil.copytree(home.path / "kept", place, dirs_exist_ok=True)
        store.refresh()
        assert "outdated" in {stored.state for stored in store.parts("d.t", include_outdated=True)}
        partitions.detach(store.context, store.definition("d.t"), FEBRUARY)
        assert {stored.name.partition for stored in store.parts("d.t", include_outdated=True)} == {JANUARY}
    assert keys(home) == [1, 2, 3, 4, 5]
    home("partition", "attach", "d.t", FEBRUARY)
    assert keys(home) == [1, 2, 3, 4, 5, 6, 7]


def test_rows_that_were_inserted_again_are_not_doubled(home: Home) -> None:
    home("partition", "detach", "d.t", FEBRUARY)
    add(home, "2026-02-01", 6)
    for dry in ([], ["-n"]):
        home("partition", "attach", "d.t", FEBRUARY, *dry, code=13)
        assert "inserted again" in home.error
    assert keys(home) == [1, 2, 3, 4, 5, 6]


def test_what_a_crash_left_between_disks_is_done_by_a_repeat(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket first; then the local disk fails. Each way all rows of a disk are here or there, and again does it."""

    def fail(disk: object, *given: object, **named: object) -> None:
        raise FrostlineError("the power went")

    for verb, half, whole in (("detach", [4, 5, 6], [6]), ("attach", [1, 2, 3, 6], [1, 2, 3, 4, 5, 6])):
        with monkeypatch.context() as patched:
            patched.setattr(LocalDisk, "transaction", fail)
            home("partition", verb, "d.t", JANUARY, code=1)
        assert keys(home) == half
        home("partition", verb, "d.t", JANUARY)
        assert keys(home) == whole


@pytest.mark.in_turn
def test_undo_takes_back_what_was_done_to_a_bucket(home: Home) -> None:
    detached = home.json("partition", "detach", "d.t", JANUARY)["revisions"]["s3"]
    home("undo", "s3", str(detached))
    assert keys(home) == [1, 2, 3, 6]
    home("partition", "attach", "d.t", JANUARY)
    assert keys(home) == [1, 2, 3, 4, 5, 6]


def test_drop_asks_and_says_how_to_take_it_back(home: Home) -> None:
    assert home.json("partition", "drop", "d.t", JANUARY, "-n")["rows"] == 5
    assert keys(home) == [1, 2, 3, 4, 5, 6]
    said = home("partition", "drop", "d.t", JANUARY)
    assert "5 rows" in said
    assert keys(home) == [6]
    revision = next(line.split()[3].rstrip("'") for line in said.splitlines() if "'frostline undo s3" in line)
    home("undo", "s3", revision)
    assert keys(home) == [1, 2, 3, 6]
    home("partition", "drop", "d.t", "20270101", code=10)
    assert FEBRUARY in home.error


def test_drop_without_a_yes_is_refused(home: Home) -> None:
    from tiering.cli import main as cli

    assert cli.run(["-c", str(home.configuration), "partition", "drop", "d.t", JANUARY]) == 13
    assert keys(home) == [1, 2, 3, 4, 5, 6]


def test_a_part_that_moves_is_not_taken_away_from_under_it(home: Home) -> None:
    with Store.open(load(home.configuration)) as store:
        definition = store.definition("d.t")
        (part,) = [stored for stored in store.parts("d.t") if stored.name.partition == FEBRUARY]
        with store.context.journal.claim(definition.uuid, [part.facts.name], "move"):
            home("partition", "detach", "d.t", FEBRUARY, code=11)
            home("partition", "drop", "d.t", FEBRUARY, code=11)
        assert [found.partition for found in partitions.detached_parts(store.context, definition)] == []
    assert keys(home) == [1, 2, 3, 4, 5, 6]


def test_the_same_rows_are_not_inserted_and_attached_at_once(home: Home) -> None:
    home("partition", "detach", "d.t", FEBRUARY)
    with Store.open(load(home.configuration)) as store:
        definition = store.definition("d.t")
        (found,) = partitions.detached_parts(store.context, definition)
        inserting = [f"digest-{FEBRUARY}-{digest}" for digest in found.part.digests]
        with store.context.journal.claim(definition.uuid, inserting, "insert"):
            home("partition", "attach", "d.t", FEBRUARY, code=11)
    assert keys(home) == [1, 2, 3, 4, 5]


def test_attaching_twice_at_once_attaches_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes second finds nothing, though it looked before the first had begun."""
    home("partition", "detach", "d.t", FEBRUARY)
    with Store.open(load(home.configuration)) as store:
        definition = store.definition("d.t")
        seen = partitions.attachable(store.context, definition, FEBRUARY)
        home("partition", "attach", "d.t", FEBRUARY)
        monkeypatch.setattr(partitions, "attachable", lambda context, definition, partition: seen)
        with pytest.raises(Conflict):
            partitions.attach(store.context, definition, FEBRUARY)
    assert keys(home) == [1, 2, 3, 4, 5, 6]


@pytest.mark.in_turn
def test_what_is_detached_twice_comes_back_once(home: Home) -> None:
    """Files of a detached part were attached, and detached again with what else there was: its rows are in two parts
    then. Also where these were merged with others meanwhile, and where they were not both whole."""
    home("partition", "detach", "d.t", JANUARY)
    (file,) = (home.path / "ssd").glob(f"store/*/*/detached/{JANUARY}_*/data-*.parquet")
    home("partition", "attach", "d.t", str(file))
    assert keys(home) == [4, 5, 6]
    home("partition", "detach", "d.t", JANUARY)
    home("partition", "attach", "d.t", JANUARY)
    assert keys(home) == [1, 2, 3, 4, 5, 6]

    home("partition", "detach", "d.t", JANUARY)
    home("partition", "attach", "d.t", str(file))
    add(home, "2026-01-01", 7)
    home("merge", "d.t", "--final")
    assert keys(home) == [4, 5, 6, 7]
    home("partition", "detach", "d.t", JANUARY)
    home("partition", "attach", "d.t", JANUARY)
    assert keys(home) == [1, 2, 3, 4, 5, 6, 7]
    home("fsck", "--read-data")


def data_file(home: Home, disk: str) -> Path:
    """The data file of January on the disk."""
    if disk == "ssd":
        return next((home.path / "ssd").glob(f"store/*/*/{JANUARY}_*/*.parquet"))
    files = [path for path in home.path.parent.rglob("*-file-*") if path.read_bytes()[:4] == b"PAR1"]
    return files[0]


@pytest.mark.in_turn
@pytest.mark.parametrize("disk", ["ssd", "s3"])
def test_what_a_repair_set_aside_is_attached_again(home: Home, disk: str) -> None:
    """I1: once its file is back, by its partition; until then it is refused, and says which file."""
    path = data_file(home, disk)
    data = path.read_bytes()
    path.unlink()
    home("fsck", "--repair")
    if disk == "ssd":
        (aside,) = (home.path / "ssd").glob(f"store/*/*/detached/missing_{JANUARY}*")
        path = aside / path.name
    staying = keys(home)
    assert len(staying) < 6
    assert "brings it back" not in home("fsck")
    for dry in ((), ("-n",)):
        home("partition", "attach", "d.t", JANUARY, *dry, code=13)
        assert "data-0000.parquet" in home.error
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    home("partition", "attach", "d.t", JANUARY, code=13)
    assert "SHA-256" in home.error
    path.write_bytes(data)
    assert f"'frostline partition attach d.t {JANUARY}' brings it back" in home("fsck")
    (attachable,) = home.json("fsck")["attachable"]
    assert (attachable["table"], attachable["partition"]) == ("d.t", JANUARY)
    assert f"/detached/missing_{JANUARY}" in attachable["path"]
    home("partition", "attach", "d.t", JANUARY)
    assert keys(home) == [1, 2, 3, 4, 5, 6]
    assert home.json("fsck", "--read-data")["set_aside"] == []
    home("partition", "attach", "d.t", JANUARY, code=10)


@pytest.mark.in_turn
def test_rows_that_were_inserted_again_are_not_attached(home: Home) -> None:
    """I1: what was set aside is back by another way."""
    path = data_file(home, "ssd")
    data = path.read_bytes()
    path.unlink()
    home("fsck", "--repair")
    add(home, "2026-01-01", 4, 5)
    home("fsck")
    for aside in (home.path / "ssd").glob("store/*/*/detached/missing_*"):
        (aside / "data-0000.parquet").write_bytes(data)
    home("partition", "attach", "d.t", JANUARY, code=13)
    assert keys(home) == [1, 2, 3, 4, 5, 6]


def test_a_detached_partition_comes_back_without_what_is_broken(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """I1: of two parts one was set aside, and the other detached."""
    data_file(home, "ssd").unlink()
    home("fsck", "--repair")
    home("partition", "detach", "d.t", JANUARY)
    home("partition", "attach", "d.t", JANUARY)
    assert "stays set aside" in caplog.text
    assert keys(home) == [1, 2, 3, 6]
