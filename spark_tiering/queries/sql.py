"""`sql` and `views`: tables of a store by their names in Spark's SQL."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, get_args

from oplog.errors import FrostlineError, UsageError
from spark_tiering.arrow_types import spark_schema
from spark_tiering.package import shares_python
from spark_tiering.queries.frames import table_frame
from spark_tiering.queries.native import Native, reads_few_files
from spark_tiering.queries.required import Need, required_of
from spark_tiering.reading.read_options import ReadOptions, read_options
from spark_tiering.reading.scan_planning import definition_of, opened_store
from spark_tiering.references import find_references, replace_references
from tiering.table.schema import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)


def sql(
    session: SparkSession,
    query: str,
    args: dict[str, Any] | list[Any] | None = None,
    *,
    config: str | PathLike[str] | None = None,
    native: Native = "auto",
    **options: Any,
) -> DataFrame:
    """The answer of a query that names tables as `db.table`, reading only the columns and files that it needs.

    Names that Spark itself knows stay Spark's. `args` are those of `spark.sql`; `options` those of a read, without
    `columns` and `filter`. With `native="auto"` Spark's own Parquet reader reads the files of a table where its
    executors can open all of them, and the log and the plan say so. Raises `UsageError` for a statement that is no
    query, `NotFound` for a table that neither knows, `Refused` where `native="always"` cannot be, Spark's own errors
    for what is wrong with the query.
    """
    _check_classic(session)
    _check_native(native)
    references = find_references(session, query)
    names = list(dict.fromkeys(reference.name for reference in references))
    if not names:
        return session.sql(query, args)
    given = _given(config, options)
    token = secrets.token_hex(4)
    views = {name: f"frostline_{token}_{number}" for number, name in enumerate(names)}
    text = replace_references(session, query, references, views)
    with opened_store(_asked(session, names[0], given)) as store, ExitStack() as registered:
        asked = {name: _asked(session, name, given) for name in names}
        tables = {name: _table(session, definition_of(store, asked[name]), asked[name]) for name in names}
        few = all(reads_few_files(session, store, tables[name][0], asked[name], native) for name in names)
        needs = (
            {views[name]: _everything(tables[name][0]) for name in names}
            if few
            else required_of(session, text, args, {views[name]: tables[name] for name in names})
        )
        for name in names:
            need = needs[views[name]]
            frame = table_frame(session, store, tables[name][0], asked[name], given, need, native)
            registered.enter_context(_view(session, views[name], frame))
        return session.sql(text, args)


def views(
    session: SparkSession,
    tables: Sequence[str] | None = None,
    *,
    config: str | PathLike[str] | None = None,
    native: Native = "auto",
    **options: Any,
) -> list[str]:
    """Give the session a temporary view of each table, called `db.table` (in backquotes); the names of the views.

    A view has all columns and shows its table as it is now, or, where it goes through the data source, was at the first
    query of it; call again for what came later.
    Tables that Spark cannot read are left out, and the log says why, unless they are asked for.
    """
    _check_classic(session)
    _check_native(native)
    given = _given(config, options)
    made = []
    with opened_store(_asked(session, "all.tables", given)) as store:
        for name in tables or sorted(definition.full_name for definition in store.definitions()):
            asked = _asked(session, name, given)
            try:
                definition, _ = _table(session, definition_of(store, asked), asked)
                frame = table_frame(session, store, definition, asked, given, _everything(definition), native)
            except FrostlineError as error:
                if tables is not None:
                    raise
                logger.warning("no view of %s: %s", name, error)
                continue
            frame.createOrReplaceTempView(f"`{definition.full_name}`")
            made.append(definition.full_name)
    return made


def _check_classic(session: SparkSession) -> None:
    if getattr(session, "_jsparkSession", None) is None:
        raise UsageError(
            "Spark Connect shows no plan of a query",
            hint="spark.read.format('frostline') with the options columns and filter works there",
        )


def _check_native(native: str) -> None:
    if native not in get_args(Native):
        raise UsageError(f"option native: expected auto, always or never, got {native!r}")


def _given(config: str | PathLike[str] | None, options: Mapping[str, Any]) -> dict[str, str]:
    for name in ("columns", "filter", "path"):
        if name in options:
            raise UsageError(f"option {name}: a query says it by itself")
    given = {name: _as_spark_writes(value) for name, value in options.items() if value is not None}
    return {**given, **({"config": fspath(config)} if config is not None else {})}


def _as_spark_writes(value: Any) -> str:
    """As `option` of a read takes it: revision=3 is "3"."""
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _asked(session: SparkSession, table: str, given: Mapping[str, str]) -> ReadOptions:
    context = session.sparkContext
    here = shares_python(str(context.master))
    return read_options({**given, "path": table}, on_this_machine=here, cores=context.defaultParallelism)


def _table(
    session: SparkSession, definition: TableDefinition, asked: ReadOptions
) -> tuple[TableDefinition, StructType]:
    lowered = [column.name.lower() for column in definition.columns]
    twice = sorted({name for name in lowered if lowered.count(name) > 1})
    if twice and session.conf.get("spark.sql.caseSensitive") != "true":
        raise UsageError(
            f"columns of {definition.full_name} differ in the case of their letters only: {', '.join(twice)}",
            hint="spark.conf.set('spark.sql.caseSensitive', 'true')",
        )
    return definition, spark_schema(definition.columns, truncate_nanoseconds=asked.truncate_nanoseconds)


def _everything(definition: TableDefinition) -> Need:
    return Need(tuple(column.name for column in definition.columns))


@contextmanager
def _view(session: SparkSession, name: str, frame: DataFrame) -> Iterator[None]:
    """The frame by this name until the block ends: a plan that was made with it keeps the frame itself."""
    frame.createOrReplaceTempView(name)
    try:
        yield
    finally:
        session.catalog.dropTempView(name)
