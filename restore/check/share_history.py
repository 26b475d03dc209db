"""Which share of the data a check reads next: one at random of those not read lately, so that runs cover everything.

`<state>/fsck.json` remembers, for each disk, how many shares there are and which were read in this round.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from disks.effects import make_directory, replace_file
from oplog import bounds
from oplog.documents import Document
from oplog.errors import UsageError

_MEMORY = "fsck.json"


class Subset(msgspec.Struct, frozen=True):
    """Part of the data: one of `shares`, a chosen one or (None) the next."""

    shares: int
    share: int | None = None


def parse_subset(text: str) -> Subset:
    """`5%` is one of 20 shares, the next; `3/20` the third of 20. Raises `UsageError`."""
    if match := re.fullmatch(r"(\d+)/(\d+)", text.strip()):
        share, shares = int(match[1]), int(match[2])
        if 1 <= share <= shares:
            return Subset(shares, share)
        raise UsageError(f"share {share} of {shares} does not exist", hint="such as 3/20: the third of twenty")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text.strip())
    percent = float(match[1]) if match else 0.0
    if not 0 < percent <= 100:
        raise UsageError(f"not a share of the data: {text!r}", hint="such as 5%, or 3/20 for the third of twenty")
    return Subset(max(1, round(100 / percent)))


def choose(subset: Subset, sizes: Sequence[int], read: set[int], chance: random.Random) -> int | None:
    """The share to read. `sizes` has the number of files of each; an empty one is never drawn. None: no file at all."""
    if subset.share is not None:
        return subset.share
    filled = [share for share, size in enumerate(sizes, 1) if size]
    left = [share for share in filled if share not in read] or filled
    return chance.choice(left) if left else None


_document = Document[dict[str, dict[str, list[int]]]](
    "fsck.json", dict[str, dict[str, list[int]]], order="deterministic"
)
"""By disk: number of shares -> those that this round has read."""


class ShareHistory:
    """What `fsck.json` holds. A file that cannot be read is no harm: the next round begins."""

    def __init__(self, state: Path) -> None:
        self._path = state / _MEMORY
        try:
            self._rounds = _document.decode(self._path.read_bytes())
        except (OSError, *bounds.UNREADABLE):
            self._rounds = {}

    def read(self, disk: str, shares: int) -> set[int]:
        """The shares read since the round began."""
        return set(self._rounds.get(disk, {}).get(str(shares), ()))

    def remember(self, disk: str, shares: int, share: int, sizes: Sequence[int]) -> int:
        """Note that the share was read; how many were, in this round. A round ends when every filled one was."""
        read = self.read(disk, shares)
        if read >= {one for one, size in enumerate(sizes, 1) if size}:
            read = set()
        read.add(share)
        self._rounds.setdefault(disk, {})[str(shares)] = sorted(read)
        make_directory(self._path.parent)
        replace_file(self._path, _document.encode(self._rounds))
        return len(read)
