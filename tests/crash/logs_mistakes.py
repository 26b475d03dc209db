"""Seeded mistakes where several logs share the objects of a prefix, for `tests.crash.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.crash.seeding import nothing, replaced

_GC = "tests/unit/disks/garbage/test_shared_garbage.py"
_LOGS = "tests/unit/disks/object_disk/test_several_logs.py"
_RETIRED = "tests/integration/test_several_logs.py"
_PROPERTY = "tests/property/test_several_logs.py"


def _unreadable_is_empty() -> None:
    from disks.garbage import reference_sources
    from oplog.errors import FrostlineError

    original = reference_sources.ReferenceSources._evidence_of

    def evidence(self: Any, *arguments: Any) -> Any:
        try:
            return original(self, *arguments)
        except FrostlineError:
            return reference_sources._EMPTY

    reference_sources.ReferenceSources._evidence_of = evidence  # type: ignore[assignment,method-assign]


def _pins_of_others_unseen() -> None:
    from disks.garbage import reference_sources
    from disks.object_disk.sharing.other_log import OtherLog
    from oplog import pins

    original = pins.list_pins

    def blind(read: Any) -> Any:
        def collected(log: Any, *arguments: Any, **options: Any) -> Any:
            pins.list_pins = (lambda store: []) if isinstance(log, OtherLog) else original
            try:
                return read(log, *arguments, **options)
            finally:
                pins.list_pins = original

        return collected

    for name in ("collect_references", "references_among"):
        setattr(reference_sources, name, blind(getattr(reference_sources, name)))


def _what_was_removed_is_forgotten() -> None:
    from disks.garbage.candidate_references import _Past

    def stop_before(self: Any, revision: int) -> None:
        self._stops.clear()

    _Past._stop_before = stop_before  # type: ignore[method-assign]


def _fence_in_one_log() -> None:
    from disks.garbage.reference_sources import ReferenceSources

    def fence(self: Any, announcement: str) -> None:
        self._disk.fence(announcement)

    ReferenceSources.fence = fence  # type: ignore[method-assign]


def _first_commit_does_not_look() -> None:
    from disks.object_disk.disk import ObjectDisk

    original = ObjectDisk._begin_log

    def begin(self: Any, table: Any, basis: Any) -> None:
        looked_at = basis.looked_at
        original(self, table, basis)
        basis.looked_at = looked_at

    ObjectDisk._begin_log = begin  # type: ignore[method-assign]


def _marks_asked_once() -> None:
    from disks.garbage.reference_sources import ReferenceSources

    original = ReferenceSources.renewed

    def renewed(self: Any) -> Any:
        asked, self._references = self._references, None
        try:
            return original(self)
        finally:
            self._references = asked

    ReferenceSources.renewed = renewed  # type: ignore[method-assign]


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "logs: one's own alone",
        "gc reads its own log, and no other of the prefix",
        f"{_GC}::test_what_any_log_names_stays",
        replaced("disks.garbage.reference_sources", "heeded_logs", lambda disk, now: []),
    ),
    (
        "logs: by chance alone",
        "gc reads its own log, and no other of the prefix: found by random work",
        _PROPERTY,
        replaced("disks.garbage.reference_sources", "heeded_logs", lambda disk, now: []),
    ),
    (
        "logs: removed is forgotten",
        "of another log only what its newest table names, and what came since the retention's begin, keeps objects",
        f"{_GC}::test_the_retention_and_the_pins_of_another_log_are_heeded",
        _what_was_removed_is_forgotten,
    ),
    (
        "logs: links not followed",
        "an object that another log removed from one path and kept at another, within its retention, goes",
        f"{_GC}::test_a_file_of_another_log_is_followed_from_path_to_path",
        replaced("disks.garbage.candidate_references:_Files", "put", nothing),
    ),
    (
        "logs: retired at once",
        "a log that was retired a moment ago is heeded no more",
        f"{_RETIRED}::test_the_log_of_a_machine_that_is_gone",
        replaced("disks.object_disk.sharing.retiring", "is_over", lambda found, now: found is not None),
    ),
    (
        "logs: fences are life",
        "a log that collections of others put fences into is that of a machine that lives",
        f"{_RETIRED}::test_the_log_of_a_machine_that_is_gone",
        replaced("disks.object_disk.sharing.retiring", "Fenced", type),
    ),
    (
        "logs: nothing alone",
        "a log that is retired holds nothing that no other one does",
        f"{_RETIRED}::test_the_log_of_a_machine_that_is_gone",
        replaced("tiering.engine.retiring", "_fill", nothing),
    ),
    (
        "logs: taken back late",
        "a machine takes its log back while others collect what it named",
        f"{_RETIRED}::test_a_machine_that_was_only_quiet_takes_its_log_back",
        replaced("disks.object_disk.sharing.writers", "_TAKEN_BACK_WITHIN", timedelta(days=30)),
    ),
    (
        "logs: unreadable is empty",
        "a log that cannot be read names nothing",
        f"{_GC}::test_a_log_that_cannot_be_read_for_a_moment_stops_everything",
        _unreadable_is_empty,
    ),
    (
        "logs: damaged is empty",
        "a log with a record that is nonsense names nothing",
        f"{_GC}::test_a_damaged_record_of_another_log_stops_everything",
        _unreadable_is_empty,
    ),
    (
        "logs: pins of others",
        "a pin in another log keeps nothing",
        f"{_GC}::test_the_retention_and_the_pins_of_another_log_are_heeded",
        _pins_of_others_unseen,
    ),
    (
        "logs: retention of others",
        "another log is heeded by the retention of who collects",
        f"{_GC}::test_the_retention_and_the_pins_of_another_log_are_heeded",
        replaced(
            "disks.object_disk.sharing.writers:WriterClaim",
            "__init__",
            lambda self, store, disk, path, seconds: self.__dict__.update(
                _store=store, _disk=disk, _file=path / "writer", _retention_seconds=24 * 3600, _looked=None
            ),
        ),
    ),
    (
        "logs: one fence",
        "a collection puts its fence into its own log alone",
        f"{_GC}::test_a_commit_of_another_log_between_the_look_and_the_delete",
        _fence_in_one_log,
    ),
    (
        "logs: newcomer",
        "a log that began while a collection ran is not noticed",
        f"{_GC}::test_a_log_that_begins_meanwhile_stops_the_batch",
        replaced("disks.garbage.reference_sources:ReferenceSources", "renewed", lambda self: self.renewed_own()),
    ),
    (
        "logs: marks asked once",
        "a mark that was set while a collection ran keeps nothing",
        f"{_GC}::test_what_a_mark_holds_stays_and_each_batch_asks_again",
        _marks_asked_once,
    ),
    (
        "logs: no objection",
        "a collection goes on though the marks are not to be relied on",
        f"{_GC}::test_marks_that_cannot_be_asked_stop_everything",
        replaced("disks.garbage.reference_sources:ReferenceSources", "release", lambda self, keys: keys),
    ),
    (
        "logs: any writer",
        "a second machine with the name of a log writes it",
        f"{_LOGS}::test_a_second_machine_with_the_name_of_a_log_is_refused",
        replaced("disks.object_disk.sharing.writers:WriterClaim", "check", nothing),
    ),
    (
        "logs: first commit",
        "the first commit of a log names objects that nobody looked at",
        f"{_LOGS}::test_the_first_commit_of_a_log_looks_at_what_it_adopts",
        _first_commit_does_not_look,
    ),
    (
        "logs: format of one",
        "entries say that their log is the only one of its prefix",
        f"{_LOGS}::test_versions_that_know_one_log_a_prefix_refuse_it",
        replaced("oplog.entry", "NAMED_LOG_FORMAT", 3),
    ),
)
