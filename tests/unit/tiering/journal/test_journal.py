"""The journal: transitions, claims, block numbers, damage. Guards P15 (the journal decides), P19 (claims), P45."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disks import effects
from disks.host.locks import lock_holder
from oplog.errors import Damaged, Locked, NotFound, UsageError
from tiering.daemon.lock import daemon_lock, daemon_lock_path
from tiering.journal.journal import Journal
from tiering.journal.records import MOVE_TRANSITIONS, Drop, NewMove, PartsDrop, TableDrop, decode_drop, encode_drop


def new_move(part: str = "all_1_1_0", **changes: object) -> NewMove:
    fields: dict[str, object] = {
        "table": "d.t",
        "table_uuid": "u1",
        "part": part,
        "source": "ssd",
        "target": "s3",
        "bytes": 10,
        "reason_kind": "ttl",
        "reason_detail": "old",
        "actor": "me",
    }
    return NewMove(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state")


def test_moves_survive_a_reopen(journal: Journal, tmp_path: Path) -> None:
    first, second = journal.work.plan_moves([new_move(), new_move("all_2_2_0", keep_source=True)])
    journal.work.set_move(first, "copying")
    journal.work.set_move(first, "committed", revision=7, seconds=1.5, requests=3)
    journal.close()
    again = Journal(tmp_path / "state")
    assert again.file.notices == []
    record = again.work.move(first)
    assert (record.state, record.revision, record.seconds, record.requests) == ("committed", 7, 1.5, 3)
    assert again.work.move(second).keep_source
    assert [move.id for move in again.work.moves(active=True)] == [second, first]
    assert again.work.moves(failed=True) == []
    with pytest.raises(NotFound):
        again.work.move(99)


def test_how_far_copies_are_is_noted_for_who_looks(journal: Journal, tmp_path: Path) -> None:
    """In a journal of an earlier version, too, which has no table for it; what ended is forgotten."""
    first, second = journal.work.plan_moves([new_move(), new_move("all_2_2_0")])
    journal.work.set_moves([first, second], "copying")
    assert [move.bytes_done for move in journal.work.moves(active=True)] == [0, 0]
    journal.work.note_bytes({first: 4, second: 7})
    journal.work.note_bytes({first: 6})
    looking = Journal(tmp_path / "state")
    assert {move.id: move.bytes_done for move in looking.work.moves()} == {first: 6, second: 7}
    journal.work.set_move(first, "committed")
    assert {move.id: move.bytes_done for move in looking.work.moves()} == {first: 0, second: 7}
    journal.work.note_bytes({second: 8})
    assert [row["id"] for row in looking.file.read("SELECT id FROM progress")] == [second]


def test_what_lay_on_the_disks_is_kept_for_a_while_with_its_gaps(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert journal.capacity.hours(4, now) == {}
    for hours_ago, size_bytes in ((200, 1), (3, 10), (2.9, 20), (0.1, 30), (0, 40)):
        journal.capacity.note({"ssd": size_bytes, "s3": 5}, now - timedelta(hours=hours_ago))
    assert journal.capacity.hours(4, now) == {"ssd": [20, None, None, 40], "s3": [5, None, None, 5]}
    before = journal.file.read("SELECT * FROM capacity")
    journal.capacity.note({"ssd": 40, "s3": 5}, now)
    assert journal.file.read("SELECT * FROM capacity") == before
    assert len(before) == 2 * 3
    journal.capacity.note({"ssd": 1}, now - timedelta(days=30))  # a clock that was wrong
    assert journal.capacity.hours(4, now - timedelta(days=30)) == {"ssd": [None, None, None, 1]}
    monkeypatch.setattr("tiering.journal.journal._KEPT_CAPACITY_SLOTS", 20)
    for slot in range(30):
        journal.capacity.note({"ssd": slot}, now + timedelta(minutes=10 * slot))
    assert journal.file.read("SELECT count(*) AS rows FROM capacity")[0]["rows"] == 20


def test_only_the_steps_of_the_table_are_allowed(journal: Journal) -> None:
    for state, following in MOVE_TRANSITIONS.items():
        for other in MOVE_TRANSITIONS:
            (move,) = journal.work.plan_moves([new_move()])
            for step in {"planned": (), "copying": ("copying",), "committed": ("copying", "committed")}.get(
                state, ("copying", "committed", "done") if state == "done" else (state,)
            ):
                journal.work.set_move(move, step)  # type: ignore[arg-type]
            if other in following or other == state:
                journal.work.set_move(move, other)  # type: ignore[arg-type]
            else:
                with pytest.raises(UsageError, match="cannot become"):
                    journal.work.set_move(move, other)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no field"):
        journal.work.set_move(move, "cancelled", colour="red")


def test_a_batch_of_changes_is_all_or_nothing(journal: Journal) -> None:
    good, bad = journal.work.plan_moves([new_move(), new_move("all_2_2_0")])
    journal.work.set_move(bad, "failed")
    with pytest.raises(UsageError):
        journal.work.set_moves([good, bad], "copying")
    assert journal.work.move(good).state == "planned"


def test_attempts_count_until_a_success(journal: Journal) -> None:
    for attempt in (1, 2, 3):
        (move,) = journal.work.plan_moves([new_move()])
        assert journal.work.move(move).attempts == attempt
        journal.work.set_move(move, "failed", error=f"no {attempt}")
    assert journal.work.failures()["u1", "all_1_1_0", "s3"].attempts == 3
    assert journal.work.failures()["u1", "all_1_1_0", "s3"].error == "no 3"
    (move,) = journal.work.plan_moves([new_move()])
    journal.work.set_move(move, "committed")
    journal.work.set_move(move, "done")
    assert journal.work.failures() == {}
    (move,) = journal.work.plan_moves([new_move()])
    assert journal.work.move(move).attempts == 1


def test_cancel_is_a_request(journal: Journal) -> None:
    (move,) = journal.work.plan_moves([new_move()])
    assert journal.work.request_cancel(move) == "planned"
    assert journal.work.cancel_requests() == {move}
    journal.work.set_move(move, "cancelled")
    assert journal.work.cancel_requests() == set()
    assert journal.work.request_cancel(move) == "cancelled"


def test_merges_are_kept(journal: Journal) -> None:
    merge = journal.work.begin_merge(
        table="d.t", table_uuid="u1", partition="all", inputs=["a", "b"], output="c", reason="small", actor="tick"
    )
    assert journal.work.merges(active=True)[0].inputs == ("a", "b")
    journal.work.set_merge(merge, "done", rows_in=5, rows_out=5)
    assert (journal.work.merges()[0].state, journal.work.merges()[0].rows_out) == ("done", 5)
    with pytest.raises(UsageError):
        journal.work.set_merge(merge, "failed")


def test_block_numbers_are_never_given_twice(journal: Journal, tmp_path: Path) -> None:
    assert journal.allocate_blocks("u1", 3) == 1
    assert journal.allocate_blocks("u1", 1) == 4
    assert journal.next_block("u0") == 1
    assert journal.allocate_blocks("u1", 1, floor=50) == 50
    assert journal.next_block("u1") == 51
    assert journal.allocate_blocks("u1", 1, floor=10) == 51
    seen: list[int] = []
    others = [Journal(tmp_path / "state") for _ in range(3)]

    def allocate(other: Journal) -> None:
        seen.extend(other.allocate_blocks("u2", 1) for _ in range(10))

    threads = [threading.Thread(target=allocate, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 31))


def test_a_claim_excludes_everybody_else(journal: Journal, tmp_path: Path) -> None:
    other = Journal(tmp_path / "state")
    with journal.claim("u1", ["a", "b"], "move"):
        for contender in (journal, other):
            with (
                pytest.raises(Locked, match=f"part b .* move of process {os.getpid()}"),
                contender.claim("u1", ["b", "c"], "merge"),
            ):
                pass
        with other.claim("u1", ["c"], "merge"), other.claim("u2", ["a"], "merge"):
            assert journal.claimed("u1") == {"a": "move", "b": "move", "c": "merge"}
    with other.claim("u1", ["a", "b"], "merge"):
        pass


HOLDS_A_CLAIM = (
    "import os, sys\nfrom pathlib import Path\nfrom tiering.journal.journal import Journal\n"
    "journal = Journal(Path(sys.argv[1]))\nclaim = journal.claim('u1', ['a'], 'move')\nclaim.__enter__()\n"
    "print('held', flush=True)\nsys.stdin.read()\nos._exit(9)\n"
)


@contextmanager
def claimed_by_another_process(state: Path, *, within: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Part `a` is held by a process, started by the command `within`, until it ends."""
    child = subprocess.Popen(
        [*within, sys.executable, "-c", HOLDS_A_CLAIM, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def test_claims_of_the_dead_are_taken_over(journal: Journal, tmp_path: Path) -> None:
    with (
        claimed_by_another_process(tmp_path / "state"),
        pytest.raises(Locked),
        journal.claim("u1", ["a"], "merge"),
    ):
        pass
    assert journal.claimed("u1") == {}
    with journal.claim("u1", ["a"], "merge"):
        assert journal.claimed("u1") == {"a": "merge"}


def test_a_claim_holds_where_its_process_id_means_nothing(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a unit of systemd and a shell in one container: the start of their machine has two names."""
    monkeypatch.setattr("disks.host.processes.boot_id", lambda: "another name of this start")
    with claimed_by_another_process(tmp_path / "state"):
        assert journal.claimed("u1") == {"a": "move"}
        with pytest.raises(Locked), journal.claim("u1", ["a"], "merge"):
            pass
    assert journal.claimed("u1") == {}


def test_a_claim_holds_between_containers(journal: Journal, tmp_path: Path) -> None:
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("a namespace of process ids cannot be made here")
    with claimed_by_another_process(tmp_path / "state", within=apart):
        assert journal.claimed("u1") == {"a": "move"}
        with pytest.raises(Locked), journal.claim("u1", ["a"], "merge"):
            pass


def test_claims_of_a_journal_that_nobody_has_any_more_are_stale(journal: Journal, tmp_path: Path) -> None:
    lost = Journal(tmp_path / "state")
    lost._take_claims("u1", ["a"], "move", "a token")
    with pytest.raises(Locked), journal.claim("u1", ["a"], "merge"):
        pass
    del lost
    gc.collect()
    with journal.claim("u1", ["a"], "merge"):
        assert journal.claimed("u1") == {"a": "merge"}


def test_claims_of_a_closed_journal_are_stale(journal: Journal, tmp_path: Path) -> None:
    abandoned = journal.claim("u1", ["a"], "move")
    abandoned.__enter__()
    other = Journal(tmp_path / "state")
    with pytest.raises(Locked), other.claim("u1", ["a"], "move"):
        pass
    journal.close()
    with other.claim("u1", ["a"], "move"):
        pass


@pytest.mark.parametrize(
    ("kind", "payload", "drop"),
    [
        (
            "drop_table",
            '{"table": "d.t", "uuid": "u1", "reason": "drop table d.t", "directories": "store/u1", "name": "d.t"}',
            TableDrop(table="d.t", table_uuid="u1", reason="drop table d.t", directories=("store/u1",)),
        ),
        (
            "drop_parts",
            '{"table": "d.t", "uuid": "u1", "reason": "test", "directories": "store/u1/a\\nstore/u1/b"}',
            PartsDrop(table="d.t", table_uuid="u1", reason="test", directories=("store/u1/a", "store/u1/b")),
        ),
        ("drop_universe", "{}", None),
    ],
)
def test_drops_that_0_1_began_are_finished(kind: str, payload: str, drop: Drop | None) -> None:
    """I2: also by a version that holds them otherwise; what a later one began is left to it."""
    assert decode_drop(kind, payload, journal="j") == drop
    if drop is not None:
        assert decode_drop(*encode_drop(drop), journal="j") == drop
        assert set(json.loads(payload).items()) <= set(json.loads(encode_drop(drop)[1]).items())


@pytest.mark.parametrize("payload", ["", "junk", "{}", "[]", '{"table": 1}', "[" * 100_000])
def test_a_drop_that_cannot_be_read_is_named(payload: str) -> None:
    """I15: nobody knows what it hides, so nothing is shown."""
    with pytest.raises(Damaged, match=r"journal\.db holds a drop parts"):
        decode_drop("drop_parts", payload, journal="journal.db")


def test_pauses_pins_and_drops(journal: Journal) -> None:
    journal.overrides.pause(None, ["gc"])
    journal.overrides.pause("u1", ["moves"])
    assert journal.overrides.paused("u1") == {"gc", "moves"}
    assert journal.overrides.paused("u2") == {"gc"}
    journal.overrides.resume("u1")
    assert journal.overrides.paused("u1") == {"gc"}
    journal.overrides.pin("u1", partition="202601", volume="hot")
    journal.overrides.pin("u1", part="all_1_1_0")
    journal.overrides.pin("u1", partition="202601", volume="cold")
    assert {(pin.scope, pin.name, pin.volume) for pin in journal.overrides.pins("u1")} == {
        ("partition", "202601", "cold"),
        ("part", "all_1_1_0", None),
    }
    journal.overrides.unpin("u1", part="all_1_1_0")
    with pytest.raises(NotFound):
        journal.overrides.unpin("u1", part="all_1_1_0")
    with pytest.raises(UsageError):
        journal.overrides.pin("u1")
    decided: list[Drop] = [
        TableDrop(table="d.t", table_uuid="u1", reason="drop table d.t", directories=("store/u1",)),
        PartsDrop(table="d.t", table_uuid="u1", reason="due", directories=("store/u1/a", "store/u1/b"), by_ttl=True),
    ]
    ids = [journal.begin_drop(drop) for drop in decided]
    assert [(found.id, found.drop) for found in journal.drops()] == list(zip(ids, decided, strict=True))
    journal.finish_drop(ids[0])
    assert [found.drop for found in journal.drops()] == decided[1:]
    journal.finish_drop(ids[1])
    assert journal.drops() == []
    journal.forget_table("u1")
    assert journal.overrides.pins() == []


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(b""), id="zero bytes"),
        pytest.param(lambda path: path.write_bytes(b"x" * 5000), id="not a database"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:6000]), id="truncated"),
        pytest.param(lambda path: sqlite3.connect(path).execute("DROP TABLE meta"), id="no version"),
    ],
)
def test_a_damaged_journal_is_set_aside_and_reported(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    journal = Journal(tmp_path)
    journal.work.plan_moves([new_move()])
    journal.close()
    others = [damage(journal.file.path)]  # a connection stays open, or its end would take the WAL away at any moment
    again = Journal(tmp_path)
    assert len(again.file.notices) == 1
    assert "set aside" in again.file.notices[0]
    assert len([path for path in tmp_path.glob("journal.db.damaged-*") if path.name[-1] == "Z"]) == 1
    assert again.work.moves() == []
    again.work.plan_moves([new_move()])
    again.close()
    others.clear()
    assert Journal(tmp_path).file.notices == []


def test_a_newer_journal_is_refused_not_replaced(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.close()
    with sqlite3.connect(journal.file.path) as connection:
        connection.execute("UPDATE meta SET value = '99'")
    connection.close()
    with pytest.raises(UsageError, match="schema 99"):
        Journal(tmp_path)
    assert not list(tmp_path.glob("*damaged*"))


def test_dying_before_a_commit_leaves_the_state_before(journal: Journal, tmp_path: Path) -> None:
    (move,) = journal.work.plan_moves([new_move()])

    class Dead(BaseException):
        pass

    def die(when: str, name: str, _arguments: object) -> None:
        if (when, name) == ("before", "journal.commit"):
            raise Dead

    effects.set_hook(die)
    try:
        with pytest.raises(Dead):
            journal.work.set_move(move, "copying")
    finally:
        effects.set_hook(None)
    assert Journal(tmp_path / "state").work.move(move).state == "planned"


def test_one_daemon_a_store(tmp_path: Path) -> None:
    assert lock_holder(daemon_lock_path(tmp_path)) is None
    with daemon_lock(tmp_path):
        with pytest.raises(Locked, match=f"process {os.getpid()}"), daemon_lock(tmp_path):
            pass
        assert lock_holder(daemon_lock_path(tmp_path)) == os.getpid()
    assert lock_holder(daemon_lock_path(tmp_path)) is None


def test_a_daemon_starts_while_somebody_looks_for_one(tmp_path: Path) -> None:
    """`status` shares the lock for a moment; who looks is not who holds."""
    with daemon_lock_path(tmp_path).open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with daemon_lock(tmp_path):
            assert lock_holder(daemon_lock_path(tmp_path)) == os.getpid()


def test_a_claim_whose_release_failed_does_not_hold_for_ever(journal: Journal) -> None:
    """I14: the row stays until it can be deleted; the part is free at once."""

    def fail(phase: str, name: str, arguments: tuple[object, ...]) -> None:
        if phase == "before" and arguments[0] == "release":
            raise OSError("injected")

    effects.set_hook(fail)
    try:
        with pytest.raises(OSError, match="injected"), journal.claim("t", ["p"], "move"):
            pass
    finally:
        effects.set_hook(None)
    assert journal.claimed("t") == {}
    with journal.claim("t", ["p"], "merge"):
        assert journal.claimed("t") == {"p": "merge"}
    assert journal.claimed("t") == {}
