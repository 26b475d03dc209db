"""Seeded mistakes in replicas among hostile peers, copies of homes and older disks, for `tests.crash.mutants`.

Name, meaning, check, how it is put in.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.crash.seeding import nothing, replaced

_HOMES = "tests/replicas/test_two_homes.py"
_LOST = "tests/replicas/keeper/test_lost_keeper.py"
_BACK = "tests/replicas/test_set_back.py"
_INTERSERVER = "tests/replicas/test_interserver.py"
_REPLICAS = "tests/replicas/test_replicas.py"
_KEEPER = "tests/replicas/keeper/test_keeper.py"


def _every_look_another_home() -> None:
    from zerocopy.replica import identity

    numbers = itertools.count()
    identity.home_of = lambda context: str(next(numbers))


def _unknown_parts_unseen() -> None:
    from zerocopy.execution import recovering

    original = recovering.agreement.without_place
    calls = itertools.count()

    def without_place(names: Any, places: Any, half_done: Any) -> Any:
        return [] if next(calls) % 2 else original(names, places, half_done)

    recovering.agreement.without_place = without_place


def _forgotten_by_a_restart() -> None:
    from zerocopy.interserver import signing

    genuine = signing.SignatureCheck.__init__
    signing.SignatureCheck.__init__ = lambda self, secret, *, began=0.0: genuine(self, secret)  # type: ignore[method-assign]


def _signed_for_any_machine() -> None:
    import msgspec

    from zerocopy.interserver import signing

    original = signing._digest

    def digest(secret: str, asked: Any, time: str, nonce: str) -> str:
        return original(secret, msgspec.structs.replace(asked, address=""), time, nonce)

    signing._digest = digest


def _kazoo_speaks() -> None:
    import logging

    from zerocopy.keeper import client

    client._said = logging.getLogger("kazoo.client")


def _full_disk_untold() -> None:
    from contextlib import nullcontext

    from zerocopy.interserver import receiving

    receiving.op = lambda *named: nullcontext()  # type: ignore[assignment, misc]
    receiving._telling = lambda target: nullcontext()  # type: ignore[assignment]


MISTAKES: tuple[tuple[str, str, str, Callable[[], None]], ...] = (
    (
        "replicas: two homes alive",
        "a daemon takes the node of a living one of another home away",
        f"{_HOMES}::test_the_node_of_a_living_daemon_is_never_taken_away",
        replaced("zerocopy.replica.identity", "check_owner", nothing),
    ),
    (
        "replicas: a copied home writes",
        "who opens a replica does not look who lives by its name",
        f"{_HOMES}::test_the_node_of_a_living_daemon_is_never_taken_away",
        replaced("zerocopy.replica.identity", "check_alone", nothing),
    ),
    (
        "replicas: homes are known by their host",
        "a copy of a home on the same machine goes for that home",
        f"{_HOMES}::test_the_node_of_a_living_daemon_is_never_taken_away",
        replaced("zerocopy.replica.identity", "home_of", lambda context: "this machine"),
    ),
    (
        "replicas: a copied home drops the living one (I9)",
        "who takes a replica out does not look which home put it back into Keeper",
        f"{_HOMES}::test_a_copy_drops_nothing_after_keeper_was_lost",
        replaced("zerocopy.replica.identity", "check_home", nothing),
    ),
    (
        "replicas: a daemon without a session is gone (I9)",
        "who takes a replica out does not ask its daemon where Keeper does not know that it is there",
        f"{_HOMES}::test_a_daemon_that_answers_keeps_its_replica",
        replaced("zerocopy.interserver.client:Peers", "replica_at", lambda self, address, definition: ""),
    ),
    (
        "replicas: a drop while Keeper knows nothing (I9)",
        "where Keeper lost the table, its replica is dropped with what it alone has",
        f"{_LOST}::test_nobody_drops_what_others_may_lack",
        replaced("zerocopy.replica.lifecycle", "_check_known", nothing),
    ),
    (
        "replicas: a restart waits",
        "a daemon takes what an earlier session of its home left for another home's",
        f"{_HOMES}::test_what_an_earlier_daemon_of_this_home_left_is_taken_over",
        _every_look_another_home,
    ),
    (
        "replicas: yesterday goes unnoticed",
        "nobody compares the disks with what Keeper says of them",
        f"{_BACK}::test_yesterdays_disks_become_what_the_others_are[all]",
        replaced("zerocopy.execution.recovering", "compare", nothing),
    ),
    (
        "replicas: what was dropped comes back",
        "only what is lacking is looked for, not what is here and Keeper says nothing of",
        f"{_BACK}::test_what_was_dropped_since_does_not_come_back",
        _unknown_parts_unseen,
    ),
    (
        "replicas: who is silent is asked again",
        "a peer that hangs is asked as often as one whose connection broke",
        f"{_INTERSERVER}::test_a_peer_that_hangs_is_left_and_the_next_one_is_asked",
        replaced("zerocopy.interserver.client", "_is_broken", lambda error: True),
    ),
    (
        "replicas: who drips is waited for",
        "nobody looks how much comes in a while",
        f"{_INTERSERVER}::test_a_peer_that_drips_is_left",
        replaced("zerocopy.interserver.receiving:PeerPace", "came", nothing),
    ),
    (
        "replicas: waiting here counts",
        "the time for which this machine's disk is waited for counts as the peer's",
        f"{_INTERSERVER}::test_the_pace_is_that_of_the_peer",
        replaced("zerocopy.interserver.receiving:PeerPace", "waited", nothing),
    ),
    (
        "replicas: a full disk is the peer's",
        "errors of this machine's disk go for broken connections",
        f"{_INTERSERVER}::test_a_full_disk_is_said_and_no_peer_is_blamed",
        _full_disk_untold,
    ),
    (
        "replicas: kazoo speaks to users",
        "what the library logs is shown as it is",
        f"{_KEEPER}::test_what_the_library_says_reaches_nobody_who_did_not_ask",
        _kazoo_speaks,
    ),
    (
        "replicas: an insert forgets its word",
        "a Keeper that was set back to before an acknowledged insert is believed, and its rows are set aside",
        "tests/replicas/keeper/test_lost_keeper.py::test_an_insert_that_keeper_forgot_at_once_is_not_set_aside",
        replaced("zerocopy.replica.inserts.inserting:ReplicatedInserting", "_note_entry", nothing),
    ),
    (
        "peers: any machine",
        "a request that was signed for another machine is answered",
        f"{_INTERSERVER}::test_a_request_to_another_machine_is_refused",
        _signed_for_any_machine,
    ),
    (
        "peers: as often as one likes",
        "a request that was caught is answered once more",
        f"{_INTERSERVER}::test_a_request_that_was_caught_is_good_for_nothing",
        replaced("zerocopy.interserver.signing:SignatureCheck", "_repeated", nothing),
    ),
    (
        "peers: once more after a restart",
        "a request that was caught is answered once more by the daemon that was started since",
        f"{_INTERSERVER}::test_a_request_that_an_earlier_daemon_answered_is_refused",
        _forgotten_by_a_restart,
    ),
    (
        "keeper: open, and nobody says so",
        "a root that anybody may change is no warning where a user is configured",
        "tests/replicas/keeper/test_keeper_verbs.py::test_check_warns_of_a_keeper_that_anybody_may_change",
        replaced("zerocopy.keeper.client:Keeper", "is_open", lambda self, path: False),
    ),
    (
        "replicas: the first table that fails",
        "a table whose nodes are gone keeps a verb from all the others",
        f"{_REPLICAS}::test_one_table_that_fails_does_not_keep_it_from_others",
        replaced("zerocopy.verbs.each_table:EachTable", "answers", lambda self, tables, call: [*map(call, tables)]),
    ),
    (
        "replicas: an answer without a word",
        "a query of a replica that is behind answers as if it had all rows",
        f"{_REPLICAS}::test_an_answer_says_that_its_replica_is_behind",
        replaced("tiering.cli.reports.query", "tell_behind", nothing),
    ),
    (
        "doctor: another writer of the log",
        "doctor finds nothing where another machine writes the log of a disk",
        "tests/integration/test_several_logs.py::test_a_lost_machine_is_rebuilt_from_its_own_log",
        replaced("disks.object_disk.sharing.writers:WriterClaim", "objection", lambda self: None),
    ),
)
