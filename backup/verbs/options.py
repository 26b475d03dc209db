"""What the verbs share: their options, the repository that they open, and how a time is written."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tiering.cli.frame.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backup.repository import Repository

To = Annotated[
    str | None,
    typer.Option("--to", metavar="REPO", help="default: $FROSTLINE_BACKUP, then backup.repository"),
]
Tables = Annotated[
    list[str] | None, typer.Option("--table", "-t", metavar="T", help="only matching tables (glob); repeatable")
]
Partitions = Annotated[
    list[str] | None, typer.Option("--partition", metavar="P", help="only this partition; repeatable")
]


@contextmanager
def opened(session: Session, to: str | None) -> "Iterator[Repository]":
    from backup.repository import Repository
    from backup.repository_location import repository_url

    config = session.loaded.config
    repository = Repository.open(
        repository_url(config, to),
        config=config,
        limiter=session.limiter(),
        progress=session.progress(),
        workers=session.options.workers,
    )
    repository.passed_over = lambda keys: _tell_passed_over(session, keys)
    with repository:
        yield repository


def _tell_passed_over(session: Session, keys: list[str]) -> None:
    """Say beside the answer that the newest backup that can be read may not be the newest."""
    if "passed_over" not in session.output.beside:
        session.output.beside["passed_over"] = keys
        session.output.note(f"damaged: {', '.join(keys)} cannot be read; 'latest' is the newest of the others")
