"""The facts of a part in the kept form: bytes that another process of this machine understands."""

from __future__ import annotations

import msgspec

from oplog.errors import FrostlineError
from tiering.table import part as part_format
from tiering.table.part import PartFacts, facts_of
from tiering.table.schema import TableDefinition

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PartFacts)
_json_decoder = msgspec.json.Decoder(PartFacts)


def columns_of(definition: TableDefinition) -> list[str]:
    """The ids of the columns whose ranges are asked of every part: those that tell how old its rows are."""
    rules = {rule.column for rule in definition.ttl}
    return [
        str(column.id)
        for column in definition.columns
        if column.type.startswith(("timestamp", "date")) or column.name in rules
    ]


def encoded(facts: PartFacts) -> bytes | None:
    """The facts in the kept form; None for what no other process would understand."""
    try:
        return _encoder.encode(facts)
    except (OverflowError, TypeError, ValueError):
        return None


def decoded(data: bytes) -> PartFacts | None:
    """What was kept; None for what this version does not understand."""
    try:
        return _json_decoder.decode(data) if data.startswith(b"[") else _decoder.decode(data)
    except msgspec.MsgspecError:
        return None


def are_of(kept: bytes, document: bytes, columns: list[str], *, path: str) -> bool:
    """Whether these are the facts of the `part.json` with these bytes, with the ranges of these columns."""
    try:
        return encoded(facts_of(part_format.decode(document, path=path), columns)) == kept
    except FrostlineError:
        return False
