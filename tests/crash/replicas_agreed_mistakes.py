"""Seeded mistakes in what replicas agree upon, for `tests.crash.mutants`: moves, drops, alters; and in its examination.

Name, meaning, check, how it is put in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec

from tests.crash.seeding import nothing, replaced

_KILLS = "tests/replicas/test_kills.py::test_killed_at_every_change"
_BEHIND = "tests/replicas/test_behind.py"
_CONVERSION = "tests/replicas/test_conversion.py"
_ACROSS = "tests/replicas/test_back_across_conversion.py"
_MANY = "tests/replicas/test_many_partitions.py"
_TAKE_OVER = "tests/replicas/test_take_over.py"
_ALTER = "tests/replicas/test_alter.py"
_DROPS = "tests/replicas/test_drops.py"
_KEPT = "tests/replicas/test_retained_drops.py"
_TABLES = "tests/replicas/test_replicas.py"
_SHARED = "tests/replicas/test_shared_disk.py"
_COPIES = "tests/replicas/test_kept_copies.py"


def _joins_by_what_is_here() -> None:
    from zerocopy.replica import lifecycle

    original = lifecycle.tables.write_definition

    def write_definition(context: Any, definition: Any, **options: Any) -> None:
        if "a plain table before" in options["reason"]:
            definition = next(one for one in context.catalog.tables() if one.uuid == definition.uuid)
        original(context, definition, **options)

    lifecycle.tables.write_definition = write_definition


def _drops_by_the_plain_table() -> None:
    from tiering.catalog import tables

    genuine = tables._drop_everywhere
    tables._drop_everywhere = lambda context, decided, *, now: genuine(
        context, msgspec.structs.replace(decided, barred_by=()), now=now
    )


def _drops_that_looked_once() -> None:
    from tiering.catalog import tables

    genuine = tables._drop_from
    tables._drop_from = lambda context, disk, decided, *, now: genuine(
        context, disk, msgspec.structs.replace(decided, barred_by=()), now=now
    )


def _commits_without_fence() -> None:
    from zerocopy.execution import moving

    moving.fence.hold = lambda replica, disk: replica.definition.path


def _session_believed() -> None:
    from zerocopy.execution import moving

    moving.fence.replace = lambda replica, disk: ""


def _claim_left() -> None:
    from zerocopy.execution import moving

    moving._release = lambda replica, held, claim: replica.keeper.delete(replica.table.alive(claim.id))


def _lagging_replica_forgotten() -> None:
    from zerocopy.execution import moving

    moving._parts_of_others = lambda replica: {}


def _agreed_merges_forgotten() -> None:
    from types import SimpleNamespace

    from zerocopy.execution import moving

    moving.queue = SimpleNamespace(pull=moving.queue.pull, queue=lambda replica: [])  # type: ignore[assignment]


def _moves_forgotten() -> None:
    from zerocopy.execution import moving

    moving.busy = lambda replica: frozenset()


def _freed_unproved() -> None:
    from zerocopy.replica import shared

    shared._is_proved = lambda replica, here, there: True


def _freed_without_keeper() -> None:
    from zerocopy.replica import shared

    def is_proved(replica: Any, here: Any, there: Any) -> bool:
        disks = replica.context.disk
        _, wanted = shared.copying.read_part(disks(here.disk), here.directory)
        return shared.copying.is_complete(disks(there.disk), there.directory, wanted, proof=True)

    shared._is_proved = is_proved


def _leaves_with_everything() -> None:
    from zerocopy.replica import lifecycle

    original = lifecycle.tables.drop
    lifecycle.tables.drop = lambda context, definition, here_only=False: original(context, definition)  # type: ignore[assignment]


def _nobody_spared() -> None:
    from zerocopy.replica.entries import DropRange

    DropRange.drops = lambda self, name: any(one.covers(name) for one in self.touches)  # type: ignore[method-assign]


def _dropped_without_version() -> None:
    from zerocopy.execution import dropping
    from zerocopy.keeper.operations import ANY_VERSION

    original = dropping.say
    dropping.say = lambda replica, entry, version, more: original(replica, entry, ANY_VERSION, more)


def _drop_of_what_is_gone_waited_for() -> None:
    from zerocopy.execution import perform

    perform._QueueRun._is_void = lambda self, queued, later: False  # type: ignore[method-assign]


def _digests_of_the_dropped_count() -> None:
    from zerocopy.replica.nodes import TableNodes

    TableNodes.block = lambda self, partition, digest, drops: f"{self.path}/blocks/{partition}_{digest}"  # type: ignore[method-assign]


def _arriving_not_awaited() -> None:
    from zerocopy.execution import dropping

    dropping.staged_parts.arriving = lambda context, definition: []  # type: ignore[assignment]


def _moving_parts_dropped() -> None:
    from zerocopy.execution import dropping

    dropping.check_not_moving = lambda replica, partition: None  # type: ignore[assignment]


def _bytes_stay_in_the_bucket() -> None:
    from zerocopy.execution import dropping

    dropping._drop_shared = lambda replica, entry: None


def _deleted_by_oneself() -> None:
    from tiering.catalog import tables
    from tiering.engine import replication

    def deleted(context: Any, uuid: str, deletes: Any, problems: Any) -> Any:
        definition = context.catalog.table(uuid)
        for delete in deletes:
            tables.drop_parts(context, [context.catalog.part(definition, delete.part)], reason="due", by_ttl=True)
        return deletes

    replication.deleted = deleted


def _nothing_said_of_nothing() -> None:
    from zerocopy.execution import perform, steps

    steps.is_empty = perform.is_empty = lambda replica, part: False


def _any_clock_for_merges() -> None:
    from zerocopy.execution import merging

    merging.check_merge = lambda context, definition: ""


def _older_definition_not_awaited() -> None:
    from zerocopy.execution.order import QueueOrder

    original = QueueOrder.postpone

    def postpone(self: Any, queued: Any) -> None:
        original(self, queued)
        self._is_older = False

    QueueOrder.postpone = postpone  # type: ignore[method-assign]


def _deleted_by_a_rule_that_is_gone() -> None:
    from zerocopy.execution import altering

    altering.unaltered = lambda replica: []


def _definition_not_taken_over() -> None:
    from zerocopy.execution import recovering

    recovering.altering = type("_Altering", (), {"catch_up": staticmethod(lambda *_: None)})  # type: ignore[assignment]


def _only_the_bucket_is_altered() -> None:
    from zerocopy.execution import altering

    original = altering._is_older
    altering._is_older = lambda replica, name, version: name == "s3" and original(replica, name, version)


def _queue_not_looked_at() -> None:
    from zerocopy.verbs import comparing

    comparing.queue = lambda replica: []


def _names_compared_alone() -> None:
    from zerocopy.verbs import comparing

    original = comparing._said
    comparing._said = lambda replica, name: ((part, "") for part, _ in original(replica, name))  # type: ignore[assignment]
    comparing.content_digest = lambda part: ""


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "copies: stay in a conversion",
        "a table becomes a replicated one while this machine has copies of shared parts",
        f"{_COPIES}::test_a_conversion_leaves_no_copy_of_a_shared_part",
        replaced("zerocopy.replica.shared", "free_copies", nothing),
    ),
    (
        "copies: a replica may not join over them",
        "a machine with copies of shared parts has to insert their rows again",
        f"{_COPIES}::test_a_machine_joins_over_copies_of_shared_parts",
        replaced("zerocopy.replica.shared", "free_copies", nothing),
    ),
    (
        "copies: of a replicated table count",
        "a machine that is no replica shows copies of parts that replicas dropped",
        f"{_COPIES}::test_a_copy_of_a_plain_table_goes_with_its_part",
        replaced(
            "tiering.catalog.copies.source_copies:SourceCopies",
            "follows",
            lambda self, definition: not definition.is_replicated,
        ),
    ),
    (
        "replicas: no fence",
        "a mover's commits require nothing of the shared disk",
        f"{_SHARED}::test_a_mover_that_was_replaced_comes_too_late",
        _commits_without_fence,
    ),
    (
        "replicas: session believed",
        "who replaces a mover takes its ephemeral node for an end of its commits",
        f"{_SHARED}::test_a_mover_that_was_replaced_comes_too_late",
        _session_believed,
    ),
    (
        "replicas: lagging one forgotten",
        "what was merged moves before every replica has it",
        f"{_SHARED}::test_what_was_merged_waits_for_every_replica",
        _lagging_replica_forgotten,
    ),
    (
        "replicas: agreed merges forgotten",
        "a part moves that a merge which was agreed upon takes",
        f"{_SHARED}::test_what_was_merged_waits_for_every_replica",
        _agreed_merges_forgotten,
    ),
    (
        "replicas: moves forgotten",
        "a merge of a part is agreed upon while it moves",
        f"{_SHARED}::test_a_part_that_is_moved_is_in_no_merge_and_no_other_move",
        _moves_forgotten,
    ),
    (
        "replicas: freed unproved",
        "a copy goes because a part of its name is on the shared disk",
        f"{_SHARED}::test_without_a_proof_the_copy_on_the_ssd_stays[object]",
        _freed_unproved,
    ),
    (
        "replicas: freed without Keeper",
        "a copy goes though Keeper knows another part by its name",
        f"{_SHARED}::test_without_a_proof_the_copy_on_the_ssd_stays[digest]",
        _freed_without_keeper,
    ),
    (
        "replicas: leaves with everything",
        "a replica that is not the last takes the cold parts with it",
        f"{_SHARED}::test_who_leaves_leaves_what_is_cold",
        _leaves_with_everything,
    ),
    (
        "replicas: nobody spared",
        "a drop takes inserts that were on their way",
        f"{_DROPS}::test_an_insert_on_its_way_stays",
        _nobody_spared,
    ),
    (
        "replicas: the dropped waited for",
        "a part that was dropped is fetched first",
        f"{_DROPS}::test_what_is_dropped_is_not_waited_for",
        _drop_of_what_is_gone_waited_for,
    ),
    (
        "replicas: digests of the dropped",
        "a block that was dropped cannot be inserted again",
        f"{_DROPS}::test_all_replicas_drop_what_was_there_and_keep_later_rows",
        _digests_of_the_dropped_count,
    ),
    (
        "replicas: arriving not awaited",
        "a drop goes past an insert that counts and is not in the table yet",
        f"{_DROPS}::test_an_insert_that_counts_but_is_not_here_yet_is_dropped",
        _arriving_not_awaited,
    ),
    (
        "replicas: moving parts dropped",
        "a drop is agreed upon while somebody moves its parts",
        f"{_DROPS}::test_what_moves_now_is_not_dropped",
        _moving_parts_dropped,
    ),
    (
        "replicas: the dropped stay in the bucket",
        "what lies in the bucket is dropped from the machines alone",
        f"{_DROPS}::test_all_replicas_drop_what_was_there_and_keep_later_rows",
        _bytes_stay_in_the_bucket,
    ),
    (
        "replicas: dropped without version",
        "a drop is agreed upon though a move was claimed since it looked",
        f"{_DROPS}::test_a_move_that_was_claimed_meanwhile_is_not_missed",
        _dropped_without_version,
    ),
    (
        "replicas: deleted by oneself",
        "a replica deletes what is past its time without the others",
        f"{_DROPS}::test_what_is_past_its_time_goes_from_all_replicas",
        _deleted_by_oneself,
    ),
    (
        "replicas: empty output awaited",
        "a merge that left no row is fetched",
        f"{_DROPS}::test_a_merge_that_leaves_no_row_makes_no_part",
        _nothing_said_of_nothing,
    ),
    (
        "replicas: merges by any clock",
        "a merge that drops rows is agreed upon by a clock that is wrong",
        f"{_DROPS}::test_no_merge_goes_by_a_clock_that_is_wrong",
        _any_clock_for_merges,
    ),
    (
        "replicas: older definition not awaited",
        "parts of new columns come before the definition that has them",
        f"{_ALTER}::test_what_comes_after_waits_until_it_is_done",
        _older_definition_not_awaited,
    ),
    (
        "replicas: old rule",
        "a replica deletes by a TTL rule that was taken back",
        f"{_ALTER}::test_nobody_deletes_by_a_rule_that_is_gone",
        _deleted_by_a_rule_that_is_gone,
    ),
    (
        "replicas: definition not taken over",
        "a replica that becomes whole keeps its old definition",
        f"{_ALTER}::test_who_becomes_whole_has_the_newest_definition",
        _definition_not_taken_over,
    ),
    (
        "replicas: only the bucket is altered",
        "a new definition does not come to the machines' own disks",
        f"{_KILLS}[alter]",
        _only_the_bucket_is_altered,
    ),
    (
        "replicas: queue not looked at",
        "fsck finds fault with what an entry of the queue is about",
        f"{_TABLES}::test_fsck_compares_a_replica_with_what_keeper_says_of_it",
        _queue_not_looked_at,
    ),
    (
        "replicas: names compared alone",
        "fsck does not compare the digests that Keeper has",
        f"{_TABLES}::test_fsck_compares_a_replica_with_what_keeper_says_of_it",
        _names_compared_alone,
    ),
    (
        "replicas: merges of the lost awaited",
        "a merge of parts that were given up is waited for",
        f"{_BEHIND}::test_what_a_dead_replica_alone_had_is_given_up",
        replaced("zerocopy.execution.giving_up", "is_void", lambda entry, later: False),
    ),
    (
        "replicas: digests of the lost",
        "rows of parts that were given up cannot be inserted again",
        f"{_BEHIND}::test_what_a_dead_replica_alone_had_is_given_up",
        replaced("zerocopy.execution.giving_up", "_digests", lambda replica, names: ()),
    ),
    (
        "replicas: the lost not named",
        "fsck says nothing of parts that the log brings and nobody has",
        f"{_BEHIND}::test_fsck_names_what_the_log_brings_and_nobody_has",
        replaced("zerocopy.execution.giving_up", "lost", lambda replica, **options: ()),
    ),
    (
        "conversion: numbers begin anew",
        "Keeper's numbers of a converted table begin with 0, which were given",
        f"{_CONVERSION}::test_there_and_back_keeps_every_part",
        replaced("tiering.catalog.blocks", "unused", lambda context, definition: 0),
    ),
    (
        "replicas: many partitions staged",
        "a block that Keeper does not take takes numbers and is staged first",
        f"{_MANY}::test_a_block_that_keeper_does_not_take_leaves_nothing",
        replaced("zerocopy.replica.inserts.inserting", "check_size", nothing),
    ),
    (
        "replicas: a late mover told of a file",
        "who moves when another replica has taken over hears of a file on the bucket, not of that",
        f"{_SHARED}::test_a_mover_that_was_replaced_comes_too_late",
        replaced("zerocopy.replica.fence", "replaced_by", lambda replica, disk, path: ""),
    ),
    (
        "conversion: what was known of nodes that are gone",
        "a replica of before that joins a table converted twice looks for entries of the log before",
        f"{_CONVERSION}::test_a_replica_of_before_joins_again",
        replaced("tiering.journal.known_replicas:ReplicaRecords", "forget", nothing),
    ),
    (
        "conversion: what a left bucket says is written on",
        "a machine joins by the definition of the plain table that a bucket has, which the table has left",
        f"{_CONVERSION}::test_a_bucket_that_the_table_left_still_says_it_is_plain",
        _joins_by_what_is_here,
    ),
    (
        "conversion: a stale move told of a file",
        "a move by the plain table hears of a file, not that the table is replicated by now",
        f"{_CONVERSION}::test_a_move_that_began_before_is_refused_and_says_what_to_do",
        replaced("tiering.move.mover:_BatchMover", "_why_refused", lambda self, item, error: error),
    ),
    (
        "replicas: a dead mover found by passes",
        "a daemon does not hear that the replica is gone which moved parts",
        f"{_TAKE_OVER}::test_a_daemon_takes_over_when_the_mover_is_gone",
        replaced("zerocopy.execution.following:Follower", "_mind_mover", nothing),
    ),
    (
        "replicas: moves that are never done",
        "who has moved parts takes its node away and leaves the claim: all others take over what is done",
        f"{_TAKE_OVER}::test_no_pass_is_due_for_a_mover_that_is_done",
        _claim_left,
    ),
    (
        "replicas: wide blocks in their turn",
        "blocks go in that stand before one that Keeper does not take, though all are known, and after it",
        f"{_MANY}::test_an_insert_with_a_second_block_refused_leaves_nothing_in",
        replaced("zerocopy.replica.inserts.inserting:ReplicatedInserting", "doubts", nothing),
    ),
    (
        "kept drops: parts left out in silence",
        "an attach that left a part detached, whose rows may be lacking, ends as one that brought everything back",
        f"{_KEPT}::test_what_was_inserted_again_keeps_no_other_part_back",
        replaced("restore.history.partitions", "check_none_left_out", nothing),
    ),
    (
        "drops: nothing kept",
        "what an entry of the log drops is gone from the local disks at once",
        f"{_KEPT}::test_what_a_forged_entry_drops_comes_back",
        replaced("tiering.catalog.retained_drops", "keeps", lambda disk: False),
    ),
    (
        "drops: taken back twice",
        "a part that comes back does not say which part it was, nor which blocks are in it",
        f"{_KEPT}::test_what_a_forged_entry_drops_comes_back",
        replaced("tiering.insert.attach_files", "_all_of", nothing),
    ),
    (
        "drops: taken back by two",
        "two replicas take back a partition side by side, each by what it has",
        f"{_KEPT}::test_another_replica_that_takes_back_now_is_left_to_it",
        replaced("zerocopy.execution.attaching", "_alone", lambda replica, partition: nullcontext()),
    ),
    (
        "drops: taken back unseen",
        "a replica takes back rows while what another one took back is not here yet",
        f"{_KEPT}::test_two_machines_take_back_what_each_has",
        replaced("zerocopy.execution.attaching", "_check_up_to_date", nothing),
    ),
    (
        "drops: kept for ever",
        "what a drop keeps never goes",
        f"{_KEPT}::test_what_is_past_its_time_goes",
        replaced("tiering.catalog.retained_drops:RetainedDrop", "is_over", lambda self, seconds, now: False),
    ),
    (
        "drops: kept on a full disk",
        "what drops keep stays where a new part finds no room",
        f"{_KEPT}::test_a_full_disk_gives_up_the_oldest_first",
        replaced("tiering.catalog.retained_drops", "give_way", lambda disk: False),
    ),
    (
        "conversion: undone into a replica",
        "an undo or a restore brings back the definition of when the table was replicated",
        f"{_ACROSS}::test_what_was_replicated_then_comes_back_as_no_replica",
        replaced("tiering.engine.replication", "refuse_return", nothing),
    ),
    (
        "conversion: another bucket's replica",
        "a restore from another bucket brings a replicated table along into a home that is none of its replicas",
        f"{_ACROSS}::test_another_bucket_s_replica_does_not_become_one_here",
        replaced("restore.transfer.changes", "check_replicas", nothing),
    ),
    (
        "conversion: the log not asked",
        "a restore asks the definitions of today alone, and only where the store can be opened",
        f"{_ACROSS}::test_the_log_is_asked_where_the_store_cannot_be_opened",
        replaced("restore.rebuild.rebuild", "check_replicas", nothing),
    ),
    (
        "conversion: late inserts let in",
        "an insert that began with the plain table commits into the replicated one",
        f"{_CONVERSION}::test_what_began_before_does_not_count_after",
        replaced("tiering.table.schema:TableDefinition", "barred_by", ()),
    ),
    (
        "conversion: late moves let in",
        "a move that was planned with the plain table is made of the replicated one",
        f"{_CONVERSION}::test_a_move_planned_before_is_given_up_and_loses_nothing",
        replaced("tiering.table.schema:TableDefinition", "barred_by", ()),
    ),
    (
        "conversion: late drops let in",
        "a drop that began with the plain table takes what replicas have",
        f"{_CONVERSION}::test_a_drop_begun_before_takes_nothing_that_replicas_have",
        _drops_by_the_plain_table,
    ),
    (
        "conversion: late drops seen only before",
        "a drop looks whether the table was converted, and does not require it where it commits",
        f"{_CONVERSION}::test_a_drop_of_another_machine_is_refused_where_it_commits",
        _drops_that_looked_once,
    ),
    (
        "conversion: parts not asked for",
        "the last replica becomes a plain table while a part is not here that Keeper knows",
        f"{_CONVERSION}::test_a_name_that_joined_or_left_keeps_the_table_replicated",
        replaced("zerocopy.conversion.to_plain", "_check_whole", nothing),
    ),
    (
        "conversion: joined over its parts",
        "a machine joins though no replica knows what it has since the table was a plain one",
        f"{_CONVERSION}::test_another_machine_may_only_read_and_loses_nothing",
        replaced("zerocopy.replica.lifecycle", "_check_empty", nothing),
    ),
)
