"""`keeper ls | get | check | run`."""

from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import UsageError
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb

if TYPE_CHECKING:
    from zerocopy.keeper.client import Keeper

NodePath = Annotated[str, typer.Argument(metavar="PATH", help="path below the configured root, such as /tables")]
CLOCK_SECONDS = 300.0
"""More than this between two clocks is too much (docs/machines.md)."""


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Inspect or run the ZooKeeper of replicated tables.")
    app.add_typer(group, name="keeper")
    verb(group, "ls")(list_nodes)
    verb(group)(get)
    verb(group)(check)
    verb(group)(run)


def list_nodes(session: Session, path: NodePath = "/") -> None:
    """List the child nodes of a path."""
    from zerocopy.keeper.client import KeeperNode

    path = _checked(path)
    with _keeper(session) as keeper:
        children = keeper.children(path)
        found = [(name, keeper.find(f"{path.rstrip('/')}/{name}")) for name in children]
    nodes = [
        KeeperNode(name, len(node.data), node.version, node.children, bool(node.owner))
        for name, node in found
        if node is not None
    ]
    if session.options.json:
        session.output.document({"path": path, "nodes": nodes})
        return
    session.output.table(
        ["node", "bytes", "version", "children", ""],
        [(node.name, node.bytes, node.version, node.children, "ephemeral" if node.ephemeral else "") for node in nodes],
        empty=f"Nothing is below {path}.",
    )


def get(session: Session, path: NodePath) -> None:
    """Show the content of a node."""
    path = _checked(path)
    with _keeper(session) as keeper:
        node = keeper.get(path)
    text = node.data.decode(errors="backslashreplace")
    if session.options.json:
        session.output.document(
            {"path": path, "data": text, "version": node.version, "children": node.children, "owner": node.owner}
        )
    else:
        for line in text.split("\n"):
            session.output.line(line)


def check(session: Session) -> None:
    """Check every Keeper server and measure latency. Writes and removes one node."""
    import msgspec

    from zerocopy.keeper import health
    from zerocopy.keeper.exposure import exposures

    settings = session.loaded.config.keeper
    with _keeper(session) as keeper:
        found = health.check(keeper, settings)
        is_open = None if found.clock_ahead_seconds is None else keeper.is_open("/")
    seen = list(exposures(settings, session.loaded.config.interserver, is_open=is_open))
    problems = [f"{server.host} does not answer" for server in found.servers if not server.answers]
    if found.clock_ahead_seconds is None:
        problems.append("Keeper cannot be reached: inserts into replicated tables are refused, queries work")
    elif abs(found.clock_ahead_seconds) > CLOCK_SECONDS:
        problems.append(f"the server's clock is {found.clock_ahead_seconds:+,.0f} s from this machine's")
    if session.options.json:
        warnings = [f"{one.message}: {one.hint}" for one in seen]
        session.output.document({**msgspec.to_builtins(found), "problems": problems, "warnings": warnings})
    else:
        session.output.table(
            ["server", "answers", "mode", "version", "nodes"],
            [
                (server.host, "yes" if server.answers else "no", server.mode, server.version, server.nodes)
                for server in found.servers
            ],
        )
        line = session.output.line
        if found.clock_ahead_seconds is not None:
            line(f"read    {found.read_milliseconds:.1f} ms")
            line(f"write   {found.write_milliseconds:.1f} ms")
            line(f"clock   {found.clock_ahead_seconds:+.1f} s ahead of this machine's")
            line(
                f"below {settings.root}: {found.nodes:,} nodes with {found.data_bytes:,} bytes; the largest is "
                f"{found.largest or '-'} with {found.largest_bytes:,}"
            )
        for problem in problems:
            line(f"problem: {problem}")
        for one in seen:
            line(f"{'note' if one.local else 'warning'}: {one.message}: {one.hint}")
    if problems:
        session.found_something()


def run(
    session: Session,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="data directory")],
    port: Annotated[int, typer.Option(help="port on 127.0.0.1", min=1, max=65535)] = 2181,
    jars: Annotated[str | None, typer.Option(metavar="DIR", help="ZooKeeper jars; default: from pyspark")] = None,
) -> None:
    """Run the packaged ZooKeeper as a single server. For several machines use an ensemble of three."""
    import os
    from pathlib import Path

    from zerocopy.keeper.packaged import check_port, command

    check_port(port)
    words = command(Path(directory).absolute(), port, jars=Path(jars) if jars else None)
    session.output.note(
        f"keeper: one ZooKeeper on 127.0.0.1:{port}, no ensemble: what it knows is lost with its disk; Ctrl-C ends it"
    )
    os.execv(words[0], words)


def _checked(path: str) -> str:
    from tiering.config.macros import is_path

    path = path.rstrip("/") or "/"
    if path != "/" and not is_path(path):
        raise UsageError(f"not a path: {path!r}", hint="write it as /tables/d.t")
    return path


def _keeper(session: Session) -> "Keeper":
    from zerocopy.keeper.opening import open_keeper

    return open_keeper(session.loaded.config.keeper)
