"""Files that land become rows, once. Guards P15's promise for inserts: what stops in the middle is neither lost nor
doubled; `tests/crash/test_inbox.py` stops it everywhere."""

from __future__ import annotations

import gzip
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disks import effects
from oplog.errors import NoSpace, Refused
from tests.unit.tiering.daemon.inbox.places import Place
from tests.unit.tiering.daemon.inbox.places import place as place
from tiering.config.settings import InboxConfig
from tiering.daemon.inbox import choice, ingest, reading
from tiering.daemon.inbox.choice import Found, Sight
from tiering.daemon.inbox.inbox import Inbox, Round
from tiering.daemon.inbox.table_inbox import TableInbox
from tiering.engine.store import Table
from tiering.table.definitions import define_table

SETTINGS = InboxConfig(batch_seconds=10, stable_seconds=2, batch_bytes=1000, batch_files=4)


def states(done: Round) -> dict[str, str]:
    return {file.file: file.state for file in done.files}


class TestChoice:
    def test_a_file_is_whole_when_two_looks_see_the_same(self) -> None:
        growing, grown = Found("a", 5, 1, 1), Found("a", 9, 2, 1)
        first = choice.look({}, [growing], 0.0)
        assert not choice.is_whole(growing, first, 0.0, 2.0)
        second = choice.look(first, [grown], 2.0)
        assert not choice.is_whole(grown, second, 2.0, 2.0), "it has grown between the looks"
        third = choice.look(second, [grown], 4.0)
        assert choice.is_whole(grown, third, 4.0, 2.0)
        replaced = Found("a", 9, 2, 77)
        assert not choice.is_whole(replaced, choice.look(third, [replaced], 9.0), 9.0, 2.0), "another file"

    @pytest.mark.parametrize("name", [".hidden", "a.csv.tmp", "a.TMP", "a.part"])
    def test_names_that_wait(self, name: str) -> None:
        assert not choice.is_candidate(name)
        assert choice.is_candidate("a\nb.csv")

    def test_taken_by_bytes_files_and_age_in_name_order(self) -> None:
        def chosen(*files: Found, now: float, since: float = 0.0) -> list[str]:
            sights = {file.name: Sight(file.key, since) for file in files}
            return [file.name for file in choice.choose(files, sights, now, SETTINGS)]

        few = [Found(name, 10, 1, 1) for name in ("b", "a")]
        assert chosen(*few, now=5.0) == [], "they wait for others"
        assert chosen(*few, now=10.0) == ["a", "b"], "for ten seconds"
        assert chosen(Found("b", 600, 1, 1), Found("a", 600, 1, 1), now=3.0) == ["a"], "bytes: enough, one at a time"
        assert chosen(*(Found(str(n), 1, 1, n) for n in range(6)), now=3.0) == ["0", "1", "2", "3"]
        assert chosen(Found("huge", 10**9, 1, 1), now=3.0) == ["huge"]
        assert chosen(Found("a", 600, 1, 1), Found("b", 600, 1, 1), now=1.0) == [], "not whole yet"
        odd = [Found(name, 1, 1, 1) for name in ("z", "a\nb", "\udcff", "é")]
        assert chosen(*odd, now=10.0) == ["a\nb", "z", "é", "\udcff"]


