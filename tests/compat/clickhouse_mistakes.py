"""Seeded mistakes in reading ClickHouse's log, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


def _links_copied() -> None:
    """A hard link gets an inode of its own."""
    from oplog.clickhouse.directory import Inode
    from oplog.clickhouse.replay import _Tree

    original = _Tree._link

    def link(self: Any, record: Any, source: str, target: str) -> None:
        original(self, record, source, target)
        directory, name = self._parent(target), target.rpartition("/")[2]
        if directory is not None and isinstance(directory.get(name), Inode):
            directory[name] = copy.copy(directory[name])

    _Tree._link = link  # type: ignore[method-assign]


def _files_first() -> None:
    """ClickHouse's own order: every file before the first operation."""
    from restore.clickhouse import bucket as clickhouse_bucket

    original = clickhouse_bucket.replay
    clickhouse_bucket.replay = lambda records, restarts=(): original(
        sorted(records, key=lambda record: record.listed.name.kind != "file"), restarts
    )


def _copies_joined() -> None:
    from oplog.clickhouse import replay as clickhouse_replay

    clickhouse_replay.may_append = lambda path: True


def _filter_misses_slashes() -> None:
    """Defect 7: the revision filter does not see keys with a slash."""
    from restore.clickhouse import bucket as clickhouse_bucket

    original = clickhouse_bucket.epochs

    def epochs(objects: Any) -> Any:
        found = original(objects)
        late = tuple(listed for run in found.runs for listed in run if "-file-" in listed.key and "/" in listed.key)

        class Unfiltered(type(found)):  # type: ignore[misc]
            def until(self, revision: int | None) -> Any:
                wanted = super().until(revision)
                return (*wanted, *(listed for listed in late if listed not in wanted))

        return Unfiltered(found.runs, found.duplicates, found.times_unusable)

    clickhouse_bucket.epochs = epochs


def _repeated_dropped() -> None:
    """Of two objects with one revision the later one counts alone, without a word."""
    from restore.clickhouse import bucket as clickhouse_bucket

    original = clickhouse_bucket.epochs
    clickhouse_bucket.epochs = lambda objects: original({listed.revision: listed for listed in objects}.values())


def _times_ignored() -> None:
    from oplog.clickhouse import names as clickhouse

    clickhouse._restarts = lambda objects, repeated: []


def _any_pause() -> None:
    """A restart is seen at the first fall of the numbers, as if uploads never overtook one another."""
    from oplog.clickhouse import names as clickhouse

    clickhouse._pauses = lambda by_time: [listed.modified for listed in by_time]


def _names_swept_up() -> None:
    """What an earlier run left under a temporary name is taken for what a later one writes there."""
    from oplog.clickhouse.replay import _Tree

    _Tree._fresh_temporary = lambda self, path, directory: directory  # type: ignore[method-assign]


def _dashes_unknown() -> None:
    from oplog.clickhouse import names as clickhouse
    from restore.clickhouse import records as clickhouse_records

    original = clickhouse.record

    def record(listed: Any, metadata: Any) -> Any:
        return original(listed, {name: value for name, value in metadata.items() if "-" not in name})

    clickhouse_records.record = record


def _lost_paths_unreported() -> None:
    from oplog.clickhouse.replay import _Tree

    original = _Tree._usable

    def usable(self: Any, record: Any) -> bool:
        return record.complete and original(self, record)

    _Tree._usable = usable  # type: ignore[method-assign]


def _deleted_parts_back() -> None:
    from oplog.clickhouse import replay as clickhouse_replay

    clickhouse_replay.DELETING = "no such prefix"


def _gaps_unseen() -> None:
    from restore.clickhouse import bucket as clickhouse_bucket

    clickhouse_bucket.missing_revisions = lambda order, until: []


def _checksums_unread() -> None:
    from restore.clickhouse import part_files

    part_files.parse_checksums = lambda data, *, name: {}


