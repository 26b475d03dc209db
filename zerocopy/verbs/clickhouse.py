"""`clickhouse zero-copy inspect`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import UsageError
from tiering.cli.frame.location import open_read_only
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb
from tiering.config.units import format_size

if TYPE_CHECKING:
    from zerocopy.clickhouse.nodes import ServerMarks
    from zerocopy.clickhouse.sharing import Sharing, SharingServer

_SHOWN = 20
"""Findings of one kind on a terminal; --json has all of them."""


def register(app: typer.Typer) -> None:
    """Add the group to the group of ClickHouse's verbs."""
    group = new_app("Inspect objects that ClickHouse servers share (zero-copy replication).")
    app.add_typer(group, name="zero-copy")
    verb(group)(inspect)


def inspect(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix/ of the disk")],
    server: Annotated[
        list[str],
        typer.Option(metavar="REPLICA=DIR", help="a server's metadata directory; once per server"),
    ],
    keeper_path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="remote_fs_zero_copy_zookeeper_path; default: /clickhouse/zero_copy"),
    ] = None,
) -> None:
    """Compare the zero-copy marks of ClickHouse servers in Keeper with their metadata and the bucket. Read-only.

    Exit 4: something differs. Exit 10: there are no marks.
    """
    from datetime import UTC, datetime

    from restore.clickhouse.tree import key_prefix
    from zerocopy.clickhouse.sharing import compare

    given = [_named(text) for text in server]
    if len({name for name, _ in given}) < len(given):
        raise UsageError("two of the servers have the same name", hint="name each as its marks do: --server r1=DIR")
    with open_read_only(session, url) as store:
        prefix = key_prefix(store)
        servers = [_read(session, name, directory, prefix) for name, directory in given]
        marks = _marks(session, keeper_path)
        found = compare(servers, marks, store.list(), key_prefix=prefix, now=datetime.now(UTC))
    if session.options.json:
        session.output.document(found.document(url))
    else:
        _print(session, url, found)
    if found.findings:
        session.found_something()


def _named(text: str) -> tuple[str, Path]:
    name, equals, directory = text.partition("=")
    if not equals or not name or not directory:
        raise UsageError(
            f"--server {text}: say which replica it is", hint="as in its marks: --server REPLICA=DIR, such as r1=./r1"
        )
    return name, Path(directory)


def _read(session: Session, name: str, directory: Path, prefix: str) -> "SharingServer":
    from restore.clickhouse.tree import read_tree
    from zerocopy.clickhouse.sharing import SharingServer

    tree = read_tree(directory, key_prefix=prefix, progress=session.progress())
    return SharingServer(name, list(tree.rows.values()), [problem.message for problem in tree.problems])


def _marks(session: Session, keeper_path: str | None) -> "ServerMarks":
    import msgspec

    from tiering.config.macros import is_path
    from zerocopy.clickhouse import nodes
    from zerocopy.keeper.opening import open_keeper

    root = (keeper_path or nodes.DEFAULT_ROOT).rstrip("/")
    if not is_path(root):
        raise UsageError(f"not a path in Keeper: {keeper_path!r}", hint=f"write it as {nodes.DEFAULT_ROOT}")
    with open_keeper(msgspec.structs.replace(session.loaded.config.keeper, root=root)) as keeper:
        return nodes.read(keeper, root)


def _print(session: Session, url: str, sharing: "Sharing") -> None:
    line = session.output.line
    marks = counted(sharing.marks, "mark")
    line(f"{url}: {counted(sharing.objects, 'object')}, {format_size(sharing.size_bytes)}; {marks}")
    shared = f"{counted(sharing.shared, 'object')}, {format_size(sharing.shared_bytes)}"
    line(f"  shared       {shared}: more than one server has them")
    orphaned = f"{counted(sharing.orphaned, 'object')}, {format_size(sharing.orphaned_bytes)}"
    line(f"  orphaned     {orphaned}: none of these servers has them")
    line()
    session.output.table(
        ["server", "parts", "marks", "files", "unreadable"],
        [(server.server, server.parts, server.marks, server.files, server.unreadable) for server in sharing.servers],
    )
    if sharing.findings:
        line()
    by_kind: dict[str, list[str]] = {}
    for finding in sharing.findings:
        by_kind.setdefault(finding.kind, []).append(finding.what)
    for kind, sentences in by_kind.items():
        for sentence in sentences[:_SHOWN]:
            line(f"{kind}  {sentence}")
        if len(sentences) > _SHOWN:
            line(f"{kind}  … and {len(sentences) - _SHOWN:,} more: --json lists them all")
    for note in sharing.notes:
        session.output.note(f"note: {note}")
    line()
    line("No problems." if not sharing.findings else f"{counted(len(sharing.findings), 'problem')}.")
