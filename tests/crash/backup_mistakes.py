"""Seeded mistakes in backups, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.crash.seeding import nothing, replaced

_BACKUP = "tests/integration/test_backup.py"
_VERBS = "tests/integration/test_backup_verbs.py"
_PRUNE = "tests/integration/test_prune.py"
_BESIDE = f"{_PRUNE}::TestBesideABackup"
_MEANWHILE = "tests/integration/test_backup_meanwhile.py"
_DISASTERS = "tests/integration/test_backup_disasters.py"
_DRILL = "tests/integration/test_drill.py"
_CLICKHOUSE = "tests/integration/test_backup_clickhouse.py"
_UNREADABLE = "tests/integration/test_backup_unreadable.py"
_BAD_INPUT = "tests/hostile/test_backup_bad_input.py"


def _none(*arguments: Any) -> list[Any]:
    return []


def _as_chosen(choices: Any) -> Any:
    return choices


def _header_first() -> None:
    from backup.create.create import _Making
    from backup.create.sending import Sender

    original, run = Sender.send, _Making.run

    def remember(self: Any, *arguments: Any) -> Any:
        Sender.making = self  # type: ignore[attr-defined]
        return run(self, *arguments)

    def send(self: Any, *arguments: Any, **options: Any) -> Any:
        making = Sender.making  # type: ignore[attr-defined]
        from backup.create.instant import Instant
        from backup.create.sending import Sent
        from oplog.entry import now

        making._storage.put_header(making._header(Instant([], now(), {}, {}, {}, {}, ExitStack()), [], [], Sent()))
        return original(self, *arguments, **options)

    _Making.run = remember  # type: ignore[method-assign]
    Sender.send = send  # type: ignore[method-assign]


def _inherited_not_probed() -> None:
    from backup.create.create import _Making

    _Making._probe = lambda self, tables: None  # type: ignore[method-assign]


def _known_by_size() -> None:
    from backup.create import create

    original = create.planned

    class BySize(dict[Any, Any]):
        def __contains__(self, content: object) -> bool:
            return any(size == content[1] for _, size in self)  # type: ignore[index]

        def __getitem__(self, content: Any) -> Any:
            return next(place for (_, size), place in self.items() if size == content[1])

    def planned(context: Any, instant: Any, known: Any, cold: Any) -> Any:
        known.files = BySize(known.files)
        plan = original(context, instant, known, cold)
        plan.new = [new for new in plan.new if new.content not in known.files]
        plan.places = BySize(plan.places)
        return plan

    create.planned = planned


def _not_hashed() -> None:
    from backup.create import sending

    sending.Sender._small = lambda self, new: new.data if new.data is not None else sending._read(new)  # type: ignore[method-assign]


def _let_go_early() -> None:
    from backup.create import instant

    original = instant._held

    def held(context: Any, tables: Any, documents: Any, has: Any, stack: Any) -> Any:
        from disks.effects import remove_tree

        names = original(context, tables, documents, has, stack)
        paths = {key: instant._own_path(context.disk(key[0]), key[1]) for key in names}
        for name in names.values():
            remove_tree(name.parent)
        return paths

    instant._held = held


def _not_pinned() -> None:
    from backup.create import instant

    instant._pinned = lambda context, disk, stack: None


def _damaged_counted_on() -> None:
    from backup.storage import Storage

    Storage.mark_damaged = lambda self, key: None  # type: ignore[method-assign]


def _content_before_headers() -> None:
    from backup.retention import prune

    drop, collect, roots = prune.drop, prune.collect, prune.roots
    waiting: list[Any] = []

    def later(storage: Any, header: Any, release: Any, locked: Any) -> None:
        waiting.append((storage, header, release, locked))

    def collect_first(storage: Any, *arguments: Any, **options: Any) -> Any:
        from backup.retention import collect as module

        going = {item[1].id for item in waiting}
        module.roots = lambda storage: [root for root in roots(storage) if root.id not in going]
        report = collect(storage, *arguments, **options)
        while waiting:
            drop(*waiting.pop())
        return report

    prune.drop, prune.collect = later, collect_first


def _listed_once() -> None:
    from backup.retention import collect

    collect.disagreement = lambda *arguments, **options: None


def _no_guard() -> None:
    from datetime import timedelta

    from backup.retention import collect

    original = collect.by_age
    collect.by_age = lambda blobs, named, guard, now: original(blobs, named, timedelta(0), now)


def _verified_one_dropped() -> None:
    from msgspec.structs import replace

    from backup.retention import rules

    original = rules._of_series
    rules._of_series = lambda members, keep: original([replace(one, verified=False) for one in members], keep)


def _nothing_claimed() -> None:
    from backup.storage import Storage

    Storage.claim = lambda self, made: None  # type: ignore[method-assign]


def _announced_counted_on() -> None:
    from backup.storage import Storage

    original = Storage.holdings
    Storage.holdings = lambda self, *, to_count_on=False: original(self)  # type: ignore[method-assign]


def _not_read_again() -> None:
    from backup.retention import collect

    collect._Collection._named_since = lambda self, named: ()  # type: ignore[method-assign]


def _given_up_for_now() -> None:
    from backup.storage import Storage

    def revoke(self: Any, key: str, backup_id: str, actor: str) -> bool:
        given_up = not self.is_complete(key)
        self.forget_mark(backup_id)
        return given_up

    Storage.revoke = revoke  # type: ignore[method-assign]


def _pins_stay() -> None:
    """Neither let go with their backup nor found when those of no backup are looked for."""
    from backup import repository
    from backup.repository import Repository

    Repository._release = staticmethod(lambda backup_id, store: None)  # type: ignore[method-assign]
    repository.release_left = lambda storage, buckets: None


def _unreadable_passed_over() -> None:
    from backup.retention import collect, references

    original = references.named_by
    collect.named_by = lambda storage, headers, strict=True: original(storage, headers, strict=False)


def _copies_believed() -> None:
    import hashlib
    from types import SimpleNamespace

    from backup import copies

    class Alike(bytes):
        """A digest that is like any other."""

        __hash__ = bytes.__hash__

        def __eq__(self, other: object) -> bool:
            return True

    copies.hashlib = SimpleNamespace(  # type: ignore[assignment]
        sha256=lambda data: SimpleNamespace(digest=lambda: Alike(hashlib.sha256(data).digest()))
    )


def _ran_out_counts() -> None:
    import msgspec

    from backup.verify import buckets

    original = buckets._fault
    buckets._fault = lambda pinned, held: original(pinned, [msgspec.structs.replace(pin, until=None) for pin in held])


def _future_counts() -> None:
    from backup.retention import prune

    original = prune.choose
    prune.choose = lambda backups, keep, now=None: original(backups, keep)


def _others_passed_over() -> None:
    import msgspec

    from backup.recover import plan

    original = plan._ranges
    plan._ranges = lambda found: tuple(msgspec.structs.replace(listed, own=True) for listed in original(found))


def _plain_trees() -> None:
    import msgspec

    from backup.format.header import BackupHeader

    BackupHeader.with_trees = lambda self, trees: msgspec.structs.replace(self, trees=tuple(trees))  # type: ignore[method-assign]


def _trees_unnamed() -> None:
    from backup.retention import collect, references

    original = references.named_by

    def named_by(storage: Any, headers: Any, *, strict: bool = True) -> Any:
        import msgspec

        return original(storage, [msgspec.structs.replace(header, trees=()) for header in headers], strict=strict)

    collect.named_by = named_by


def _trees_not_looked_for() -> None:
    from backup.verify import verify

    original = verify.walk_backup

    def walk_backup(storage: Any, holdings: Any, header: Any, flaws: Any) -> Any:
        import msgspec

        return original(storage, holdings, msgspec.structs.replace(header, trees=()), flaws)

    verify.walk_backup = walk_backup


def _tree_known_by_size() -> None:
    """What is in an object is known by its size, and not by its name, which is never used again."""
    import hashlib

    from backup.create import clickhouse

    def source(disk: Any, row: Any) -> str:
        return hashlib.sha256(str([size for _, size in row.blobs]).encode()).hexdigest() if row.blobs else ""

    clickhouse._source = source


def _tree_file_by_file() -> None:
    from backup.recover import recover, trees
    from oplog.kinds import Restored

    def restore_tree(storage: Any, context: Any, reader: Any, disk: Any, header: Any, tree: Any) -> None:
        listed = storage.tree(tree)
        for number, file in enumerate(file for part in listed.parts for file in part.files):
            with disk.transaction(Restored(source="a backup")) as transaction:
                trees._create(reader, transaction, header, listed, file, number)
                transaction.commit()

    recover.restore_tree = restore_tree


def _all_held() -> None:
    from backup.create import instant

    original = instant._held
    instant._held = lambda context, tables, has, stack: original(context, tables, (), stack)


def _one_share() -> None:
    from backup.recover import drill

    original = drill._within
    drill._within = lambda held, limit, turn: original(held, limit, 0)


def _nothing_checked() -> None:
    from types import SimpleNamespace

    from backup.recover import drill

    drill.check = lambda *arguments, **options: SimpleNamespace(problems=[])


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "header first",
        "the header is put before what it names",
        f"{_VERBS}::test_a_killed_backup_is_shown_and_sends_nothing_twice",
        _header_first,
    ),
    (
        "inherited not probed",
        "what a backup inherits is not asked for before its header is put",
        f"{_BACKUP}::TestIncrements::test_what_goes_away_while_a_backup_is_made_fails_it",
        _inherited_not_probed,
    ),
    (
        "known by size",
        "a file is known by its size",
        f"{_VERBS}::test_the_same_name_and_size_and_other_bytes_are_sent",
        _known_by_size,
    ),
    (
        "not hashed on the way",
        "what is sent is not compared with part.json",
        f"{_BACKUP}::TestRefusals::test_a_damaged_part_fails_the_backup_and_is_named",
        _not_hashed,
    ),
    (
        "held files let go early",
        "second names of local files go before they are read",
        f"{_BACKUP}::TestOneInstant::test_parts_that_go_away_meanwhile_are_in_it",
        _let_go_early,
    ),
    (
        "not pinned while it is read",
        "nothing keeps the bucket's objects while a backup copies them",
        f"{_VERBS}::test_a_backup_outlives_a_collection_while_it_is_made",
        _not_pinned,
    ),
    (
        "damaged content counted on",
        "a later backup inherits what a verification found damaged",
        f"{_BACKUP}::TestVerification::test_a_flaw_names_part_and_file_and_who_else_has_it",
        _damaged_counted_on,
    ),
    (
        "content before headers",
        "a prune deletes what backups name before their headers",
        "tests/crash/test_kill.py::test_killed_at_every_effect[backup_prune]",
        _content_before_headers,
    ),
    (
        "repository listed once",
        "a collection of a repository believes one listing",
        f"{_PRUNE}::TestPrune::test_listings_that_disagree_stop_it",
        _listed_once,
    ),
    (
        "repository without a guard",
        "what is young and unnamed in a repository is collected",
        f"{_PRUNE}::TestLeftovers::test_what_failed_before_it_claimed_goes_after_the_guard",
        _no_guard,
    ),
    (
        "verified backup dropped",
        "a prune keeps only backups that nobody verified",
        "tests/unit/backup/test_keep_rules.py::test_the_newest_that_verified_stays",
        _verified_one_dropped,
    ),
    (
        "nothing claimed",
        "a backup does not say what it is about to name",
        f"{_BESIDE}::test_what_was_counted_on_and_is_claimed_stays",
        _nothing_claimed,
    ),
    (
        "announced content counted on",
        "a backup inherits what a collection is about to delete",
        f"{_BESIDE}::test_what_is_announced_is_not_counted_on",
        _announced_counted_on,
    ),
    (
        "claims not read again",
        "a collection does not look again after it has announced",
        f"{_BESIDE}::test_a_collection_held_up_while_a_backup_is_made",
        _not_read_again,
    ),
    (
        "given up for now",
        "a backup that was given up can still put its header",
        f"{_PRUNE}::TestLeftovers::test_a_backup_that_is_given_up_cannot_become_complete",
        _given_up_for_now,
    ),
    (
        "pins of dropped backups stay",
        "a prune leaves the pins of what it drops",
        f"{_PRUNE}::TestPrune::test_the_pins_of_what_is_dropped_go",
        _pins_stay,
    ),
    (
        "unreadable lists passed over",
        "what a list that cannot be read names counts as unnamed",
        f"{_PRUNE}::TestPrune::test_a_list_that_is_gone_stops_the_collection",
        _unreadable_passed_over,
    ),
    (
        "copies believed",
        "local copies of a repository's objects count without their digest",
        "tests/unit/backup/test_copies.py::test_copies_that_are_damaged_are_not_believed",
        _copies_believed,
    ),
    (
        "repository read without bound",
        "headers, marks and records are read however long they are",
        "tests/hostile/test_forged_backups.py::test_what_each_verb_answers[a header of 10 GiB]",
        replaced("backup.storage", "document", lambda store, item: store.get(item.key)),
    ),
    (
        "uuid not reserved",
        "machines that restore one backup at once take one uuid",
        f"{_MEANWHILE}::TestRestoredAtOnce::test_under_two_names",
        replaced("backup.recover.reserved", "_reserve", lambda *arguments: True),
    ),
    (
        "deleted backups damaged",
        "a verification calls a backup damaged that was deleted meanwhile",
        f"{_MEANWHILE}::TestDeletedMeanwhile::test_a_verification[copy]",
        replaced("backup.verify.verify", "_deleted_meanwhile", lambda *arguments: ()),
    ),
    (
        "parts of a deleted backup stay",
        "a restore leaves what it had brought of a backup that was deleted meanwhile",
        f"{_MEANWHILE}::TestDeletedMeanwhile::test_a_restore[pin]",
        replaced("backup.recover.recover", "_take_away", lambda *arguments: None),
    ),
    (
        "pins that ran out count",
        "a pin with an end that is over counts as one that keeps",
        f"{_BAD_INPUT}::TestPins::test_one_that_has_run_out",
        _ran_out_counts,
    ),
    (
        "future backups count",
        "a prune counts backups that a wrong clock dated into the future",
        f"{_BAD_INPUT}::TestClocks::test_that_jumped_when_a_backup_was_made[by0]",
        _future_counts,
    ),
    (
        "a repository within a disk",
        "nobody looks for the mark of a disk above a new repository",
        f"{_BAD_INPUT}::TestPlaces::test_two_endpoints_of_one_bucket",
        replaced("backup.repository", "check_no_disk_around", lambda *arguments: None),
    ),
    (
        "notes not verified",
        "marks, claims, announcements and records may say anything",
        f"{_DISASTERS}::test_each_kind_of_object_that_is_changed_is_named",
        replaced("backup.storage:Storage", "unreadable", lambda self, *, records: []),
    ),
    (
        "missing machines not told",
        "a restore of a set does not say whose rows it lacks",
        f"{_DISASTERS}::TestSets::test_one_of_them_is_missing",
        _others_passed_over,
    ),
    (
        "drills do not count",
        "a prune counts no drill as a verification",
        f"{_PRUNE}::TestVerbs::test_the_whole_way",
        replaced("backup.retention.prune", "is_proved", lambda verified, drilled: verified is not None),
    ),
    (
        "drill compares nothing",
        "a drill does not compare what it restored with the lists",
        f"{_DRILL}::test_what_was_restored_is_compared",
        replaced("backup.recover.drill", "_compared", lambda store, table: []),
    ),
    (
        "drill reads nothing",
        "a drill does not run fsck on what it restored",
        f"{_DRILL}::test_what_was_restored_is_compared",
        _nothing_checked,
    ),
    (
        "drill without room",
        "a drill begins though its disk has no room",
        f"{_DRILL}::test_too_small_a_place_is_refused_before_it_begins",
        replaced("backup.recover.drill", "_check_room", lambda drills, size_bytes: None),
    ),
    (
        "one share for ever",
        "a drill of a share restores the same partitions each time",
        f"{_DRILL}::test_a_share_is_another_one_each_time",
        _one_share,
    ),
    (
        "trees for everybody",
        "a header with trees is readable by who does not know them, and collects them",
        f"{_CLICKHOUSE}::test_an_adopted_disk_comes_back_byte_for_byte",
        _plain_trees,
    ),
    (
        "trees unnamed",
        "a collection of a repository does not count what trees name",
        f"{_CLICKHOUSE}::test_a_damaged_object_is_named_and_gc_takes_a_deleted_backup",
        _trees_unnamed,
    ),
    (
        "trees not verified",
        "a verification looks only for tables",
        f"{_CLICKHOUSE}::test_an_adopted_disk_comes_back_byte_for_byte",
        _trees_not_looked_for,
    ),
    (
        "trees known by size",
        "what ClickHouse wrote is known by its size",
        f"{_CLICKHOUSE}::test_a_second_backup_reads_and_sends_nothing",
        _tree_known_by_size,
    ),
    (
        "tree restored file by file",
        "what ClickHouse wrote comes back in several transactions",
        "tests/crash/test_kill.py::test_killed_at_every_effect[backup_restore_tree]",
        _tree_file_by_file,
    ),
    (
        "what is there held",
        "a backup holds what the repository has",
        f"{_BACKUP}::TestIncrements::test_what_is_there_is_neither_held_nor_read",
        _all_held,
    ),
    (
        "gc: headers of one listing",
        "a collection goes on though another listing has shown backups that this one does not",
        f"{_PRUNE}::TestContradictions::test_headers_that_one_listing_shows_and_another_does_not",
        replaced("backup.retention.collect", "check_roots", nothing),
    ),
    (
        "silent about a table (I12)",
        "a backup says nothing of a table that could not be read",
        f"{_UNREADABLE}::test_a_backup_says_what_it_lacks",
        replaced("backup.create.instant", "_unreadable", _none),
    ),
    (
        "the last backup with a table (I12)",
        "backups that lack a table take the place of those that have it",
        f"{_UNREADABLE}::test_the_last_backup_that_has_it_stays",
        replaced("backup.retention.rules", "_with_tables", _as_chosen),
    ),
)
