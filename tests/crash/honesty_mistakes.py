"""Seeded mistakes in what is said, for `tests.crash.mutants`: name, meaning, check, how it is put in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.crash.seeding import nothing, replaced

_CHECKS = "tests/hostile/test_said_and_done.py"
_LEASES = "tests/hostile/test_lease.py"


def _lease_passed_over() -> None:
    from disks.stores.base import StoreCapabilities
    from disks.stores.directory import DirectoryStore

    both = StoreCapabilities(conditional_put=True, checks_sha256=True)
    DirectoryStore.capabilities = property(lambda self: both)  # type: ignore[method-assign,assignment]


def _wall_clock() -> None:
    from disks.object_disk import lease

    lease._steady = lambda: float(vars(lease)["now"]().timestamp())


Mistake = tuple[str, str, str, Callable[[], Any]]

MISTAKES: tuple[Mistake, ...] = (
    (
        "the source accused without a look",
        "whatever damage a bucket tells of while it is written to, is that of the file on the SSD",
        f"{_CHECKS}::TestReadOnlyBucket::test_is_told_as_such",
        replaced("tiering.catalog.copies.copying", "_sha256", lambda path: ""),
    ),
    (
        "a lease passed over",
        "a directory bucket takes several writers whatever the configuration says",
        f"{_CHECKS}::test_a_lease_on_a_directory_bucket_keeps_others_away",
        _lease_passed_over,
    ),
    (
        "a gap without a word (I15)",
        "answers do not say which parts a repair set aside",
        f"{_CHECKS}::TestRepair::test_with_reading_sets_aside_and_answers_tell",
        replaced("tiering.query.query", "find_set_aside", lambda *arguments: []),
    ),
    (
        "a gap closed by a name (I15)",
        "rows of a part that was set aside count as back without a look",
        f"{_CHECKS}::TestRepair::test_with_reading_sets_aside_and_answers_tell",
        replaced("tiering.catalog.copies.set_aside", "_is_back", lambda *arguments, **options: True),
    ),
    (
        "no store taken for an empty one (I16)",
        "that nobody has written to any disk is not noticed",
        f"{_CHECKS}::TestNoStore::test_a_home_that_went_away",
        replaced("tiering.catalog.identities.identity:Identities", "is_begun", True),
    ),
    (
        "a store begun by a reader (I16)",
        "whoever looks for a store that is not there makes its state",
        f"{_CHECKS}::TestNoStore::test_before_the_first_table",
        replaced("tiering.cli.frame.session:Session", "config", property(lambda self: self.loaded.config)),
    ),
    (
        "no last look before a put",
        "a writer that stood still past its lease overwrites what another one wrote",
        f"{_LEASES}::TestStandingStill::test_before_the_put",
        replaced("disks.stores.s3.store", "take_last_look", nothing),
    ),
    (
        "a lease by the wall clock",
        "a lease that is held goes by a clock that can be set",
        f"{_LEASES}::TestClocks::test_one_that_is_set_back_lengthens_no_lease",
        _wall_clock,
    ),
    (
        "a configuration of anybody",
        "hooks of a file that another user may write run, because it was in the current directory",
        "tests/unit/tiering/config/test_configuration.py::TestFoundHere",
        replaced("tiering.config.reading", "_refuse_foreign", nothing),
    ),
    (
        "disks open to all",
        "another user reads the rows of a local disk",
        "tests/unit/disks/test_locks.py::test_state_disks_and_locks_are_this_users_alone",
        replaced("disks.effects", "PRIVATE", 0o755),
    ),
    (
        "a limit of the process is damage",
        "a query that may not open another file says that a part is damaged",
        "tests/unit/disks/test_system_errors.py::test_a_query_that_may_not_open_a_part",
        replaced("tiering.query.sql.errors", "of_the_system", nothing),
    ),
    (
        "clock: parts from the future are no sign",
        "a clock that was set back a year is believed, whatever parts say",
        "tests/integration/test_clock_trust.py::test_a_part_of_a_wrong_clock_is_believed_when_a_person_says",
        replaced("tiering.journal.journal:Journal", "written_ahead", lambda self: datetime.max.replace(tzinfo=UTC)),
    ),
)
