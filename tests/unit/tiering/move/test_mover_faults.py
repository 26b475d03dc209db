"""Moves that die, or meet a lost journal, a lost object or another writer.

Guards I1, I2, I4, I14, P14 to P17 and P19.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disks import effects
from disks.object_disk.disk import ObjectDisk
from oplog.errors import Transient
from oplog.kinds import Dropped, Moved
from tests.moving import TABLE, close, configuration, create_table, holders, move, open_context, put_part
from tests.unit.tiering.move.moves import context as context
from tiering.catalog.context import Context
from tiering.move import mover


class Died(BaseException):
    """The process would be gone here."""


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
    assert "the commit on s3 says" in sentence
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
