"""Moves on real disks: a directory as SSD, a directory bucket as S3. Guards I1, I2, I4, I14, P14 to P17 and P19."""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from disks import effects
from disks.object_disk.disk import ObjectDisk
from disks.workers.progress import Silent
from oplog.entry import Commit
from oplog.errors import LeaseExpired, Locked, NoSpace, Transient
from oplog.kinds import Dropped, Moved
from oplog.log import OperationsLog
from tests.moving import TABLE, close, configuration, create_table, holders, move, open_context, put_part
from tiering.catalog.context import Context
from tiering.move import items, mover
from tiering.policy import cost


class Died(BaseException):
    """The process would be gone here."""


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    opened = open_context(configuration(tmp_path))
    create_table(opened)
    yield opened
    close(opened)


def test_a_move_is_one_commit_on_each_disk(context: Context) -> None:
    parts = [put_part(context, number) for number in range(1, 6)]
    disk = context.disk("s3")
    assert isinstance(disk, ObjectDisk)
    before, revision = disk.store.counts(), disk.revision
    expected = cost.estimate([move(made) for made in parts], lambda planned: parts[0], {"s3"})
    report = mover.execute(context, [move(made) for made in parts])
    assert [moved.part for moved in report.moved] == [made.name for made in parts]
    assert (report.failed, report.skipped) == ((), ())
    assert all(holders(context, made) == ["s3"] for made in parts)
    assert disk.revision == (revision or 0) + 1
    after = disk.store.counts()
    assert after["PUT"] - before["PUT"] == sum(len(made.files) for made in parts) + 1
    assert expected.total == cost.Cost(put=11, bytes_up=sum(made.size_bytes for made in parts))
    assert [record.state for record in context.journal.work.moves()] == ["done"] * 5
    (entry,) = disk.entries(disk.revision - 1)
    assert entry.commit.actor == "test"
    assert "a test" in entry.commit.reason
    assert entry.commit.kind == Moved(table=TABLE.full_name, sources={"ssd": tuple(made.name for made in parts)})


@pytest.mark.parametrize("workers", [1, 4])
def test_a_chain_of_moves_never_changes_a_byte(tmp_path: Path, context: Context, workers: int) -> None:
    """P16: local -> S3 -> local2 -> S3 -> local."""
    context.workers = workers
    parts = [put_part(context, number, files=3) for number in (1, 2)]
    for source, target in itertools.pairwise(["ssd", "s3", "ssd2", "s3", "ssd", "ssd2"]):
        report = mover.execute(context, [move(made, target, source) for made in parts])
        assert len(report.moved) == 2, report
        assert all(holders(context, made) == [target] for made in parts)


