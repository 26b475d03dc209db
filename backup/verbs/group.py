"""`backup`: the group of verbs."""

import typer

from backup.verbs.listing import cat, diff, list_backups, show
from backup.verbs.making import create, delete, init
from backup.verbs.pruning import gc, prune
from backup.verbs.restoring import restore
from backup.verbs.verifying import drill, verify
from tiering.cli.frame.verb import new_app, verb


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    group = new_app("Create, verify and restore backups.")
    verb(group, changes=True)(init)
    verb(group, changes=True)(create)
    verb(group, "list")(list_backups)
    verb(group)(show)
    verb(group)(verify)
    verb(group)(diff)
    verb(group)(cat)
    verb(group, changes=True)(restore)
    verb(group, changes=True)(delete)
    verb(group, changes=True)(prune)
    verb(group, changes=True)(drill)
    verb(group, changes=True)(gc)
    app.add_typer(group, name="backup")
