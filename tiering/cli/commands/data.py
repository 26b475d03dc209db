"""`insert`, `query`, `parts`, `disks`, `policies`."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiering.cli.commands.tables import TableName
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb

if TYPE_CHECKING:
    from tiering.catalog.catalog import StoredPart
    from tiering.engine.store import Store

OptionalTable = Annotated[str | None, typer.Argument(metavar="DB.TABLE", help="only this table")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verb(app, changes=True)(insert)
    verb(app)(query)
    verb(app)(parts)
    verb(app)(disks)
    verb(app)(policies)


def insert(
    session: Session,
    table: TableName,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="files or globs; '-' reads stdin")],
    format: Annotated[  # noqa: A002  the flag is called so
        str | None, typer.Option(metavar="FORMAT", help="parquet, csv, json or arrow; default: by the name")
    ] = None,
) -> None:
    """Insert files into a table.

    An insert is idempotent: parts that an earlier insert wrote are skipped and counted as duplicates.
    """
    from tiering.config.units import format_size
    from tiering.insert.sources import open_sources

    store = session.store()
    handle = store.table(table)
    batches = open_sources(files, format, handle.definition)
    if session.dry_run:
        rows = sum(batch.num_rows for batch in batches)
        document: dict[str, Any] = {"table": table, "rows": rows, "parts": [], "duplicates": 0, "bytes": 0}
    else:
        result = handle.insert(batches)
        document = {
            "table": table,
            "rows": result.rows,
            "parts": list(result.parts),
            "duplicates": result.duplicates,
            "bytes": result.bytes,
        }
    if session.options.json:
        session.output.document({**document, "dry_run": session.dry_run})
    elif session.dry_run:
        session.output.line(f"Dry run: would insert {document['rows']:,} rows into {table}.")
    else:
        again = counted(document["duplicates"], "part")
        skipped = f"; skipped {again} that an earlier insert wrote" if document["duplicates"] else ""
        session.output.line(
            f"Inserted {counted(document['rows'], 'row')} into {table}: {counted(len(document['parts']), 'part')},"
            f" {format_size(document['bytes'])}{skipped}."
        )
        for name in document["parts"]:
            session.output.line(f"  {name}")
    if not document["rows"]:
        session.nothing_to_do("No new rows.")


def query(
    session: Session,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="a SELECT; tables are named DB.TABLE")],
    output_format: Annotated[str, typer.Option(metavar="FORMAT", help="table, csv, json or parquet")] = "table",
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="write to a file")] = None,
    revision: Annotated[int | None, typer.Option(metavar="N", help="the object disk as it was at a revision")] = None,
) -> None:
    """Run read-only SQL over all tiers.

    Exit 3: a part of the table cannot be read at all, and the answer leaves it out.
    """
    from tiering.cli.reports import query as query_output

    chosen = query_output.choose(output_format, json=session.options.json, to_file=output is not None)
    store = session.store()
    if session.options.bwlimit or session.options.tpslimit:
        session.output.note("--bwlimit and --tpslimit do not bind a query: its engine reads buckets by its own client")
    result = store.query(sql, revision=revision, skip_broken=True)  # told below, with exit code 3
    query_output.write(result, chosen, output, session.output)
    _refuse_to_be_silent(store, sql)


def parts(
    session: Session,
    table: OptionalTable = None,
    partition: Annotated[str | None, typer.Option(metavar="P", help="only this partition")] = None,
    disk: Annotated[str | None, typer.Option(metavar="D", help="only this disk")] = None,
    all: Annotated[bool, typer.Option("--all", help="outdated and duplicate ones too")] = False,  # noqa: A002
) -> None:
    """List parts: where they lie, how large they are, which times they cover."""
    store = session.store()
    if disk is not None:
        store.disk(disk)
    store.check_answer(table)
    chosen = [
        stored
        for stored in store.parts(table, include_outdated=all)
        if partition in (None, stored.name.partition) and disk in (None, stored.disk)
    ]
    documents = [part_document(stored) for stored in chosen]
    if session.options.json:
        session.output.document({"parts": documents})
        return
    _print_parts(session, documents, with_table=table is None, with_state=all)


def disks(session: Session) -> None:
    """List the disks: space, parts, revision.

    Total and free space of a local disk are those of its file system, less what it keeps free; used is what lies on the
    disk itself.
    """
    store = session.store()
    by_disk: dict[str, int] = {}
    for stored in store.parts(include_outdated=True):
        by_disk[stored.disk] = by_disk.get(stored.disk, 0) + 1
    documents = [_disk_document(session, name, by_disk.get(name, 0)) for name in store.context.disks]
    if session.options.json:
        session.output.document({"disks": documents})
        return
    size = _size_or_dash
    session.output.table(
        ["disk", "kind", "volume", "total", "free", "used", "parts", "revision", "state"],
        [
            (
                item["name"],
                item["kind"],
                item["volume"],
                size(item["total_bytes"]),
                size(item["free_bytes"]),
                size(item["used_bytes"]),
                item["parts"],
                item["revision"],
                _disk_state(item),
            )
            for item in documents
        ],
    )


def _disk_state(item: dict[str, Any]) -> str:
    if item["unreachable"]:
        return "unreachable"
    return "broken" if item["broken"] else "read-only" if item["read_only"] else "ok"


def policies(session: Session) -> None:
    """List the storage policies with their volumes."""
    config = session.loaded.config
    documents: list[dict[str, Any]] = [
        {
            "name": name,
            "move_factor": policy.move_factor if policy.move_factor is not None else 0.1 * (len(policy.volumes) > 1),
            "volumes": [
                {
                    "name": volume.name,
                    "disks": list(volume.disks),
                    "max_data_part_size_bytes": volume.max_data_part_size_bytes,
                    "max_data_part_size_ratio": volume.max_data_part_size_ratio,
                    "prefer_not_to_merge": volume.prefer_not_to_merge,
                    "perform_ttl_move_on_insert": volume.perform_ttl_move_on_insert,
                    "load_balancing": volume.load_balancing,
                }
                for volume in policy.volumes
            ],
        }
        for name, policy in config.policies.items()
    ]
    if session.options.json:
        session.output.document({"policies": documents})
        return
    rows = [
        (
            policy["name"],
            volume["name"],
            ", ".join(volume["disks"]),
            policy["move_factor"],
            _size_or_dash(volume["max_data_part_size_bytes"]),
            "no" if volume["prefer_not_to_merge"] else "yes",
        )
        for policy in documents
        for volume in policy["volumes"]
    ]
    session.output.table(["policy", "volume", "disks", "move factor", "max part", "merges"], rows)


def _refuse_to_be_silent(store: "Store", sql: str) -> None:
    """Raise `PartlyDone` when the answer may lack rows, because a part's own record cannot be read (I15)."""
    from oplog.errors import PartlyDone

    tables = {table.directory: table.name.lower() for table in store.definitions()}
    for broken in store.context.catalog.broken:
        name = next((name for place, name in tables.items() if broken.path.startswith(f"{place}/")), "")
        if name in sql.lower():
            raise PartlyDone(
                f"the answer leaves out a part that cannot be read: {broken.text}",
                hint=f"'frostline fsck {broken.disk}' names all that is damaged",
            )


