"""`partition list | drop | detach | attach`."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import UsageError
from tiering.cli.commands.tables import TableName
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb
from tiering.config.units import format_size

if TYPE_CHECKING:
    from restore.history.partitions import DetachedPart, PartitionCommits
    from restore.verbs.documents import PartitionRow
    from tiering.cli.frame.output import Cell
    from tiering.insert.insert import InsertResult
    from tiering.table.part import Part

Attached = Annotated[list[str], typer.Argument(metavar="PARTITION | FILE…", help="a detached partition, or data files")]
Partition = Annotated[str, typer.Argument(metavar="PARTITION", help="as shown by 'partition list', such as 202601")]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("List, drop, detach and attach partitions of tables.")
    app.add_typer(group, name="partition")
    verb(group, "list")(list_partitions)
    verb(group, changes=True)(drop)
    verb(group, changes=True)(detach)
    verb(group, changes=True)(attach)


def list_partitions(session: Session, table: TableName) -> None:
    """List the partitions of a table with their size on each disk, detached ones too."""
    from restore.history.partitions import detached_parts
    from restore.verbs.documents import PartitionRow, PartitionsDocument
    from tiering.catalog.rows import part_row

    store = session.store()
    definition = store.definition(table)
    store.check_answer(table)
    session.tell_set_aside(store.set_aside(table))
    partitions: dict[str, PartitionRow] = {}
    for row in map(part_row, store.parts(table)):
        entry = partitions.setdefault(row.partition, PartitionRow(row.partition))
        entry.add(row.disk, row.rows, row.bytes)
        entry.widen(row.min_time, row.max_time)
    detached: dict[str, PartitionRow] = {}
    for one in detached_parts(store.context, definition):
        entry = detached.setdefault(one.partition, PartitionRow(one.partition))
        entry.add(one.disk, one.part.rows, one.part.size_bytes)
    both = [[found[name] for name in sorted(found)] for found in (partitions, detached)]
    if session.options.json:
        session.output.document(PartitionsDocument(definition.full_name, *both))
        return
    rows = [_cells(entry, state) for entries, state in zip(both, ("", "detached"), strict=True) for entry in entries]
    session.output.table(
        ["partition", "parts", "rows", "size", "disks", "from", "to", "state"], rows, empty="No partitions."
    )


def drop(session: Session, table: TableName, partition: Partition) -> None:
    """Drop a partition on every disk and replica.

    'frostline undo' brings back parts in a bucket; parts on local disks are gone. 'partition detach' keeps both.
    """
    from disks.contracts.bucket_disk import LoggedDisk
    from disks.kinds import as_disk
    from restore.history.partitions import drop as drop_partition
    from restore.history.partitions import parts_of

    store = session.store()
    definition = store.definition(table)
    parts = parts_of(store.context, definition, partition)
    lasting = [
        stored
        for stored in parts
        if as_disk(store.disk(stored.disk), LoggedDisk) is not None and not definition.is_replicated
    ]
    local = sorted({stored.disk for stored in parts} - {stored.disk for stored in lasting})
    rows = sum(stored.facts.rows for stored in parts if stored.state == "active")
    lost = f" What is on {', '.join(local)} cannot be restored." if local else ""
    session.confirm(f"Drop partition {partition} of {table} ({counted(rows, 'row')})?{lost}")
    done = None if session.dry_run else drop_partition(store.context, definition, partition)
    _report(session, definition.full_name, partition, [(stored.disk, stored.part) for stored in parts], done, "drop")


def detach(session: Session, table: TableName, partition: Partition) -> None:
    """Move a partition to 'detached/' of its table. 'partition attach' brings it back."""
    from restore.history.partitions import detach as detach_partition
    from restore.history.partitions import parts_of

    store = session.store()
    definition = store.definition(table)
    parts = parts_of(store.context, definition, partition)
    done = None if session.dry_run else detach_partition(store.context, definition, partition)
    _report(session, definition.full_name, partition, [(stored.disk, stored.part) for stored in parts], done, "detach")


def attach(session: Session, table: TableName, names: Attached) -> None:
    """Attach a detached partition, or data files of parts from elsewhere.

    Refused (exit 13) if rows are in the table already, or a file does not fit it. Files are copied and stay.
    """
    from restore.history.partitions import attach as attach_partition
    from restore.history.partitions import attachable, check_none_left_out, sound

    store = session.store()
    if _are_files(names):
        _report_files(session, store.table(table).attach_files(map(Path, names), dry_run=session.dry_run))
        return
    if len(names) > 1:
        raise UsageError("one partition at a time, or files", hint=f"'frostline partition attach {table} {names[0]}'")
    (partition,) = names
    definition = store.definition(table)
    coming: list[DetachedPart] = []
    done = None
    if session.dry_run:
        coming = sound(store.context, definition, partition, attachable(store.context, definition, partition))
    else:
        done = attach_partition(store.context, definition, partition)
    parts = [(part.disk, part.part) for part in coming]
    _report(session, definition.full_name, partition, parts, done, "attach")
    if session.dry_run and definition.is_replicated:
        check_none_left_out(store.context, definition, partition)


def _are_files(names: list[str]) -> bool:
    """The names of partitions have no slash, and no file in the working directory is taken for one."""
    return any("/" in name or name.endswith(".parquet") or Path(name).is_file() for name in names)


def _report_files(session: Session, result: "InsertResult") -> None:
    if session.options.json:
        from tiering.facts.inserts import InsertDocument

        session.output.document(InsertDocument.of(result, dry_run=session.dry_run))
        return
    size = f"{counted(result.rows, 'row')}, {format_size(result.bytes)}"
    if session.dry_run:
        session.output.line(f"Dry run: would attach {size} to {result.table}, but for what is there already.")
        return
    there = f"; {counted(result.duplicates, 'file')} were there already" if result.duplicates else ""
    session.output.line(f"Attached {counted(len(result.parts), 'part')} to {result.table}: {size}{there}.")


def _cells(row: "PartitionRow", state: str) -> "tuple[Cell, ...]":
    times = [str(time or "")[:16].replace("T", " ") for time in (row.min_time, row.max_time)]
    disks = ", ".join(row.bytes_by_disk)
    return (row.partition, row.parts, f"{row.rows:,}", format_size(row.bytes), disks, *times, state)


def _report(
    session: Session,
    table: str,
    partition: str,
    parts: "Iterable[tuple[str, Part]]",
    done: "PartitionCommits | None",
    action: str,
) -> None:
    """What was done, or with a dry run would be. A part that lies on two disks counts once."""
    listed = list(done.parts if done is not None else parts)
    once = {part.name: part for _, part in listed}
    rows, size_bytes = sum(part.rows for part in once.values()), sum(part.size_bytes for part in once.values())
    revisions = dict(done.revisions) if done is not None else {}
    if session.options.json:
        session.output.document(
            {
                "table": table,
                "partition": partition,
                "parts": [
                    {"part": part.name, "disk": disk, "rows": part.rows, "bytes": part.size_bytes}
                    for disk, part in listed
                ],
                "rows": rows,
                "bytes": size_bytes,
                "revisions": revisions,
                "dry_run": session.dry_run,
            }
        )
        return
    past = {"drop": "Dropped", "detach": "Detached", "attach": "Attached"}[action]
    begin = f"Dry run: would {action}" if session.dry_run else past
    size = f"{counted(len(once), 'part')}, {counted(rows, 'row')}, {format_size(size_bytes)}"
    session.output.line(f"{begin} partition {partition} of {table}: {size}.")
    for disk, revision in revisions.items():
        session.output.line(f"  'frostline undo {disk} {revision}' takes back what was done on disk {disk}")
