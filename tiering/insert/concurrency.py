"""Whether an insert is alone on this machine: then nothing can have been inserted that it does not know of."""

from __future__ import annotations

import threading

from tiering.catalog import blocks
from tiering.catalog.context import Context
from tiering.catalog.new_parts import first_block_on_its_way
from tiering.table.schema import TableDefinition


class OtherInserts:
    """Whether other inserts of this machine may have brought parts since: each reserves a block number in the journal,
    under a claim, before it writes. Made before the catalog is read."""

    def __init__(self, context: Context, definition: TableDefinition) -> None:
        self._journal, self._table = context.journal, definition.uuid
        # In this order: who reserves a number after the first question is counted; who did before it and is seen by
        # neither question has committed, so that the catalog, which is read next, shows it.
        self._begin = self._journal.next_block(self._table)
        self._under_way = first_block_on_its_way(self._journal.claimed(self._table)) is not None
        self._own = 0
        self._lock = threading.Lock()

    def reserve(self, context: Context, definition: TableDefinition, floor: int) -> int:
        """The next block number of this insert."""
        with self._lock:
            number = blocks.allocate(context, definition, floor)
            self._own += 1
            return number

    def is_possible(self) -> bool:
        """False when every number reserved since the beginning is this insert's own, and nobody was at it before."""
        with self._lock:
            return self._under_way or self._journal.next_block(self._table) != self._begin + self._own
