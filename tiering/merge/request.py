"""What a merge is asked for: built once, where the question comes in, and handed through whole. No I/O."""

from __future__ import annotations

from typing import Literal

import msgspec

from tiering.table.pruning import TRUE, Predicate

CountsAs = Literal["older", "newer"]

SHARD_BYTES = 256 * 1024 * 1024
"""What a shard reads, about: half a minute of work for one core."""


class ColdOptions(msgspec.Struct, frozen=True):
    """What a cold merge takes on, which is parts in buckets, also on volumes that prefer not to merge; and how."""

    where: Predicate = TRUE
    """Only partitions that can hold a row of which this is true."""
    min_inputs: int = 2
    """Groups of fewer parts wait for more."""
    target_bytes: int | None = None
    """Parts of three quarters of this size, or more, are large enough: they are not merged any further."""
    max_group_bytes: int | None = None
    """The most that one part is made of."""
    shard_bytes: int = SHARD_BYTES
    max_failed_groups: int | None = None
    """With more failures than this, no further group begins. Default: each group is tried."""


class MergeRequest(msgspec.Struct, frozen=True):
    """What to merge of a table: by default all that is worth it."""

    partition: str | None = None
    """Only this one."""
    final: bool = False
    """Each partition into one part, worth it or not."""
    rewrite: bool = False
    """Each part by itself that is older than the columns of the table, on any volume; and no other."""
    adopt: bool = False
    """First rewrite the parts of other machines as this machine's own."""
    adopt_as: CountsAs | None = None
    """What rows of other machines count as, next to this machine's, where nobody can tell."""
    drop_deleted: bool = False
    """Forget deleted keys where all that there is of a partition is merged."""
    cold: ColdOptions | None = None
    """The parts in buckets instead of those on volumes that like to merge."""
