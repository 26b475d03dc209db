"""Puts the small parts together that batch after batch of a stream leaves: right after a batch, by a cold merge of its
partitions in the driver. The batch is in by then, whatever becomes of the merge.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from oplog.errors import FrostlineError
from tiering.engine.store import Store
from tiering.merge.cold.job import Workers
from tiering.merge.request import ColdOptions, MergeRequest
from tiering.table.part import PartName

SMALL_PARTS = 6
"""So many of a partition wait for one another: then each row is rewritten once for every power of it."""
_ENOUGH_BYTES = 64 * 1024 * 1024
"""Parts of three quarters of it are left to merges on a schedule."""

logger = logging.getLogger(__name__)


def gather(store: Store, table: str, parts: Iterable[str], least: int) -> None:
    """Merge what is small in the partitions of these parts, where there are at least so many. Never raises for a merge
    that fails: the next batch tries again."""
    how = ColdOptions(min_inputs=least, target_bytes=_ENOUGH_BYTES, max_group_bytes=_ENOUGH_BYTES)
    for partition in sorted({PartName.parse(name).partition for name in parts}):
        if len(store.parts(table, partition=partition)) < least:
            continue
        try:
            report = store.merge_cold(
                table, Workers.of_this_process(store.context), MergeRequest(partition=partition, cold=how)
            )
        except FrostlineError as error:
            logger.warning("small parts of partition %s of %s stay: %s", partition, table, error)
            continue
        for failure in report.failures:
            logger.warning("small parts of partition %s of %s stay: %s", partition, table, failure.error)
