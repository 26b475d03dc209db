"""`disk adopt|replace|forget`: what a person who knows says of a disk that is not what it was."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplog.errors import FrostlineError, NotFound, Refused, UsageError
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session, actor
from tiering.cli.frame.verb import new_app, verb

if TYPE_CHECKING:
    from tiering.catalog.identity import Identities
    from tiering.journal.known_disks import Holdings, KnownDisk

Name = Annotated[str, typer.Argument(metavar="NAME", help="as the configuration calls it")]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = new_app("Disks that are not what they were: say which one is meant.")
    app.add_typer(group, name="disk")
    verb(group, changes=True)(adopt)
    verb(group, changes=True)(replace)
    verb(group, changes=True)(forget)


def adopt(session: Session, name: Name) -> None:
    """Take the disk that lies at the place now for the one that the name stands for.

    Nothing on the disk changes. What this machine knew of its parts is forgotten, and counted anew by the next command.

    Exit 13: nothing lies there, or it has two names.
    """
    identities, known = _configured(session, name)
    found = identities.shown(name)
    for fault in identities.faults:
        if fault.disk == name and (fault.kind == "twice" or (fault.kind == "other" and found is None)):
            raise fault.error
    if found is None and known is not None and known.id:
        raise Refused(
            f"{identities.place(name)} holds no disk that could be adopted",
            hint=f"mount it; if the place is new and empty on purpose: 'frostline disk replace {name}'",
        )
    _decide(session, "adopt", name, identities, known, found)


def replace(session: Session, name: Name) -> None:
    """Give up for good what lay on a disk whose place is new and empty now.

    Exit 13: the place is not empty.
    """
    identities, known = _configured(session, name)
    found = identities.at_place(name)
    if found is not None or not identities.is_empty(name):
        raise Refused(
            f"{identities.place(name)} is not empty: it holds {f'disk {found}' if found else 'files'}",
            hint=f"'frostline disk adopt {name}' takes it as it is",
        )
    _decide(session, "replace", name, identities, known, found)


def forget(session: Session, name: Name) -> None:
    """Give up for good what lay on a disk that is not configured any more.

    Exit 13: it is configured.
    """
    if name in session.loaded.config.disks:
        raise Refused(f"disk {name} is configured", hint=f"take it out first, or 'frostline disk replace {name}'")
    identities = session.identities([])
    known = identities.known(name)
    if known is None:
        raise NotFound(f"this machine knows no disk {name}", hint="'frostline disks' lists them")
    _decide(session, "forget", name, identities, known, None)


def _configured(session: Session, name: str) -> "tuple[Identities, KnownDisk | None]":
    config = session.loaded.config
    if name not in config.disks:
        hint = f"the disks are: {', '.join(sorted(config.disks))}; 'disk forget' is for those that are not configured"
        raise NotFound(f"No such disk: {name}", hint=hint)
    identities = session.identities(list(config.disks))
    return identities, identities.known(name)


def _decide(
    session: Session, what: str, name: str, identities: "Identities", known: "KnownDisk | None", found: str | None
) -> None:
    if known is None:
        session.nothing_to_do(f"This machine knows nothing of disk {name}: there is nothing to {what}.")
        if session.options.json:
            session.output.document({"disk": name, "changed": False, "dry_run": session.dry_run})
        return
    holdings, is_all = _held(session, identities, known)
    held = [
        {"table": holding.table, "uuid": uuid, "parts": holding.parts, "rows": holding.rows}
        for uuid, holding in holdings.items()
    ]
    document: dict[str, Any] = {
        "disk": name,
        "known": {"id": known.id or None, "place": known.place, "tables": held, "counted": is_all},
        "found": {"id": found, "place": identities.place(name)},
        "changed": not session.dry_run,
        "dry_run": session.dry_run,
    }
    if not session.options.json:
        _print(session, document)
    session.confirm(_question(what, name, sum(holding.parts for holding in holdings.values()), is_all))
    if not session.dry_run:
        identities.decide(what, name, actor())
    if session.options.json:
        session.output.document(document)
    else:
        session.output.line("Dry run: nothing was changed." if session.dry_run else "Done.")


def _held(session: Session, identities: "Identities", known: "KnownDisk") -> "tuple[Holdings, bool]":
    """What lay on the disk, and whether that is all: where somebody wrote to it since it was counted, what this machine
    keeps of a bucket is read again. Of a local disk nothing else is known."""
    from tiering.catalog.catalog import Catalog
    from tiering.catalog.reachability import holdings

    if known.counted:
        return known.holdings, True
    try:
        catalog = Catalog(session.config, identities.kept(known.name))
        with closing(catalog):
            catalog.refresh(disks=())
            found = holdings(catalog).get(known.name)
    except FrostlineError:  # nothing is kept, or the bucket is asked for some of it
        found = None
    return (known.holdings, False) if found is None else (found, not catalog.broken)


def _question(what: str, name: str, parts: int, is_all: bool) -> str:
    match what:
        case "adopt":
            return f"Take what lies there now for disk {name}?"
        case "replace" | "forget":
            more = "" if is_all else ", and what was written to it since they were counted,"
            return f"Give up {counted(parts, 'part')} of disk {name}{more} for good?"
    raise UsageError(f"no such decision: {what}")


def _print(session: Session, document: dict[str, Any]) -> None:
    line = session.output.line
    known, found = document["known"], document["found"]
    line(f"known  disk {known['id'] or 'without an id'} at {known['place']}")
    for held in known["tables"]:
        line(f"       {held['table']}: {counted(held['parts'], 'part')}, {held['rows']:,} rows when last counted")
    if not known["counted"]:
        line("       and it was written to since: parts may have come, and may have gone")
    line(f"found  {'disk ' + found['id'] if found['id'] else 'no disk'} at {found['place'] or 'no place'}")
