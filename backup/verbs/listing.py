"""`backup list`, `show`, `diff`, `cat`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from backup.verbs.options import To, opened
from tiering.cli.frame.output import Cell, counted
from tiering.cli.frame.session import Session
from tiering.config.units import format_size

if TYPE_CHECKING:
    from backup.documents import ShownBackup
    from backup.repository import Listed, Repository


def list_backups(session: Session, to: To = None) -> None:
    """List backups, oldest first, with sizes and the results of verification and drills."""
    from backup.documents import backup_row, drilled_text, verified_text

    with opened(session, to) as repository:
        found = repository.backups()
    if session.options.json:
        session.output.document({"repository": repository.name, "backups": [backup_row(item) for item in found]})
        return
    rows: list[list[Cell]] = []
    items = [backup_row(item) for item in found]
    drilled = any(item.drilled for item in items)
    lacking = any(item.left_out for item in items)
    for item in items:
        size = "" if item.bytes is None else format_size(item.bytes)
        new = "" if item.new_bytes is None else format_size(item.new_bytes)
        rows.append([item.name, item.machine, item.taken or "", item.parts, size, new, item.cold or ""])
        rows[-1].append(item.state if item.state != "complete" else verified_text(item.verified))
        rows[-1] += [drilled_text(item.drilled)] if drilled else []
        rows[-1] += [", ".join(table.table for table in item.left_out)] if lacking else []
    columns = ["backup", "machine", "taken", "parts", "size", "new", "cold", "verified"]
    columns += ["drilled"] if drilled else []
    columns += ["lacks"] if lacking else []
    session.output.table(columns, rows, empty="no backups yet: frostline backup create")


def show(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="a backup, its id, or latest")],
    to: To = None,
) -> None:
    """Show the tables, partitions and source disks of a backup, and what it leaves out."""
    with opened(session, to) as repository:
        documents = [_shown(repository, item) for item in repository.checked(repository.find(name))]
    if session.options.json:
        session.output.document({"name": documents[0].name, "backups": documents})
        return
    for document in documents:
        _print_shown(session, document)


def _shown(repository: "Repository", entry: "Listed") -> "ShownBackup":
    from msgspec.structs import asdict

    from backup.documents import (
        BackupDisk,
        BackupPartition,
        BackupPin,
        BackupTree,
        ShownBackup,
        ShownTable,
        backup_row,
        time_text,
    )

    header = entry.header
    assert header is not None
    tables = []
    for table in header.tables:
        listed = repository.storage.table_list(table.list)
        tables.append(
            ShownTable(
                table=table.name,
                uuid=table.uuid,
                policy=listed.table.policy,
                parts=table.parts,
                rows=table.rows,
                files=table.files,
                bytes=table.size_bytes,
                partitions=[
                    BackupPartition(entry.partition, entry.parts, entry.rows, entry.size_bytes)
                    for entry in listed.partitions
                ],
            )
        )
    return ShownBackup(
        **{**asdict(backup_row(entry)), "tables": tables},
        host=header.host,
        actor=header.actor,
        completed=time_text(header.completed),
        trees=[BackupTree(tree.disk, tree.directory, tree.parts, tree.files, tree.size_bytes) for tree in header.trees],
        disks=[BackupDisk(disk.name, disk.remote, disk.parts) for disk in header.disks],
        pinned=[BackupPin(pin.disk, pin.url, pin.revision) for pin in header.pinned],
        not_held=header.not_held,
    )


def _print_shown(session: Session, document: "ShownBackup") -> None:
    from backup.documents import drilled_text, verified_text

    line = session.output.line
    line(f"backup {document.name} of {document.machine} ({document.id}), taken {document.taken}")
    line(f"  {counted(document.parts or 0, 'part')}, {format_size(document.bytes or 0)}; by {document.actor}")
    line(f"  verified: {verified_text(document.verified)}")
    line(f"  drilled: {drilled_text(document.drilled)}")
    for disk in document.disks:
        line(f"  disk {disk.name}: {counted(disk.parts, 'part')}")
    for pin in document.pinned:
        line(f"  pinned: disk {pin.disk} at revision {pin.revision}, {pin.url}")
    for lacking in document.left_out:
        line(f"  LACKS: {lacking.table}: {lacking.why}")
    for item in document.not_held:
        line(f"  NOT HELD: what {item.owner} has of {item.table} on disks of its own")
    rows: list[list[Cell]] = [
        [table.table, entry.partition, entry.parts, entry.rows, format_size(entry.bytes)]
        for table in document.tables
        for entry in table.partitions
    ]
    for tree in document.trees:
        counts = f"{counted(tree.parts, 'part')}, {counted(tree.files, 'file')}, {format_size(tree.bytes)}"
        line(f"  ClickHouse's: {tree.disk}:{tree.directory}: {counts}")
    if rows or not document.trees:
        session.output.table(["table", "partition", "parts", "rows", "size"], rows)


def diff(
    session: Session,
    first: Annotated[str, typer.Argument(metavar="A", help="a backup, its id, or latest")],
    second: Annotated[str, typer.Argument(metavar="B", help="a backup, its id, or latest")],
    to: To = None,
) -> None:
    """Compare two backups: tables and part names. Reads no data."""
    with opened(session, to) as repository:
        found = repository.diff(first, second)
    if session.options.json:
        session.output.document(found)
        return
    line = session.output.line
    for table in found.tables:
        line(f"{table.table}: {table.change}")
        for part in table.parts:
            sign = "+" if part.change == "added" else "-"
            line(f"  {sign} {part.part}: {counted(part.rows, 'row')}, {format_size(part.bytes)}")
    if not found.tables:
        line(f"backups {found.first} and {found.second} hold the same parts")


def cat(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="a backup, its id, or latest")],
    path: Annotated[str, typer.Argument(metavar="PATH", help="TABLE/PART/FILE, as 'backup verify' prints it")],
    to: To = None,
) -> None:
    """Write one file of a backup to stdout, after checking its digest."""
    with opened(session, to) as repository:
        data = repository.cat(name, path)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
