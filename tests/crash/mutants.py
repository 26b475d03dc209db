"""Seeded mistakes: small changes to the running product, put in by monkeypatching in the processes of one check. The
check, an ordinary test, must then fail: `tests.crash.proof` shows it of each.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tests.compat import clickhouse_mistakes, clickhouse_writing_mistakes
from tests.crash import (
    adoption_mistakes,
    backup_mistakes,
    cache_mistakes,
    catalog_mistakes,
    cold_merge_mistakes,
    cold_read_mistakes,
    cost_mistakes,
    dashboard_mistakes,
    data_frame_mistakes,
    definitions_mistakes,
    forged_mistakes,
    full_disk_mistakes,
    history_mistakes,
    honesty_mistakes,
    identity_mistakes,
    inbox_mistakes,
    index_mistakes,
    insert_mistakes,
    integrity_mistakes,
    jobs_mistakes,
    logs_mistakes,
    looks_mistakes,
    machines_mistakes,
    marks_mistakes,
    names_mistakes,
    partition_mistakes,
    past_mistakes,
    publication_mistakes,
    query_mistakes,
    ranges_mistakes,
    replicas_agreed_mistakes,
    replicas_hostile_mistakes,
    replicas_mistakes,
    replicas_queue_mistakes,
    sharing_bugs_mistakes,
    store_mistakes,
    transfer_mistakes,
    ttl_mistakes,
)
from tests.simulation import mistakes as simulated_mistakes

ENVIRONMENT = "FROSTLINE_MUTANT"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`apply` makes the mistake in this process; `check` is the test that must fail then."""

    name: str
    what: str
    check: str
    apply: Callable[[], None]

    @property
    def place(self) -> str:
        """Its check, as pytest is asked for it."""
        return self.check if self.check.startswith("tests/") else f"tests/crash/{self.check}"


def apply_from_environment() -> None:
    """Put the mistake that the environment names into this process."""
    if name := os.environ.get(ENVIRONMENT):
        MUTANTS[name].apply()


def active() -> bool:
    """Whether this process runs a mutant: then the first violation is enough."""
    return ENVIRONMENT in os.environ


# The mistakes


def _source_removed_first() -> None:
    from tiering.move import mover

    original = mover._BatchMover._commit

    def commit(self: Any, transaction: Any, target: Any, items: Any) -> Any:
        mover._remove_from(self.context.disk(items[0].move.source), items, "mutant")
        return original(self, transaction, target, items)

    mover._BatchMover._commit = commit  # type: ignore[method-assign]


def _move_without_claims() -> None:
    from contextlib import AbstractContextManager, nullcontext

    from tiering.journal.journal import Journal

    original = Journal.claim

    def claim(self: Journal, table_uuid: str, parts: Any, owner_kind: str) -> AbstractContextManager[None]:
        return nullcontext() if owner_kind == "move" else original(self, table_uuid, parts, owner_kind)

    Journal.claim = claim  # type: ignore[method-assign, assignment]


class _NoSync:
    """`os.fsync`, or `syncfs`, that forgets files, or directories. The power-cut recorder puts itself at `inner`."""

    def __init__(self, forgets: Callable[[int], bool], inner: Callable[[int], None] = os.fsync) -> None:
        self.inner = inner
        self._forgets = forgets

    def __call__(self, descriptor: int) -> None:
        if not self._forgets(os.fstat(descriptor).st_mode):
            self.inner(descriptor)


def _files_not_synced() -> None:
    os.fsync = _NoSync(stat.S_ISREG)  # type: ignore[assignment]


def _directories_not_synced() -> None:
    os.fsync = _NoSync(stat.S_ISDIR)  # type: ignore[assignment]


def _file_system_not_synced() -> None:
    from disks.host import file_system

    file_system.syncfs = _NoSync(stat.S_ISDIR, file_system.syncfs)  # type: ignore[assignment]


def _attempt_not_tidied() -> None:
    from disks.local.disk import LocalTransaction

    def abandon(self: Any) -> None:
        self._finished = True

    LocalTransaction.abandon = abandon  # type: ignore[method-assign]