def _hash_ignored() -> None:
    """A gap is filled with the first object of the right size."""
    from restore.clickhouse import part_files

    original = part_files._Gaps._found

    def found(self: Any, checksum: Any) -> Any:
        candidates = self._by_size[checksum.size_bytes]
        return candidates.pop(0) if candidates else original(self, checksum)

    part_files._Gaps._found = found  # type: ignore[method-assign]


def _type_begins_well() -> None:
    """Only the beginning of a type is parsed, and the text itself goes into the statement."""
    from oplog.clickhouse import types
    from restore.clickhouse.convert import columns, convert

    columns.parse = lambda text: types._type(text, 0, 0)[0]
    convert.declared_type = lambda column: column.kind  # type: ignore[assignment]


def _asked_again() -> None:
    """Every object is asked for twice."""
    from restore.clickhouse import records as clickhouse_records

    original = clickhouse_records.look

    def look(store: Any, question: Any) -> Any:
        original(store, question)
        return original(store, question)

    clickhouse_records.look = look


_CAPTURE = "tests/compat/test_capture.py"
_REPLAY = "tests/compat/test_replay.py"
_REPLAY_RESTARTS = "tests/compat/test_replay_restarts.py"

MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "links copied",
        "hard links of a ClickHouse disk do not share their inode",
        f"{_CAPTURE}::test_the_server_s_tree_at_its_newest_revision",
        _links_copied,
    ),
    (
        "deleted parts back",
        "parts that a ClickHouse server had begun to delete are back",
        f"{_CAPTURE}::test_the_server_s_tree_at_its_newest_revision",
        _deleted_parts_back,
    ),
    (
        "gaps unseen",
        "files whose objects are gone at an old revision are not named",
        f"{_CAPTURE}::test_the_tree_at_the_freeze_and_what_is_lost_since",
        _gaps_unseen,
    ),
    (
        "asked again",
        "two HEADs for each object",
        f"{_CAPTURE}::TestRequests::test_one_head_an_object_at_most",
        _asked_again,
    ),
    (
        "files first",
        "files are replayed before all operations, as ClickHouse did",
        f"{_REPLAY_RESTARTS}::TestCopies",
        _files_first,
    ),
    ("copies joined", "two blobs of one path are one file", f"{_REPLAY_RESTARTS}::TestCopies", _copies_joined),
    (
        "filter misses slashes",
        "an old revision has every file",
        f"{_REPLAY}::TestEveryStyle",
        _filter_misses_slashes,
    ),
    (
        "repeated dropped",
        "one of two objects with one revision is dropped",
        f"{_REPLAY_RESTARTS}::TestRestarts",
        _repeated_dropped,
    ),
    (
        "times ignored",
        "restarts of ClickHouse's counter are not seen",
        f"{_REPLAY_RESTARTS}::TestRestarts",
        _times_ignored,
    ),
    (
        "any pause",
        "restarts are seen where uploads overtook one another",
        f"{_REPLAY_RESTARTS}::TestRestarts",
        _any_pause,
    ),
    (
        "names swept up",
        "parts of two runs under one temporary name are one",
        f"{_REPLAY_RESTARTS}::TestRestarts",
        _names_swept_up,
    ),
    ("dashes unknown", "`from-path` is no path", f"{_REPLAY}::TestMetadata", _dashes_unknown),
    (
        "lost paths unreported",
        "operations without their paths are passed over",
        f"{_REPLAY}::TestMetadata",
        _lost_paths_unreported,
    ),
    (
        "checksums unread",
        "a part is not compared with its checksums",
        "tests/compat/test_kinds.py::TestPlain",
        _checksums_unread,
    ),
    (
        "hash ignored",
        "a file that a part lacks is any object of its size",
        f"{_REPLAY_RESTARTS}::TestCopies",
        _hash_ignored,
    ),
    (
        "types as text",
        "a type that stands in a bucket is part of a statement",
        "tests/property/test_clickhouse_types.py::test_no_text_of_a_part_is_a_statement",
        _type_begins_well,
    ),
)
