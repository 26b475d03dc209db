"""From the words of the command line to a `TableDefinition`, and from one definition to the next.

Columns are `NAME:TYPE` (`ts:timestamp[us, UTC]`, `id:int64 not null`), partitions `day(ts)`, `bucket(16, id)` or
`truncate(2, code)`, TTL rules `7d on ts to volume cold`. Nothing here does I/O. Every change gives a definition with a
version one higher; changes of the columns raise `schema_version` too and never reuse a field id.
"""

from __future__ import annotations

import re
import uuid as uuids
from collections.abc import Collection, Iterable, Sequence
from math import isfinite
from typing import Any, get_type_hints

import msgspec
import pyarrow as pa

from oplog import bounds
from oplog.errors import UsageError
from tiering.config.units import parse_duration, parse_size
from tiering.table.columns.nested_changes import (
    FieldPath,
    add_member,
    drop_member,
    field_path,
    new_name,
    rename_member,
    widen_field,
)
from tiering.table.columns.nested_ids import last_id, numbered
from tiering.table.columns.type_texts import arrow_type, split_outside, type_text, with_zones
from tiering.table.columns.types import FAR, default_scalar, first_far
from tiering.table.columns.widening import check_partitions, holds_all, wider_words
from tiering.table.merge_modes import check_deletes, check_merge_mode, parse_merge_mode
from tiering.table.names import check_name, check_told_apart, name_text, split_pair, unquoted
from tiering.table.rule_texts import parse_partition_by, parse_ttl
from tiering.table.schema import (
    Column,
    TableDefinition,
    TableSettings,
    split_table_name,
)

_OTHER_NAMES = "rename one of them: --rename-column '{}:NEW', at 'table create --like' and at 'insert'"
_LONGEST_NUMBER = 100
"""Digits; Python takes no more than some thousands."""
_NULL = re.compile(r"\s+null\Z", re.IGNORECASE)


def parse_column(text: str, *, column_id: int = 0) -> Column:
    """The column of `NAME:TYPE`, optionally followed by `not null`. Raises `UsageError`."""
    name, kind = split_pair(text, ":") or (text, "")
    kind, nullable = kind.strip(), True
    if match := re.search(r"\s+not\s+null\Z", kind, re.IGNORECASE):
        kind, nullable = kind[: match.start()], False
    if not kind:
        raise UsageError(f"not a column: {text!r}", hint="write columns as NAME:TYPE, such as 'ts:timestamp[us, UTC]'")
    check_name(name)
    return Column(id=column_id, name=name, type=type_text(with_zones(arrow_type(kind))), nullable=nullable)


def parse_order_by(text: str) -> tuple[str, ...]:
    """The columns of `carrier, time_hour`. Raises `UsageError` when empty or doubled."""
    names = tuple(unquoted(name.strip()) for name in split_outside(text) if name.strip())
    if not names or len(set(names)) != len(names):
        raise UsageError(f"not a sort order: {text!r}", hint="write --order-by COLUMN[,COLUMN], each column once")
    return names


def parse_settings(pairs: Iterable[str], base: TableSettings | None = None) -> TableSettings:
    """The settings with `K=V` pairs applied. Sizes may have units. Unknown keys are errors that name the nearest."""
    base = base or TableSettings()
    known = get_type_hints(TableSettings)
    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not equals or key not in known:
            raise UsageError(
                f"not a table setting: {pair!r}", hint=f"write K=V with one of: {', '.join(sorted(known))}"
            )
        changes[key] = _setting_value(key, value.strip())
    return msgspec.structs.replace(base, **changes)


