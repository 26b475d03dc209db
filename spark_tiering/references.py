"""Which tables the text of a query names, and where in it: what Spark's own parser and analyzer leave unresolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from oplog.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_NO_QUERIES = (f"{_PLANS}Command", f"{_PLANS}ParsedStatement")
_QUERY_HINT = "spark.sql runs statements; df.write.format('frostline') writes"

_ALTERS_COLUMNS = ("AddColumns", "AlterColumns", "DropColumns", "RenameColumn", "ReplaceColumns")
_ALTER_HINT = "'frostline table alter DB.TABLE' changes the columns of a table"


class TableReference(msgspec.Struct, frozen=True):
    """A name that Spark does not know, at these characters of the text."""

    start: int
    stop: int
    name: str
    """`db.table`."""

    @property
    def table(self) -> str:
        """The name without the database."""
        return self.name.rpartition(".")[2]


def find_references(session: SparkSession, text: str) -> list[TableReference]:
    """The names of two parts that the session cannot resolve, in the order of the text.

    Raises `UsageError` for a statement that is no query; Spark's own error for what is no SQL.
    """
    state = session._jsparkSession.sessionState()
    parsed = state.sqlParser().parsePlan(text)
    _check_is_query(session, parsed)
    analyzed = state.analyzer().execute(parsed)
    found = {}
    for leaf in _leaves(analyzed):
        if leaf.getClass().getSimpleName() == "UnresolvedRelation":
            names = [str(name) for name in elements(leaf.multipartIdentifier())]
            start, stop = leaf.origin().startIndex(), leaf.origin().stopIndex()
            if len(names) == 2 and start.isDefined() and stop.isDefined():
                place = int(start.get()), int(stop.get()) + 1
                found[place] = TableReference(*place, ".".join(names))
    return [found[place] for place in sorted(found)]


def replace_references(
    session: SparkSession, text: str, references: Sequence[TableReference], views: Mapping[str, str]
) -> str:
    """The text with the name of a view in each place; columns can be qualified by the table's name as before."""
    for reference in sorted(references, key=lambda reference: reference.start, reverse=True):
        before, after = text[: reference.start], text[reference.stop :]
        view = quoted(views[reference.name])
        named = f"{before}{view} AS {quoted(reference.table)}{after}"
        # Where an alias follows, a second one is no SQL.
        text = named if _is_sql(session, named) else f"{before}{view}{after}"
    return text


def quoted(name: str) -> str:
    """An identifier as Spark's SQL takes any name."""
    return "`" + name.replace("`", "``") + "`"


def elements(sequence: Any) -> Iterator[Any]:
    """What a Scala sequence holds."""
    for number in range(sequence.size()):
        yield sequence.apply(number)


def _is_sql(session: SparkSession, text: str) -> bool:
    from pyspark.errors import ParseException

    try:
        session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except ParseException:
        return False
    return True


def _leaves(plan: Any) -> Iterator[Any]:
    yield from elements(plan.collectLeaves())
    for inner in elements(plan.subqueriesAll()):
        yield from elements(inner.collectLeaves())


def _check_is_query(session: SparkSession, parsed: Any) -> None:
    """A statement would be carried out while it is planned."""
    while parsed.getClass().getSimpleName() == "UnresolvedWith":
        parsed = parsed.child()
    name = str(parsed.getClass().getSimpleName())
    from py4j.java_gateway import is_instance_of

    gateway = session.sparkContext._gateway
    if name in ("CompoundBody", "UnresolvedExecuteImmediate") or any(
        is_instance_of(gateway, parsed, kind) for kind in _NO_QUERIES
    ):
        hint = _ALTER_HINT if name in _ALTERS_COLUMNS else _QUERY_HINT
        raise UsageError(f"this is no query but a statement ({name})", hint=hint)
