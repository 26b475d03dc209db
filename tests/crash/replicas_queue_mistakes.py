"""Seeded mistakes in how a replica works through its queue and how fast parts go, for `tests.crash.mutants`.

Name, meaning, check, how it is put in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.crash.seeding import nothing, replaced

_ORDER = "tests/unit/zerocopy/test_order.py"
_BESIDE = "tests/replicas/test_side_by_side.py"
_BY_HAND = "tests/replicas/keeper/test_nodes_by_hand.py"
_LAGS = "tests/replicas/keeper/test_lagging_follower.py"
_SHARED = "tests/replicas/test_shared_disk.py"
_QUORUM = "tests/replicas/test_quorum.py"
_WHO = "tests/replicas/test_who_merges.py"
_INTERSERVER = "tests/replicas/test_interserver.py"
_BEHIND = "tests/replicas/test_behind.py"
_DROPS = "tests/replicas/test_drops.py"
_COUNTED = "tests/replicas/zero_copy/test_counted.py"
_MANY = "tests/replicas/keeper/test_batched_requests.py"


def _one_after_the_other() -> None:
    from zerocopy.execution.order import QueueOrder

    original = QueueOrder.take
    QueueOrder.take = lambda self: None if self._begun else original(self)  # type: ignore[method-assign]


def _needless_after_the_drop() -> None:
    from zerocopy.execution.perform import _QueueRun

    original = _QueueRun._drop

    def drop(self: Any, queued: Any, entry: Any) -> None:
        needless, self._needless = self._needless, []
        original(self, queued, entry)
        self._needless = needless

    _QueueRun._drop = drop  # type: ignore[method-assign]


def _needless_one_by_one() -> None:
    from zerocopy.replica.replica import Replica

    def finish_all(self: Any, queued: Any) -> None:
        for one in queued:
            self.finish(one)

    Replica.finish_all = finish_all  # type: ignore[method-assign]


def _needless_are_gone_together() -> None:
    from oplog.errors import NotFound
    from zerocopy.keeper.operations import DeleteNode
    from zerocopy.replica.replica import Replica

    def finish_all(self: Any, queued: Any) -> None:
        if queued:
            with suppress(NotFound):
                self.keeper.multi([DeleteNode(one) for one in queued])

    Replica.finish_all = finish_all  # type: ignore[method-assign]


def _done_with_twice() -> None:
    from zerocopy.execution.perform import _QueueRun

    original = _QueueRun._ready

    def ready(self: Any) -> Any:
        came = {*self._came}
        found = original(self)
        self.steps.replica.finish_all(sorted(self._came - came))
        return found

    _QueueRun._ready = ready  # type: ignore[method-assign]


def _connections_thrown_away() -> None:
    from zerocopy.interserver import client

    async def asked(self: Any, ask: Any) -> Any:
        async with client._session(None) as session:
            return await ask(session)

    client.Peers._asked = asked  # type: ignore[method-assign]


def _given_at_any_speed() -> None:
    from disks.stores.wrappers.limit import Limiter

    Limiter.limits_bytes = property(lambda self: False)  # type: ignore[assignment, method-assign]


def _taken_at_any_speed() -> None:
    from disks.stores.wrappers.limit import Limiter
    from zerocopy.interserver import receiving

    class Unlimited(Limiter):
        def pass_bytes(self, size_bytes: int) -> None:
            """At once."""

    original = receiving.Receiving.__init__

    def init(self: Any, target: Any, size_bytes: int, limiter: Any) -> None:
        original(self, target, size_bytes, Unlimited())

    receiving.Receiving.__init__ = init  # type: ignore[method-assign]


def _number_zero_is_one() -> None:
    """As a number it is 0, and it is not nothing."""
    from zerocopy.replica.replica import Replica

    class Zero(int):
        def __bool__(self) -> bool:
            return True

    original = Replica.number_of
    Replica.number_of = lambda self, node: Zero(original(self, node))  # type: ignore[method-assign]


def _merged_alone_is_unknown() -> None:
    from tiering.table.part import PartName
    from zerocopy.execution import recovering

    original = recovering._waiting
    recovering._waiting = lambda replica, other: {
        name: digest for name, digest in original(replica, other).items() if not PartName.parse(name).level
    }


def _missing_nodes_left_out() -> None:
    from zerocopy.keeper import batched

    def deserialize(self: Any, data: Any, offset: int) -> list[Any]:
        return [one for one in batched._answers(data, offset) if not isinstance(one, Exception)]

    batched._MultiRead.deserialize = deserialize  # type: ignore[method-assign]


def _every_server_reads_many() -> None:
    from zerocopy.keeper.batched import BatchedRequests

    original = BatchedRequests.ask

    def ask(self: Any, *arguments: Any) -> Any:
        self.are_understood = True
        return original(self, *arguments)

    BatchedRequests.ask = ask  # type: ignore[method-assign]


def _lost_answers_are_not_understood() -> None:
    from zerocopy.keeper.batched import _InFew

    original = _InFew.get

    def get(self: Any, *, block: bool) -> Any:
        try:
            return original(self, block=block)
        except Exception:
            self._many.are_understood = False
            raise

    _InFew.get = get  # type: ignore[method-assign]


def _own_log_never_looked_at() -> None:
    from zerocopy.replica import shared

    original = shared.refresh
    shared.refresh = lambda context, *, looked_since=0.0, freshness=2: original(context, freshness=freshness)


def _pointer_believed() -> None:
    from zerocopy.execution import queue

    queue.place_in = lambda data, path: int(data or b"0")


def _empty_believed() -> None:
    from zerocopy.execution import perform, steps

    def is_empty(replica: Any, part: str) -> bool:
        made = replica.keeper.find(replica.table.output(part))
        return made is not None and not made.data

    steps.is_empty = perform.is_empty = is_empty


def _certificates_not_asked_for() -> None:
    import ssl

    from zerocopy.interserver import tls

    original = tls.for_server

    def for_server(settings: Any) -> Any:
        made = original(settings)
        if made is not None:
            made.verify_mode = ssl.CERT_NONE
        return made

    tls.for_server = for_server


def _left_until_it_is_made() -> None:
    from zerocopy.execution.steps import Steps

    original = Steps._is_left

    def is_left(self: Any, queued: Any, entry: Any, name: Any, *, is_shared: bool) -> bool:
        return original(self, queued, entry, name, is_shared=True)

    Steps._is_left = is_left  # type: ignore[method-assign]


def _every_worker_lives() -> None:
    from zerocopy.execution.steps import Steps

    original = Steps._await

    def await_node(self: Any, node: str) -> bool:
        return original(self, node) or node.endswith("/a/is_active")

    Steps._await = await_node  # type: ignore[method-assign]


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "replicas: queue without dependencies",
        "an entry is begun though one that it meets is being done",
        f"{_ORDER}::test_any_order_of_completion_comes_to_the_same",
        replaced("zerocopy.execution.order:QueueOrder", "_is_free", lambda self, one, before: True),
    ),
    (
        "replicas: what a drop takes is done with after it",
        "who is killed in between is to fetch what nobody has",
        f"{_DROPS}::test_what_a_drop_takes_is_done_with_before_the_drop",
        _needless_after_the_drop,
    ),
    (
        "replicas: what is needless is done with one by one",
        "a request to Keeper each",
        f"{_COUNTED}::test_requests_of_what_one_large_part_makes_needless",
        _needless_one_by_one,
    ),
    (
        "replicas: what came together is done with once more",
        "a request to Keeper each, for nothing",
        f"{_COUNTED}::test_requests_of_many_parts_that_are_taken_over_together",
        _done_with_twice,
    ),
    (
        "replicas: what is needless goes together or not at all",
        "one that is done with already leaves the others to be done for ever",
        f"{_DROPS}::test_what_is_done_with_together_may_be_done_with_already",
        _needless_are_gone_together,
    ),
    (
        "replicas: what is left undone is overtaken",
        "what could not be done holds nothing up",
        f"{_ORDER}::test_any_order_of_completion_comes_to_the_same",
        replaced("zerocopy.execution.order:QueueOrder", "why_held", lambda self, queued: ""),
    ),
    (
        "replicas: a larger part beside its pieces",
        "one that covers more comes while what it covers is on its way",
        f"{_BESIDE}::test_what_was_merged_meanwhile_comes_once",
        replaced("zerocopy.execution.order:QueueOrder", "widen", lambda self, queued, name: True),
    ),
    (
        "replicas: one after the other",
        "nothing of the queue is done side by side",
        f"{_ORDER}::test_what_does_not_meet_runs_side_by_side_up_to_a_limit",
        _one_after_the_other,
    ),
    (
        "replicas: connections thrown away",
        "each question to a peer has a connection of its own",
        f"{_BESIDE}::test_connections_to_a_peer_are_kept",
        _connections_thrown_away,
    ),
    (
        "replicas: any pointer is believed",
        "the pointer of a replica is taken for a number, whatever it is",
        f"{_BY_HAND}::test_a_pointer_into_nowhere_is_named_and_goes_on_when_fixed",
        _pointer_believed,
    ),
    (
        "replicas: a gap in the log is skipped",
        "nobody looks whether an entry is gone from the middle of the log",
        f"{_BY_HAND}::test_an_entry_gone_from_the_middle_of_the_log_is_missed",
        replaced("zerocopy.execution.queue", "_is_whole", lambda new, begin: True),
    ),
    (
        "replicas: said to be empty",
        "what a merge takes is dropped when somebody says that no row was left",
        f"{_BY_HAND}::test_a_merge_said_to_leave_nothing_takes_nothing_away",
        _empty_believed,
    ),
    (
        "replicas: any address is asked",
        "what a replica says of its address is not looked at",
        f"{_BY_HAND}::test_a_node_with_any_content_stops_nobody_and_loses_nothing[/tables/01/d.t/replicas/a/host]",
        replaced("zerocopy.interserver.client", "_ADDRESS", re.compile("")),
    ),
    (
        "replicas: a quorum is not heard of",
        "nobody asks to be told when another replica has what was inserted",
        f"{_QUORUM}::test_who_waits_for_a_quorum_hears_of_it",
        replaced("zerocopy.keeper.client:Keeper", "await_node", lambda self, path, changed: False),
    ),
    (
        "replicas: no certificate is asked for",
        "who gives parts by TLS does not ask who fetches them",
        "tests/replicas/test_mutual_tls.py::test_replicas_that_show_certificates_give_each_other_parts",
        _certificates_not_asked_for,
    ),
    (
        "replicas: a lagging server is believed",
        "what a ZooKeeper knows that is behind the others is taken for all that there is",
        f"{_LAGS}::test_a_sync_waits_until_its_server_has_what_was_acknowledged",
        replaced("zerocopy.keeper.client:Keeper", "sync", nothing),
    ),
    (
        "replicas: the end of a merge is not heard of",
        "a large merge whose replica died is left to the next pass",
        f"{_WHO}::test_a_daemon_hears_of_it_when_who_makes_a_large_merge_ends",
        replaced("zerocopy.keeper.client:Keeper", "await_node", lambda self, path, changed: True),
    ),
    (
        "replicas: whoever comes first merges",
        "a large merge is not left to the replicas that are named for it",
        f"{_WHO}::test_a_large_merge_is_left_to_the_workers_while_one_lives",
        replaced("zerocopy.execution.steps:Steps", "_is_left", lambda self, queued, entry, name, is_shared: False),
    ),
    (
        "replicas: a worker's merge made again",
        "what a worker made, and does not give now, is made here though it lives",
        f"{_WHO}::test_a_worker_s_merge_is_not_repeated_where_it_cannot_be_had",
        _left_until_it_is_made,
    ),
    (
        "replicas: a worker is waited for for ever",
        "whoever is named for large merges counts as alive",
        f"{_WHO}::test_a_daemon_merges_at_once_when_the_last_worker_is_gone",
        _every_worker_lives,
    ),
    (
        "replicas: anything in the bucket is the part",
        "of many parts on the shared disk nobody asks what the others have",
        f"{_SHARED}::test_what_is_in_the_bucket_but_differs_is_not_taken_for_it",
        replaced(
            "zerocopy.replica.bringing.fetching:Fetcher", "digests", lambda self, parts: {part: set() for part in parts}
        ),
    ),
    (
        "replicas: bytes between them are not counted",
        "what goes from replica to replica passes by the limits",
        f"{_INTERSERVER}::test_bytes_between_replicas_count_with_those_of_the_stores",
        replaced("disks.stores.wrappers.limit:Limiter", "pass_bytes", nothing),
    ),
    (
        "replicas: given at any speed",
        "whoever gives a part does not look at the limits",
        f"{_INTERSERVER}::test_who_limits_bytes_gives_them_no_faster",
        _given_at_any_speed,
    ),
    (
        "replicas: taken at any speed",
        "whoever fetches a part does not look at the limits",
        f"{_INTERSERVER}::test_who_limits_bytes_takes_them_no_faster",
        _taken_at_any_speed,
    ),
    (
        "keeper: missing nodes are left out",
        "of many nodes those that are not there have no answer, and the others are taken for them",
        f"{_MANY}::test_a_hundred_nodes_are_one_request",
        _missing_nodes_left_out,
    ),
    (
        "keeper: every server reads many nodes at once",
        "one that does not know such a request is sent it again and again",
        f"{_MANY}::test_a_server_without_batched_requests_is_asked_for_each",
        _every_server_reads_many,
    ),
    (
        "keeper: a lost answer was not understood",
        "from the first broken line on each node is asked for by itself",
        f"{_MANY}::test_an_answer_that_was_lost_is_asked_for_again",
        _lost_answers_are_not_understood,
    ),
    (
        "replicas: what is here is compared unseen",
        "the log of this machine's own is taken for the one that is known in every session",
        f"{_COUNTED}::test_a_log_seen_in_this_session_is_not_asked_what_it_is",
        _own_log_never_looked_at,
    ),
    (
        "replicas: nothing is dropped",
        "a drop of a partition that never was is agreed upon, and nobody can read it",
        f"{_DROPS}::test_a_partition_without_any_insert_ever_is_not_dropped",
        _number_zero_is_one,
    ),
    (
        "replicas: what was merged here alone is set aside",
        "a replica that becomes whole does not look at what merges of the log have made",
        f"{_BEHIND}::test_what_was_merged_only_here_yet_is_not_set_aside",
        _merged_alone_is_unknown,
    ),
)