def columns_like(schema: pa.Schema, given: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns of a sample's schema, numbered from 1; those that are `given` have no type yet.

    The next file may have what this one has not: so columns may be null, timestamps are in microseconds at least, and
    what has no value here, or only empty objects, is a text. Times of day and durations in nanoseconds, as Polars and
    pandas write them whatever they hold, are taken in microseconds: an insert refuses a value that is finer. Raises
    `UsageError` naming a column that tables cannot hold.
    """
    columns = []
    for number, field in enumerate(schema, start=1):
        try:
            check_name(field.name)
            kind = "" if field.name in given else _new_type(_roomy(field.type))
            columns.append(Column(id=number, name=field.name, type=kind))
        except UsageError as error:
            raise UsageError(
                f"column {field.name}: {error.message}",
                hint=f"{error.hint}. Name the columns yourself, with --column; then insert with {_way_in(field)}",
            ) from error
    return tuple(columns)


def _new_type(kind: pa.DataType) -> str:
    return type_text(with_zones(arrow_type(type_text(kind))))


def _roomy(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _roomy(kind.value_type)
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")
    if isinstance(kind, pa.JsonType):
        return pa.string()
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([(field.name, _roomy(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_roomy(kind.key_type), _roomy(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_roomy(kind.value_type))
    return pa.string() if pa.types.is_null(kind) or pa.types.is_struct(kind) else kind


def _way_in(field: pa.Field) -> str:
    if not pa.types.is_struct(field.type):
        return f"--rename-column '{field.name}:NEW', and --ignore-unknown for what you leave out"
    return f"--select 'A, B, {field.name}.{field.type.field(0).name} as NEW'"


def define_table(
    name: str,
    *,
    order_by: str,
    policy: str,
    columns: Sequence[str] = (),
    like: pa.Schema | None = None,
    partition_by: str = "",
    ttl: Sequence[str] = (),
    merge_mode: str = "ordinary",
    settings: Sequence[str] = (),
) -> TableDefinition:
    """A new table from the texts of `table create`; `like` gives the columns, `columns` add to or replace them by name.

    Raises `UsageError` or `NotFound` for whatever does not fit together.
    """
    database, table = split_table_name(name)
    parsed = [parse_column(text) for text in columns]
    sampled = columns_like(like, {column.name for column in parsed}) if like is not None else ()
    named: dict[str, Column] = {column.name: column for column in sampled}
    for column in parsed:
        if sum(other.name == column.name for other in parsed) > 1:
            raise UsageError(f"column {column.name} is named twice", hint="name each column once")
        named[column.name] = column
    if not named:
        raise UsageError(f"table {name} has no columns", hint="use --column NAME:TYPE, or --like FILE")
    columns_of_table = tuple(
        msgspec.structs.replace(column, id=number) for number, column in enumerate(named.values(), start=1)
    )
    check_told_apart(named, "columns", _OTHER_NAMES)
    definition = numbered(
        TableDefinition(
            uuid=str(uuids.uuid4()),
            database=database,
            name=table,
            columns=columns_of_table,
            order_by=parse_order_by(order_by),
            partition_by=parse_partition_by(partition_by),
            policy=policy,
            ttl=tuple(parse_ttl(text) for text in ttl),
            merge_mode=str(parse_merge_mode(merge_mode)),
            settings=parse_settings(settings),
            last_column_id=len(columns_of_table),
        ),
        is_new=True,
    )
    check_definition(definition)
    check_deletes(definition, definition.ttl)
    return definition


def check_definition(definition: TableDefinition) -> None:
    """Whether columns, sort order, partitions, TTL and merge mode fit together. Raises `UsageError` or `NotFound`."""
    from tiering.table.transforms import check_transform

    for name in definition.order_by:
        kind = arrow_type(definition.column(name).type)
        if pa.types.is_nested(kind) or pa.types.is_duration(kind) or kind == pa.uuid():
            raise UsageError(
                f"cannot order by {name}: it is a {definition.column(name).type}",
                hint="order by a column of its own, such as a field of it, a text or a number",
            )
    for field in definition.partition_by:
        check_transform(field, definition.column(field.column))
    for rule in definition.ttl:
        kind = arrow_type(definition.column(rule.column).type)
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise UsageError(
                f"TTL column {rule.column} is {definition.column(rule.column).type}, not a date or timestamp",
                hint="choose the column that says when a row happened",
            )
    check_merge_mode(definition)


def add_column(definition: TableDefinition, text: str, *, default: str | None = None) -> TableDefinition:
    """With one more column; old parts read it as the default, or null. Raises `UsageError`."""
    definition = numbered(definition)
    if (path := field_path(definition, text)) is not None:
        return _add_member(definition, path, default)
    column = parse_column(text, column_id=last_id(definition) + 1)
    if any(known.name == column.name for known in definition.columns):
        raise UsageError(f"table {definition.full_name} has a column {column.name} already", hint="choose another name")
    _check_beside(column.name, (known.name for known in definition.columns))
    if default is not None:
        column = msgspec.structs.replace(column, default=typed_default(column, default))
    elif not column.nullable:
        raise UsageError(
            f"column {column.name} takes no nulls, so it needs a default", hint="use --default VALUE: old rows get it"
        )
    return _changed(definition, columns=(*definition.columns, column), last_column_id=column.id)


def _add_member(definition: TableDefinition, path: FieldPath, default: str | None) -> TableDefinition:
    added = parse_column(f"{name_text(path.names[-1])}:{path.rest or ''}")
    if default is not None or not added.nullable:
        raise UsageError(
            f"{path} is within another column: it has no default and takes nulls", hint="old rows get null"
        )
    number = last_id(definition)
    column = add_member(path, arrow_type(added.type), number + 1)
    return _with_column(definition, path.column, column)


def _with_column(definition: TableDefinition, old: Column, new: Column) -> TableDefinition:
    columns = tuple(new if column.id == old.id else column for column in definition.columns)
    return _changed(definition, columns=columns, last_column_id=max(last_id(definition), *new.nested_ids, new.id))


def rename_column(definition: TableDefinition, text: str) -> TableDefinition:
    """With column A called B (`A:B`), also in the sort order, partitions, TTL rules and merge mode."""
    definition = numbered(definition)
    path = field_path(definition, text)
    if path is not None and path.rest is not None:
        return _with_column(definition, path.column, rename_member(path, new_name(path, path.rest)))
    pair = split_pair(text, ":")
    if pair is None:
        raise UsageError(f"not a renaming: {text!r}", hint="write --rename-column OLD:NEW")
    old, new = pair[0], check_name(unquoted(pair[1].strip()))
    definition.column(old)
    if any(known.name == new for known in definition.columns):
        raise UsageError(f"table {definition.full_name} has a column {new} already", hint="choose another name")
    _check_beside(new, (known.name for known in definition.columns if known.name != old))

    def renamed(name: str) -> str:
        return new if name == old else name

    replace = msgspec.structs.replace
    return _changed(
        definition,
        columns=tuple(replace(column, name=renamed(column.name)) for column in definition.columns),
        order_by=tuple(renamed(name) for name in definition.order_by),
        partition_by=tuple(replace(field, column=renamed(field.column)) for field in definition.partition_by),
        ttl=tuple(replace(rule, column=renamed(rule.column)) for rule in definition.ttl),
        merge_mode=str(parse_merge_mode(definition.merge_mode).renamed(old, new)),
    )


def _check_beside(name: str, others: Iterable[str]) -> None:
    for other in others:
        check_told_apart((other, name), "columns", "choose another name")


def rename_table(definition: TableDefinition, name: str) -> TableDefinition:
    """With another name. Raises `UsageError`."""
    database, table = split_table_name(name)
    if definition.full_name == name:
        raise UsageError(f"table {name} is called so already", hint="choose another name")
    return msgspec.structs.replace(definition, database=database, name=table, version=definition.version + 1)


def drop_column(definition: TableDefinition, name: str) -> TableDefinition:
    """Without the column. Raises `UsageError` when sort order, partitions, TTL rules or the merge mode need it."""
    definition = numbered(definition)
    if (path := field_path(definition, name)) is not None and path.rest is None:
        return _with_column(definition, path.column, drop_member(path))
    dropped = definition.column(name)
    uses = {
        "the sort order": definition.order_by,
        "the partitions": tuple(field.column for field in definition.partition_by),
        "a TTL rule": tuple(rule.column for rule in definition.ttl),
        "the merge mode": parse_merge_mode(definition.merge_mode).columns,
    }
    for what, names in uses.items():
        if name in names:
            raise UsageError(f"cannot drop column {name}: {what} of {definition.full_name} needs it")
    return _changed(
        definition,
        columns=tuple(column for column in definition.columns if column is not dropped),
        last_column_id=last_id(definition),
    )


def widen_column(definition: TableDefinition, text: str) -> TableDefinition:
    """With the column of `NAME:TYPE` of a type that holds all its old values; `NAME:TYPE null` takes nulls from now on.
    Raises `UsageError`."""
    definition = numbered(definition)
    if (path := field_path(definition, text)) is not None:
        wider = parse_column(f"{name_text(path.names[-1])}:{path.rest or ''}")
        return _with_column(definition, path.column, widen_field(path, arrow_type(wider.type)))
    nullable = _NULL.search(text) is not None and not re.search(r"\snot\s+null\Z", text, re.IGNORECASE)
    wanted = parse_column(_NULL.sub("", text) if nullable else text)
    column = definition.column(wanted.name)
    old, new = arrow_type(column.type), arrow_type(wanted.type)
    if nullable and column.name in definition.order_by and not column.nullable:
        raise UsageError(f"column {column.name} is in the sort order and takes no nulls", hint="it is unchanged")
    if old == new and not nullable and not column.nullable:
        raise UsageError(
            f"column {column.name} is {column.type} already, and takes no nulls",
            hint=f"to have it take nulls, use --widen-column '{name_text(column.name)}:{column.type} null'",
        )
    if old == new and column.nullable:
        raise UsageError(
            f"column {column.name} is {column.type} already, and takes nulls",
            hint=f"types may only widen: {column.type} to {wider_words(old)}",
        )
    if not holds_all(old, new) and old != new:
        raise UsageError(
            f"cannot change column {column.name} from {column.type} to {wanted.type}",
            hint=f"types may only widen: {column.type} to {wider_words(old)}",
        )
    check_partitions(definition, column, new)
    changed = msgspec.structs.replace(column, type=wanted.type, nullable=column.nullable or nullable)
    return _changed(definition, columns=tuple(changed if known is column else known for known in definition.columns))


def number_fields(definition: TableDefinition) -> TableDefinition:
    """With ids for all nested fields; the same where they have them."""
    changed = numbered(definition)
    return definition if changed is definition else _changed(changed)


def set_ttl(definition: TableDefinition, rules: Sequence[str]) -> TableDefinition:
    """With these TTL rules in place of all old ones."""
    changed = msgspec.structs.replace(
        definition, ttl=tuple(parse_ttl(text) for text in rules), version=definition.version + 1
    )
    check_definition(changed)
    check_deletes(changed, [rule for rule in changed.ttl if rule not in definition.ttl])
    return changed


def set_policy(definition: TableDefinition, policy: str) -> TableDefinition:
    """With another storage policy; whether it holds the old disks is the caller's check."""
    return msgspec.structs.replace(definition, policy=policy, version=definition.version + 1)


def set_settings(definition: TableDefinition, pairs: Sequence[str]) -> TableDefinition:
    """With `K=V` settings applied."""
    settings = parse_settings(pairs, definition.settings)
    return msgspec.structs.replace(definition, settings=settings, version=definition.version + 1)


def _changed(definition: TableDefinition, **changes: Any) -> TableDefinition:
    changed = numbered(
        msgspec.structs.replace(
            definition, version=definition.version + 1, schema_version=definition.schema_version + 1, **changes
        ),
        is_new=True,
    )
    check_definition(changed)
    return changed


def _setting_value(key: str, value: str) -> int:
    if key.endswith("_bytes"):
        number = parse_size(value)
    elif key.endswith("_seconds") and not value.isdecimal():
        number = int(parse_duration(value).total_seconds())
    elif value.replace("_", "").isdecimal() and len(value) <= _LONGEST_NUMBER:
        number = int(value)
    else:
        raise UsageError(f"setting {key} must be a whole number, not {value!r}")
    lowest = 0 if key in ("min_part_age_to_move_seconds", "deduplication_window") else 1
    highest = 22 if key == "compression_level" else bounds.LARGEST_COUNT
    if not lowest <= number <= highest:
        raise UsageError(f"setting {key} cannot be {value}", hint=f"{lowest} to {highest:,}")
    return number


def typed_default(column: Column, text: str) -> Any:
    """The default as JSON can hold it, checked against the type."""
    kind = arrow_type(column.type)
    value: Any = text
    try:
        if pa.types.is_boolean(kind):
            value = {"true": True, "false": False}[text.lower()]
        elif pa.types.is_integer(kind):
            value = int(text)
        elif pa.types.is_floating(kind):
            value = float(text)
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"default {text!r} does not fit column {column.name} of type {column.type}",
            hint="use a value of the type",
        ) from error
    scalar = default_scalar(msgspec.structs.replace(column, default=value))
    if first_far(pa.array([scalar], kind)) is not None:
        raise UsageError(
            f"default {text!r} of column {column.name} is {FAR}",
            hint="use a time between, or omit the default to get null",
        )
    if isinstance(value, float) and not isfinite(scalar.as_py()):  # float32 may have no such number
        raise UsageError(f"default {text!r} of column {column.name} cannot be stored", hint="use a finite number")
    return value
