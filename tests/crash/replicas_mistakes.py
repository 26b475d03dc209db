"""Seeded mistakes in replicated tables, for `tests.crash.mutants`: in inserts, fetches, merges and the log.

Name, meaning, check, how it is put in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_KILLS = "tests/replicas/test_kills.py::test_killed_at_every_change"
_INTERSERVER = "tests/replicas/test_interserver.py"
_ANNOUNCED = "tests/replicas/test_announced.py"
_BESIDE = "tests/replicas/test_side_by_side.py"
_BEHIND = "tests/replicas/test_behind.py"
_QUORUM = "tests/replicas/test_quorum.py"
_LOST = "tests/replicas/keeper/test_lost_keeper.py"


def _pointer_first() -> None:
    from zerocopy.keeper.client import Keeper
    from zerocopy.keeper.operations import Set

    original = Keeper.multi

    def multi(self: Any, operations: Any, *, witness: Any = None) -> Any:
        first = [one for one in operations if isinstance(one, Set) and one.path.endswith("/log_pointer")]
        if first:
            original(self, first, witness=witness)
            witness = None
        rest = [one for one in operations if one not in first]
        return original(self, rest, witness=witness)

    Keeper.multi = multi  # type: ignore[method-assign]


def _digest_after_the_entry() -> None:
    from zerocopy.keeper.client import Keeper
    from zerocopy.keeper.operations import CreateNode

    original = Keeper.multi

    def multi(self: Any, operations: Any, *, witness: Any = None) -> Any:
        last = [one for one in operations if isinstance(one, CreateNode) and "/blocks/" in one.path]
        answers = original(self, [one for one in operations if one not in last], witness=witness)
        if last:
            original(self, last)
        return answers

    Keeper.multi = multi  # type: ignore[method-assign]


def _word_before_bytes() -> None:
    from zerocopy.replica.inserts import inserting, staged_parts

    def put_in(self: Any, written: Any, transactions: Any, number: int) -> None:
        fresh = self._without_duplicates(written)
        with self._numbered(fresh) as arriving, self._claimed(arriving):
            for one in arriving:
                part = self.described(one.name, one.new)
                one.digest = inserting.content_digest(part)
                transaction = transactions[one.new.disk]
                staged_parts.stage(transaction, self.definition, part, one.new.directory, one.node)
            taken = self._say(arriving)
            for disk in {one.new.disk for one in taken}:
                transactions[disk].commit()
                names = [one.name for one in taken if one.new.disk == disk]
                staged_parts.take_in(self.context, self.definition, self.context.disk(disk), names)
                self.count_in(names, [one.new for one in taken if one.new.disk == disk])

    inserting.ReplicatedInserting.put_in = put_in  # type: ignore[method-assign]


def _arrivals_always_taken_back() -> None:
    from zerocopy.replica.inserts import staged_parts
    from zerocopy.replica.replica import Replica  # noqa: F401  loaded before it is changed

    def settle(replica: Any, disk: Any, part: str) -> str:
        staged_parts.discard(replica.context, replica.definition, disk, [part])
        return part

    staged_parts._settle = settle


def _arriving_given() -> None:
    from zerocopy.interserver import server

    server.content_digest = lambda part: "of any part"
    original = server.PartServer._arriving
    server.PartServer._arriving = lambda self, table, name, _: original(self, table, name, "of any part")


def _merges_by_the_wall_clock() -> None:
    import msgspec

    from tiering.catalog.context import wall_clock
    from zerocopy.execution import steps

    original = steps.merger.merge

    def merge(context: Any, *arguments: Any, **options: Any) -> Any:
        return original(msgspec.structs.replace(context, clock=wall_clock), *arguments, **options)

    steps.merger.merge = merge


def _whole_before_decided() -> None:
    from zerocopy.keeper.client import Keeper
    from zerocopy.rebuilding import rebuilding

    original, write = Keeper.multi, rebuilding._write_log
    later: list[Callable[[], None]] = []
    rebuilding._write_log = lambda replica, agreement: later.append(lambda: write(replica, agreement))

    def multi(self: Any, operations: Any, *, witness: Any = None) -> Any:
        answers = original(self, operations, witness=witness)
        while later:
            later.pop()()
        return answers

    Keeper.multi = multi  # type: ignore[method-assign]


def _peer_believed() -> None:
    from zerocopy.interserver import client

    class Always(str):
        def __ne__(self, other: object) -> bool:
            return False

    client.content_digest = lambda part: Always()  # type: ignore[assignment, misc]


def _files_behind_believed() -> None:
    from zerocopy.interserver import client

    class Always(str):
        def __ne__(self, other: object) -> bool:
            return False

    original = client.keep
    client.keep = lambda target, data, limiter: Always(original(target, data, limiter))


def _claim_kept() -> None:
    from zerocopy.execution import moving

    moving._take_over = lambda replica, disk, version: None


def _cleaned_past_everybody() -> None:
    from zerocopy.execution import cleaning

    cleaning._needed_from = lambda replica, name, end: end


def _unknown_parts_stay() -> None:
    from zerocopy.execution import recovering

    recovering._set_aside = lambda replica, parts: None


def _parts_not_taken_over() -> None:
    from zerocopy.execution import recovering

    original = recovering._best

    def best(replica: Any) -> Any:
        other = original(replica)
        other.parts.clear()
        return other

    recovering._best = best


def _whole_first() -> None:
    from zerocopy.execution import recovering
    from zerocopy.keeper.operations import Set

    original = recovering._take_over

    def take_over(replica: Any, other: Any, *rest: Any) -> None:
        own = replica.own
        replica.keeper.multi([Set(own.log_pointer, str(other.pointer).encode()), Set(own.is_lost, b"0")])
        original(replica, other, *rest)

    recovering._take_over = take_over


def _landed_said_first() -> None:
    from zerocopy.execution.steps import Steps
    from zerocopy.replica.bringing import landing

    def commit(self: Any, group: Any) -> None:
        with self.turn:
            self._register_all(group)
            self.done.fetched += [landed.part.name for _, landed in group]
        landing.commit(self.replica, [landed for _, landed in group])

    Steps.commit = commit  # type: ignore[method-assign]


def _each_landed_alone() -> None:
    from zerocopy.replica.bringing.landing import GroupCommit

    def add(self: Any, queued: Any, landed: Any, *, alone: bool = False) -> None:
        self.commit([(queued, landed)])

    GroupCommit.add = add  # type: ignore[method-assign]


def _failed_together() -> None:
    from zerocopy.execution.perform import _QueueRun

    def commit(self: Any, group: Any) -> None:
        try:
            self.steps.commit(group)
        except Exception as error:
            for queued, _ in group:
                self._fail(queued, error)

    _QueueRun._commit = commit  # type: ignore[method-assign]


def _landed_is_done() -> None:
    from zerocopy.execution.order import QueueOrder

    end = QueueOrder.end
    QueueOrder.land = end  # type: ignore[method-assign]
    QueueOrder.end = lambda self, queued: end(self, queued) if queued.node in self._begun else None  # type: ignore[method-assign]


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "replicas: pointer first",
        "the pointer goes past entries before they are queued",
        f"{_KILLS}[fetch]",
        _pointer_first,
    ),
    (
        "replicas: digest after the entry",
        "the digest of a block is noted after its entry of the log",
        f"{_KILLS}[insert]",
        _digest_after_the_entry,
    ),
    (
        "replicas: word before bytes",
        "Keeper is told of a part that is not durable yet",
        f"{_KILLS}[insert]",
        _word_before_bytes,
    ),
    (
        "replicas: new tables wait for a pass",
        "a daemon is not told of a new table",
        f"{_ANNOUNCED}::test_a_converted_table_is_announced_at_once",
        replaced("tiering.cli.commands.tables", "_tell_daemon", nothing),
    ),
    (
        "replicas: whose process answers is dropped",
        "nobody asks the process whether the replica is gone",
        f"{_ANNOUNCED}::test_who_answers_is_not_dropped_though_keeper_is_silent",
        replaced("zerocopy.interserver.client:Peers", "replica_at", lambda self, address, definition: ""),
    ),
    (
        "replicas: any process is the replica",
        "who answers at the address of a replica that is gone goes for it",
        f"{_ANNOUNCED}::test_another_replica_at_the_address_is_not_taken_for_it",
        replaced("zerocopy.interserver.client:Peers", "replica_at", lambda self, address, definition: "b"),
    ),
    (
        "replicas: word before parts that landed",
        "Keeper is told of parts that came before their commit",
        f"{_KILLS}[fetch_together]",
        _landed_said_first,
    ),
    (
        "replicas: what landed is said first",
        "the same, where nobody is killed",
        f"{_BESIDE}::test_what_comes_while_a_commit_is_made_is_committed_together",
        _landed_said_first,
    ),
    (
        "replicas: each part by a commit of its own",
        "what comes while a commit is made waits for nobody",
        f"{_BESIDE}::test_what_comes_while_a_commit_is_made_is_committed_together",
        _each_landed_alone,
    ),
    (
        "replicas: one fails, and all that landed with it",
        "nobody finds out which of them it was",
        f"{_BESIDE}::test_one_that_cannot_be_committed_keeps_none_of_the_others",
        _failed_together,
    ),
    (
        "replicas: what landed is done",
        "what meets a part that is not committed yet is begun",
        "tests/unit/zerocopy/test_order.py::test_what_landed_leaves_its_place_and_holds_off_what_meets",
        _landed_is_done,
    ),
    (
        "replicas: arrivals taken back",
        "what a dead insert left is thrown away without asking Keeper",
        f"{_KILLS}[insert]",
        _arrivals_always_taken_back,
    ),
    (
        "replicas: arriving parts are given",
        "a part that Keeper was not told of is given to another replica",
        f"{_INTERSERVER}::test_a_part_still_arriving_is_given_to_who_knows_from_keeper",
        _arriving_given,
    ),
    (
        "replicas: merges by the wall clock",
        "each replica writes its own time into what it merges",
        "tests/replicas/test_replicas.py::test_replicas_merge_alike",
        _merges_by_the_wall_clock,
    ),
    (
        "replicas: files behind a part are believed",
        "files that come with the part.json are not compared with it",
        f"{_INTERSERVER}::test_nothing_is_kept_of_a_part_that_came_otherwise",
        _files_behind_believed,
    ),
    (
        "replicas: a peer is believed",
        "a part.json is not compared with the digest in Keeper",
        f"{_INTERSERVER}::test_what_a_lying_peer_sends_is_refused[another_description]",
        _peer_believed,
    ),
    (
        "replicas: cleaned past everybody",
        "the log is cleaned past a replica that is active",
        f"{_BEHIND}::test_who_is_heard_of_is_never_passed",
        _cleaned_past_everybody,
    ),
    (
        "replicas: unknown parts stay",
        "a replica that becomes whole keeps parts in its answers that nobody knows",
        f"{_BEHIND}::test_a_replica_that_was_given_up_takes_over_what_another_has",
        _unknown_parts_stay,
    ),
    (
        "replicas: parts not taken over",
        "a replica that becomes whole takes over what is to do, and not the parts that are there",
        f"{_BEHIND}::test_who_comes_when_the_log_is_cleaned_takes_over_the_parts",
        _parts_not_taken_over,
    ),
    (
        "replicas: whole first",
        "a replica is said to be whole before it has taken over what another one has",
        f"{_KILLS}[recover]",
        _whole_first,
    ),
    (
        "replicas: claim kept",
        "nobody empties the claim of a mover that died",
        f"{_KILLS}[move]",
        _claim_kept,
    ),
    (
        "replicas: quorum not awaited",
        "an insert with a quorum ends when one replica has it",
        f"{_QUORUM}::test_rows_too_few_have_in_time_stay_and_the_insert_waits_on",
        replaced("zerocopy.replica.inserts.quorum", "wait", nothing),
    ),
    (
        "replicas: what is here is all",
        "a sequential query does not look at what waits",
        f"{_QUORUM}::test_a_sequential_query_sees_what_a_quorum_has",
        replaced("zerocopy.execution.work", "missing", lambda replica: iter(())),
    ),
    (
        "replicas: silent ones are asked",
        "an insert with a quorum goes in though nobody is there to take it",
        f"{_QUORUM}::test_nothing_goes_in_while_too_few_replicas_are_heard_of",
        replaced("zerocopy.replica.inserts.quorum", "needed", lambda replica, quorum: quorum.replicas or 2),
    ),
    (
        "replicas: nobody waited for",
        "the nodes of a table are whole when the first replica has said what it has",
        f"{_LOST}::test_all_nodes_come_back_out_of_what_the_replicas_have",
        replaced("zerocopy.rebuilding.rebuilding", "_join", lambda replica, without: ()),
    ),
    (
        "replicas: numbers from the beginning",
        "after Keeper was lost numbers are given again",
        f"{_LOST}::test_all_nodes_come_back_out_of_what_the_replicas_have",
        replaced("zerocopy.rebuilding.rebuilding", "_raise_numbers", nothing),
    ),
    (
        "replicas: whole before it is decided",
        "the table may be written before the log says what somebody lacks",
        f"{_KILLS}[rebuild]",
        _whole_before_decided,
    ),
    (
        "replicas: an older Keeper is believed",
        "nobody looks whether Keeper still has what was taken over",
        f"{_LOST}::test_a_keeper_with_yesterdays_data_deletes_nothing",
        replaced("zerocopy.replica.history", "check", nothing),
    ),
)
