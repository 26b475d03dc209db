"""Moves on real disks: a directory as SSD, a directory bucket as S3. Guards I1, I2, I4, I14, P14 to P17 and P19."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from disks import effects
from disks.object_disk.disk import ObjectDisk
from disks.workers.progress import Silent
from oplog.entry import Commit
from oplog.errors import LeaseExpired, Locked, NoSpace
from oplog.kinds import Moved
from oplog.log import OperationsLog
from tests.moving import TABLE, close, configuration, create_table, holders, move, open_context, put_part
from tests.unit.tiering.move.moves import context as context
from tiering.catalog.context import Context
from tiering.journal.work import WorkRecords
from tiering.move import items, mover
from tiering.policy import cost


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
    note = type(work).note_bytes

    def noting(records: WorkRecords, bytes_done: Mapping[int, int]) -> None:
        note(records, bytes_done)
        seen.append(sorted(move.bytes_done for move in work.moves(active=True)))
        raise Locked("the journal is busy")

    monkeypatch.setattr(WorkRecords, "note_bytes", noting)
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
        raise LeaseExpired("this machine was suspended until its lease ended")

    with monkeypatch.context() as once:
        once.setattr(OperationsLog, "append", late)
        report = mover.execute(context, [move(made)])
    assert report.moved == ()
    (failed,) = report.failed
    assert failed.error.endswith("its lease ended")
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
