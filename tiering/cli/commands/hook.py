"""`hook test`: tell a hook of a test event, as the daemon would."""

from typing import Annotated

import typer

from oplog.errors import NotFound
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Test the hooks of the daemon.")
    app.add_typer(group, name="hook")
    verb(group, changes=True)(test)


def test(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="name under `hooks:`")],
) -> None:
    """Send a test event to a hook once.

    Exit 5: no answer, or an error. Exit 13: it can never work, such as a missing program.
    """
    from tiering.daemon.hooks.delivery import deliver
    from tiering.daemon.hooks.outbox import test_message

    hooks = session.loaded.config.hooks
    if name not in hooks:
        raise NotFound(f"No such hook: {name}", hint=f"the hooks are: {', '.join(sorted(hooks)) or 'none'}")
    message = test_message(hooks[name])
    if not session.dry_run:
        deliver(hooks[name], message)
    if session.options.json:
        session.output.document({"hook": name, "delivered": not session.dry_run, "dry_run": session.dry_run})
    elif session.dry_run:
        session.output.line(f"Dry run: would send {message.decode()} to hook {name}.")
    else:
        session.output.report(f"Hook {name} accepted the test event.")