def part_document(stored: "StoredPart") -> dict[str, Any]:
    """One line of `parts --json`."""
    first, last = _times(stored)
    return {
        "table": stored.definition.full_name,
        "part": stored.part.name,
        "partition": stored.name.partition,
        "disk": stored.disk,
        "volume": stored.volume,
        "rows": stored.part.rows,
        "bytes": stored.part.size_bytes,
        "level": stored.name.level,
        "state": stored.state,
        "min_time": first,
        "max_time": last,
        "revision": stored.revision,
    }


def _times(stored: "StoredPart") -> tuple[Any, Any]:
    """The range of the column that tells the part's age: of the TTL, else of the partition, else the first time."""
    definition = stored.definition
    wanted = [rule.column for rule in definition.ttl] + [field.column for field in definition.partition_by]
    timed = {item.name: item for item in definition.columns if item.type.startswith(("timestamp", "date"))}
    for name in (*wanted, *timed):
        if name in timed:
            known = stored.part.columns.get(str(timed[name].id))
            return (known.min, known.max) if known else (None, None)
    return None, None


def _print_parts(session: Session, documents: list[dict[str, Any]], *, with_table: bool, with_state: bool) -> None:
    from tiering.config.units import format_size

    columns = ["part", "disk", "volume", "rows", "size", "from", "to", "revision"]
    columns = (["table"] if with_table else []) + columns + (["state"] if with_state else [])
    shown = {
        "size": lambda item: format_size(item["bytes"]),
        "rows": lambda item: f"{item['rows']:,}",
        "from": lambda item: _minute(item["min_time"]),
        "to": lambda item: _minute(item["max_time"]),
    }
    rows = [[shown[column](item) if column in shown else item[column] for column in columns] for item in documents]
    session.output.table(columns, rows, empty="No parts.")
    if rows:
        total = sum(item["bytes"] for item in documents)
        session.output.note(
            f"{counted(len(rows), 'part')}, {sum(item['rows'] for item in documents):,} rows, {format_size(total)}"
        )


def _minute(moment: str | None) -> str:
    return str(moment or "")[:16].replace("T", " ")


def _disk_document(session: Session, name: str, parts_on_disk: int) -> dict[str, Any]:
    from oplog.errors import FrostlineError

    disk = session.store().disk(name)
    volumes = {
        volume.name
        for policy in session.loaded.config.policies.values()
        for volume in policy.volumes
        if name in volume.disks
    }
    document: dict[str, Any] = {
        "name": name,
        "kind": disk.kind,
        "volume": ", ".join(sorted(volumes)) or None,
        "total_bytes": None,
        "free_bytes": None,
        "used_bytes": None,
        "parts": parts_on_disk,
        "revision": None,
        "read_only": disk.read_only,
        "broken": disk.broken.message if disk.broken is not None else False,
        "unreachable": bool(disk.unreachable) and disk.broken is None,
    }
    if disk.broken is not None:
        return document
    try:
        usage = disk.usage()
        document.update(total_bytes=usage.total_bytes, free_bytes=usage.free_bytes, used_bytes=disk.stored_bytes())
        document["revision"] = disk.revision
    except FrostlineError as error:
        document.update(broken=True, problem=error.message)
        session.output.note(f"disk {name}: {error.message}")
    return document


def _size_or_dash(size_bytes: int | None) -> str:
    from tiering.config.units import format_size

    return "-" if size_bytes is None else format_size(size_bytes)


def read_stdin() -> str:
    """All of stdin, for verbs that take a document from a pipe."""
    return sys.stdin.read()
