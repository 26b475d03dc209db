"""Seeded mistakes in what is kept of parts, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from tests.crash.seeding import nothing, replaced

_PARTS = "tests/unit/tiering/catalog/test_stored_parts.py"
_LOST = "tests/unit/tiering/catalog/test_lost_rows.py"
_LOOKS = "tests/unit/tiering/catalog/test_table_parts.py"
_BATCHES = "tests/unit/tiering/catalog/test_batches.py"
_CHANGES = "tests/unit/disks/local/test_changes.py"
_ARRIVALS = "tests/unit/disks/local/test_many_arrivals.py"
_RACES = "tests/crash/test_move_races.py"
_MACHINE = "tests/property/test_store_machine.py::test_the_store_is_a_dict"
_KILLS = "tests/crash/test_kill.py::test_killed_at_every_effect"
_HISTORIES = f"{_CHANGES}::test_what_is_another_than_before_is_among_what_was_touched"


def _mark_by_size(file: str, settled_ns: int) -> tuple[int, ...] | None:
    try:
        found = os.lstat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _seen_once() -> None:
    from tiering.catalog.looks.reader import PartReader

    original = PartReader.look

    def look(self: Any, definition: Any, disk: Any, *arguments: Any, **options: Any) -> Any:
        seen = self._looked.get((disk.name, definition.uuid))
        return seen or original(self, definition, disk, *arguments, **options)

    PartReader.look = look  # type: ignore[method-assign]


def _each_by_itself(self: Any, arriving: Any, transaction: str) -> None:
    for path in arriving:
        self._make_way(path, transaction)


def _over_what_is_there(self: Any, arriving: Any, transaction: str) -> None:
    return


def _kept_while_away() -> None:
    from tiering.catalog.looks.reader import PartReader

    look, load = PartReader.look, PartReader._load

    def looked(self: Any, definition: Any, disk: Any, *arguments: Any, **options: Any) -> Any:
        found = look(self, definition, disk, *arguments, **options)
        found.generation *= disk.broken is None
        return found

    def loaded(self: Any, found: Any) -> Any:
        found.generation = 0
        return load(self, found)

    PartReader.look = looked  # type: ignore[method-assign]
    PartReader._load = loaded  # type: ignore[method-assign, assignment]


def _any_state() -> None:
    from tiering.catalog.looks.reader import PartReader

    def known(self: Any, last: Any, empty: Any, state: Any, policy: Any) -> Any:
        kept = self._kept.look(empty.location)
        return None if kept is None else replace(empty, state=state, kept=kept, is_unread=True)

    PartReader._known = known  # type: ignore[method-assign]


def _gone_for_good() -> None:
    from tiering.catalog.looks.look import Look

    away: set[tuple[str, str]] = set()
    gone, take = Look.gone, Look.take

    def noted(self: Any) -> Any:
        found = gone(self)
        away.update((self.result.location.disk, path) for path, _ in found if path not in self.result.marks)
        return found

    def taken(self: Any, file: Any) -> None:
        if (self.result.location.disk, file.path) not in away:
            take(self, file)

    Look.gone, Look.take = noted, taken  # type: ignore[method-assign]


def _rows_of_any_look() -> None:
    from tiering.journal.kept_parts import KeptParts

    def parts_of(self: Any, place: Any, look: int, partition: str | None = None, to: str | None = None) -> Any:
        return [row for row in self.load(place) if partition is None or f"/{partition}_" in row[0]][:2]

    KeptParts.parts_of = parts_of  # type: ignore[method-assign]


def _gaps_not_seen() -> None:
    from disks.local.changes import Changes

    def between(self: Any, directory: str, before: Any, after: Any) -> set[str]:
        return {name for touched in self._lately(directory) for name in touched.names}

    Changes.between = between  # type: ignore[method-assign]


def _by_the_last_line() -> None:
    from disks.local.disk import LocalDisk

    state_of = LocalDisk.state_of

    def said(self: Any, directory: str) -> Any:
        touched = next(iter(self._commits.changes._lately(directory)), None)
        return state_of(self, directory) if touched is None else touched.after

    LocalDisk.state_of = said  # type: ignore[method-assign]


def _but_for_the_last_batch() -> None:
    from tiering.catalog.looks import batches

    ranges = batches._ranges
    batches._ranges = lambda directory, names: iter(list(ranges(directory, names))[:-1])


def _uncounted(mistake: Callable[[], None]) -> Callable[[], None]:
    """The mistake, where nobody counts whether the rows are as many as the sums say: that finds it, too, and reads all
    anew, at the cost of a whole look each time."""

    def apply() -> None:
        replaced("tiering.catalog.looks.reader", "_are_all", lambda *arguments: True)()
        replaced("tiering.catalog.looks.reader", "_may_be_among", lambda *arguments: True)()
        mistake()

    return apply


def _any_files() -> None:
    from tiering.journal.kept_looks import FoundFiles

    FoundFiles.add = nothing  # type: ignore[method-assign]


def _rows_of_any_shape() -> None:
    from tiering.journal.kept_parts import KeptParts

    parts_of = KeptParts.parts_of

    def of_any(self: Any, place: Any, *arguments: Any) -> Any:
        return [row for one in (place, replace(place, shape="1,2")) for row in parts_of(self, one, *arguments) or ()]

    KeptParts.parts_of = of_any  # type: ignore[method-assign, assignment]


def _by_several_looks() -> None:
    from tiering.catalog.table_parts import TableParts

    def see(self: Any, looks: Any) -> None:
        self.looks[:] = looks
        self._partitions.clear()

    TableParts.see = see  # type: ignore[method-assign]


def _as_it_looked_before() -> None:
    from tiering.catalog.looks.reader import PartReader

    known = PartReader._known

    def looked(self: Any, last: Any, empty: Any, *state: Any) -> Any:
        return last if last is not None and last.asks_the_same(empty) else known(self, last, empty, *state)

    PartReader._known = looked  # type: ignore[method-assign]


def _held() -> None:
    from tiering.catalog.looks.stored import LazyPart

    LazyPart.part_of = lambda self, known: self.part()  # type: ignore[method-assign]


def _look_before_its_rows() -> None:
    from tiering.journal import kept_looks
    from tiering.journal.kept_parts import KeptParts

    note = KeptParts.note

    def noted(self: Any, place: Any, new: Any, gone: Any, look: Any = None, *, after: int | None = None) -> Any:
        if look is not None:
            columns = kept_looks.encoded(look.state, look.rules, look.sums)
            with self._writing() as connection:
                connection.execute(kept_looks.FORGET_LOOK, (place.disk, place.directory))
                where = (place.disk, place.directory, place.shape)
                number = connection.execute(kept_looks.INSERT_LOOK, (*where, *columns)).lastrowid
            after = None if after is None else number
        return note(self, place, new, gone, look, after=after)

    KeptParts.note = noted  # type: ignore[method-assign]


def _all_names_listed() -> None:
    from disks.object_disk.table_disk import TableDisk

    del TableDisk.files_in


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "catalog: others not seen",
        "what another process committed since the first look is not looked for",
        f"{_PARTS}::test_each_step_of_one_process_is_what_the_others_see",
        _seen_once,
    ),
    (
        "catalog: always the same",
        "the states of parts are those of the look before, whatever has changed",
        f"{_PARTS}::test_each_step_of_one_process_is_what_the_others_see",
        replaced("tiering.catalog.looks.look:Look", "found_the_same", lambda self: True),
    ),
    (
        "catalog: kept while away",
        "a look at a disk that is not there counts as the one at what was kept of it",
        f"{_PARTS}::test_a_disk_that_goes_away_and_comes_back",
        _kept_while_away,
    ),
    (
        "catalog: a mark that can be set",
        "a file is told from others by its inode, its size and the time that anybody can set",
        f"{_PARTS}::test_a_file_that_was_changed_by_hand_is_read_again",
        replaced("disks.local.disk", "mark_of", _mark_by_size),
    ),
    (
        "catalog: the ranges of an older rule",
        "which columns tell when a part is due is not asked again when the rules change",
        f"{_PARTS}::test_a_rule_about_another_column_is_followed",
        replaced("tiering.table.kept_facts", "columns_of", lambda definition: [str(definition.columns[1].id)]),
    ),
    (
        "catalog: gone at once",
        "what a part said goes with the part, also when somebody who looked before asks for it",
        f"{_PARTS}::test_who_looked_before_a_merge_can_read_what_it_took",
        replaced("tiering.journal.kept_parts", "_KEPT_SECONDS", -10),
    ),
    (
        "catalog: marks among all names",
        "the marks of other machines are looked for among the names of all parts",
        f"{_PARTS}::test_a_plan_goes_through_no_names_of_cold_parts",
        _all_names_listed,
    ),
    (
        "catalog: believed by fsck",
        "fsck does not compare what is kept of parts with what they say",
        f"{_PARTS}::test_fsck_names_the_part_of_which_something_else_is_kept",
        replaced("restore.check.check", "check_kept", nothing),
    ),
    (
        "catalog: facts believed by fsck",
        "fsck compares the part.json that are kept, and not the facts beside them",
        f"{_PARTS}::test_fsck_names_the_part_of_which_something_else_is_kept",
        replaced("tiering.table.kept_facts", "are_of", lambda *arguments, **options: True),
    ),
    (
        "looks: always as they were",
        "a kept look is believed whatever state the disk shows",
        f"{_LOOKS}::test_looks_are_what_disks_say_after_each_step_of_another",
        _any_state,
    ),
    (
        "looks: due by the rules of before",
        "when a rule is due is not computed anew when the rules change",
        f"{_LOOKS}::test_a_pass_looks_at_each_part_before_it_moves_one",
        replaced("tiering.catalog.looks.reader", "rules_digest", lambda definition, policy: ""),
    ),
    (
        "looks: deleted by a kept look",
        "a pass moves parts that it has not looked at",
        f"{_LOOKS}::test_a_pass_looks_at_each_part_before_it_moves_one",
        replaced("tiering.engine.maintenance", "_look", lambda context: False),
    ),
    (
        "looks: the rows of another look",
        "parts are read for a look that another process has replaced",
        f"{_LOOKS}::test_a_look_that_another_has_replaced_is_made_anew",
        _rows_of_any_look,
    ),
    (
        "changes: commits leave no trace",
        "a commit that touches only what is in a part's directory leaves the state of the table's",
        f"{_CHANGES}::test_a_commit_within_a_directory_shows_above_it",
        replaced("disks.local.changes:Changes", "noted", lambda self, *touched: nullcontext()),
    ),
    (
        "changes: gaps not seen",
        "what commits say they touched is all, whatever else happened in between",
        _HISTORIES,
        _gaps_not_seen,
    ),
    (
        "changes: arrivals only",
        "a commit does not say what it took away",
        _HISTORIES,
        replaced("disks.local.plan:CommitRecord", "moved_paths", lambda self: iter(())),
    ),
    (
        "looks: followed with the parts of before",
        "of a name that a commit touched the part that was kept stays",
        f"{_LOOKS}::test_looks_are_what_disks_say_after_each_step_of_another",
        replaced("tiering.catalog.looks.look:Look", "gone", lambda self: []),
    ),
    (
        "looks: gone for good",
        "a part that left a disk and comes back to it is not looked at",
        f"{_LOOKS}::test_looks_are_what_disks_say_after_each_step_of_another",
        _gone_for_good,
    ),
    (
        "looks: died before it was noted",
        "what a commit did that died before it said so is not looked for",
        f"{_LOOKS}::test_a_commit_that_died_is_seen",
        _by_the_last_line,
    ),
    (
        "looks: sums only grow in a race",
        "sums that are kept in the midst of a move keep what another process takes away",
        f"{_RACES}::test_another_process_at_some_steps_of_a_move[drop_january]",
        _uncounted(replaced("tiering.policy.part_sums", "_without", lambda sums, parts, policy: (sums, ()))),
    ),
    (
        "looks: all are active for ever",
        "whether parts take the place of others is not looked at where a look goes on from another",
        f"{_LOOKS}::test_a_part_that_comes_to_a_second_disk_is_a_duplicate",
        replaced("tiering.catalog.table_parts", "_are_active", lambda found: True),
    ),
    (
        "looks: believed by fsck",
        "fsck does not compare the looks that are kept with the disks",
        f"{_LOOKS}::test_fsck_names_the_table_of_which_something_else_is_kept",
        replaced("restore.check.kept", "looks", lambda path: []),
    ),
    (
        "looks: a part that is gone stays summed",
        "sums only grow",
        f"{_LOOKS}::test_looks_are_what_disks_say_after_each_step_of_another",
        _uncounted(replaced("tiering.policy.part_sums", "_without", lambda sums, parts, policy: (sums, ()))),
    ),
    (
        "looks: the last batch forgotten",
        "a first look at very many parts ends before its last batch",
        f"{_BATCHES}::test_all_is_kept_and_nothing_held",
        _but_for_the_last_batch,
    ),
    (
        "looks: whatever is kept by then",
        "a look made in batches is kept without a look at what is kept when it ends",
        f"{_BATCHES}::test_what_another_keeps_meanwhile_is_not_taken_for_ours",
        _uncounted(_any_files),
    ),
    (
        "looks: active in batches",
        "whether parts take the place of others is not looked at where none is held",
        f"{_BATCHES}::test_parts_that_replace_others_are_found_batch_by_batch",
        replaced("tiering.catalog.table_parts", "_ranges", lambda table: ()),
    ),
    (
        "looks: parts of another question",
        "rows that were kept with the ranges of other columns count as parts",
        f"{_BATCHES}::test_rows_of_columns_that_are_asked_no_more_are_no_parts",
        _uncounted(_rows_of_any_shape),
    ),
    (
        "looks: a query by several",
        "a query takes the parts of some partitions from one look and those of others from a later one",
        f"{_LOOKS}::test_a_query_goes_by_one_look",
        _by_several_looks,
    ),
    (
        "looks: the month before",
        "partitions are left out that may hold rows of the answer",
        f"{_LOOKS}::test_a_query_reads_the_partitions_that_may_hold_its_rows",
        replaced("tiering.query.query", "partition_may_match", lambda predicate, values, definition: values[0] % 2),
    ),
    (
        "catalog: a flipped bit kept",
        "what is kept of parts has no checksum",
        f"{_PARTS}::test_no_flipped_bit_is_believed",
        replaced("tiering.journal.kept_parts", "zlib", SimpleNamespace(crc32=lambda data: 0)),
    ),
    (
        "watched: others not seen",
        "who has looked once goes by that, whatever others commit",
        _MACHINE,
        _as_it_looked_before,
    ),
    (
        "watched: killed between disk and index",
        "a look is kept before the rows of its parts, not with them",
        f"{_KILLS}[move]",
        _uncounted(_look_before_its_rows),
    ),
    (
        "watched: moved back",
        "a part that left a disk and comes back to it is not looked at by who saw it go",
        _MACHINE,
        _gone_for_good,
    ),
    (
        "watched: due by the rules of before",
        "when a rule is due is not computed anew when the rules change",
        _MACHINE,
        replaced("tiering.catalog.looks.reader", "rules_digest", lambda definition, policy: ""),
    ),
    (
        "looks: too few to be kept, for good",
        "a table whose first parts were too few to be kept is looked at as a whole by each insert of one process",
        f"{_LOOKS}::test_a_table_that_grows_part_by_part_in_one_process_is_kept",
        replaced("tiering.catalog.looks.reader:PartReader", "_has_outgrown_memory", lambda self, looked: False),
    ),
    (
        "looks: held after a query",
        "parts hold all that they say once a query has looked into them",
        f"{_LOOKS}::test_parts_that_a_query_looks_into_do_not_hold_what_they_say",
        _held,
    ),
    (
        "looks: all of the past",
        "a query of the past looks into the parts of all partitions",
        f"{_LOOKS}::test_a_query_of_the_past_looks_only_into_its_partitions",
        replaced(
            "tiering.catalog.catalog:Catalog", "parts_where", lambda self, table, may_match: (self.parts(table), 0)
        ),
    ),
    (
        "looks: overtaken",
        "a look at a bucket is kept for the state before a commit that came while it was made",
        f"{_LOOKS}::test_a_look_overtaken_by_commits_is_of_the_state_before",
        replaced("disks.object_disk.table_disk:TableDisk", "steady", lambda self: nullcontext()),
    ),
    (
        "looks: one disk after the other",
        "a part that moves from a disk that is yet to be looked at to one that was is seen on neither",
        f"{_LOOKS}::test_a_part_that_moves_between_two_looks_is_seen",
        replaced("tiering.catalog.table_parts", "_is_behind", nothing),
    ),
    (
        "kept: cut off for ever",
        "a kept catalog whose log is cut off stays for as long as somebody has it open",
        f"{_PARTS}::test_a_catalog_with_a_cut_log_is_rebuilt_while_it_is_open",
        replaced("tiering.journal.kept_parts", "_is_cut_off", lambda error: False),
    ),
    (
        "arrivals: each by itself",
        "a commit asks again for each file what is in the directories above it",
        f"{_ARRIVALS}::test_a_part_more_is_a_few_questions_more",
        replaced("disks.local.commits:LocalCommits", "_make_ways", _each_by_itself),
    ),
    (
        "arrivals: over what is hidden",
        "nothing makes way for the files of a commit",
        f"{_ARRIVALS}::test_hidden_files_and_empty_directories_make_way_for_many",
        replaced("disks.local.commits:LocalCommits", "_make_ways", _over_what_is_there),
    ),
    (
        "looks: rows that are lost",
        "a part whose row is lost from what is kept is left out",
        f"{_LOOKS}::test_a_kept_row_that_is_lost_leaves_no_part_out",
        replaced("tiering.catalog.looks.reader", "_are_all", lambda *arguments: True),
    ),
    (
        "looks: counted twice",
        "a part whose row is lost is counted twice by who looks at each",
        f"{_LOST}::test_who_looks_at_each_part_does_not_count_it_twice",
        replaced("tiering.catalog.looks.reader", "_are_all", lambda *arguments: True),
    ),
    (
        "looks: dropped unseen",
        "a part whose row is lost is counted for ever where a commit drops it",
        f"{_LOST}::test_a_part_that_is_dropped_is_counted_no_more",
        replaced("tiering.catalog.looks.reader", "part_name", nothing),
    ),
    (
        "looks: of another day",
        "a part of a partition that a look does not know is taken from its sums",
        f"{_LOST}::test_a_look_of_before_with_rows_of_what_is_gone_since",
        replaced("tiering.catalog.looks.reader", "_may_be_among", lambda *arguments: True),
    ),
)