class TestOnce:
    def test_files_go_in_together_with_a_report_beside_each(self, place: Place) -> None:
        place.land("b.csv", 3)
        place.land("a.csv", 1, 2)
        place.land("c.csv.tmp", 9)
        done = place.once()
        assert place.keys() == [1, 2, 3]
        assert (done.rows, len(done.parts), states(done)) == (3, 1, {"a.csv": "done", "b.csv": "done"})
        assert place.files() == ["c.csv.tmp"]
        assert place.files("done") == ["a.csv", "a.csv.report.json", "b.csv", "b.csv.report.json"]
        report = place.report("a.csv")
        assert (report["state"], report["rows"], report["parts"]) == ("done", 2, done.parts)
        assert report["sha256"] == hashlib.sha256((place.home / "done" / "a.csv").read_bytes()).hexdigest()

    def test_every_format_that_insert_knows(self, place: Place) -> None:
        rows = pa.table({"k": pa.array([1], pa.int64())})
        pq.write_table(rows, place.home / "1.parquet")
        with pa.ipc.new_file(place.home / "2.arrow", rows.schema) as writer:
            writer.write(pa.table({"k": pa.array([2], pa.int64())}))
        place.land("3.jsonl", text='{"k": 3}\n')
        (place.home / "4.csv.gz").write_bytes(gzip.compress(b"k\n4\n"))
        place.land("5.tsv", 5)
        assert set(states(place.once()).values()) == {"done"}
        assert place.keys() == [1, 2, 3, 4, 5]

    def test_the_same_bytes_again_are_duplicates(self, place: Place) -> None:
        place.land("a.csv", 1)
        place.land("b.csv", 1)
        assert states(place.once()) == {"a.csv": "done", "b.csv": "duplicate"}
        place.land("c.csv", 1)
        assert states(place.once()) == {"c.csv": "duplicate"}
        assert place.keys() == [1]
        assert place.report("c.csv")["of"] == "a.csv"
        place.land("a.csv", 2)
        place.once()
        assert place.keys() == [1, 2]
        assert "a.csv.2" in place.files("done"), "an earlier file keeps its name"

    def test_one_bad_file_does_not_fail_the_others(self, place: Place) -> None:
        place.land("a.csv", 1)
        place.land("b.csv", 2, "three")
        place.land("c.csv", text="other\n1\n")
        place.land("d.txt", 4)
        place.land("e.csv", text="")
        place.land("f.parquet", text="PAR1 and no more")
        place.land("g.csv", 7)
        done = place.once()
        assert place.keys() == [1, 7]
        assert sorted(name for name, state in states(done).items() if state == "failed") == [
            "b.csv",
            "c.csv",
            "d.txt",
            "e.csv",
            "f.parquet",
        ]
        assert "line 3" in place.report("b.csv", "failed")["error"]
        assert not list((place.home / ".taken").iterdir())

    def test_a_copy_of_a_file_that_fails_fails_as_well(self, place: Place) -> None:
        place.land("a.csv", "x")
        place.land("b.csv", "x")
        assert states(place.once()) == {"a.csv": "failed", "b.csv": "failed"}

    def test_what_the_table_refuses_fails_alone(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch that an insert refuses is taken apart."""
        for key in (1, 2, 3):
            place.land(f"{key}.csv", key)
        original = Table.insert

        def insert(self: Table, batches: Any) -> Any:
            rows = list(batches)
            if any(2 in batch.column("k").to_pylist() for batch in rows):
                raise FrostlineErrorOfUse("2 is not for this table")
            return original(self, rows)

        monkeypatch.setattr(Table, "insert", insert)
        assert states(place.once()) == {"1.csv": "done", "2.csv": "failed", "3.csv": "done"}
        monkeypatch.undo()
        assert place.keys() == [1, 3]

    def test_a_table_that_cannot_be_written_keeps_its_files(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is lost, the others go on, and the next run goes on where this one stopped."""
        place.land("a.csv", 1)
        with monkeypatch.context() as patch:

            def insert(self: Table, batches: Any) -> Any:
                list(batches)
                raise NoSpace("no space left on device: ssd")

            patch.setattr(Table, "insert", insert)
            done = place.once()
        assert [problem.what for problem in done.problems] == ["no space left on device: ssd"]
        assert place.inbox.waiting == {"d.t": "d.t: no space left on device: ssd"}
        assert place.files("done") == place.files("failed") == []
        assert states(place.once()) == {"a.csv": "done"}
        assert place.keys() == [1]
        assert place.inbox.waiting == {}

    def test_a_full_failed_keeps_the_bad_file_and_no_other(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        place.land("a.csv", "one")
        place.land("b.csv", 2)
        place.land("c.csv", "three")
        write = effects.write_new_file

        def full(path: Path, data: bytes) -> None:
            if path.parent.name == "failed":
                raise NoSpace(f"no space left on device: {path}")
            write(path, data)

        with monkeypatch.context() as patch:
            patch.setattr(effects, "write_new_file", full)
            done = place.once()
        assert states(done) == {"b.csv": "done"}
        assert "no space left on device: " in place.inbox.waiting["d.t"]
        assert (place.files(".taken"), place.files("failed")) == (["a.csv", "c.csv"], [])
        assert states(place.once()) == {"a.csv": "failed", "c.csv": "failed"}
        assert place.keys() == [2]
        assert place.inbox.waiting == {}


class FrostlineErrorOfUse(ingest.UsageError):
    """A refusal that only the insert knows of."""


class TestWhileItIsRead:
    @pytest.mark.in_turn
    @pytest.mark.parametrize("change", ["grows", "shrinks", "goes", "is replaced"])
    def test_a_file_that_changes_waits_again(self, place: Place, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
        """Whoever wrote it had it open still, and wrote on after it was taken."""
        place.land("a.csv", 1, 2)
        place.land("b.csv", 7)
        taken = place.home / ".taken" / "a.csv"
        original = reading.digest_of
        changes: dict[str, Callable[[], object]] = {
            "grows": lambda: taken.write_text("k\n1\n2\n3\n"),
            "shrinks": lambda: os.truncate(taken, 4),
            "goes": taken.unlink,
            "is replaced": lambda: (taken.unlink(), taken.write_text("k\n5\n6\n")),
        }

        def digest_of(path: Path, *more: Any) -> str:
            found = original(path, *more)
            if path == taken:
                changes[change]()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(reading, "digest_of", digest_of)
            place.inbox.look()
            place.clock.wait(2)
            done = place.inbox.round(at_once=True)
        assert states(done) == {"b.csv": "done"}
        assert place.keys() == [7]
        place.once()
        expected = {"grows": [1, 2, 3, 7], "shrinks": [1, 7], "goes": [7], "is replaced": [5, 6, 7]}
        assert place.keys() == expected[change]

    @pytest.mark.parametrize("within", ["the digest", "the first reading", "the insert"])
    def test_a_stop_ends_within_a_file_and_the_next_run_goes_on(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, within: str
    ) -> None:
        """A file of 10 GB is read for minutes, twice where its rows are too many to keep."""
        monkeypatch.setattr(reading, "KEPT_BYTES", 0)
        place.land("a.csv", *range(9))
        stop, began = threading.Event(), list[str]()

        def opened(*arguments: Any) -> Iterator[pa.RecordBatch]:
            began.append("the first reading" if not began else "the insert")
            for key in range(9):
                if key == 5 and began[-1] == within:
                    stop.set()
                assert key < 7 or not stop.is_set(), "it read on"
                yield pa.record_batch({"k": pa.array([key], pa.int64())})

        monkeypatch.setattr(reading, "_rows", opened)
        inbox = Inbox(place.store, place.settings, stop, clock=place.clock)
        inbox.look()
        place.clock.wait(2)
        if within == "the digest":
            monkeypatch.setattr(reading, "_BLOCK", 1)
            original = TableInbox.take

            def take(*given: Any) -> None:
                original(*given)
                stop.set()

            monkeypatch.setattr(TableInbox, "take", take)
        done = inbox.round()
        assert stop.is_set()
        assert (done.files, done.problems, inbox.waiting) == ([], [], {})
        assert place.files(".taken") == ["a.csv"]
        assert place.keys() == []
        monkeypatch.undo()
        assert states(place.once()) == {"a.csv": "done"}
        assert place.keys() == list(range(9))

    def test_a_mapped_file_is_no_way_to_read(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """Made shorter under a mapping, it would end the process with SIGBUS."""
        pq.write_table(pa.table({"k": pa.array([1], pa.int64())}), place.home / "a.parquet")

        def refuse(*arguments: object) -> None:
            raise AssertionError("mapped")

        monkeypatch.setattr(pa, "memory_map", refuse)
        assert states(place.once()) == {"a.parquet": "done"}


class TestHostile:
    def test_links_directories_and_strangers_are_named_and_left(self, place: Place, tmp_path: Path) -> None:
        secret = tmp_path / "secret.csv"
        secret.write_text("k\n666\n")
        (place.home / "link.csv").symlink_to(secret)
        os.mkfifo(place.home / "pipe.csv")
        (place.home / "sub").mkdir()
        (tmp_path / "inbox" / "loose.csv").write_text("k\n1\n")
        (tmp_path / "inbox" / "other.table").mkdir()
        (tmp_path / "inbox" / "linked").symlink_to(tmp_path)
        place.land("a.csv", 1)
        done = place.once()
        assert states(done) == {"a.csv": "done"}
        assert place.keys() == [1]
        named = {(problem.table, problem.file) for problem in done.problems}
        assert named == {
            *(("d.t", name) for name in ("link.csv", "pipe.csv", "sub")),
            *(("", name) for name in ("loose.csv", "linked")),
            ("other.table", ""),
        }
        assert secret.read_text() == "k\n666\n"

    @pytest.mark.parametrize("name", ["done", ".taken"])
    def test_a_link_for_done_or_taken_leads_nowhere(self, place: Place, tmp_path: Path, name: str) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        link = place.home / name
        link.symlink_to(elsewhere)
        place.land("a.csv", 1)
        assert "symbolic link" in place.once().problems[0].what
        assert not list(elsewhere.iterdir())
        link.unlink()
        place.once()
        assert place.keys() == [1]
        assert "a.csv" in place.files("done")

    def test_a_link_for_the_inbox_is_refused(self, place: Place, tmp_path: Path) -> None:
        (tmp_path / "linked").symlink_to(tmp_path / "inbox")
        with pytest.raises(Refused, match="symbolic link"):
            Inbox(place.store, InboxConfig(path=str(tmp_path / "linked"))).look()

    def test_names_that_no_line_and_no_text_can_hold(self, place: Place) -> None:
        names = ["a\nb.csv", "-.csv", "*.csv", "é" * 120 + ".csv", os.fsdecode(b"\xff.csv")]
        for number, name in enumerate(names):
            place.land(name, number)
        done = states(place.once())
        assert done.pop("\\xff.csv") == "failed", "a name that is no text is named, and its file kept"
        assert set(done.values()) == {"done"}
        assert place.keys() == [0, 1, 2, 3]
        assert len(place.files("done")) == 2 * 4
        assert len(place.files("failed")) == 2


class TestGoingOn:
    def test_an_altered_table_makes_nothing_twice(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """The process dies after the commit; before the next one the table is altered: an insert would not know its own
        blocks again."""
        place.land("a.csv", 1)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ingest.TableIngest, "_is_in", interrupt)
            place.once()
        assert place.keys() == [1]
        old = place.store.definition("d.t")
        place.store.alter_table(old, msgspec.structs.replace(old, schema_version=2))
        done = Inbox(place.store, place.settings, clock=place.clock).once(wait=place.clock.wait)
        assert states(done) == {"a.csv": "failed"}
        assert "was altered since" in place.report("a.csv", "failed")["error"]
        assert place.keys() == [1]

    def test_a_file_changed_after_the_crash_is_not_the_old_one(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place.land("a.csv", 1)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ingest.TableIngest, "_is_in", interrupt)
            place.once()
        (place.home / ".taken" / "a.csv").write_text("k\n1\n2\n")
        assert states(place.once()) == {"a.csv": "failed"}
        assert place.keys() == [1]

    def test_a_record_that_cannot_be_read_stops_this_table_alone(self, place: Place) -> None:
        (place.home / ".batch.json").write_text("{")
        place.land("a.csv", 1)
        other = place.root / "inbox" / "d.u"
        other.mkdir()
        place.store.create_table(define_table("d.u", columns=["k:int64"], order_by="k", policy="hot_cold"))
        (other / "b.csv").write_text("k\n1\n")
        done = place.once()
        assert states(done) == {"b.csv": "done"}
        assert ".batch.json cannot be read" in done.problems[0].what
        assert place.keys() == []

    def test_a_table_without_a_window_is_refused(self, place: Place) -> None:
        made = define_table("d.w", columns=["k:int64"], order_by="k", policy="hot_cold")
        place.store.create_table(
            msgspec.structs.replace(made, settings=msgspec.structs.replace(made.settings, deduplication_window=0))
        )
        home = place.root / "inbox" / "d.w"
        home.mkdir()
        (home / "a.csv").write_text("k\n1\n")
        done = place.once()
        assert "deduplication_window 0" in done.problems[0].what
        assert not place.store.parts("d.w")


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt
