"""`doctor`: what could go wrong with this configuration, before it does."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from oplog.errors import FrostlineError, NotFound
from tiering.catalog.freshness import Freshness
from tiering.cli.frame.output import counted
from tiering.cli.frame.session import Session
from tiering.cli.frame.verb import verb

if TYPE_CHECKING:
    from tiering.config.settings import Config
    from tiering.doctor.diagnosis import Finding

_SIGNS = {"ok": "ok", "note": "note", "unknown": "not known", "warning": "WARNING", "problem": "PROBLEM"}


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb(app)(doctor)


def doctor(
    session: Session,
    disk: Annotated[
        list[str] | None, typer.Argument(metavar="DISK", help="default: all disks and this machine")
    ] = None,
    details: Annotated[bool, typer.Option("--all", help="show passed checks too")] = False,
) -> None:
    """Check disks, stores, buckets, clocks and this machine.

    Writes and deletes only test objects (`doctor/…`). Exit 4: problems found.
    """

    from tiering.doctor import doctor as examination
    from tiering.doctor.diagnosis import LEVELS, is_clean

    config = session.loaded.config
    only = [_known(config.disks, name) for name in disk or ()]
    findings = examination.run(config, only, limiter=session.limiter(), progress=session.progress())
    if not only:
        findings += _of_hooks(config)
    if not only and is_clean(findings):  # opening a store may mend what is to be looked at
        findings += _of_tables(session)
    counts = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    if session.options.json:
        session.output.document({"findings": findings, "counts": counts, "ok": is_clean(findings)})
    else:
        subject = ""
        for finding in findings:
            if finding.level == "ok" and not (details or session.options.verbose):
                continue
            if finding.subject != subject:
                subject = finding.subject
                session.output.line(subject)
            session.output.line(f"  {_SIGNS[finding.level]:<9}  {finding.check}: {finding.what}")
            if finding.hint:
                session.output.line(f"             {finding.hint}")
        found = ", ".join(counted(counts[level], level) for level in ("problem", "warning", "note"))
        looked = f"Checked {counted(len(findings), 'thing')}: {counts['ok']} in order"
        session.output.line(f"{looked}, {found}, {counts['unknown']} unknown.")
    if not is_clean(findings):
        session.found_something()


def _of_hooks(config: "Config") -> list["Finding"]:
    """The hooks that can never work on this machine."""
    from tiering.daemon.hooks.delivery import why_never
    from tiering.doctor.diagnosis import Finding

    return [
        Finding(
            subject=f"hook {name}",
            check="hook",
            level="problem",
            what=f"it cannot work: {why}",
            hint=f"correct hooks.{name} in the configuration; 'frostline hook test {name}' tries it",
        )
        for name, hook in config.hooks.items()
        if (why := why_never(hook))
    ]


def _of_tables(session: Session) -> list["Finding"]:
    """Tables that cannot be read, and what grows unnoticed; nothing of a store that cannot be opened."""
    from tiering.doctor.diagnosis import Finding
    from tiering.doctor.doctor import of_fault
    from tiering.facts.growth import of_store

    try:
        store = session.store(Freshness.CHANGES)
        unreadable = [
            Finding(subject=f"table {one.called}", check="definition", level="problem", what=one.text, hint=one.hint)
            for one in store.unreadable()
        ]
        identities = store.context.identities
        faults = [of_fault(fault) for fault in (identities.faults if identities is not None else ())]
        return faults + unreadable + of_store(store)
    except (FrostlineError, OSError):
        return []


def _known(disks: Collection[str], name: str) -> str:
    if name not in disks:
        raise NotFound(f"No such disk: {name}", hint=f"the disks are: {', '.join(sorted(disks))}")
    return name
