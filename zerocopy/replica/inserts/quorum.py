"""Inserts that are acknowledged when enough replicas have them.

A replica has a part when Keeper says so, of the part or of one that covers it. What nobody has any more was dropped
since, and nobody waits for it. An entry of the log records that its insert asked for a quorum, so a sequential reader
knows what must be here. One that asked for it when it was repeated is known by having it: more than one
replica says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from oplog.errors import FrostlineError, OutcomeUnknown, Transient, UsageError
from tiering.config.units import counted
from tiering.engine.replication import Quorum
from tiering.table.part import PartName
from zerocopy.replica.replica import Replica

_LOOK_SECONDS = 0.25
"""How often the quorum is checked without any event: a replica may get a part that covers the one awaited."""


def needed(replica: Replica, quorum: Quorum) -> int:
    """How many replicas must have what is inserted, this one among them. Raises `UsageError` where there are not so
    many, `Transient` while fewer are heard of: nothing is inserted then."""
    others, name = replica.others(), replica.definition.full_name
    number = quorum.replicas or (len(others) + 1) // 2 + 1
    if number > len(others) + 1:
        raise UsageError(
            f"a quorum of {number} is not to be had: {name} has {counted(len(others) + 1, 'replica')}",
            hint="'frostline replica status' lists them; --quorum auto needs only a majority",
        )
    active = replica.keeper.find_all([replica.table.replica(other).is_active for other in others])
    silent = [other for other, node in zip(others, active, strict=True) if node is None]
    if number > len(others) + 1 - len(silent):
        raise Transient(
            f"a quorum of {number} is not to be had now, and nothing was inserted into {name}: "
            f"not heard of: {', '.join(silent)}",
            hint="run 'frostline daemon run' there, or insert without --quorum",
        )
    return number


def wait(replica: Replica, parts: Iterable[str], number: int, seconds: float) -> None:
    """Return when so many replicas have each of the parts. Raises `OutcomeUnknown` when that is not known in time: the
    parts are in the table, and the others fetch them when they can."""
    context, left, fewest = replica.context, sorted(set(parts)), 0
    wake, awaited = threading.Event(), set[str]()
    end = time.monotonic() + seconds
    try:
        while True:
            wake.clear()
            others = replica.others()
            for name in left:
                _await(replica, others, name, awaited, wake.set)
            counts = {name: holders(replica, PartName.parse(name), others) for name in left}
            left = [name for name, count in counts.items() if 0 < count < number]
            if not left:
                return
            fewest = min(counts[name] for name in left)
            wake.wait(min(_LOOK_SECONDS, max(end - time.monotonic(), 0)))
            if context.stop.is_set() or time.monotonic() >= end:
                why = "the process began to stop" if context.stop.is_set() else f"after {seconds:g} s"
                break
    except FrostlineError as error:
        why = error.message
    known = f"{fewest} of {counted(number, 'replica')}" if fewest else f"fewer than {counted(number, 'replica')}"
    raise OutcomeUnknown(
        f"{counted(len(left), 'part')} inserted into {replica.definition.full_name} (the first is {left[0]}) "
        f"{'is' if len(left) == 1 else 'are'} known to be on {known}: {why}",
        hint="the rows are in the table, and others fetch them; to continue waiting, repeat the "
        "insert: it duplicates nothing",
    )


def _await(replica: Replica, others: Iterable[str], name: str, awaited: set[str], changed: Callable[[], None]) -> None:
    """Hear of each other replica when it has the part; each is asked to be told of once."""
    for other in others:
        path = replica.table.replica(other).part(name)
        if path not in awaited:
            awaited.add(path)
            replica.keeper.await_node(path, changed)


def holders(replica: Replica, name: PartName, others: Iterable[str]) -> int:
    """How many replicas, of this one and the others, have the part, or one that covers it."""
    keeper, nodes = replica.keeper, [replica.table.replica(other) for other in [replica.name, *others]]
    found = keeper.find_all([one.part(str(name)) for one in nodes])
    lacking = [one.parts for one, node in zip(nodes, found, strict=True) if node is None]
    covering = [
        any(PartName.parse(part).covers(name) for part in parts or ()) for parts in keeper.children_of_all(lacking)
    ]
    return len(found) - len(lacking) + sum(covering)
