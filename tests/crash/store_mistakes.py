"""Seeded mistakes in stores, leases, pins and trials of stores, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from oplog.errors import FrostlineError, NotFound, Retained
from tests.crash.seeding import nothing, replaced

_LOCK = "tests/integration/test_object_lock.py"
_DOCTOR = "tests/integration/test_doctor.py"
_LOCAL = "tests/unit/disks/local/test_local_disk.py"
_ANSWERS = "tests/integration/test_wrong_answers.py"
_CONTRADICTIONS = "tests/unit/disks/garbage/test_contradictions.py"
_WEAK = "tests/hostile/test_weak_stores.py"
_APPEND_ONLY = "tests/hostile/test_append_only.py"
_HTTP = "tests/unit/disks/stores/test_http.py"


def _release_by_delete_alone() -> None:
    from oplog import pins

    pins._mark_released = lambda store, key: True  # type: ignore[assignment]


def _lease_ends_by_delete_alone() -> None:
    from disks.object_disk.lease import Lease

    Lease._end = lambda self, mine: self._store.delete([mine.key]) and None  # type: ignore[method-assign]


def _marker_for_a_delete() -> None:
    from disks.stores.s3.store import S3Store

    S3Store._deletes_versions = False  # type: ignore[assignment]


def _lock_not_looked_at() -> None:
    from disks.stores.s3 import delete as s3_delete

    s3_delete.retained_error = lambda place, key, headers, now: None


def _kept_is_a_failure() -> None:
    from disks.garbage import report

    class Never(Exception):
        pass

    report.Retained = Never  # type: ignore[misc, assignment]


def _foreign_is_scratch() -> None:
    from disks.object_disk import references

    references.is_scratch_key = lambda key: key.startswith(("doctor/", "objbench/"))


def _rules_above_do_not_count() -> None:
    from tiering.doctor import store_diagnosis

    store_diagnosis.overlap = lambda ours, theirs: theirs.startswith(ours)


def _no_answer_is_ok() -> None:
    from disks.stores.bucket_settings import ObjectLock
    from disks.stores.s3 import settings as s3_settings

    original = s3_settings._asked

    def asked(question: Any, absent: Any = None) -> Any:
        found = original(question, absent)
        return (
            found
            if not isinstance(found, s3_settings.NotAnswered)
            else ((absent and ObjectLock(enabled=False)) or "off")
        )

    s3_settings._asked = asked


def _clock_not_compared() -> None:
    from datetime import timedelta

    from tiering.doctor import store_diagnosis

    store_diagnosis.SKEW_NOTED = store_diagnosis.SKEW_REFUSED = timedelta(days=10_000)


def _impatient() -> None:
    from disks.stores.wrappers.retry import Backoff

    Backoff.budget_seconds = lambda self, error: 5.0  # type: ignore[method-assign]


def _bench_compares_nothing() -> None:
    from disks.stores.trial.bench import _Bench

    _Bench._expect = lambda self, promise, kept, where: self._tried.add(promise)  # type: ignore[method-assign]


def _failed_file_stays_open() -> None:
    import pyarrow.parquet as pq

    from tiering.parquet.writer import ParquetFileWriter

    ParquetFileWriter.close = pq.ParquetWriter.close  # type: ignore[method-assign]


def _renamed_within_forgotten() -> None:
    from disks.local.plan import CommitPlan

    def roots(self: Any, path: str) -> list[str]:
        return [path, *(move.target for move in self._moves if move.target and move.target.startswith(f"{path}/"))]

    CommitPlan._roots = roots  # type: ignore[method-assign]


def _any_certificate() -> None:
    import ssl

    from disks.stores.s3.http import Connections

    def trusting(self: Connections) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    Connections._security = property(trusting)  # type: ignore[assignment]


def _half_a_body() -> None:
    from disks.stores.s3 import http_answers

    def read(connection: Any, data: bytes, size_bytes: int) -> tuple[bytes, bytes]:
        while len(data) < size_bytes and (more := connection.recv(size_bytes - len(data))):
            data += more
        return data[:size_bytes], data[size_bytes:]

    http_answers._read_exactly = read


def _stale_connection() -> None:
    from disks.stores.s3.http import _Connection

    _Connection.is_readable = lambda self: False  # type: ignore[method-assign]


def _refusal_unheard() -> None:
    from disks.stores.s3.http import _Connection

    original = _Connection.send

    def send(self: _Connection, head: bytes, body: memoryview | None) -> None:
        if problem := original(self, head, body):
            raise problem

    _Connection.send = send  # type: ignore[method-assign]


def _owners_for_ever() -> None:
    from disks.host.locks import Owners

    original, kept = Owners.begin, list[Any]()

    def begin(self: Any) -> None:
        original(self)
        kept.append(self)

    Owners.begin = begin  # type: ignore[method-assign]


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "pin released by delete alone",
        "a pin that Object Lock keeps stays in force after its release",
        "tests/unit/oplog/test_oplog_snapshot.py::test_a_pin_that_a_lock_keeps_counts_as_released",
        _release_by_delete_alone,
    ),
    (
        "lease ended by delete alone",
        "a lease that Object Lock keeps is held on to after it was let go",
        "tests/unit/disks/object_disk/test_object_disk_writers.py::test_a_lease_needs_no_delete",
        _lease_ends_by_delete_alone,
    ),
    (
        "marker for a delete",
        "gc adds a delete marker in a versioned bucket and calls the bytes freed",
        f"{_LOCK}::test_a_delete_in_a_versioned_bucket_frees_the_bytes[ministack]",
        _marker_for_a_delete,
    ),
    (
        "lock not looked at",
        "what Object Lock keeps is not said until when",
        f"{_LOCK}::test_a_locked_object_stays_visible_and_says_until_when[ministack]",
        _lock_not_looked_at,
    ),
    (
        "kept is a failure",
        "gc takes what a lock keeps for failed deletes",
        "tests/unit/disks/garbage/test_garbage.py::test_what_a_lock_keeps_is_no_failure_and_goes_when_it_ends",
        _kept_is_a_failure,
    ),
    (
        "foreign is scratch",
        "gc deletes every object below doctor/ and objbench/, whoever wrote it",
        "tests/unit/disks/garbage/test_garbage.py::test_leftovers_of_killed_trials_go_and_only_those",
        _foreign_is_scratch,
    ),
    (
        "rules above do not count",
        "doctor overlooks a lifecycle rule for the whole bucket",
        f"{_DOCTOR}::TestRules::test_a_rule_that_expires_our_objects_is_named_with_its_days[]",
        _rules_above_do_not_count,
    ),
    (
        "no answer is ok",
        "doctor takes a question that a store does not know for a good answer",
        f"{_DOCTOR}::TestMeddling::test_a_question_without_an_answer_is_not_known[?versioning-versioning]",
        _no_answer_is_ok,
    ),
    (
        "clock not compared",
        "doctor believes a clock that is an hour off",
        f"{_DOCTOR}::TestMeddling::test_a_wrong_clock[shift1-problem-4]",
        _clock_not_compared,
    ),
    (
        "impatient",
        "a storm of 503 ends work after a few seconds",
        "tests/unit/disks/stores/test_stores_wrappers.py::test_a_storm_of_a_minute_is_sat_out_and_a_dead_server_is_not",
        _impatient,
    ),
    (
        "bench compares nothing",
        "objbench praises a store that gives back wrong bytes",
        "tests/integration/test_objbench.py::test_each_broken_promise_is_named[bits-bytes are returned as written]",
        _bench_compares_nothing,
    ),
    (
        "any certificate",
        "puts and listings accept a server whose certificate nobody vouches for",
        "tests/integration/test_tls_and_names.py::test_an_unknown_authority_is_refused[ministack]",
        _any_certificate,
    ),
    (
        "half a body",
        "a body that is cut off on the way passes for the whole",
        f"{_HTTP}::test_an_answer_that_is_none_is_an_error_and_closes_its_line[half a body]",
        _half_a_body,
    ),
    (
        "stale connection",
        "a connection that the server has closed is used for a request",
        f"{_HTTP}::test_a_connection_closed_by_the_server_is_not_used_again",
        _stale_connection,
    ),
    (
        "refusal unheard",
        "a server that refuses a body while it is sent is taken for one that is gone",
        f"{_HTTP}::test_a_server_that_refuses_before_the_body_has_come_is_heard",
        _refusal_unheard,
    ),
    (
        "failed file stays open",
        "a Parquet file whose writing failed keeps its space on a full disk",
        "tests/integration/test_bad_input.py::test_a_write_that_failed_gives_its_space_back_at_once",
        _failed_file_stays_open,
    ),
    (
        "renamed within forgotten",
        "the plan of a local commit loses what was renamed with the directory around it",
        f"{_LOCAL}::test_a_renamed_directory_with_only_hidden_files_is_known",
        _renamed_within_forgotten,
    ),
    (
        "owners: by process id alone",
        "whoever works in another container is taken for dead, and its claims are taken over",
        "tests/unit/tiering/journal/test_journal.py::test_a_claim_holds_where_its_process_id_means_nothing",
        replaced("disks.host.locks:Owners", "lives", lambda self, name: False),
    ),
    (
        "owners: for ever",
        "claims of a journal that was lost within a living process are never given back",
        "tests/unit/tiering/journal/test_journal.py::test_claims_of_a_journal_that_nobody_has_any_more_are_stale",
        _owners_for_ever,
    ),
    (
        "held files: who is not seen is dead",
        "what a backup of another container reads is taken away under it",
        "tests/unit/disks/local/test_held_files.py::test_what_another_container_holds_stays_for_a_day",
        replaced("disks.local.held_files", "_UNSEEN_SECONDS", 0),
    ),
    (
        "directory: writers by process id alone",
        "what a killed writer left stays while any process has its id",
        "tests/unit/disks/stores/test_stores_directory.py::test_a_reused_process_id_keeps_no_leftover",
        replaced("disks.stores.directory", "is_alive", lambda pid, start: True),
    ),
    (
        "answers: any root",
        "whatever document comes with 200 is the answer to the request",
        f"{_ANSWERS}::test_no_wrong_answer_is_believed[DeleteObjects-HTML]",
        replaced("disks.stores.s3.answers", "_check_root", nothing),
    ),
    (
        "answers: of any request",
        "a listing of another bucket or prefix, or from another key on, is believed",
        f"{_ANSWERS}::test_a_listing_that_is_about_something_else",
        replaced("disks.stores.s3.answers", "_check_repeated", nothing),
    ),
    (
        "answers: 404 of anybody",
        "a proxy's 404 says that the object does not exist",
        f"{_ANSWERS}::test_a_404_of_a_web_server_is_no_missing_object[GetObject]",
        replaced("disks.stores.s3.errors", "bare_404", lambda place, key, text: NotFound(text)),
    ),
    (
        "gc: pins of one listing",
        "a collection goes on after its listings have contradicted each other",
        f"{_CONTRADICTIONS}::test_a_pin_that_one_listing_shows_and_another_does_not",
        replaced("disks.garbage.live_references", "check_listed", nothing),
    ),
    (
        "store: checksums for ever",
        "a store that refuses checksums is sent them with each request",
        f"{_WEAK}::test_a_store_without_checksums_keeps_objects[invalid-auto]",
        replaced("disks.stores.s3.requests:S3Requests", "leave_checksums_out", nothing),
    ),
    (
        "doctor: a refusal is no answer",
        "a store that refuses every put has no problem",
        f"{_WEAK}::test_doctor_finds_no_store_good_that_refuses_writes[PUT-doctor/-put]",
        replaced("disks.stores.trial.examine", "Transient", FrostlineError),
    ),
    (
        "retry: a pause of our own",
        "Retry-After of a store is not obeyed",
        f"{_WEAK}::test_a_pause_that_the_server_asks_for_is_made[ours-seconds]",
        replaced("disks.stores.s3.requests", "waiting", lambda error, headers: error),
    ),
    (
        "retry: any date is one",
        "a date that cannot be in Retry-After ends a verb with a traceback",
        f"{_WEAK}::test_a_pause_that_the_server_asks_for_is_made[ours-no zone]",
        replaced("disks.stores.s3.errors", "date_of", parsedate_to_datetime),
    ),
    (
        "format: whatever it reads",
        "a damaged .SCHEMA_VERSION tells the user to upgrade",
        "tests/unit/oplog/test_oplog_log.py::test_a_log_of_another_format_is_left_alone[junk-Damaged]",
        replaced("oplog.mark", "is_format", lambda version: True),
    ),
    (
        "pins: only a lock keeps them",
        "a pin that the credentials may not delete makes a complete backup fail",
        f"{_APPEND_ONLY}::test_a_complete_backup_leaves_no_pin_of_its_own[each]",
        replaced("oplog.pins", "UNDELETABLE", Retained),
    ),
    (
        "backup: only a lock keeps a claim",
        "a claim that the credentials may not delete is an error of the backup",
        f"{_APPEND_ONLY}::test_backups_of_an_append_only_repository[each]",
        replaced("backup.storage", "UNDELETABLE", (Retained,)),
    ),
    (
        "gc: only a lock keeps an announcement",
        "an announcement that the credentials may not delete stays in force",
        f"{_APPEND_ONLY}::test_a_collection_without_the_permission_says_so[each]",
        replaced("disks.garbage.announcements", "UNDELETABLE", Retained),
    ),
    (
        "commit: no pause",
        "who loses to an entry that no listing shows puts the next one at once",
        f"{_CONTRADICTIONS}::TestCommits::test_it_waits_longer_each_time",
        replaced("disks.object_disk.turns:Turns", "pause", nothing),
    ),
)
