"""Seeded mistakes in what a disk is, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_CHECKS = "tests/hostile/test_disk_identity.py"
_DISK_AWAY = "tests/hostile/test_disk_away.py"
_PLACES = "tests/hostile/test_one_place_twice.py"
_DEMO = "tests/unit/tiering/cli/test_demo_directory.py"
_SET_BACK = "tests/hostile/test_set_back.py"
_ANOTHER = "tests/hostile/test_adopt_another.py"
_STAMPS = "tests/unit/disks/local/test_stamps.py"
_GIVEN_UP = "tests/hostile/test_given_up.py"
_OLDER = "tests/hostile/test_adopt_older.py"
_CLONES = "tests/integration/test_cloned_machine.py"
_DRAIN = "tests/unit/tiering/cli/test_disk_drain.py"
_ENCLOSING = "tests/unit/disks/test_enclosing.py"
_EXTENDING = "tests/integration/test_extending.py"


def _id_by_a_read() -> None:
    from disks.identity import write_file
    from disks.local.disk import LocalDisk

    LocalDisk.identity = lambda self: write_file(self._own)  # type: ignore[method-assign]


def _whole_whatever_is_missing() -> None:
    from tiering.catalog import reachability

    reachability.fault_of = lambda context, definition: None


def _buckets_of_logs_forgotten() -> None:
    from msgspec.structs import replace

    from disks.object_disk.disk import ObjectDisk

    real = ObjectDisk.seen
    ObjectDisk.seen = lambda self: replace(real(self), buckets={})  # type: ignore[method-assign]


def _older_disks_keep_their_id() -> None:
    from msgspec.structs import replace

    from tiering.catalog.identities.identity import Identities

    real = Identities._older

    def kept(self: Identities, name: str, older: Any) -> Any:
        return replace(real(self, name, older), needs_new_identity=older.is_clone)

    Identities._older = kept  # type: ignore[method-assign]


def _older_homes_leave_no_mark() -> None:
    from tiering.catalog.identities import notes

    real = notes.mark_clone

    def mark(*arguments: Any, is_older: bool) -> list[str]:
        return [] if is_older else real(*arguments, is_older=is_older)

    notes.mark_clone = mark


def _every_table_deduplicates() -> None:
    from msgspec.structs import replace

    from restore.check.parts import Survey

    real = Survey.newest

    def newest(self: Survey, uuid: str) -> Any:
        found = real(self, uuid)
        return found and replace(found, settings=replace(found.settings, deduplication_window=1000))

    Survey.newest = newest  # type: ignore[method-assign]


def _uncounted_is_empty() -> None:
    from tiering.catalog.identities.identity import Identities

    real = Identities._unconfigured

    def counted_only(self: Identities, faults: Any) -> None:
        self._records = {name: known for name, known in self._records.items() if known.counted or name in self._places}
        real(self, faults)

    Identities._unconfigured = counted_only  # type: ignore[method-assign]


def _noted_before_the_commit() -> None:
    from disks.local.disk import LocalDisk

    real = LocalDisk._commit

    def early(self: LocalDisk, transaction: Any) -> None:
        commits = self._commits
        self._committed(commits.stamps.next(commits.writer_state()).stamp)
        real(self, transaction)

    LocalDisk._commit = early  # type: ignore[method-assign]


def _stamp_not_synced() -> None:
    from disks.effects import fsync_directory
    from disks.local import commits

    def all_but_own(path: Any) -> None:
        if not str(path).endswith(".frostline"):
            fsync_directory(path)

    commits.fsync_directory = all_but_own  # type: ignore[attr-defined]


def _merges_are_losses() -> None:
    from msgspec.structs import replace

    from tiering.catalog.copies import doubled

    real = doubled.copy_history

    def lost(*arguments: Any, **options: Any) -> Any:
        account = real(*arguments, **options)
        return account if account is None else replace(account, state=replace(account.state, is_merged=False))

    doubled.copy_history = lost  # type: ignore[attr-defined]


def _adopted_parts_are_copies() -> None:
    from msgspec.structs import replace

    from tiering.catalog.copies import doubled

    real = doubled.compare_parts
    doubled.compare_parts = lambda *arguments: replace(real(*arguments), own=[])


def _back_by_its_name() -> None:
    from tiering.catalog.copies import set_aside

    set_aside._is_back = lambda part, same, parts, *, window: same is not None


def _compared_with_nothing() -> None:
    from tiering.catalog.copies import doubled

    doubled.compare_parts = lambda catalog, disks, name: doubled.Compared()


def _three_buckets() -> None:
    from msgspec.structs import replace

    from disks.local import stamps

    real = stamps._write

    def few(directory: Any, kept: Any) -> None:
        state = replace(kept.state, buckets=dict(sorted(kept.state.buckets.items())[:3]))
        real(directory, replace(kept, state=state))

    stamps._write = few


def _every_stamp_taken() -> None:
    from disks.effects import rename
    from disks.local import stamps

    def take(self: Any, committed: Any) -> None:
        for name in stamps._names_in(committed):
            rename(committed / name, self._own / name)

    stamps.Stamps.take = take  # type: ignore[method-assign]


def _every_word_counts() -> None:
    from tiering.journal.known_disks import KnownDisks

    def decided(self: KnownDisks) -> tuple[set[str], set[str]]:
        query = "SELECT known FROM disk_decisions WHERE known != '' AND known NOT IN (SELECT id FROM disks)"
        return {row["known"] for row in self._file.read(query)} if self._file.has_table(
            "disk_decisions"
        ) else set(), set()

    KnownDisks.decided = decided  # type: ignore[method-assign]


Mistake = tuple[str, str, str, Callable[[], Any]]


def _counts_of_directories_only() -> None:
    from disks.contracts.directory_disk import DirectoryDisk
    from disks.kinds import as_disk
    from tiering.catalog.identities.identity import Identities

    real = Identities.lacking

    def local_only(self: Identities, *arguments: Any) -> Any:
        return (fault for fault in real(self, *arguments) if as_disk(self.disks[fault.disk], DirectoryDisk))

    Identities.lacking = local_only  # type: ignore[method-assign]


MISTAKES: tuple[Mistake, ...] = (
    (
        "counts of some disks not compared (I16)",
        "parts that are gone from a disk whose files are in no directory are not missed",
        f"{_EXTENDING}::test_parts_that_a_disk_of_the_right_id_lacks",
        _counts_of_directories_only,
    ),
    (
        "parts on a disk without an id (I16)",
        "a disk that nothing recognizes may hold parts",
        f"{_EXTENDING}::test_a_disk_without_an_id_holds_no_parts",
        replaced("tiering.engine.opening", "check_holds_parts", nothing),
    ),
    (
        "ids not compared (I16)",
        "a place without a disk, or with another one, is what its name stands for",
        f"{_CHECKS}::test_another_disk_at_the_place",
        replaced("tiering.catalog.identities.identity:Identities", "_examine", nothing),
    ),
    (
        "an id by a read (I16)",
        "whoever looks at a disk without an id gives it one",
        f"{_CHECKS}::test_a_reading_verb_begins_no_disk",
        _id_by_a_read,
    ),
    (
        "a disk within a disk (I16)",
        "nobody looks for the mark of a disk above a new one",
        f"{_ENCLOSING}::test_a_disk_within_a_disk_is_refused",
        replaced("disks.stores.enclosing", "check_no_disk_around", nothing),
    ),
    (
        "disks within a disk end (I16)",
        "a disk that has begun is refused like a new one, where another one began around it",
        f"{_ENCLOSING}::test_one_that_has_begun_goes_on",
        replaced("disks.object_disk.disk:ObjectDisk", "_check_first_write", lambda self: self._check_place()),
    ),
    (
        "merged over a missing disk (I16)",
        "tables of a disk that is missing count as whole",
        f"{_DISK_AWAY}::TestNotMounted::test_is_not_an_empty_disk",
        _whole_whatever_is_missing,
    ),
    (
        "one disk under two names (I16)",
        "that two names show one id is not noticed",
        f"{_CHECKS}::test_a_copy_of_a_disk_is_not_a_second_disk",
        replaced("tiering.catalog.identities.identity:Identities", "_twice", nothing),
    ),
    (
        "counts not compared (I16)",
        "parts that are gone from a disk that is there are not missed",
        f"{_DISK_AWAY}::test_parts_that_are_gone_are_missed",
        replaced("tiering.catalog.identities.identity:Identities", "compare", nothing),
    ),
    (
        "unmounted while it is open (I16)",
        "a transaction does not look at the id again",
        f"{_DISK_AWAY}::test_a_disk_that_goes_while_a_store_is_open",
        replaced("disks.local.disk:LocalDisk", "watch", nothing),
    ),
    (
        "two disks of one place",
        "the configuration does not compare places",
        f"{_PLACES}::test_two_disks_of_one_place_are_an_error",
        replaced("tiering.config.reading", "check_locations", nothing),
    ),
    (
        "uncounted is empty (I16)",
        "a disk whose parts nobody counted since the last write held none",
        f"{_CHECKS}::test_a_disk_that_was_not_counted_since_it_was_written_to",
        _uncounted_is_empty,
    ),
    (
        "no id, any place (I16)",
        "a disk without an id is whatever lies where the configuration says",
        f"{_CHECKS}::TestWithoutAnId::test_a_mistyped_bucket",
        replaced("tiering.catalog.identities.identity:Identities", "_is_elsewhere", lambda self, name, known: False),
    ),
    (
        "a drained disk fills again",
        "nothing keeps rules, inserts and merges from a disk that is drained",
        f"{_DRAIN}::test_a_bucket_is_drained_and_no_rule_fills_it_again",
        replaced("tiering.journal.overrides:Overrides", "drained", lambda self: frozenset()),
    ),
    (
        "what is detached is left",
        "a drained disk counts as empty while it has detached parts",
        f"{_DRAIN}::test_what_is_detached_goes_too_and_can_be_attached",
        replaced("tiering.engine.draining", "_aside", lambda disk, definition: iter(())),
    ),
    (
        "a replica is what its first disks say",
        "a disk that is given up takes along which replica the machine is",
        "tests/replicas/test_shared_disk.py::test_who_gives_up_all_its_first_disks_is_still_the_replica",
        replaced("tiering.engine.replication", "before_a_disk_goes", nothing),
    ),
    (
        "a drain goes as far as it comes",
        "parts leave a disk that cannot be emptied",
        f"{_DRAIN}::test_no_room_is_refused_with_a_way_out_and_changes_nothing",
        replaced("tiering.policy.placement", "fits", lambda name, state, size_bytes: ""),
    ),
    (
        "a demo deletes what it did not make",
        "the marker of a demo is proof enough that nobody made anything else in its directory",
        f"{_DEMO}::test_a_table_of_a_user_stops_it_wherever_it_is",
        replaced("tiering.cli.demo.directory", "_strangers", lambda directory: iter(())),
    ),
    (
        "a demo looks for tables on SSDs alone",
        "a user's table of which only the bucket knows goes with the demo",
        f"{_DEMO}::test_a_table_of_a_user_stops_it_wherever_it_is",
        replaced("tiering.cli.demo.directory", "_in_bucket", lambda prefix, directory: iter(())),
    ),
    (
        "stamps not compared (I16)",
        "a local disk that is older than the journal has seen it is taken as it is",
        f"{_SET_BACK}::TestDisk::test_after_a_move_and_an_insert",
        replaced("tiering.catalog.identities.ages", "is_older", lambda stamps, seen: False),
    ),
    (
        "a stamp is noted before its commit (I16)",
        "the journal knows a transaction that a crash may keep from happening",
        f"{_SET_BACK}::test_a_crash_at_any_effect_is_no_copy",
        _noted_before_the_commit,
    ),
    (
        "a stamp is not durable (I16)",
        "a transaction counts as done before the disk shows it as its last",
        "tests/crash/test_power_cut.py::test_whatever_a_power_cut_leaves[insert]",
        _stamp_not_synced,
    ),
    (
        "a journal that is behind goes on (I18)",
        "a journal that was set back gives its numbers again",
        f"{_SET_BACK}::TestState::test_twice",
        replaced("tiering.catalog.identities.ages:Ages", "judge_journal", nothing),
    ),
    (
        "a stamp names three buckets (I16)",
        "from the fourth bucket on nothing local says how far it was",
        f"{_SET_BACK}::TestBucket::test_each_of_five_is_noticed",
        _three_buckets,
    ),
    (
        "a stamp comes behind a later one (I16)",
        "a transaction that is carried out late makes a disk look older that was stamped above it",
        f"{_STAMPS}::test_a_stamp_below_the_last_takes_no_place",
        _every_stamp_taken,
    ),
    (
        "a log is not asked how far a disk was (I16)",
        "a machine that was rolled back is of one moment, and nobody misses anything",
        f"{_SET_BACK}::TestState::test_and_the_disk_are_older_than_the_bucket",
        replaced("tiering.catalog.identities.ages", "is_older", lambda stamps, seen: False),
    ),
    (
        "a disk is not asked how far a bucket was (I16)",
        "a bucket that was set back with the state is taken as it is",
        f"{_SET_BACK}::TestBucket::test_and_the_state_are_older_than_the_disk",
        replaced("tiering.catalog.identities.ages:Ages", "_bucket", lambda self, disk, identity: ""),
    ),
    (
        "a log is not asked how far other buckets were (I16)",
        "a bucket that was set back with its machine is taken as it is, where another one was not",
        f"{_SET_BACK}::TestBucket::test_another_bucket_has_seen_it",
        _buckets_of_logs_forgotten,
    ),
    (
        "an id that was given up is forgotten (I16)",
        "the journal takes a disk in again that somebody gave up",
        f"{_GIVEN_UP}::test_the_journal_alone_knows_it",
        replaced("tiering.journal.known_disks:KnownDisks", "decided", lambda self: (set(), set())),
    ),
    (
        "nobody else learns what was given up (I16)",
        "other disks do not say that one was given up",
        f"{_GIVEN_UP}::test_a_lost_journal_asks_the_bucket",
        replaced("tiering.catalog.identities.notes", "note_given_up", lambda disks, identity, actor: []),
    ),
    (
        "who knows a disk asks nobody (I16)",
        "a journal that knows an id does not hear that another machine gave it up",
        f"{_GIVEN_UP}::test_another_machine_that_knew_the_disk",
        replaced("tiering.catalog.identities.notes", "is_given_up", lambda disks, identity: False),
    ),
    (
        "given up once is given up for good (I16)",
        "adopting a disk does not end what was said of it before",
        f"{_GIVEN_UP}::test_drained_after_it_was_adopted",
        _every_word_counts,
    ),
    (
        "adopted with what is there twice",
        "a disk that comes back keeps the parts whose rows are in others",
        f"{_GIVEN_UP}::test_a_disk_that_comes_back_is_refused",
        _compared_with_nothing,
    ),
    (
        "what was dropped comes back with a disk",
        "adopting a disk does not ask the logs what was dropped",
        f"{_SET_BACK}::TestDisk::test_what_was_dropped_in_the_bucket_stays_dropped",
        replaced("tiering.catalog.copies.doubled", "_gone", lambda definition, alone, disks: ()),
    ),
    (
        "what was merged comes back with a disk (I1)",
        "adopting a disk asks the logs for the part alone, not for those that were made from it",
        f"{_OLDER}::test_what_a_log_shows_gone_stays_gone[merged on the SSD, moved, dropped]",
        replaced("tiering.catalog.copies.doubled", "went_into", lambda part, made, *, window: False),
    ),
    (
        "a merge takes rows away (I1)",
        "what a merge took is gone, though the part that it made lay on the disk that is lost",
        f"{_OLDER}::test_what_a_merge_took_to_the_lost_disk_is_kept",
        _merges_are_losses,
    ),
    (
        "an adopted part is a copy (I1)",
        "a part that nobody else has is taken for the bucket's, which lacks it",
        f"{_OLDER}::test_what_nobody_else_has_is_kept[merged in the bucket, moved back-lost]",
        _adopted_parts_are_copies,
    ),
    (
        "digests alone tell what is there twice (I1)",
        "of a merged part that forgot what went into it nobody asks the names",
        f"{_OLDER}::test_no_row_counts_twice_whatever_the_window[merged on the SSD, moved-0]",
        replaced("tiering.table.same_rows", "went_into", lambda part, other, *, window: False),
    ),
    (
        "a part forgets nothing (I1)",
        "the digests that a merged part remembers are taken for all that went into it",
        f"{_OLDER}::test_nor_where_the_window_is_larger_now",
        replaced("tiering.table.part:Part", "remembers_all", lambda self, *, window: 0 < len(self.digests) < window),
    ),
    (
        "a name hides what digests deny (I19)",
        "a part of a cloned machine is hidden by one that spans its number, and was not made from it",
        f"{_CLONES}::test_a_part_of_the_clone_is_not_hidden_by_its_name",
        replaced("tiering.table.part:Part", "may_hold", lambda self, other, *, window: True),
    ),
    (
        "a clone leaves no mark (I16)",
        "the home that finds another one under its identity tells nobody",
        f"{_CLONES}::test_both_homes_see_it",
        replaced("tiering.catalog.identities.notes", "mark_clone", lambda *arguments, **options: []),
    ),
    (
        "marks of other homes are passed over (I16)",
        "a home looks only at what a log has seen of its disk",
        f"{_CLONES}::test_both_homes_see_it",
        replaced("tiering.catalog.identities.notes", "is_cloned", lambda disks, identity, stamps: ""),
    ),
    (
        "a clone that wrote less leaves no mark (I16)",
        "a home that may be set back or cloned tells nobody, so that the other one goes on under the same identity",
        f"{_CLONES}::test_both_see_a_clone_that_wrote_less",
        _older_homes_leave_no_mark,
    ),
    (
        "an adopted clone keeps its journal's id (I18)",
        "two homes whose disks have ids of their own go by one journal, each the older copy of the other",
        f"{_CLONES}::test_each_gets_an_identity_of_its_own",
        replaced("tiering.journal.journal:Journal", "renew", nothing),
    ),
    (
        "an older home keeps an id that another one uses (I16)",
        "a disk that a log shows to be older keeps its id when it is adopted: two cloned homes adopt in turn for ever",
        f"{_CLONES}::test_adoption_of_a_home_with_fewer_writes_ends",
        _older_disks_keep_their_id,
    ),
    (
        "a name closes a gap (I15)",
        "rows that were set aside count as back where another part has their part's name",
        f"{_CLONES}::test_each_gets_an_identity_of_its_own",
        _back_by_its_name,
    ),
    (
        "two tables of one name are not named (I17)",
        "fsck passes over a table that a set-back bucket brought again, beside another one of its name",
        f"{_SET_BACK}::TestBucket::test_has_a_table_again_whose_name_another_one_has",
        replaced("restore.check.check", "_check_names", nothing),
    ),
    (
        "equal digests are always the same rows (I1)",
        "fsck takes equal inserts of a table that does not deduplicate for a part that came back",
        f"{_GIVEN_UP}::test_equal_inserts_that_a_table_takes_are_no_fault",
        _every_table_deduplicates,
    ),
    (
        "rows in two parts are not named (I1)",
        "fsck passes over blocks that are in two active parts",
        f"{_GIVEN_UP}::test_fsck_names_rows_that_are_there_twice",
        replaced("restore.check.copies", "_check_doubled", nothing),
    ),
    (
        "an adoption ends the finding of another disk (I16)",
        "the stamp of a disk that is adopted says of a bucket how far it is, not how far it was seen",
        f"{_ANOTHER}::test_the_finding_of_another_disk_stays[bucket-ssd]",
        replaced("tiering.catalog.identities.ages:Ages", "state_to_keep", lambda self, state, identities: state),
    ),
    (
        "stamps that go take a finding along (I16)",
        "where a disk is written to while a bucket is older, its newest stamps forget how far that was seen",
        f"{_ANOTHER}::test_inserts_elsewhere_do_not_end_a_finding[lost]",
        replaced("tiering.catalog.identities.ages:Ages", "state_to_keep", lambda self, state, identities: state),
    ),
)
