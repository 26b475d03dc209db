"""Seeded mistakes of the inbox and of metrics, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_UNITS = "tests/unit/tiering/daemon/inbox/test_inbox.py"
_INBOX_DAEMON = "tests/unit/tiering/daemon/inbox/test_inbox_daemon.py"
_KILLS = "tests/unit/tiering/daemon/inbox/test_inbox_kills.py"
_HIVE = "tests/unit/tiering/daemon/inbox/test_inbox_hive.py"
_KILLED = "tests/crash/test_inbox.py::test_killed_at_every_effect"


def _moved_before_the_commit() -> None:
    """Files are in `done/` before their rows are in the table."""
    from tiering.daemon.inbox.ingest import TableIngest

    original = TableIngest._put_in

    def put_in(self: Any, batch: Any, group: Any) -> None:
        self._settle(batch)
        original(self, batch, group)

    TableIngest._put_in = put_in  # type: ignore[method-assign]


def _reported_before_the_commit() -> None:
    """The report lies in `done/` before the rows are in the table; the file goes there afterwards."""
    from disks import effects
    from tiering.daemon.inbox.ingest import TableIngest

    original = TableIngest._put_in

    def put_in(self: Any, batch: Any, group: Any) -> None:
        done = self._inbox.path / "done"
        effects.make_directory(done)
        for file in batch.files:
            report = done / f"{file.name}.report.json"
            effects.make_directory(report.parent)
            effects.write_new_file(report, self._report("done", file.name, rows=file.rows))
        original(self, batch, group)

    TableIngest._put_in = put_in  # type: ignore[method-assign]


def _batch_not_written_down() -> None:
    """After a crash the files are gathered anew: another batch makes other blocks."""
    from tiering.daemon.inbox.table_inbox import TableInbox

    TableInbox.batch = lambda self: None  # type: ignore[method-assign]


def _idle_connections_stay() -> None:
    from disks.workers.listener import Listener

    async def make_room(self: Listener) -> bool:
        return False

    Listener._make_room = make_room  # type: ignore[method-assign]


def _kills_not_counted() -> None:
    from tiering.daemon.inbox import table_inbox
    from tiering.daemon.inbox.records import Attempt

    table_inbox.after_kill = lambda data: Attempt()  # type: ignore[attr-defined]


def _known_before_they_are_in() -> None:
    """The journal knows the bytes before the rows are in: after a crash they are taken for duplicates."""
    from tiering.daemon.inbox.ingest import TableIngest

    original = TableIngest._put_in

    def put_in(self: Any, batch: Any, group: Any) -> None:
        names = {file.sha256: file.name for file in batch.files}
        self._store.context.journal.ingested.note(self._definition.uuid, names)
        self._inbox.forget_batch()
        original(self, batch, group)

    TableIngest._put_in = put_in  # type: ignore[method-assign]


def _refused_as_a_whole() -> None:
    from tiering.daemon.inbox.ingest import TableIngest

    def refused(self: Any, group: Any, error: Any) -> None:
        self._inbox.forget_batch()
        for one in group:
            self._fail(one.file.name, one.sha256, error)

    TableIngest._refused = refused  # type: ignore[method-assign]


def _raised_at_once() -> None:
    from tiering.daemon.inbox.ingest import TableIngest

    TableIngest._put_aside = TableIngest._end  # type: ignore[method-assign]


def _nobody_answers(*arguments: Any, **options: Any) -> None:
    from oplog.errors import FrostlineError

    raise FrostlineError("no answer")


def _planned_moves_only(parts: Any, policies: Any, now: Any) -> dict[str, Any]:
    return {}


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "inbox: refused as a whole",
        "files that the table does not take together fail, and none is tried alone",
        "tests/replicas/test_many_partitions.py::test_an_inbox_file_with_too_many_partitions_fails_once",
        _refused_as_a_whole,
    ),
    (
        "inbox: kills not counted",
        "a file that kills the process is read again and again",
        f"{_KILLS}::test_a_file_that_kills_keeps_no_other_out",
        _kills_not_counted,
    ),
    (
        "insert: dictionaries decoded at once",
        "memory as many rows times the longest value",
        "tests/hostile/test_poison_inputs.py::test_every_encoding_is_decoded_in_slices",
        replaced("tiering.insert.inputs.decoded_size", "_widest", lambda array: 0),
    ),
    (
        "listener: idle connections stay",
        "connections without a request keep all others out",
        "tests/unit/disks/workers/test_listener.py::test_idle_connections_make_room",
        _idle_connections_stay,
    ),
    (
        "insert: any depth of JSON",
        "a line that ends the process",
        "tests/hostile/test_poison_inputs.py::test_a_deep_line_is_kept_apart_as_other_bad_rows",
        replaced("tiering.insert.inputs.json.source", "deep_line", lambda block: None),
    ),
    ("inbox: moved before the commit", "done/ before the rows", _KILLED, _moved_before_the_commit),
    ("inbox: reported before the commit", "a report of rows that are not in", _KILLED, _reported_before_the_commit),
    (
        "inbox: known before they are in",
        "bytes are known to the journal whose rows are not in",
        _KILLED,
        _known_before_they_are_in,
    ),
    (
        "inbox: size read once",
        "one look is enough to call a file whole",
        f"{_UNITS}::TestChoice::test_a_file_is_whole_when_two_looks_see_the_same",
        replaced("tiering.daemon.inbox.choice", "is_whole", lambda file, sights, now, seconds: True),
    ),
    (
        "inbox: not looked at again after reading",
        "what is written to a taken file is not noticed",
        f"{_UNITS}::TestWhileItIsRead",
        replaced("tiering.daemon.inbox.reading", "check_unchanged", lambda path, file: None),
    ),
    (
        "inbox: the batch is forgotten",
        "after a crash files are gathered anew: they may make other blocks",
        f"{_UNITS}::TestGoingOn::test_a_file_changed_after_the_crash_is_not_the_old_one",
        _batch_not_written_down,
    ),
    (
        "inbox: one table at a time",
        "a table that is slow keeps all others waiting",
        f"{_INBOX_DAEMON}::TestDaemon::test_a_table_that_is_slow_keeps_no_other_waiting",
        replaced("tiering.daemon.inbox.worker", "_TABLES_AT_ONCE", 1),
    ),
    (
        "inbox: a stop between files only",
        "whoever ends the daemon waits for a file of 10 GB",
        f"{_UNITS}::TestWhileItIsRead::test_a_stop_ends_within_a_file_and_the_next_run_goes_on",
        replaced("tiering.daemon.inbox.reading", "_go_on_unless", nothing),
    ),
    (
        "inbox: a bad file before the others",
        "one that cannot be put aside keeps the table's others from going in",
        f"{_UNITS}::TestOnce::test_a_full_failed_keeps_the_bad_file_and_no_other",
        _raised_at_once,
    ),
    (
        "daemon: its status as it was written down",
        "on a disk that takes nothing `daemon status` calls what was before well",
        "tests/unit/tiering/daemon/test_daemon.py::test_a_daemon_that_can_write_nothing_down_says_what_it_does",
        replaced("tiering.daemon.live", "ask", _nobody_answers),
    ),
    (
        "daemon: memory is kept",
        "what only a circle of objects holds is not looked for after work",
        "tests/unit/tiering/daemon/test_memory.py::test_once_a_minute_and_only_after_work",
        replaced("tiering.daemon.daemon:MemoryKeeping", "look", nothing),
    ),
    (
        "metrics: due is what is planned",
        "a part whose move failed, and waits, is due no more",
        "tests/unit/tiering/facts/metrics/test_metrics.py::TestSeen::test_what_waits_for_another_try_is_still_due",
        replaced("tiering.facts.metrics.collect", "overdue", _planned_moves_only),
    ),
    (
        "inbox: bytes are known whatever directory they are in",
        "a file is a duplicate of one with the same bytes, whose directory says another value",
        f"{_HIVE}::test_the_same_bytes_in_two_directories_are_other_rows",
        replaced("tiering.daemon.inbox.reading", "path_steps", lambda path: {}),
    ),
    (
        "inbox: directories above it are columns",
        "rows get the values of directories that the inbox itself is in",
        f"{_HIVE}::test_the_same_bytes_in_two_directories_are_other_rows",
        replaced("tiering.daemon.inbox.reading", "replace", lambda source, **changes: source),
    ),
    (
        "inbox: a link in failed/ is followed",
        "a retry takes a file from outside of the inbox",
        f"{_HIVE}::test_only_files_below_failed_are_tried_again",
        replaced("tiering.daemon.inbox.table_inbox", "_is_file_below", lambda path, name: (path / name).is_file()),
    ),
)
