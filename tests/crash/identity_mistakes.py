"""Seeded mistakes in what a disk is, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_CHECKS = "tests/hostile/test_disk_identity.py"
_PLACES = "tests/hostile/test_one_place_twice.py"
_DEMO = "tests/unit/tiering/cli/test_demo_directory.py"
_DRAIN = "tests/unit/tiering/cli/test_disk_drain.py"


def _id_by_a_read() -> None:
    from disks.identity import write_file
    from disks.local.disk import LocalDisk

    LocalDisk.identity = lambda self: write_file(self._own)  # type: ignore[method-assign]


def _whole_whatever_is_missing() -> None:
    from tiering.catalog import reachability

    reachability.fault_of = lambda context, definition: None


def _uncounted_is_empty() -> None:
    from tiering.catalog.identity import Identities

    real = Identities._unconfigured

    def counted_only(self: Identities, faults: Any) -> None:
        self._known = {name: known for name, known in self._known.items() if known.counted or name in self._places}
        real(self, faults)

    Identities._unconfigured = counted_only  # type: ignore[method-assign]


Mistake = tuple[str, str, str, Callable[[], Any]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "ids not compared (I16)",
        "a place without a disk, or with another one, is what its name stands for",
        f"{_CHECKS}::test_another_disk_at_the_place",
        replaced("tiering.catalog.identity:Identities", "_examine", nothing),
    ),
    (
        "an id by a read (I16)",
        "whoever looks at a disk without an id gives it one",
        f"{_CHECKS}::test_a_reading_verb_begins_no_disk",
        _id_by_a_read,
    ),
    (
        "merged over a missing disk (I16)",
        "tables of a disk that is missing count as whole",
        f"{_CHECKS}::TestNotMounted::test_is_not_an_empty_disk",
        _whole_whatever_is_missing,
    ),
    (
        "one disk under two names (I16)",
        "that two names show one id is not noticed",
        f"{_CHECKS}::test_a_copy_of_a_disk_is_not_a_second_disk",
        replaced("tiering.catalog.identity:Identities", "_twice", nothing),
    ),
    (
        "counts not compared (I16)",
        "parts that are gone from a disk that is there are not missed",
        f"{_CHECKS}::test_parts_that_are_gone_are_missed",
        replaced("tiering.catalog.identity:Identities", "compare", nothing),
    ),
    (
        "unmounted while it is open (I16)",
        "a transaction does not look at the id again",
        f"{_CHECKS}::test_a_disk_that_goes_while_a_store_is_open",
        replaced("disks.local.disk:LocalDisk", "watch", nothing),
    ),
    (
        "two disks of one place",
        "the configuration does not compare places",
        f"{_PLACES}::test_two_disks_of_one_place_are_an_error",
        replaced("tiering.config.reading", "check_places", nothing),
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
        replaced("tiering.catalog.identity:Identities", "_is_elsewhere", lambda self, name, known: False),
    ),
    (
        "a drained disk fills again",
        "nothing keeps rules, inserts and merges from a disk that is drained",
        f"{_DRAIN}::test_a_bucket_is_drained_and_no_rule_fills_it_again",
        replaced("tiering.journal.wishes:Wishes", "drained", lambda self: frozenset()),
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
        "tests/replicas/test_shared_disk.py::test_who_gives_up_all_disks_that_it_began_with_is_still_the_replica",
        replaced("tiering.engine.replicated", "before_a_disk_goes", nothing),
    ),
    (
        "a drain goes as far as it comes",
        "parts leave a disk that cannot be emptied",
        f"{_DRAIN}::test_no_place_is_refused_with_the_way_out_and_nothing_changes",
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
)
