"""JSON lines to Arrow, in blocks of whole lines, so that an error can name its line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import pyarrow as pa
import pyarrow.json as jsonlines

from disks.workers.parallel import worked_ahead
from oplog.errors import UsageError
from tiering.insert.inputs.json.records import DEEP_HINT, TOO_DEEP, deep_line, whole_lines
from tiering.insert.inputs.json.texts import with_json_texts
from tiering.insert.inputs.source_files import InputSource, numbered_blocks, open_binary
from tiering.insert.reshaping import Reshaping, explicit_type, source_types
from tiering.insert.row_reader import RowReader, TextRecord
from tiering.table.columns.nested import holds_map, with_texts

_FIRST = 16
"""So many values of a column are tried as times before all are."""
_CHANGED = re.compile(r"Column\(/(.*)\) changed from", re.DOTALL)


def read_json(intake: RowReader, stdin: IO[bytes] | None) -> Iterator[pa.RecordBatch]:
    """The rows, as the table has them. Raises `UsageError` that names the line."""

    def parse(numbered: tuple[int, bytes]) -> pa.Table:
        line, block = numbered
        try:
            return _parse(block, intake.reshaping)
        except pa.ArrowInvalid as error:
            raise _json_error(intake.source, block, line, error) from error

    is_first = True
    with open_binary(intake.source, stdin) as stream:
        blocks = numbered_blocks(whole_lines(stream, intake.source.label), 1)
        if intake.bad is None:
            taken: Iterator[Iterable[pa.RecordBatch]] = map(intake.taken, worked_ahead(parse, blocks))
        else:
            taken = (
                list(intake.records(_records(block, line), lambda some: _parse_some(some, intake.reshaping)))
                for line, block in blocks
            )
        for batches in taken:
            if is_first:
                intake.check_seen()
                is_first = False
            yield from batches


def _records(block: bytes, first_line: int) -> list[TextRecord]:
    return [TextRecord(line, text) for line, text in enumerate(block.split(b"\n"), first_line) if text.strip()]


def _parse_some(records: Sequence[TextRecord], reshaping: Reshaping) -> pa.Table:
    return _parse(b"\n".join(record.text for record in records), reshaping)


def _parse(block: bytes, reshaping: Reshaping) -> pa.Table:
    """The columns that occur in the block. What is no text, in a column of texts, becomes the JSON that it is; so do
    numbers for decimals that the parser does not take, such as `1.10` where there is one place."""
    _check_depth(block)
    types = {_steps(block, path): kind for path, kind in source_types(reshaping).items()}
    if not any(map(holds_map, types.values())):
        with suppress(pa.ArrowInvalid):
            return _parse_strictly(block, reshaping)
    texts = {name: with_texts(kind, pa.types.is_decimal) for name, kind in explicit_type(types).items()}
    return _parse_strictly(with_json_texts(block, texts) or block, reshaping, decimals_are_texts=True)


def _check_depth(block: bytes) -> None:
    """The parser takes any depth, and ends the process beyond some."""
    if deep_line(block) is not None:
        raise pa.ArrowInvalid(TOO_DEEP)


def _parse_strictly(block: bytes, reshaping: Reshaping, *, decimals_are_texts: bool = False) -> pa.Table:
    """Where only some columns are wanted, and all of these have a type, the others are not even looked at: they may be
    of any form."""
    types = _types(block, reshaping, decimals_are_texts)
    all_known = bool(reshaping.select or reshaping.ignore_unknown) and None not in types.values()
    explicit = {_steps(block, path): kind for path, kind in types.items() if kind is not None}
    options = jsonlines.ParseOptions(
        explicit_schema=pa.schema(list(explicit_type(explicit).items())),
        unexpected_field_behavior="ignore" if all_known else "infer",
    )
    table = jsonlines.read_json(pa.BufferReader(block), jsonlines.ReadOptions(block_size=len(block) + 1), options)
    if not table.num_columns:
        raise pa.ArrowInvalid("it has none of the columns")
    return table


def _types(block: bytes, reshaping: Reshaping, decimals_are_texts: bool) -> Mapping[str, pa.DataType | None]:
    """Path -> how it is read, of those that occur. Times come in several forms: they are read unchanged (None) and
    cast like those of other formats, or, where only some columns are wanted, as texts. Decimals are never read as they
    are: that would be by way of a float."""
    chosen = bool(reshaping.select or reshaping.ignore_unknown)
    found: dict[str, pa.DataType | None] = {}
    for path, kind in source_types(reshaping).items():
        if all(_occurs(block, step) for step in _steps(block, path)):
            as_text = chosen and pa.types.is_temporal(kind) and not pa.types.is_duration(kind)
            found[path] = pa.string() if as_text or kind == pa.uuid() else _read_as(kind, decimals_are_texts)
    return found


def _steps(block: bytes, path: str) -> tuple[str, ...]:
    """A name that has a dot itself is one step."""
    return (path,) if _occurs(block, path) else tuple(path.split("."))


def _read_as(kind: pa.DataType, decimals_are_texts: bool) -> pa.DataType | None:
    if decimals_are_texts:
        kind = with_texts(kind, pa.types.is_decimal)
    kind = with_texts(kind, pa.types.is_float32, pa.float64())  # what a float32 does not reach would be infinite
    if pa.types.is_struct(kind) or pa.types.is_list(kind):
        return with_texts(kind, _is_text_in_json)
    if pa.types.is_map(kind):
        return pa.string()
    return None if pa.types.is_temporal(kind) or pa.types.is_binary(kind) else kind


def _is_text_in_json(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or pa.types.is_binary(kind) or pa.types.is_map(kind))


def _occurs(block: bytes, name: str) -> bool:
    """Whether a JSON block mentions the column; the parser adds every column of its schema."""
    return json.dumps(name).encode() in block or json.dumps(name, ensure_ascii=False).encode() in block


def guess_schema(stream: Any, label: str) -> pa.Schema:
    """The columns of the first lines, for `--like`. One whose values have several forms holds texts, and so does one of
    which there are but empty objects; one of texts that are all times holds times. Raises `pa.ArrowInvalid` for what is
    no JSON lines."""
    block = next(whole_lines(stream, label), b"")
    _check_depth(block)
    texts: dict[str, pa.DataType] = {}
    while True:
        try:
            return _with_times(with_json_texts(block, texts) or block)
        except pa.ArrowInvalid as error:
            name = _many_forms(block, str(error))
            if name is None or name in texts:
                raise
            texts[name] = pa.string()


def _with_times(block: bytes) -> pa.Schema:
    """The parser takes texts for times only where they are whole seconds, and forgets their zone."""
    options = jsonlines.ReadOptions(block_size=len(block) + 1)
    guessed = jsonlines.read_json(io.BytesIO(block), options).schema
    as_texts = pa.schema([(field.name, with_texts(field.type, pa.types.is_timestamp)) for field in guessed])
    table = jsonlines.read_json(io.BytesIO(block), options, jsonlines.ParseOptions(explicit_schema=as_texts))
    return pa.schema([(field.name, _timed(table.column(field.name).combine_chunks(), field.type)) for field in guessed])


def _timed(array: pa.Array, guessed: pa.DataType) -> pa.DataType:
    """The type of values, given as texts where they may be times: the coarsest from microseconds on that holds all."""
    if pa.types.is_struct(guessed):
        inner = zip(guessed, array.flatten(), strict=True)
        return pa.struct([(field.name, _timed(values, field.type)) for field, values in inner])
    if pa.types.is_list(guessed):
        return pa.list_(_timed(array.flatten(), guessed.value_type))
    if not (pa.types.is_string(guessed) or pa.types.is_timestamp(guessed)) or array.null_count == len(array):
        return guessed
    first = array.drop_null().slice(0, _FIRST)
    for kind in (pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in ("UTC", None)):
        with suppress(pa.ArrowInvalid):
            first.cast(kind)  # each value that is no time costs a message
            array.cast(kind)
            return kind
    return guessed


def _many_forms(block: bytes, problem: str) -> str | None:
    """The column that the parser complains of; of a path the first step, which may have slashes itself."""
    path = match[1] if (match := _CHANGED.search(problem)) else ""
    steps = path.split("/")
    return next((name for end in range(len(steps), 0, -1) if _occurs(block, name := "/".join(steps[:end]))), None)


def _json_error(source: InputSource, block: bytes, first_line: int, error: pa.ArrowInvalid) -> UsageError:
    """Which line is broken: found by parsing them one by one."""
    if (deep := deep_line(block)) is not None:
        return UsageError(f"{source.label} line {first_line + deep} is {TOO_DEEP}", hint=DEEP_HINT)
    for offset, text in enumerate(block.splitlines()):
        try:
            if text.strip() and not isinstance(json.loads(text), dict):
                raise ValueError("not an object")
        except ValueError as broken:
            return UsageError(
                f"{source.label} line {first_line + offset} is not a JSON object: {broken}",
                hint="fix the line, or set it aside with --skip-bad-rows; rows before it may be in already, and a "
                "repeated insert skips them",
            )
    return UsageError(f"{source.label} near line {first_line}: {str(error).splitlines()[0]}", hint="fix the line")