def _staging_not_swept() -> None:
    from disks.local import disk as local

    local.sweep = lambda parent: []


def _journal_first() -> None:
    from tiering.move import mover

    original = mover._BatchMover._commit

    def commit(self: Any, transaction: Any, target: Any, items: Any) -> Any:
        self.outcomes.committed(items, None)
        return original(self, transaction, target, items)

    mover._BatchMover._commit = commit  # type: ignore[method-assign]


def _guard_ignored() -> None:
    from disks.garbage import collect as garbage

    original = garbage.classify

    def classify(blobs: Any, referenced: Any, *, head: int, now: Any, guard: Any) -> Any:
        return original(blobs, referenced, head=1 << 60, now=now, guard=timedelta(0))

    garbage.classify = classify


def _references_first() -> None:
    from disks.garbage import collect as garbage
    from disks.object_disk.references import inventory

    def run(self: Any) -> None:
        evidence = self._gather(inventory(list(self._store.list())))
        found = inventory(list(self._store.list()))
        verdict = self._judge(found, evidence)
        self._delete(found, evidence, verdict, [])

    garbage._Collection.run = run  # type: ignore[method-assign]
    garbage.ReferenceSources.renewed = lambda self: set(self.named)  # type: ignore[method-assign]


def _commit_skipped() -> None:
    from oplog import replay

    original = replay.apply

    def apply(table: Any, commit: Any) -> None:
        if commit.kind.word != "drop":
            original(table, commit)

    replay.apply = apply


def _merge_drops_rows() -> None:
    from tiering.merge import merger
    from tiering.merge import stream as merge_stream

    original = merge_stream.combine_rows

    def combine_rows(tables: Any, definition: Any, **options: Any) -> Any:
        for table in original(tables, definition, **options):
            yield table.slice(1)

    merge_stream.combine_rows = combine_rows
    merger.check_counts = lambda *merge, **counts: None


def _commits_overwrite() -> None:
    from disks.stores.directory import DirectoryStore

    DirectoryStore.put_if_absent = DirectoryStore.put  # type: ignore[method-assign, assignment]


def _drop_without_intent() -> None:
    from tiering.journal.journal import Journal

    Journal.begin_drop = lambda self, drop: 0  # type: ignore[method-assign]


def _digests_forgotten() -> None:
    from collections import defaultdict

    from tiering.insert import insert

    insert.known_digests = lambda context, definition: defaultdict(set)


