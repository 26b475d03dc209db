"""Entries of a replicated table's log, as JSON. They come from Keeper: hostile until they are decoded. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from oplog import bounds
from oplog.errors import Damaged, UsageError
from tiering.table.part import PartName

_MOST_INPUTS = 1000


class _Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    time: datetime
    """When it was agreed upon; what is made by it has this as its time, on every replica."""
    replica: str
    """Who said so."""


class Get(_Entry, frozen=True, kw_only=True, tag="get"):
    """A part came; every replica is to have it."""

    part: str
    digest: str
    """Of what its `part.json` says, which names the SHA-256 of every file."""

    @property
    def brings(self) -> str:
        return self.part


class Merge(_Entry, frozen=True, kw_only=True, tag="merge"):
    """Adjacent parts become one."""

    output: str
    inputs: tuple[str, ...]
    reason: str

    @property
    def brings(self) -> str:
        return self.output


Entry: TypeAlias = Get | Merge

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """The bytes of the entry."""
    return _encoder.encode(entry)


def decode(data: bytes, *, path: str) -> Entry:
    """The entry of a node, with every name a part's name. Raises `Damaged` naming the node."""
    try:
        entry: Entry = _decoder.decode(data)
        output = PartName.parse(entry.brings)
        fault = bounds.fault_in_time("time", entry.time)
        if isinstance(entry, Get):
            fault = fault or bounds.fault_in_digest("digest", entry.digest)
        else:
            inputs = [PartName.parse(name) for name in entry.inputs]
            if not 0 < len(inputs) <= _MOST_INPUTS or not all(output.covers(name) for name in inputs):
                fault = fault or "its output does not cover its inputs"
        if fault:
            raise UsageError(fault)
    except (UsageError, *bounds.UNREADABLE) as error:
        raise Damaged(
            f"the entry {path} in Keeper cannot be read: {error}",
            hint="a newer version may have written it: upgrade frostline; else somebody changed it by hand",
        ) from error
    return entry