@pytest.mark.parametrize("workers", [1, 4])
def test_others_see_how_far_copies_are(context: Context, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """By the journal; a journal that is busy keeps no part from being moved."""
    monkeypatch.setattr("tiering.move.outcomes.NOTE_BYTES", 1)
    monkeypatch.setattr("tiering.move.outcomes.NOTE_SECONDS", 0.0)
    work, seen = context.journal.work, list[list[int]]()
    note = work.note_bytes

    def noting(bytes_done: Mapping[int, int]) -> None:
        note(bytes_done)
        seen.append(sorted(move.bytes_done for move in work.moves(active=True)))
        raise Locked("the journal is busy")

    monkeypatch.setattr(work, "note_bytes", noting)
    context.workers = workers
    parts = [put_part(context, number, files=3) for number in (1, 2)]
    assert len(mover.execute(context, [move(made) for made in parts]).moved) == 2
    assert len(seen) == 6
    assert [60_000, 60_000] in seen
    if workers == 1:
        assert seen[:4] == [[0, 20_000], [0, 40_000], [0, 60_000], [20_000, 60_000]]
    assert [move.bytes_done for move in work.moves()] == [0, 0]


def test_large_cold_files_come_back_in_ranges(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiering.policy.cost.WHOLE_FILE_BYTES", 1000)
    monkeypatch.setattr("tiering.policy.cost.RANGE_BYTES", 7000)
    made = put_part(context, 1, disk="s3")
    report = mover.execute(context, [move(made, "ssd", "s3")])
    assert holders(context, made) == ["ssd"]
    assert report.moved[0].requests == 2 * 3
    expected = cost.estimate([move(made, "ssd", "s3")], lambda planned: made, {"s3"})
    assert expected.moves == (cost.Cost(get=6, bytes_down=40_000),)
    assert expected.commits == 1


def test_many_parts_go_in_several_batches_side_by_side(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiering.policy.cost.BATCH_PARTS", 4)
    context.workers = 4
    parts = [put_part(context, number, files=1, size=500) for number in range(1, 15)]
    report = mover.execute(context, [move(made) for made in parts])
    assert len(report.moved) == 14
    assert all(holders(context, made) == ["s3"] for made in parts)


def test_the_second_run_finds_nothing_to_do(context: Context) -> None:
    """P17."""
    made = put_part(context, 1)
    mover.execute(context, [move(made)])
    report = mover.execute(context, [move(made)])
    assert "not on ssd any more" in report.skipped[0].reason
    assert holders(context, made) == ["s3"]


@pytest.mark.parametrize("workers", [1, 4])
def test_one_bad_part_does_not_stop_the_others(context: Context, tmp_path: Path, workers: int) -> None:
    """P17, I15: the damaged part stays where it is, whole or not, and is named."""
    context.workers = workers
    parts = [put_part(context, number) for number in (1, 2, 3, 4)]
    ssd = tmp_path / "ssd" / TABLE.directory
    (ssd / parts[0].name / "data-0000.parquet").write_bytes(os.urandom(20_000))
    (ssd / parts[1].name / "data-0001.parquet").unlink()
    (ssd / parts[2].name / "data-0001.parquet").write_bytes(b"short")
    report = mover.execute(context, [move(made) for made in parts])
    assert [moved.part for moved in report.moved] == [parts[3].name]
    errors = {failed.part: failed.error for failed in report.failed}
    assert "SHA-256" in errors[parts[0].name]
    assert "data-0001.parquet is missing" in errors[parts[1].name]
    assert "5 bytes" in errors[parts[2].name]
    assert holders(context, parts[3]) == ["s3"]
    assert context.disk("s3").list(TABLE.directory) == [f"{parts[3].name}/", "table.json"]
    assert all(context.disk("ssd").list(TABLE.part_directory(made.name)) for made in parts[:3])
    assert context.journal.work.failures()[TABLE.uuid, parts[0].name, "s3"].attempts == 1


def test_a_file_nobody_knows_is_not_lost(context: Context, tmp_path: Path) -> None:
    made = put_part(context, 1)
    (tmp_path / "ssd" / TABLE.part_directory(made.name) / "notes.txt").write_text("mine")
    report = mover.execute(context, [move(made)])
    assert "notes.txt" in report.failed[0].error


def test_keep_source_leaves_both_and_recovery_agrees(context: Context) -> None:
    made = put_part(context, 1)
    mover.execute(context, [move(made, keep_source=True)])
    assert holders(context, made) == ["s3", "ssd"]
    assert mover.recover(context) == []
    assert holders(context, made) == ["s3", "ssd"]
    mover.execute(context, [move(made)])
    assert holders(context, made) == ["s3"]


def test_what_wrote_over_another_machines_entry_is_no_move(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a store without conditional writes: the part is on the target, and yet nothing is acknowledged (P41)."""
    made = put_part(context, 1)
    append = OperationsLog.append

    def late(log: OperationsLog, commit: Commit) -> str:
        append(log, commit)
        raise LeaseExpired("this machine stood still until its turn was over")

    with monkeypatch.context() as once:
        once.setattr(OperationsLog, "append", late)
        report = mover.execute(context, [move(made)])
    assert (report.moved, [failed.error for failed in report.failed]) == (
        (),
        ["this machine stood still until its turn was over"],
    )
    context.disk("s3").refresh()
    assert holders(context, made) == ["s3", "ssd"]


def test_what_is_on_the_target_already_is_not_copied_again(context: Context) -> None:
    made = put_part(context, 1)
    mover.execute(context, [move(made, keep_source=True)])
    disk = context.disk("s3")
    assert isinstance(disk, ObjectDisk)
    before = disk.store.counts()["PUT"]
    report = mover.execute(context, [move(made)])
    assert len(report.moved) == 1
    assert disk.store.counts()["PUT"] == before


def test_another_part_of_the_same_name_is_never_overwritten(context: Context) -> None:
    made = put_part(context, 1)
    other = put_part(context, 1, disk="s3")
    report = mover.execute(context, [move(made)])
    assert "another part of the name" in report.failed[0].error
    assert hashlib.sha256(
        context.disk("s3").read(f"{TABLE.part_directory(other.name)}/data-0000.parquet")
    ).hexdigest() == (other.files[0].sha256)
    assert context.disk("ssd").list(TABLE.part_directory(made.name))


def test_a_part_in_use_waits(context: Context) -> None:
    """P19: a merge holds the part."""
    parts = [put_part(context, number) for number in (1, 2)]
    with context.journal.claim(TABLE.uuid, [parts[0].name], "merge"):
        report = mover.execute(context, [move(made) for made in parts])
    assert "in use by a merge" in report.skipped[0].reason
    assert holders(context, parts[0]) == ["ssd"]
    assert holders(context, parts[1]) == ["s3"]


def test_a_merge_that_wants_a_moving_part_is_locked_out(context: Context) -> None:
    made = put_part(context, 1)
    seen: list[dict[str, str]] = []

    def look(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "store.put":
            seen.append(context.journal.claimed(TABLE.uuid))

    effects.set_hook(look)
    try:
        mover.execute(context, [move(made)])
    finally:
        effects.set_hook(None)
    assert seen
    assert all(claims == {made.name: "move"} for claims in seen)
    assert context.journal.claimed(TABLE.uuid) == {}


def test_stop_ends_between_files_and_the_rest_is_left(context: Context) -> None:
    parts = [put_part(context, number) for number in (1, 2, 3)]
    puts = itertools.count()

    def stop_after_two(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "after" and name == "store.put" and next(puts) == 1:
            context.stop.set()

    effects.set_hook(stop_after_two)
    try:
        report = mover.execute(context, [move(made) for made in parts])
    finally:
        effects.set_hook(None)
    assert [moved.part for moved in report.moved] == [parts[0].name]
    assert len(report.skipped) == 2
    assert all("stopped" in skipped.reason for skipped in report.skipped)
    assert holders(context, parts[0]) == ["s3"]
    assert holders(context, parts[1]) == ["ssd"]
    context.stop.clear()
    assert len(mover.execute(context, [move(made) for made in parts[1:]]).moved) == 2


def test_a_cancelled_move_stops(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_CANCEL_POLL_SECONDS", 0)
    parts = [put_part(context, number) for number in (1, 2)]

    def cancel_first(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "store.put":
            effects.set_hook(None)
            context.journal.work.request_cancel(1)

    effects.set_hook(cancel_first)
    try:
        report = mover.execute(context, [move(made) for made in parts])
    finally:
        effects.set_hook(None)
    assert [(skipped.part, skipped.reason) for skipped in report.skipped] == [(parts[0].name, "cancelled")]
    assert [moved.part for moved in report.moved] == [parts[1].name]
    assert context.journal.work.move(1).state == "cancelled"
    assert holders(context, parts[0]) == ["ssd"]


def test_a_full_target_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    config = configuration(tmp_path, max_size_bytes=50_000)
    context = open_context(config)
    create_table(context)
    parts = [put_part(context, number, disk="s3") for number in (1, 2)]
    report = mover.execute(context, [move(made, "ssd", "s3") for made in parts])
    assert [moved.part for moved in report.moved] == [parts[0].name]
    assert "disk ssd has" in report.skipped[0].reason
    assert context.reservations.reserved("ssd") == 0
    close(context)


def test_no_space_in_the_middle_fails_the_part_alone(context: Context) -> None:
    made = put_part(context, 1)

    def full(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "store.put":
            raise NoSpace("no space left on device: bucket")

    effects.set_hook(full)
    try:
        report = mover.execute(context, [move(made)])
    finally:
        effects.set_hook(None)
    assert "no space left" in report.failed[0].error
    assert holders(context, made) == ["ssd"]


def test_progress_is_told(context: Context) -> None:
    class Counting(Silent):
        items = size = 0

        def advance(self, *, items: int = 0, size_bytes: int = 0) -> None:
            self.items += items
            self.size += size_bytes

    context.progress = counting = Counting()
    parts = [put_part(context, number) for number in (1, 2)]
    mover.execute(context, [move(made) for made in parts])
    assert (counting.items, counting.size) == (2, 80_000)


# Crashes: die at every side effect of a move, reopen, recover


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: hundreds of stores are made, and no power is cut here."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as path:
        yield Path(path)


def count_effects(action: Callable[[], object]) -> int:
    count = 0

    def hook(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        count += phase == "before"

    effects.set_hook(hook)
    try:
        action()
    finally:
        effects.set_hook(None)
    return count


def die_at(number: int) -> Callable[[str, str, tuple[object, ...]], None]:
    seen = itertools.count(1)
    dead = threading.Event()

    def hook(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and next(seen) >= number:
            dead.set()
        if dead.is_set():
            raise Died

    return hook


def reopen(context: Context) -> tuple[Context, list[str]]:
    close(context)
    again = open_context(context.config)
    done = [sentence for disk in again.disks.values() for sentence in disk.recover()]
    again.catalog.refresh()
    return again, done + mover.recover(again)


@pytest.mark.in_turn
@pytest.mark.parametrize(("source", "target"), [("ssd", "s3"), ("s3", "ssd"), ("ssd", "ssd2")])
def test_dying_anywhere_leaves_each_part_once(memory_path: Path, source: str, target: str) -> None:
    """I1, I2, I14, P15: recovery leaves one whole copy, a second one does nothing, and the move can be repeated."""
    total = 0
    for number in itertools.count(0):
        home = memory_path / str(number)
        context = open_context(configuration(home))
        create_table(context)
        parts = [put_part(context, index, disk=source, files=1, size=300) for index in (1, 2)]
        moves = [move(made, target, source) for made in parts]
        if number == 0:
            total = count_effects(lambda context=context, moves=moves: mover.execute(context, moves))  # type: ignore[misc]
            assert total > 10
            close(context)
            continue
        effects.set_hook(die_at(number))
        try:
            mover.execute(context, moves)
        except Died:
            pass
        finally:
            effects.set_hook(None)
        again, _ = reopen(context)
        where = [holders(again, made) for made in parts]
        assert all(len(found) == 1 for found in where), (number, where)
        assert where[0] == where[1]
        assert again.journal.work.moves(active=True) == []
        twice, done = reopen(again)
        assert done == []
        mover.execute(twice, moves)
        assert [holders(twice, made) for made in parts] == [[target], [target]]
        close(twice)
        if number == total:
            break


def test_a_lost_journal_does_not_leave_two_copies(context: Context, tmp_path: Path) -> None:
    """P15: the target's commit says where the copy came from."""
    made = put_part(context, 1)

    def die(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "journal.commit" and arguments[:2] == ("set_moves", "committed"):
            raise Died

    effects.set_hook(die)
    with pytest.raises(Died):
        mover.execute(context, [move(made)])
    effects.set_hook(None)
    assert holders(context, made) == ["s3", "ssd"]
    close(context)
    (tmp_path / "state" / "journal.db").unlink()
    for leftover in (tmp_path / "state").glob("journal.db-*"):
        leftover.unlink()
    again = open_context(context.config)
    (sentence,) = mover.recover(again)
    assert "the commit on s3 says that it moved there" in sentence
    assert holders(again, made) == ["s3"]
    assert mover.recover(again) == []
    close(again)


def test_a_damaged_journal_is_told_once(context: Context, tmp_path: Path) -> None:
    """P45."""
    close(context)
    (tmp_path / "state" / "journal.db").write_bytes(b"")
    again, done = reopen(context)
    assert [sentence for sentence in done if "set aside" in sentence]
    assert mover.recover(again) == []
    close(again)


@pytest.mark.parametrize("journal", ["lost", "kept"])
def test_a_copy_whose_object_is_gone_is_no_reason_to_delete(context: Context, tmp_path: Path, journal: str) -> None:
    """No proof, no delete (I4): the copy that would stay is asked for, object by object."""
    made = put_part(context, 1)

    def die(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "journal.commit" and arguments[:2] == ("set_moves", "committed"):
            raise Died

    effects.set_hook(die)
    with pytest.raises(Died):
        mover.execute(context, [move(made)])
    effects.set_hook(None)
    disk = context.disk("s3")
    assert isinstance(disk, ObjectDisk)
    (key,) = [info.key for info in disk.walk() if info.path.endswith("data-0000.parquet")]
    assert key is not None
    disk.store.delete([key])
    close(context)
    for leftover in (tmp_path / "state").glob("journal.db*") if journal == "lost" else ():
        leftover.unlink()
    again = open_context(context.config)
    assert mover.recover(again) == []
    report = mover.execute(again, [move(made)])
    assert "is gone" in report.failed[0].error
    for file in made.files:
        again.disk("ssd").read(f"{TABLE.part_directory(made.name)}/{file.name}")
    close(again)


def test_an_interrupt_does_not_wait_for_the_queue(context: Context) -> None:
    context.workers = 2
    made = put_part(context, 1, files=60, size=100)
    puts = itertools.count()

    def interrupt(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "store.put" and next(puts) == 3:
            raise KeyboardInterrupt

    effects.set_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            mover.execute(context, [move(made)])
    finally:
        effects.set_hook(None)
    assert next(puts) < 30
    again, done = reopen(context)
    assert len(done) >= 1
    assert holders(again, made) == ["ssd"]
    close(again)


def test_work_of_a_living_process_is_left_alone(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that opens the store while a daemon moves must not abandon the daemon's moves, begun or not."""
    monkeypatch.setattr("tiering.policy.cost.BATCH_PARTS", 1)
    parts = [put_part(context, number) for number in (1, 2)]
    other = open_context(context.config)
    sentences: list[list[str]] = []

    def interfere(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "store.put":
            effects.set_hook(None)
            sentences.append(mover.recover(other))

    effects.set_hook(interfere)
    try:
        report = mover.execute(context, [move(made) for made in parts])
    finally:
        effects.set_hook(None)
    assert sentences == [[]]
    assert len(report.moved) == 2
    close(other)


@pytest.mark.parametrize("same", [True, False])
def test_who_comes_second_on_the_target_loses_nothing(context: Context, same: bool) -> None:
    """P19: while we copy, another process puts one of our parts on the target; the rest of the batch still moves."""
    parts = [put_part(context, number, files=1) for number in (1, 2, 3)]
    other = open_context(context.config)

    def race(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "store.put":
            effects.set_hook(None)
            if not same:
                put_part(other, 2, disk="s3", files=1)
                return
            directory = TABLE.part_directory(parts[1].name)
            with other.disk("s3").transaction(Moved()) as transaction:
                for file in ("data-0000.parquet", "part.json"):
                    transaction.create(f"{directory}/{file}", other.disk("ssd").read(f"{directory}/{file}"))
                transaction.commit()

    effects.set_hook(race)
    try:
        report = mover.execute(context, [move(made) for made in parts])
    finally:
        effects.set_hook(None)
    close(other)
    moved = [parts[0].name, parts[1].name, parts[2].name] if same else [parts[0].name, parts[2].name]
    assert [done.part for done in report.moved] == moved
    assert holders(context, parts[0]) == holders(context, parts[2]) == ["s3"]
    if same:
        assert holders(context, parts[1]) == ["s3"]
    else:
        assert "another part of the name" in report.failed[0].error
        assert context.disk("ssd").exists(TABLE.part_directory(parts[1].name))


def test_a_lost_answer_to_the_commit_is_looked_up(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    made = put_part(context, 1)
    disk = context.disk("s3")
    assert isinstance(disk, ObjectDisk)
    original = disk._commit

    def lossy(draft: Any, basis: Any) -> int:
        original(draft, basis)
        raise Transient("the answer was lost")

    monkeypatch.setattr(disk, "_commit", lossy)
    report = mover.execute(context, [move(made)])
    assert len(report.moved) == 1
    assert holders(context, made) == ["s3"]


def test_a_source_not_cleaned_is_reported_and_cleaned_later(context: Context) -> None:
    made = put_part(context, 1)

    def broken(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and name == "fs.rename" and "/ssd/" in str(arguments[0]):
            raise OSError(5, "Input/output error")

    effects.set_hook(broken)
    try:
        report = mover.execute(context, [move(made)])
    finally:
        effects.set_hook(None)
    assert "still on ssd as well" in report.failed[0].error
    again, _ = reopen(context)
    assert holders(again, made) == ["s3"]
    close(again)


def test_a_dead_store_at_start_is_no_reason_not_to_open(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    made = put_part(context, 1)
    effects.set_hook(die_at(12))
    try:
        with pytest.raises(Died):
            mover.execute(context, [move(made)])
    finally:
        effects.set_hook(None)
    close(context)
    again = open_context(context.config)

    def unreachable(*_: object) -> bytes:
        raise Transient("no route to host")

    monkeypatch.setattr(again.disk("s3"), "list", unreachable)
    monkeypatch.setattr(again.disk("s3"), "read", unreachable)
    monkeypatch.setattr(again.disk("s3"), "exists", unreachable)
    mover.recover(again)
    assert again.disk("ssd").list(TABLE.part_directory(made.name)) or again.journal.work.moves(active=True)
    monkeypatch.undo()
    mover.recover(again)
    assert again.journal.work.moves(active=True) == []
    assert len(holders(again, made)) == 1
    close(again)


def test_reservations_are_given_back(context: Context) -> None:
    made = put_part(context, 1)
    mover.execute(context, [move(made)])
    assert context.reservations.reserved("s3") == 0


def test_a_table_dropped_meanwhile_gets_no_part_back(context: Context) -> None:
    """The catalog of a move may be old; the commit on the target needs the table's `table.json` there."""
    made = put_part(context, 1)
    with context.disk("s3").transaction(Dropped()) as transaction:
        transaction.remove(TABLE.directory)
        transaction.commit()
    report = mover.execute(context, [move(made)])
    assert "table.json is gone" in report.failed[0].error
    assert context.disk("s3").list(TABLE.directory) == []
    assert holders(context, made) == ["ssd"]
