"""What is said is the case, and what is written in the documentation is done. What was done, and what is answered:

| what was done | what used to happen | what is answered |
|---|---|---|
| a directory bucket on a file system mounted read-only | a wrong SHA-256 on the SSD | exit 12, which names it |
| `conditional_put: no` on a directory bucket | a live lease of another machine was passed over | exit 11 |
| a bit of an object is turned over, `fsck --repair` | nothing, and no word of it | a word on `--read-data` |
| a part was set aside by a repair, then a query | fewer rows, and no word of it | beside the rows what is missing |
| the home of a store is gone, or `FROSTLINE_HOME` wrong | a new empty store, fsck clean | that there is none, fsck 4 |
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from tests.command_line import Frostline
from tests.crash.harness import hooked
from tiering.config.reading import load
from tiering.engine.store import Store

COUNT = "select count(*) from d.t"


def count(frostline: Frostline, *more: str) -> int:
    return int(frostline.json("query", COUNT, *more)["rows"][0][0])


@pytest.fixture
def store(frostline: Frostline, home: Path) -> Frostline:
    """300 rows in three partitions: one is in the bucket, two are on the SSD."""
    Path("rows.csv").write_text("ts,n\n" + "".join(f"2026-0{1 + n % 3}-01T00:00:00Z,{n}\n" for n in range(300)))
    frostline(
        *("table", "create", "d.t", "--column", "ts:timestamp[us, UTC]", "--column", "n:int64"),
        *("--order-by", "n", "--partition-by", "month(ts)"),
    )
    frostline("insert", "d.t", "rows.csv")
    frostline("move", "d.t", "--partition", "202601", "--to-disk", "s3")
    return frostline


def _failing(below: Path, number: int) -> Callable[[Literal["before", "after"], str, tuple[object, ...]], None]:
    """A file system that answers every change of what lies below the directory with an error."""

    def refuse(phase: Literal["before", "after"], name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name.startswith("fs.") and arguments and str(arguments[0]).startswith(str(below)):
            raise OSError(number, os.strerror(number), str(arguments[0]))

    return refuse


class TestReadOnlyBucket:
    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("number", "said", "code"), [(errno.EROFS, "mounted read-only", 13), (errno.EIO, "Input/output error", 1)]
    )
    def test_is_told_as_such(self, home: Path, store: Frostline, number: int, said: str, code: int) -> None:
        with hooked(_failing(home / "bucket", number)):
            printed = store("move", "d.t", "--partition", "202602", "--to-disk", "s3", code=code)
            assert said in printed
            assert "SHA-256" not in printed + store.error
            store("snapshot", "s3", code=code)
            assert count(store) == 300
        assert count(store) == 300
        assert store.json("fsck", "--read-data")["ok"]

    def test_what_a_dead_writer_left_there_stops_no_reader(self, home: Path, store: Frostline) -> None:
        left = home / "bucket" / "store" / ".incoming" / "elsewhere.1.0.tmp"
        left.write_bytes(b"half")
        os.utime(left, (0, 0))
        with hooked(_failing(home / "bucket", errno.EROFS)):
            assert count(store) == 300
        assert left.exists()
        assert count(store) == 300
        assert not left.exists()


@pytest.mark.in_turn
def test_a_lease_on_a_directory_bucket_keeps_others_away(
    home: Path, store: Frostline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROSTLINE_DISKS__S3__CONDITIONAL_PUT", "no")
    store("move", "d.t", "--partition", "202602", "--to-disk", "s3")
    assert list((home / "bucket" / "store" / "lease").iterdir())
    monkeypatch.setenv("FROSTLINE_DISKS__S3__URL", f"file://{home}/bucket/store/")
    monkeypatch.setenv("FROSTLINE_HOME", str(home.with_name("other machine")))
    assert count(store) == 200
    store("table", "alter", "d.t", "--add-column", "more:int64", code=11)
    monkeypatch.setenv("FROSTLINE_HOME", str(home))
    store("table", "alter", "d.t", "--add-column", "more:int64")


class TestRepair:
    """A repair goes by what was found; what it takes out of answers, answers tell."""

    @pytest.fixture
    def altered(self, home: Path, store: Frostline) -> Path:
        """An object, in the middle of which one bit is another."""
        (path,) = (home / "bucket" / "store").glob("r*-file-*")
        path.write_bytes(_flipped(path.read_bytes()))
        return path

    def test_without_reading_says_that_it_did_not_read(self, store: Frostline, altered: Path) -> None:
        store("fsck", "--repair")
        assert "--read-data" in store.error
        store("query", "select sum(n) from d.t", code=1)
        assert "fsck s3 --read-data" in store.error

    def test_with_reading_sets_aside_and_answers_tell(self, store: Frostline, altered: Path) -> None:
        store("fsck", "--read-data", "--repair")
        assert "--read-data" not in store.error
        gap = {"table": "d.t", "disk": "s3", "part": "202601_1_1_0", "reason": "altered", "rows": 100}
        document = store.json("query", COUNT)
        assert (document["rows"], document["parts_set_aside"]) == ([[200]], [gap])
        assert "1 part of d.t on disk s3 with 100 rows" in store.error
        for verb in ("parts", "du", "status"):
            assert store.json(verb)["parts_set_aside"] == [gap]
        for format_name in ("csv", "table"):
            store("query", COUNT, "--output-format", format_name)
            assert "set aside" in store.error
        store("query", COUNT, "-o", "answer.json")
        assert json.loads(Path("answer.json").read_bytes())["parts_set_aside"] == [gap]

    def test_the_past_tells_its_own_gaps(self, store: Frostline, altered: Path) -> None:
        store("fsck", "--read-data", "--repair")
        newest = store.json("log", "s3")["entries"][-1]["revision"]
        altered.write_bytes(_flipped(altered.read_bytes()))
        assert "parts_set_aside" not in store.json("query", COUNT, "--revision", str(newest - 1))
        assert len(store.json("query", COUNT, "--revision", str(newest))["parts_set_aside"]) == 1

    def test_a_query_of_another_table_says_nothing(self, store: Frostline, altered: Path) -> None:
        store("table", "create", "d.u", "--column", "n:int64", "--order-by", "n")
        store("fsck", "--read-data", "--repair")
        assert "parts_set_aside" not in store.json("query", "select count(*) from d.u")
        assert "set aside" not in store.error

    @pytest.mark.in_turn
    @pytest.mark.parametrize("back", ["undo", "insert"])
    def test_a_gap_is_closed_when_the_rows_are_back(self, store: Frostline, altered: Path, back: str) -> None:
        store("fsck", "--read-data", "--repair")
        if back == "undo":
            altered.write_bytes(_flipped(altered.read_bytes()))
            store("undo", "s3", str(store.json("log", "s3")["entries"][-1]["revision"]), "-y")
        else:
            store("insert", "d.t", "rows.csv")
        document = store.json("query", COUNT)
        assert document["rows"] == [[300]]
        assert "parts_set_aside" not in document

    def test_on_a_local_disk_and_of_what_cannot_be_counted(self, home: Path, store: Frostline) -> None:
        (part,) = (home / "ssd" / "store").glob("*/*/202602_*")
        (part / "part.json").write_bytes(b"{")
        store("fsck", "--repair")
        (gap,) = store.json("query", COUNT)["parts_set_aside"]
        assert (gap["disk"], gap["reason"], gap["rows"]) == ("ssd", "broken", None)
        assert "0 rows or more" in store.error

    def test_programs_are_warned(self, store: Frostline, altered: Path, caplog: pytest.LogCaptureFixture) -> None:
        store("fsck", "--read-data", "--repair")
        with Store.open(load()) as opened:
            assert opened.table("d.t").scan().read_all().num_rows == 200
        assert "202601_1_1_0 of d.t are missing" in caplog.text


class TestNoStore:
    """A home that is not there may be a mistake: whoever only reads says so and makes nothing."""

    def reads(self, frostline: Frostline, home: Path) -> None:
        """What every reading verb says; nothing is there afterwards."""
        for text in ("status", "parts", "disks", "table list", "du", "plan", "tick", "gc", "log s3", "moves list"):
            verb = text.split()
            frostline(*verb)
            assert "there is no store" in frostline.error, verb
            assert str(home) in frostline.error, verb
            assert "table create" in frostline.error, verb
            document = frostline.json(*verb)
            assert "there is no store" in document["no_store"], verb
            assert "there is no store" not in frostline.error, verb
        for verb in (["query", COUNT], ["table", "show", "d.t"], ["insert", "d.t", "rows.csv"], ["move", "d.t"]):
            arguments = [*verb, "--partition", "1", "--to-disk", "s3"] if verb[0] == "move" else verb
            error = json.loads((frostline(*arguments, "--json", code=10), frostline.error)[1])["error"]
            assert "FROSTLINE_HOME" in error["hint"], verb
        checked = frostline.json("fsck", code=4)
        assert [problem["invariant"] for problem in checked["problems"]] == ["I16"]
        assert "there is no store" in checked["problems"][0]["what"]
        assert "FROSTLINE_HOME" in (frostline("fsck", code=4), frostline.error)[1]
        frostline("fsck", "--repair", code=4)
        frostline("restore", "s3")
        assert not home.exists()

    @pytest.mark.in_turn
    def test_before_the_first_table(self, frostline: Frostline, home: Path) -> None:
        Path("rows.csv").write_text("n\n1\n")
        self.reads(frostline, home)
        frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n", "-n")
        assert not home.exists()
        frostline("table", "create", "d.t", "--column", "n:int64", "--order-by", "n")
        assert "there is no store" not in frostline.error
        assert "no_store" not in frostline.json("status")
        assert frostline.json("fsck")["ok"]

    @pytest.mark.in_turn
    def test_a_home_that_went_away(self, home: Path, store: Frostline) -> None:
        home.rename(home.with_name("away"))
        self.reads(store, home)
        home.with_name("away").rename(home)
        assert count(store) == 300

    def test_a_lost_state_is_no_lost_store(self, home: Path, store: Frostline) -> None:
        shutil.rmtree(home / "state")
        assert "no_store" not in store.json("status")
        assert (home / "state").exists()

    def test_a_pause_before_the_first_table_is_kept(self, frostline: Frostline) -> None:
        frostline("pause", "--moves")
        assert len(frostline.json("status")["pauses"]) == 1


def _flipped(data: bytes) -> bytes:
    turned = bytearray(data)
    turned[len(turned) // 2] ^= 1
    return bytes(turned)
