"""The words of `--merge-mode`, and which columns they may be said of. Pure.

`ordinary` keeps every row. The others keep one row a key, which is the whole sort order:

* `replacing`: the row inserted last; `replacing:VERSION`: the one with the highest version, of equal versions the one
  inserted last. `replacing:VERSION,DELETED`: a winning row whose DELETED is true (or not 0) stays as a tombstone, so
  that no older row comes back in a later merge; only `merge --drop-deleted` of the whole partition forgets it.
* `summing:A,B`: A and B are added up. The same as `aggregating:A=sum,B=sum`.
* `aggregating:A=min,B=anyLast`: each named column by its function. Counts are the `sum` of a column of ones, "all" and
  "any" of a bool its `min` and `max`.

Columns outside of the key that no function names keep the value inserted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from oplog.errors import UsageError
from tiering.table.columns.type_texts import arrow_type, split_outside
from tiering.table.names import name_text, split_pair, unquoted
from tiering.table.schema import Delete, TableDefinition, TtlRule

FUNCTIONS = ("min", "max", "sum", "any", "anyLast")
"""All skip nulls; a key without a value gets null. `any` is the first value, `anyLast` the last. NaN is above all
numbers, as it sorts."""

_FORMS = (
    "modes are ordinary, replacing[:VERSION[,DELETED]], summing:COLUMN,COLUMN and aggregating:COLUMN=FUNCTION,… with "
    f"the functions {', '.join(FUNCTIONS)}"
)


class MergeMode(msgspec.Struct, frozen=True):
    """A merge mode. `str()` gives its text again."""

    name: str = "ordinary"
    version: str | None = None
    deleted: str | None = None
    functions: tuple[tuple[str, str], ...] = ()
    """(column, function) for summing and aggregating."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it names."""
        return tuple(filter(None, (self.version, self.deleted))) + tuple(column for column, _ in self.functions)

    def renamed(self, old: str, new: str) -> MergeMode:
        """With column `old` called `new`."""

        def name(column: str) -> str:
            return new if column == old else column

        return replace(
            self,
            version=self.version and name(self.version),
            deleted=self.deleted and name(self.deleted),
            functions=tuple((name(column), function) for column, function in self.functions),
        )

    def __str__(self) -> str:
        if self.name == "aggregating":
            words = [f"{name_text(column)}={function}" for column, function in self.functions]
        else:
            words = list(map(name_text, self.columns))
        return f"{self.name}:{','.join(words)}" if words else self.name


def parse_merge_mode(text: str) -> MergeMode:
    """The mode of a text such as `replacing:version`. Raises `UsageError`."""
    name, _, rest = (piece.strip() for piece in text.partition(":"))
    words = [word.strip() for word in split_outside(rest)] if rest else []
    if name == "ordinary" and not words:
        return MergeMode()
    if name == "replacing" and len(words) <= 2:
        version, deleted = (*map(unquoted, words), None, None)[:2]
        mode = MergeMode(name, version, deleted)
    elif name == "summing" and words:
        mode = MergeMode(name, functions=tuple((unquoted(word), "sum") for word in words))
    elif name == "aggregating" and words:
        mode = MergeMode(name, functions=tuple(_function(word, text) for word in words))
    else:
        raise UsageError(f"not a merge mode: {text!r}", hint=_FORMS)
    if not all(mode.columns) or len(mode.columns) < len(words):
        raise UsageError(f"a column without a name in the merge mode {text!r}", hint=_FORMS)
    if twice := [column for column in mode.columns if mode.columns.count(column) > 1]:
        raise UsageError(f"the merge mode {text!r} names column {twice[0]} twice", hint="name each column once")
    return mode


def depends_on_order(definition: TableDefinition) -> bool:
    """Whether merges of the table give other rows where rows of a key come in another order."""
    mode = parse_merge_mode(definition.merge_mode)
    if mode.name == "ordinary":
        return False
    given = {
        *definition.order_by,
        *(column for column, function in mode.functions if function in ("min", "max", "sum")),
    }
    return any(column.name not in given for column in definition.columns)


def check_merge_mode(definition: TableDefinition) -> None:
    """Whether the table's merge mode fits its columns. Raises `UsageError` or, for an unknown column, `NotFound`."""
    mode = parse_merge_mode(definition.merge_mode)
    for name in mode.columns:
        kind = arrow_type(definition.column(name).type)
        if name in definition.order_by:
            raise UsageError(
                f"the merge mode cannot use {name}: it is in the sort order, so rows of one key do not differ in it",
                hint="name columns that are not in --order-by",
            )
        if name == mode.version and not (_is_number(kind) or pa.types.is_temporal(kind)):
            raise UsageError(f"the version column {name} must be a number, date or timestamp")
        if name == mode.deleted and not (pa.types.is_boolean(kind) or pa.types.is_integer(kind)):
            raise UsageError(
                f"the column that marks deleted rows, {name}, is {definition.column(name).type}, not bool or an integer"
            )
    partitions = [field.column for field in definition.partition_by]
    for name, function in mode.functions:
        _check_function(definition, name, function, partitions)


def check_deletes(definition: TableDefinition, rules: Iterable[TtlRule]) -> None:
    """Whether these rules, which are new, delete by what merges leave as it is. Raises `UsageError`: rows go before the
    function sees them, so what is left of a key would depend on which of them had met until then."""
    functions = dict(parse_merge_mode(definition.merge_mode).functions)
    for rule in rules:
        if isinstance(rule.action, Delete) and rule.column in functions:
            raise UsageError(
                f"no rule can delete by {rule.column}: merges change it ({functions[rule.column]}), and what is left "
                "of a key would depend on which of its rows had met",
                hint="delete by a column of --order-by, which all rows of a key share, or drop partitions",
            )


def _check_function(definition: TableDefinition, name: str, function: str, partitions: Sequence[str]) -> None:
    column = definition.column(name)
    kind = arrow_type(column.type)
    if function == "sum" and not _is_number(kind):
        raise UsageError(f"cannot sum {name}: it is {column.type}, and sums are of number columns")
    if function == "sum" and name in partitions:
        raise UsageError(
            f"cannot sum {name}: the sum could belong to another partition than its rows",
            hint="leave the column out of --partition-by or of the merge mode",
        )
    if function in ("min", "max") and (pa.types.is_nested(kind) or kind == pa.uuid()):
        raise UsageError(f"{function} of {name} has no meaning: a {column.type} has no order")


def _function(word: str, text: str) -> tuple[str, str]:
    column, function = split_pair(word, "=") or (word, "")
    function = function.strip()
    if function not in FUNCTIONS:
        raise UsageError(
            f"not a function of a column: {word!r} in the merge mode {text!r}",
            hint=f"write COLUMN=FUNCTION with one of {', '.join(FUNCTIONS)}; a count is the sum of a column of ones",
        )
    return column, function


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
