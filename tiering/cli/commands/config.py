"""`config default | show | validate | schema | macros`."""

from typing import TYPE_CHECKING, Annotated

import typer

from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import new_app, verb
from tiering.config.units import counted

if TYPE_CHECKING:
    from tiering.config.conversion import Yaml

TEMPLATE = """\
# The default configuration of Frostline: an SSD directory and a directory bucket. Save it as ./frostline.yaml or
# ~/.config/frostline/frostline.yaml. Relative paths are meant from this file's directory.
"""


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Print, show and check the configuration.")
    app.add_typer(group, name="config")
    verb(group)(default)
    verb(group)(show)
    verb(group)(validate)
    verb(group)(schema)
    verb(group)(macros)


def default(session: Session) -> None:
    """Print a default configuration file."""
    import os

    import msgspec

    from tiering.config.finding import default_home
    from tiering.config.settings import embedded

    plain: Yaml = msgspec.to_builtins(embedded(default_home(os.environ)))
    if session.options.json:
        session.output.document(plain)
    else:
        _print(session, TEMPLATE + _yaml(plain))


def show(session: Session) -> None:
    """Show the configuration in use and where each value comes from. Secrets are masked."""
    from tiering.config.reading import masked

    loaded = session.loaded
    plain = masked(loaded.config)
    if session.options.json:
        source = str(loaded.file) if loaded.file else None
        session.output.document({**plain, "source": {"file": source, "variables": list(loaded.variables)}})
        return
    session.output.line(f"# from {loaded.file or 'the embedded default'}")
    for variable in loaded.variables:
        session.output.line(f"# and the environment variable {variable}")
    _print(session, _yaml(plain))


def validate(
    session: Session,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="default: the file in use")] = None,
) -> None:
    """Check types, names, references and certificate files of a configuration. Opens no disk."""
    from tiering.config.reading import check_named_files, load_from
    from tiering.daemon.hooks.delivery import why_never

    loaded = load_from(file) if file else session.loaded
    config = loaded.config
    check_named_files(loaded)
    document = {
        "valid": True,
        "file": str(loaded.file) if loaded.file else None,
        "disks": list(config.disks),
        "policies": list(config.policies),
    }
    if session.options.json:
        session.output.document(document)
    else:
        what = f"{counted(len(config.disks), 'disk')}, {counted(len(config.policies), 'policy', 'policies')}"
        session.output.line(f"{loaded.file or 'The embedded default'} is valid: {what}.")
    for name, hook in config.hooks.items():
        if why := why_never(hook):
            session.output.note(
                f"hook {name} cannot work on this machine: {why}; 'frostline hook test {name}' tries it"
            )


def schema(session: Session) -> None:
    """Print the JSON schema of the configuration file, for editors."""
    from tiering.config.reading import json_schema

    session.output.document(json_schema())


def macros(session: Session) -> None:
    """Show the values of {shard}, {replica} and other macros on this machine."""
    from tiering.config.macros import OF_A_TABLE

    known = session.loaded.config.macros
    if session.options.json:
        session.output.document({"macros": known, "of_a_table": list(OF_A_TABLE)})
        return
    rows = [(f"{{{name}}}", value) for name, value in sorted(known.items())]
    rows += [(f"{{{name}}}", f"the {meaning}") for name, meaning in OF_A_TABLE.items()]
    session.output.table(["macro", "stands for"], rows)


def _print(session: Session, document: str) -> None:
    """Line by line: a line end inside of one would be shown as `\\n`."""
    for text in document.split("\n"):
        session.output.line(text)


def _yaml(plain: "Yaml") -> str:
    import yaml

    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip()
