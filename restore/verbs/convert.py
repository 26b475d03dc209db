"""`clickhouse convert`: the rows of a ClickHouse table, taken over into one of ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import UsageError
from tiering.cli.frame.location import open_read_only
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb

if TYPE_CHECKING:
    from tiering.table.schema import TableDefinition


def register(group: typer.Typer) -> None:
    """Add the verb to the group of ClickHouse's."""
    verb(group, changes=True)(convert)


def convert(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix/ of the disk; only read")],
    table: Annotated[str, typer.Argument(metavar="DB.TABLE", help="an empty or new table")],
    uuid: Annotated[str | None, typer.Option(metavar="UUID", help="UUID of the source table")] = None,
    order_by: Annotated[str, typer.Option(metavar="C[,C]", help="sort order of a new table")] = "",
    partition_by: Annotated[
        str, typer.Option(metavar="EXPR", help="partitions of a new table, such as 'month(ts)'")
    ] = "",
    policy: Annotated[str, typer.Option(metavar="P", help="policy of a new table; default: the only one")] = "",
    default: Annotated[
        list[str] | None, typer.Option(metavar="C=VALUE", help="value for parts without column C; repeatable")
    ] = None,
    metadata: Annotated[
        Path | None, typer.Option(metavar="DIR", help="the server's metadata directory, if available")
    ] = None,
) -> None:
    """Convert a ClickHouse table, with all its active rows, into a Frostline table.

    Needs 'pip install frostline[clickhouse]'. Exit 2: chdb is missing, or a column type is not supported. Exit 4: parts
    without a name were left out. Exit 13: an active part is incomplete, or the target has rows.
    """
    from disks.workers.parallel import WORKERS, Askers
    from restore.clickhouse.convert.convert import check_target, plan_columns
    from restore.clickhouse.convert.convert import convert as convert_rows
    from restore.clickhouse.convert.process import find_python
    from restore.clickhouse.convert.source import read_source_table

    python = find_python()
    defaults = _defaults(default or [])
    with open_read_only(session, url) as bucket:
        askers = Askers(session.options.workers or WORKERS, session.progress())
        source = read_source_table(bucket, uuid, metadata=metadata, askers=askers)
        plan = plan_columns(source, defaults)
        session.begin()
        store = session.store()
        made: TableDefinition | None = None
        definition = next((one for one in store.definitions() if one.full_name == table), None)
        if definition is None:
            definition = _new_table(session, table, plan.schema(), order_by, partition_by, policy)
            if not session.dry_run:
                definition = made = store.create_table(definition)
        else:
            check_target(definition, plan, sum(stored.facts.rows for stored in store.parts(table)))
        document: dict[str, Any] = {
            "url": bucket.name,
            "source_table": source.uuid,
            "source_parts": len(source.parts),
            "source_rows": source.rows,
            "table": table,
            "columns": {column.name: column.type for column in definition.columns},
            "rows": 0,
            "deleted_rows": 0,
            "parts": [],
            "lost_parts": [problem.path for problem in source.problems],
            "dry_run": session.dry_run,
        }
        if not session.dry_run:
            try:
                done = convert_rows(bucket, source, plan, store.table(table), python, progress=askers.progress)
            except BaseException:
                if made is not None and not store.parts(table):  # it was made for these rows alone
                    store.drop_table(table)
                raise
            document |= {"rows": done.rows, "deleted_rows": done.deleted_rows, "parts": done.parts}
    _print(session, document)
    if source.problems:
        session.found_something()


def _defaults(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise UsageError(f"not a default: {text!r}", hint="write --default COLUMN=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _new_table(
    session: Session, table: str, schema: Any, order_by: str, partition_by: str, policy: str
) -> "TableDefinition":
    from tiering.table.definitions import define_table
    from tiering.table.names import check_told_apart

    if not order_by:
        raise UsageError(
            f"table {table} is new: which order do its rows have?",
            hint=f"use --order-by with some of: {', '.join(schema.names)}",
        )
    policies = session.loaded.config.policies
    if not policy and len(policies) != 1:
        raise UsageError("which storage policy?", hint=f"use --policy with one of: {', '.join(policies)}")
    check_told_apart(schema.names, "columns", "rename one of them on a server: ALTER TABLE … RENAME COLUMN '{}' TO …")
    # Parts may hold the same rows, and an insert takes equal blocks once: here each row counts.
    return define_table(
        table,
        order_by=order_by,
        policy=policy or next(iter(policies)),
        like=schema,
        partition_by=partition_by,
        settings=["deduplication_window=0"],
    )


def _print(session: Session, document: dict[str, Any]) -> None:
    if session.options.json:
        session.output.document(document)
        return
    line = session.output.line
    for path in document["lost_parts"]:
        line(f"LOST NAME  {path} is a complete part whose rows were left out: other parts may have them")
    parts, rows = counted(document["source_parts"], "part"), counted(document["source_rows"], "row")
    line(f"{document['url']} table {document['source_table']}: {parts}, {rows}")
    for name, kind in document["columns"].items():
        line(f"  {name}  {kind}")
    if document["dry_run"]:
        line("Dry run: nothing was changed.")
        return
    deleted = document["deleted_rows"]
    without = f", without {counted(deleted, 'row')} that a DELETE had marked," if deleted else ""
    into = f"{document['table']}: {counted(len(document['parts']), 'part')}"
    line(f"Converted {counted(document['rows'], 'row')}{without} into {into}. Each part gave as many as its count.txt.")
