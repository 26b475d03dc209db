"""Zero-copy under load: what must hold for replicas with a log each in one prefix, once all is mended.

Every audit is clean after a repair; collections with a guard of seconds take no byte that somebody reads; a Keeper
that lost everything loses nothing; and machines go one by one, the last of which still has every row.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from tests.soak.rounds import Found

if TYPE_CHECKING:
    from tests.soak.replicated import Nodes

TABLE = "soak.t"
RETENTION_SECONDS = 10
GUARD_SECONDS = 2
_RESTORING_SECONDS = 90.0
_LACKING = "the references cannot be read whole"


def check(nodes: Nodes, *, wipes: bool) -> None:
    """Audit and collect on every machine. Raises `Found` where an audit is not clean. `wipes`: Keeper knows nothing
    of all that before."""
    if wipes:
        _wipe(nodes)
    for name in nodes.names:
        run = nodes.calm(name, "replica", "audit", "--repair", "--json", codes=frozenset({0, 4}))
        for audited in json.loads(run.out)["audits"]:
            missing = [one for one in audited["differences"] if one["kind"] == "object_missing"]
            if missing or not audited["clean"]:
                raise Found(f"the audit of {name} is not clean: {audited['differences'][:5]} ({run.place})")
    if wipes:
        time.sleep(GUARD_SECONDS + 1)  # marks are in another Keeper since then, as far as anybody can tell
    for name in nodes.names:
        nodes.collect(name)
        nodes.happened.collections += 1


def leave(nodes: Nodes) -> None:
    """Machines drop their replica one by one; what they alone named is collected, and the others have every row."""
    while len(nodes.names) > 1:
        gone = nodes.names[nodes.chance.randrange(len(nodes.names))]
        nodes.drop(gone)
        time.sleep(RETENTION_SECONDS + 2)  # what its log named is kept for so long
        check(nodes, wipes=False)
        nodes.compare(fsck=True)
        nodes.happened.left += 1


def _wipe(nodes: Nodes) -> None:
    nodes.keeper.count()
    nodes.keeper.wipe()
    nodes.happened.wipes += 1
    name = nodes.chance.choice(nodes.names)
    run = nodes.collect(name, codes=None)
    if run.code == 0 or _LACKING not in run.err:
        raise Found(f"gc of {name} went on when Keeper had lost everything: {run.code} {run.err[-500:]} ({run.place})")
    end = time.monotonic() + _RESTORING_SECONDS
    waits = True
    while waits:
        runs = [nodes.calm(one, "replica", "restore", TABLE, "-y", codes=frozenset({0, 3, 5})) for one in nodes.names]
        waits = any(one.code for one in runs)
        if waits and time.monotonic() > end:
            raise Found(f"Keeper's nodes do not come back: {[one.out + one.err for one in runs]} ({runs[-1].place})")
    nodes.heal()