def _source_kept() -> None:
    """The second transaction of a move is forgotten: the part stays on both disks."""
    from tiering.move import mover

    mover._remove_from = lambda disk, items, actor: []


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "source removed first",
            "a move removes the source before the copy is committed",
            "test_kill.py::test_killed_at_every_effect[move]",
            _source_removed_first,
        ),
        Mutant(
            "move without claims",
            "a move does not claim its parts",
            "test_move_races.py::test_another_process_at_some_steps_of_a_move[drop_january]",
            _move_without_claims,
        ),
        Mutant(
            "files not synced",
            "no file is fsync'ed",
            "test_power_cut.py::test_whatever_a_power_cut_leaves[insert]",
            _files_not_synced,
        ),
        Mutant(
            "directories not synced",
            "no directory is fsync'ed",
            "test_power_cut.py::test_whatever_a_power_cut_leaves[insert]",
            _directories_not_synced,
        ),
        Mutant(
            "syncfs left out",
            "the file system is not synced that has many new files",
            "test_power_cut.py::test_whatever_a_power_cut_leaves_of_very_many_files[insert]",
            _file_system_not_synced,
        ),
        Mutant(
            "files not synced (ext4)",
            "the same, seen by a real power cut",
            "test_power_cut.py::test_a_real_power_cut_loses_nothing_acknowledged[insert]",
            _files_not_synced,
        ),
        Mutant(
            "attempt not tidied",
            "a failed, not killed, attempt leaves its staging",
            "test_errors.py::test_error_at_every_effect[insert-raise_before]",
            _attempt_not_tidied,
        ),
        Mutant(
            "staging not swept",
            "recovery leaves the staging of a killed attempt",
            "test_kill.py::test_killed_at_every_effect[insert]",
            _staging_not_swept,
        ),
        Mutant(
            "journal first",
            "the journal says committed before the target has committed",
            "test_kill.py::test_killed_at_every_effect[move]",
            _journal_first,
        ),
        Mutant(
            "source kept",
            "a move never removes its source",
            "test_kill.py::test_killed_at_every_effect[move]",
            _source_kept,
        ),
        Mutant(
            "guard ignored",
            "gc deletes young objects of a transaction under way",
            "test_kill.py::test_killed_at_every_effect[move]",
            _guard_ignored,
        ),
        Mutant(
            "references first",
            "gc reads the references before the listing",
            "test_races.py::test_gc_spares_what_is_committed_while_it_runs",
            _references_first,
        ),
        Mutant(
            "commit skipped",
            "a rebuild skips the commits of drops",
            "test_kill.py::test_killed_at_every_effect[drop_parts]",
            _commit_skipped,
        ),
        Mutant(
            "merge drops rows",
            "a merge loses the first row, and does not count",
            "test_kill.py::test_killed_at_every_effect[merge]",
            _merge_drops_rows,
        ),
        Mutant(
            "commits overwrite",
            "two writers put the same revision, the later wins",
            "test_races.py::test_two_writers_never_lose_a_commit",
            _commits_overwrite,
        ),
        Mutant(
            "drop without intent",
            "a drop of parts on two disks is not announced in the journal",
            "test_kill.py::test_killed_at_every_effect[drop_all_parts]",
            _drop_without_intent,
        ),
        Mutant(
            "digests forgotten",
            "an insert that is repeated after a crash is not recognised",
            "test_kill.py::test_killed_at_every_effect[insert]",
            _digests_forgotten,
        ),
        *(
            Mutant(*mistake)
            for mistake in (
                *clickhouse_mistakes.MISTAKES,
                *clickhouse_writing_mistakes.MISTAKES,
                *cache_mistakes.MISTAKES,
                *cold_read_mistakes.MISTAKES,
                *catalog_mistakes.MISTAKES,
                *cold_merge_mistakes.MISTAKES,
                *cost_mistakes.MISTAKES,
                *dashboard_mistakes.MISTAKES,
                *data_frame_mistakes.MISTAKES,
                *forged_mistakes.MISTAKES,
                *history_mistakes.MISTAKES,
                *definitions_mistakes.MISTAKES,
                *honesty_mistakes.MISTAKES,
                *identity_mistakes.MISTAKES,
                *inbox_mistakes.MISTAKES,
                *index_mistakes.MISTAKES,
                *full_disk_mistakes.MISTAKES,
                *transfer_mistakes.MISTAKES,
                *ttl_mistakes.MISTAKES,
                *adoption_mistakes.MISTAKES,
                *backup_mistakes.MISTAKES,
                *store_mistakes.MISTAKES,
                *insert_mistakes.MISTAKES,
                *integrity_mistakes.MISTAKES,
                *jobs_mistakes.MISTAKES,
                *logs_mistakes.MISTAKES,
                *looks_mistakes.MISTAKES,
                *machines_mistakes.MISTAKES,
                *marks_mistakes.MISTAKES,
                *names_mistakes.MISTAKES,
                *partition_mistakes.MISTAKES,
                *past_mistakes.MISTAKES,
                *publication_mistakes.MISTAKES,
                *query_mistakes.MISTAKES,
                *ranges_mistakes.MISTAKES,
                *replicas_mistakes.MISTAKES,
                *replicas_agreed_mistakes.MISTAKES,
                *replicas_hostile_mistakes.MISTAKES,
                *replicas_queue_mistakes.MISTAKES,
                *sharing_bugs_mistakes.MISTAKES,
                *simulated_mistakes.MUTANTS,
            )
        ),
    )
}
