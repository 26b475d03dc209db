"""A process that writes: `python -m tests.integration.writing_in_order insert|tidy ROOT`. Prints a line a round, until
it is killed. It inserts each row into one table and then into the other, or merges and moves what others insert."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

from oplog.errors import FrostlineError
from tests.backups import Machine, insert, machine_on, move
from tests.crash.site import OTHER, TABLE
from tiering.merge.request import MergeRequest

FIRST = 100_000


def inserting(machine: Machine) -> None:
    """Row by row, into A before B."""
    with machine.open() as store:
        for number in count():
            for table in (TABLE, OTHER):
                insert(store, FIRST + number * 100, months=(2,), table=table)
            print(number, flush=True)


def tidying(machine: Machine) -> None:
    """Merges, and moves to the bucket and back."""
    for number in count():
        with machine.open() as store:
            for table in (TABLE, OTHER):
                with suppress(FrostlineError):
                    store.merge(table, MergeRequest(final=True))
            with suppress(FrostlineError):
                move(store, "cold" if number % 2 else "hot", "202602")
        print(number, flush=True)


if __name__ == "__main__":
    {"insert": inserting, "tidy": tidying}[sys.argv[1]](machine_on(Path(sys.argv[2])))
